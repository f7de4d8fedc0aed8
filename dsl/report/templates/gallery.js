// The gallery: one picture per image, and boxes that change with the time on the slider.

const KINDS = [
  ["learned", "learned", "taught to the student"],
  ["wrong", "learned, but wrong", "taught to the student against the ground truth"],
  ["ignored", "ignored", "too uncertain: no box is learned there"],
  ["rejected", "rejected by MetaNet", "its class was doubted: no loss there"],
  ["missed", "missed", "an object that was not taught"],
];

const HEIGHTS = ["ignored", "rejected", "missed", "learned", "wrong"]; // the last one lies on top

function kindOf(box) {
  if (box[6] !== "foreground") return box[6];
  return box[7] === false ? "wrong" : "learned";
}

// Everything to draw on one image at one time, as [x1, y1, x2, y2, kind, label].
function drawn(image, labels, view) {
  const of = (number) => view.className === null || view.classes[number] === view.className;
  const shown = labels.boxes.filter((box) => of(box[5])).map((box) =>
    [box[0], box[1], box[2], box[3], kindOf(box), `${view.classes[box[5]]} ${two(box[4])}`]);
  const missed = labels.missed.map((place) => image.truth[place]).filter((box) => of(box[4]))
    .map((box) => [box[0], box[1], box[2], box[3], "missed", view.classes[box[4]]]);
  const height = (one) => HEIGHTS.indexOf(one[4]);
  return shown.concat(missed).sort((a, b) => height(a) - height(b));
}

function boxes(image, list, textShare) {
  const size = image.width * textShare;
  const svg = s("svg", { class: "boxes", viewBox: `0 0 ${image.width} ${image.height}`,
    "aria-hidden": "true" });
  for (const [x1, y1, x2, y2, kind, label] of list) {
    const named = kind === "learned" || kind === "wrong";
    const top = y1 > size * 1.2 ? y1 - size * 0.3 : y1 + size;
    svg.append(s("g", { class: "box " + kind },
      s("rect", { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1),
        "vector-effect": "non-scaling-stroke" }, s("title", {}, `${label}, ${kind}`)),
      named ? s("text", { x: x1, y: top, "font-size": size, "stroke-width": size / 4 }, label)
        : null));
  }
  return svg;
}

function frame(image, list, textShare) {
  const element = h("div", { class: "frame" },
    image.src ? h("img", { src: image.src, alt: "", decoding: "async" }) : null,
    boxes(image, list, textShare || 1 / 22));
  element.style.aspectRatio = `${image.width} / ${image.height}`;
  return element;
}

function slider(id, label, count, place, change) {
  return h("input", { type: "range", id, min: 0, max: count - 1, value: place, step: 1,
    "aria-label": label, oninput: (event) => change(Number(event.target.value)) });
}

const fileName = (image) => image.name.split("/").pop();

function counted(list, kind) { return list.filter((one) => one[4] === kind).length; }

// view: { content, classes, className, hidden (Set), at, order, change(part) }
function gallery(run, view) {
  const content = run.gallery, steps = content.steps;
  const place = Math.min(view.at ?? steps.length - 1, steps.length - 1), step = steps[place];
  const order = view.order === "file" ? content.images.map((_, k) => k) : content.order;
  const all = content.images.map((image, k) => drawn(image, step.labels[k], view));
  const present = (k) => view.className === null || steps.some((one) =>
    drawn(content.images[k], one.labels[k], view).length);
  const kinds = KINDS.filter(([kind]) => content.judged || !["wrong", "missed"].includes(kind));
  const toggles = kinds.map(([kind, name, about]) => h("button", { type: "button",
    class: "toggle " + kind, title: about, "aria-pressed": String(!view.hidden.has(kind)),
    onclick: () => {
      if (!view.hidden.delete(kind)) view.hidden.add(kind);
      view.change({});
    } }, h("span", { class: "mark" }), name,
  h("b", {}, String(all.reduce((sum, list) => sum + counted(list, kind), 0)))));
  const cards = order.filter(present).map((k) => card(content.images[k], all[k], view, () =>
    enlarge(run, view, k)));
  return [
    h("div", { class: "time" },
      h("button", { type: "button", class: "quiet", id: "play", onclick: () => play(run, view),
        disabled: steps.length < 2 }, view.playing ? "Pause" : "Play"),
      slider("time", "Time in training", steps.length, place, (at) => view.change({ at })),
      h("output", {}, "step " + whole(step.step)),
      h("select", { "aria-label": "Order", id: "order", onchange: (event) =>
        view.change({ order: event.target.value }) },
      option("worst", content.judged ? "Worst mistakes first" : "Least certain first", view.order),
      option("file", "File order", view.order))),
    h("div", { class: "toggles" }, toggles),
    cards.length ? h("div", { class: "cards" }, cards)
      : h("p", { class: "nothing" }, "No box of this class on the gallery's images."),
  ];
}

function option(value, text, chosen) {
  return h("option", { value, selected: value === chosen }, text);
}

function card(image, list, view, open) {
  const shown = list.filter((one) => !view.hidden.has(one[4]));
  const wrong = counted(list, "wrong"), missed = counted(list, "missed");
  const words = [[wrong, "wrong"], [missed, "missed"]].filter(([n]) => n)
    .map(([n, word]) => h("span", { class: "count " + word }, `${n} ${word}`));
  return h("figure", { class: "card" },
    h("button", { type: "button", class: "open", "aria-label": "Enlarge " + image.name,
      onclick: open }, frame(image, shown)),
    h("figcaption", {}, h("span", { class: "file", title: image.name }, fileName(image)),
      words.length ? words : h("span", { class: "count" },
        image.truth ? "no mistake" : counted(list, "learned") + " learned")));
}

function play(run, view) {
  if (view.playing) { clearInterval(view.playing); view.change({ playing: null }); return; }
  const last = run.gallery.steps.length - 1;
  let at = (view.at ?? last) >= last ? 0 : view.at;
  const timer = setInterval(() => {
    at += 1;
    if (at >= last) clearInterval(timer);
    view.change({ at, playing: at >= last ? null : timer });
  }, 700);
  view.change({ at, playing: timer });
}

function enlarge(run, view, number) {
  const dialog = document.getElementById("large"), image = run.gallery.images[number];
  const steps = run.gallery.steps;
  const draw = (place) => {
    const list = drawn(image, steps[place].labels[number], view)
      .filter((one) => !view.hidden.has(one[4]));
    dialog.querySelector(".stage").replaceChildren(frame(image, list, 1 / 44));
    dialog.querySelector("output").textContent = "step " + whole(steps[place].step);
  };
  const start = Math.min(view.at ?? steps.length - 1, steps.length - 1);
  dialog.replaceChildren(
    h("div", { class: "time" }, h("span", { class: "file" }, image.name),
      slider("largetime", "Time in training", steps.length, start, draw), h("output", {}),
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close")),
    h("div", { class: "stage" }));
  draw(start);
  dialog.showModal();
}

// What the student is given: strong views, the patch-shuffled and half-size ones among them.
function strongViews(run, view) {
  const images = run.gallery.images.filter((image) => image.strong);
  return images.map((image) => {
    const strong = image.strong;
    const list = strong.targets.filter((box) => view.className === null ||
      view.classes[box[4]] === view.className).map((box) =>
      [box[0], box[1], box[2], box[3], box[5] ? "ignored" : "learned", view.classes[box[4]]]);
    const pair = h("div", { class: "pair" }, frame(strong, list));
    if (run.half_view || run.scale) {
      const half = h("div", { class: "half" }, frame(strong, list, 1 / 14));
      pair.append(half);
    }
    return h("figure", { class: "card" }, pair, h("figcaption", {},
      h("span", { class: "file", title: image.name }, fileName(image)),
      h("span", { class: "count" }, strong.shuffled ? "patch-shuffled" : "not shuffled")));
  });
}
