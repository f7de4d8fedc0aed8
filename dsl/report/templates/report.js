// The page: from the content of page_content.py to sections. A section is built again only when
// what it shows has changed, so that a live page does not take a slider out of a hand.

const holder = document.getElementById("content");
const state = { run: null, className: null, scoreAt: null, built: new Map(),
  view: { at: null, order: "worst", hidden: new Set(), playing: null, change: null } };
let content = JSON.parse(holder.textContent);

const color = (run) => "c" + (run.arm % 6);
const marksOf = (run) => (known(run.taught_from)
  ? [{ x: run.taught_from, label: "teaching" }] : []);
const zip = (steps, values) => steps.map((step, k) => [step, values[k]]);
const chosen = () => content.runs[Math.min(state.run ?? firstTaught(), content.runs.length - 1)];

function firstTaught() {
  const place = content.runs.findIndex((run) => run.teaching || run.gallery.steps.length);
  return Math.max(0, place);
}

function section(id, title, about, parts) {
  return h("section", { id, "aria-label": title },
    h("div", { class: "sectionhead" }, h("h2", {}, title), about ? h("p", {}, about) : null),
    parts);
}

function hero() {
  const { headline, runs } = content;
  const parts = [h("h1", {}, headline.verdict),
    ...headline.remarks.map((remark) => h("p", { class: "remark" }, remark))];
  if (headline.gap) parts.push(gapBar(headline.gap));
  if (runs.length === 1) parts.push(tiles(runs[0]));
  if (runs.length > 1) parts.push(armTable(headline.arms));
  return h("section", { id: "headline" }, parts);
}

function tile(value, name, about) {
  return h("div", { class: "tile" }, h("b", {}, value), h("span", {}, name),
    about ? h("small", {}, about) : null);
}

function tiles(run) {
  const final = run.final, images = final.images;
  return h("div", { class: "tiles" },
    tile(ap(final.ap), run.method === "supervised" ? "AP" : "AP of the teacher",
      "IoU .50 to .95, averaged weights"),
    tile(ap(final.ap50), "AP50", "student alone: AP " + ap(final.student)),
    known(final.precision) ? tile(share(final.precision), "of pseudo-labels are right",
      share(final.recall) + " of the objects found") : null,
    images ? tile(whole(images.labeled), "labeled images",
      images.unlabeled && run.method !== "supervised" ? whole(images.unlabeled) + " unlabeled"
        : null) : null,
    tile(whole(run.step), run.finished ? "steps" : "steps so far", duration(run.seconds)));
}

function gapBar(gap) {
  const closed = gap.closure, at = Math.max(0, Math.min(1, closed ?? 0));
  const fillBar = h("span", { class: "gapfill" });
  const middle = h("span", { class: "middle" }, h("b", {}, ap(gap.taught)), "with unlabeled images");
  fillBar.style.width = 100 * at + "%";
  middle.style.left = Math.max(24, Math.min(76, 100 * at)) + "%";
  return h("div", { class: "gap" },
    h("div", { class: "gaprow" },
      h("span", {}, h("b", {}, ap(gap.few)), "few labels"),
      middle,
      h("span", {}, h("b", {}, ap(gap.full)), "all labels")),
    h("div", { class: "gaptrack" }, fillBar),
    h("p", {}, known(closed) ? `${share(closed)} of the gap between few labels and all labels is closed.`
      : "All labels are no better than few here, so there is no gap to close."));
}

function armTable(arms) {
  const best = Math.max(...arms.map((arm) => arm.high ?? 0), 0.01);
  const rows = arms.map((arm, k) => {
    const bar = h("span", { class: "bar c" + (k % 6) });
    bar.style.width = (100 * (arm.mean ?? 0)) / best + "%";
    return h("tr", {}, h("th", { scope: "row" }, arm.name),
      h("td", { class: "wide" }, h("span", { class: "bartrack" }, bar)),
      h("td", { class: "figure" }, ap(arm.mean)),
      h("td", {}, arm.num > 1 ? `${ap(arm.low)} to ${ap(arm.high)} over ${arm.num} seeds`
        : arm.num ? "1 seed" : "no evaluation yet"));
  });
  return h("div", { class: "scroll" }, h("table", { class: "arms" },
    h("caption", {}, "Validation AP at the last evaluation, averaged weights"), h("tbody", {}, rows)));
}

function bar() {
  const run = chosen();
  const runs = content.runs.length > 1 ? h("label", {}, "Run", h("select", { id: "run",
    onchange: (event) => {
      const classes = content.runs[Number(event.target.value)].classes;
      const kept = classes.includes(state.className) ? state.className : null;
      change({ run: Number(event.target.value), className: kept, scoreAt: null });
      state.view.at = null;
    } },
  content.runs.map((one, k) => h("option", { value: k, selected: one === run }, one.name)))) : null;
  const classes = h("label", {}, "Class", h("select", { id: "class", onchange: (event) =>
    change({ className: event.target.value === "" ? null : run.classes[Number(event.target.value)] }) },
  h("option", { value: "", selected: state.className === null }, "All classes"),
  run.classes.map((name, k) =>
    h("option", { value: k, selected: name === state.className }, name))));
  return h("nav", { id: "bar", "aria-label": "Filters" }, runs, classes, progress(run));
}

function progress(run) {
  if (run.finished) return h("span", { class: "state" }, "finished");
  const total = run.steps ? " of " + whole(run.steps) : "";
  const left = run.progress > 0.02 ? ", about " +
    duration((run.seconds * (1 - run.progress)) / run.progress) + " left" : "";
  const meter = h("span", { class: "meter" }, h("span", {}));
  meter.firstChild.style.width = 100 * (run.progress ?? 0) + "%";
  return h("span", { class: "state" }, meter, `step ${whole(run.step)}${total}${left}`);
}

function learning() {
  const run = chosen(), many = content.runs.length > 1;
  const curves = content.runs.flatMap((one) => [
    { name: many ? one.name : one.method === "supervised" ? "averaged weights" : "teacher",
      color: color(one), points: zip(one.val.steps, one.val.teacher) },
    { name: many ? one.name + ", student" : one.method === "supervised" ? "trained weights"
      : "student", color: color(one) + " pale", dash: "4 3", silent: many,
    points: zip(one.val.steps, one.val.student) },
  ]);
  const names = Object.keys(run.losses.curves);
  const losses = names.map((name, k) => ({ name: name === "loss" ? "total" : name,
    color: name === "loss" ? "ink" : "c" + (k % 6),
    points: zip(run.losses.steps, run.losses.curves[name]) }));
  return section("learning", "Learning", many
    ? "Each colour is one setting; dashed lines are students, solid lines their averages."
    : "Solid: averaged weights, the ones to use. Dashed: the weights as they are trained.",
  h("div", { class: "two" },
    plot({ title: "Validation AP", about: content.runs.every((one) => one.val.steps.length === 1)
      ? "one evaluation, at the end" : null, series: curves, format: ap, low: 0, from: 0, height: 260,
      marks: marksOf(run) }),
    plot({ title: "Losses", about: many ? run.name : null, series: losses, low: 0, height: 260,
      marks: marksOf(run) })));
}

// One line per class, pale; the chosen one strong, or their mean where none is chosen.
function perClass(run, steps, rows) {
  const place = run.classes.indexOf(state.className);
  const lines = rows.map((row, k) => ({ name: run.classes[k], points: zip(steps, row),
    color: k === place ? "c0" : "ink", faint: k !== place }));
  if (place >= 0) return [...lines.filter((_, k) => k !== place), lines[place]];
  const mean = steps.map((_, k) => {
    const values = rows.map((row) => row[k]).filter(known);
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  });
  return [...lines, { name: "mean of all classes", color: "c0", points: zip(steps, mean) }];
}

function classes() {
  const run = chosen(), taught = run.teaching;
  if (!run.classes.length) return null;
  const parts = [plot({ title: "AP of each class", series: perClass(run, run.val.steps,
    run.val.per_class), format: ap, low: 0, from: 0, marks: marksOf(run) })];
  if (taught) parts.push(plot({ title: "Threshold τ₂ of each class",
    about: "boxes above it are taught", series: perClass(run, taught.steps, taught.tau2),
    format: two, from: run.taught_from }));
  return section("classes", "Classes", "Choose a class here or in the bar above to follow it through the page.",
    [h("div", { class: "two" }, parts), classList(run)]);
}

function classList(run) {
  const last = (row) => (row && row.length ? row[row.length - 1] : null);
  const taught = run.teaching;
  const rows = run.classes.map((name, k) => ({ name, ap: last(run.val.per_class[k]),
    tau: taught && last(taught.tau2[k]), right: taught && last(taught.precision.per_class[k]),
    found: taught && last(taught.recall.per_class[k]) }))
    .sort((a, b) => (a.ap ?? -1) - (b.ap ?? -1));
  const judged = rows.some((row) => known(row.found));
  const head = h("tr", {}, ["class", "", "AP", ...(taught ? ["τ₂"] : []),
    ...(judged ? ["right", "found"] : [])].map((text) => h("th", { scope: "col" }, text)));
  const body = rows.map((row) => {
    const strip = h("span", { class: "bar c0" });
    strip.style.width = 100 * (row.ap ?? 0) + "%";
    const picked = row.name === state.className;
    return h("tr", { class: picked ? "picked" : null },
      h("th", { scope: "row" }, h("button", { type: "button", class: "link", "aria-pressed":
        String(picked), onclick: () => change({ className: picked ? null : row.name }) }, row.name)),
      h("td", { class: "wide" }, h("span", { class: "bartrack" }, strip)),
      h("td", { class: "figure" }, ap(row.ap)),
      taught ? h("td", { class: "figure" }, two(row.tau)) : null,
      judged ? [h("td", { class: "figure" }, share(row.right)),
        h("td", { class: "figure" }, share(row.found))] : null);
  });
  return h("div", { class: "scroll tall" }, h("table", { class: "classlist" },
    h("caption", {}, "Weakest first", judged
      ? ". Right: share of the taught boxes; found: share of the objects." : "."),
    h("thead", {}, head), h("tbody", {}, body)));
}

function teaching() {
  const run = chosen(), taught = run.teaching;
  if (!taught) return null;
  const place = run.classes.indexOf(state.className);
  const pick = (curve) => zip(taught.steps, place < 0 ? curve.all : curve.per_class[place]);
  const of = place < 0 ? "all classes" : state.className;
  return section("teaching", "What the teacher teaches",
    "Every box of the teacher is taught, ignored, or taken for background.",
    h("div", { class: "two" },
      plot({ title: "Boxes per image", about: of, low: 0, from: run.taught_from, series: [
        { name: "learned", color: "learned", points: pick(taught.foreground) },
        { name: "ignored", color: "ignored", points: pick(taught.ignored) },
        { name: "rejected by MetaNet", color: "rejected", points: pick(taught.rejected) }] }),
      plot({ title: "How right it is", about: of, low: 0, high: 1, format: share,
        from: run.taught_from, series: [
        { name: "precision", color: "c0", points: pick(taught.precision) },
        { name: "recall", color: "c1", points: pick(taught.recall) }],
      empty: "The unlabeled images have no ground truth, so nobody knows." })));
}

function scores() {
  const run = chosen(), taught = run.teaching;
  const judged = taught ? taught.scores.map((bins, k) => [bins, k]).filter(([bins]) => bins) : [];
  if (!judged.length) return null;
  const place = Math.min(state.scoreAt ?? judged.length - 1, judged.length - 1);
  const [bins, at] = judged[place];
  const one = run.classes.indexOf(state.className);
  const tau2 = one < 0 ? taught.tau2.map((row) => row[at]) : [taught.tau2[one][at]];
  const keys = [["tp", "right: class and place"], ["misplaced", "right class, wrong place"],
    ["bg", "background or wrong class"]];
  return section("scores", "Scores and thresholds",
    "A good teacher parts green from grey. What lies between the thresholds is left out of the loss.",
    [h("div", { class: "time" },
      slider("scoretime", "Time in training", judged.length, place, (v) => change({ scoreAt: v })),
      h("output", {}, "step " + whole(taught.steps[at]))),
    h("div", { class: "legend" }, keys.map(([name, text]) =>
      h("span", { class: "key" }, h("span", { class: "block " + name }), text))),
    histogram(bins, run.tau1 ?? 0, tau2)]);
}

function pictures() {
  const run = chosen(), view = state.view;
  if (!run.gallery.steps.length) return null;
  view.classes = run.classes;
  view.className = state.className;
  return section("gallery", "The same images, over time",
    "Move the slider to see what the teacher made of them early and late.", gallery(run, view));
}

function views() {
  const run = chosen();
  const cards = strongViews(run, state.view);
  if (!cards.length) return null;
  return section("views", "What the student sees", "Strong views at the start of teaching, with the " +
    "teacher's boxes carried along: green is learned, amber is ignored. " + (run.half_view || run.scale
    ? "Beside each its half-size view." : "The half-size view is off in this recipe."),
  h("div", { class: "cards" }, cards));
}

function runTable() {
  const rows = content.runs.map((run) => h("tr", {},
    h("th", { scope: "row" }, h("span", { class: "block " + color(run) }), run.name),
    h("td", { class: "figure" }, String(run.seed)),
    ...[run.final.ap, run.final.ap50, run.final.ap75, run.final.student].map((value) =>
      h("td", { class: "figure" }, ap(value))),
    ...[run.final.precision, run.final.recall].map((value) =>
      h("td", { class: "figure" }, share(value))),
    h("td", { class: "figure" }, whole(run.step) + (run.finished ? "" : " …")),
    h("td", { class: "figure" }, duration(run.seconds))));
  return section("runs", "Figures", null, h("div", { class: "scroll" }, h("table", { class: "runs" },
    h("thead", {}, h("tr", {}, ["run", "seed", "AP", "AP50", "AP75", "student AP", "right", "found",
      "step", "time"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows))));
}

function rest() {
  const run = chosen();
  const notes = run.notes.length ? h("details", {}, h("summary", {}, `Messages (${run.notes.length})`),
    h("ul", {}, run.notes.map(([step, kind, message]) =>
      h("li", {}, `step ${whole(step)}, ${kind}: ${message}`)))) : null;
  return h("section", { id: "rest" }, notes, h("details", {},
    h("summary", {}, `Settings and machine of ${run.name}`), h("div", { class: "scroll" },
      h("table", { class: "settings" }, h("tbody", {}, run.settings.map(([name, value]) =>
        h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value))))))));
}

// What each section shows; compared to know whether it must be built again.
const SECTIONS = [
  ["headline", hero, () => [content.headline, content.runs.map((run) => run.final)]],
  ["bar", bar, () => [chosen().step, chosen().finished, chosen().name, chosen().classes, state.className]],
  ["learning", learning, () => [chosen().name, content.runs.map((run) => [run.val, run.losses])]],
  ["classes", classes, () => [chosen().val, chosen().teaching, state.className]],
  ["teaching", teaching, () => [chosen().teaching, state.className]],
  ["scores", scores, () => [chosen().teaching, state.className, state.scoreAt]],
  ["gallery", pictures, () => [chosen().gallery, state.className, state.view.at, state.view.order,
    [...state.view.hidden], Boolean(state.view.playing)]],
  ["views", views, () => [chosen().gallery.images, state.className]],
  ["runs", runTable, () => content.runs.map((run) => [run.final, run.step, run.finished])],
  ["rest", rest, () => [chosen().notes, chosen().settings]],
];

function render() {
  const page = document.getElementById("page"), focus = document.activeElement?.id;
  for (const [name, build, shows] of SECTIONS) {
    const key = JSON.stringify(shows());
    const old = state.built.get(name);
    if (old && old.key === key) continue;
    const element = build() || h("section", { id: name, hidden: true });
    if (old) old.element.replaceWith(element);
    else page.append(element);
    state.built.set(name, { key, element });
  }
  if (focus && focus !== document.activeElement?.id) {
    document.getElementById(focus)?.focus({ preventScroll: true });
  }
  document.getElementById("foot").textContent = `written ${content.written} by dsl report`;
}

function change(parts) { Object.assign(state, parts); render(); }
state.view.change = (parts) => { Object.assign(state.view, parts); render(); };

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
}

function startTheme() {
  let saved = null;
  try { saved = localStorage.getItem("dsl-theme"); } catch { /* a page from disk may not store */ }
  setTheme(saved || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(name);
    try { localStorage.setItem("dsl-theme", name); } catch { /* likewise */ }
  });
}

let held = false;
addEventListener("pointerdown", () => { held = true; });
for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { held = false; });

async function followRun(address) {
  const pill = document.getElementById("live");
  pill.hidden = false;
  let wait = 2500;
  try {
    const answer = await fetch(address, { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = await answer.json();
    if (!held) { content = fresh; render(); }
    const done = content.runs.every((run) => run.finished);
    pill.textContent = done ? "finished" : "live";
    pill.className = "pill " + (done ? "" : "on");
    if (done) wait = 15000;
  } catch {
    pill.textContent = "no answer; trying again";
    pill.className = "pill off";
  }
  setTimeout(() => followRun(address), wait);
}

startTheme();
render();
if (holder.dataset.live) followRun(holder.dataset.live);
