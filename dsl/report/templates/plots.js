// Elements, numbers and plots. Knows nothing of runs. User text enters as text nodes only.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const known = (value) => value !== null && value !== undefined;
const ap = (value) => (known(value) ? (100 * value).toFixed(1) : "–");
const share = (value) => (known(value) ? (100 * value).toFixed(0) + " %" : "–");
const two = (value) => (known(value) ? value.toFixed(2) : "–");
const plain = (value) => (known(value) ? String(Number(value.toPrecision(3))) : "–");
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : "–");

function duration(seconds) {
  const minutes = Math.round(seconds / 60);
  if (seconds < 90) return Math.round(seconds) + " s";
  if (minutes < 90) return minutes + " min";
  return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const unit = [1, 2, 2.5, 5, 10].find((u) => u * power >= rough * 0.999) * power;
  const found = [];
  for (let k = Math.ceil(low / unit - 1e-9); k * unit <= high + unit * 1e-9; k += 1) {
    found.push(Number((k * unit).toPrecision(10)));
  }
  return found;
}

// A frame that draws itself again whenever its width changes.
const redraw = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const width = Math.round(target.clientWidth);
    if (target.draw && width && width !== target.drawn) {
      target.drawn = width;
      target.draw(width);
    }
  }
});

function canvas(draw) {
  const element = h("div", { class: "canvas" });
  element.draw = (width) => element.replaceChildren(...draw(width));
  redraw.observe(element);
  return element;
}

function legend(series) {
  const items = series.filter((one) => !one.faint && !one.silent).map((one) =>
    h("span", { class: "key" }, swatch(one), one.name));
  return items.length ? h("div", { class: "legend" }, items) : null;
}

function swatch(one) {
  return s("svg", { width: 18, height: 8, "aria-hidden": "true" },
    s("line", { x1: 1, x2: 17, y1: 4, y2: 4, class: "line " + one.color,
      "stroke-dasharray": one.dash }));
}

// spec: title, series [{name, color, points [[x, y]], dash, faint}], format, low, high, marks
function plot(spec) {
  const series = spec.series
    .map((one) => ({ ...one, points: one.points.filter((p) => known(p[1])) }))
    .filter((one) => one.points.length);
  const figure = h("figure", { class: "plot" },
    h("figcaption", {}, h("b", {}, spec.title), spec.about ? h("span", {}, spec.about) : null),
    legend(series));
  if (!series.length) {
    figure.append(h("p", { class: "nothing" }, spec.empty || "Nothing to show yet."));
    return figure;
  }
  figure.append(canvas((width) => drawLines(series, spec, width)));
  return figure;
}

function limits(series, spec) {
  const xs = series.flatMap((one) => one.points.map((p) => p[0]));
  const ys = series.flatMap((one) => one.points.map((p) => p[1]));
  const low = known(spec.low) ? spec.low : Math.min(...ys);
  let high = known(spec.high) ? spec.high : Math.max(...ys);
  if (!(high > low)) high = low + (Math.abs(low) || 1);
  const room = known(spec.high) ? 0 : (high - low) * 0.06;
  let left = Math.min(...xs, known(spec.from) ? spec.from : Infinity);
  const right = Math.max(...xs);
  if (left === right) left = right - 1;
  return { left, right, low, high: high + room };
}

function drawLines(series, spec, width) {
  const height = spec.height || 220;
  const pad = { top: 14, right: 14, bottom: 26, left: 44 };
  const range = limits(series, spec);
  const format = spec.format || plain;
  const x = (v) => pad.left + ((v - range.left) / (range.right - range.left)) *
    (width - pad.left - pad.right);
  const y = (v) => height - pad.bottom - ((v - range.low) / (range.high - range.low)) *
    (height - pad.top - pad.bottom);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": spec.title });
  for (const value of ticks(range.low, range.high, 4)) {
    svg.append(s("line", { class: "grid", x1: pad.left, x2: width - pad.right, y1: y(value),
      y2: y(value) }),
    s("text", { class: "tick", x: pad.left - 8, y: y(value) + 4, "text-anchor": "end" },
      format(value)));
  }
  for (const value of ticks(range.left, range.right, width < 420 ? 3 : 6)) {
    if (value < range.left || value !== Math.round(value)) continue;
    const last = x(value) > width - pad.right - 18;
    svg.append(s("text", { class: "tick", x: last ? width - 2 : x(value), y: height - 8,
      "text-anchor": last ? "end" : "middle" }, whole(value)));
  }
  for (const mark of (spec.marks || []).filter((m) => m.x > range.left && m.x < range.right)) {
    svg.append(s("line", { class: "mark", x1: x(mark.x), x2: x(mark.x), y1: pad.top,
      y2: height - pad.bottom }),
    s("text", { class: "tick", x: x(mark.x) + 5, y: pad.top + 4 }, mark.label));
  }
  for (const one of series) {
    const path = one.points.map((p, k) => (k ? "L" : "M") + x(p[0]).toFixed(1) + " " +
      y(p[1]).toFixed(1)).join("");
    svg.append(s("path", { class: `line ${one.color}${one.faint ? " faint" : ""}`, d: path,
      "stroke-dasharray": one.dash }));
    if (one.points.length <= (one.faint ? 1 : 12)) {
      for (const p of one.points) {
        svg.append(s("circle", { class: `dot ${one.color}${one.faint ? " faint" : ""}`,
          cx: x(p[0]), cy: y(p[1]), r: 3 }));
      }
    }
  }
  const tip = h("div", { class: "tip", hidden: true });
  follow(svg, tip, { series, x, y, width, height, pad, format });
  return [svg, tip];
}

// Values under the pointer: the nearest step, and of many lines the nearest ones.
function follow(svg, tip, at) {
  const steps = [...new Set(at.series.flatMap((one) => one.points.map((p) => p[0])))];
  const cross = s("line", { class: "cross", y1: at.pad.top, y2: at.height - at.pad.bottom });
  const leave = () => { tip.hidden = true; cross.remove(); };
  const move = (event) => {
    const frame = svg.getBoundingClientRect();
    const px = event.clientX - frame.left, py = event.clientY - frame.top;
    const step = steps.reduce((a, b) => (Math.abs(at.x(b) - px) < Math.abs(at.x(a) - px) ? b : a));
    const rows = at.series
      .map((one) => ({ one, p: one.points.find((p) => p[0] === step) }))
      .filter((row) => row.p)
      .sort((a, b) => Math.abs(at.y(a.p[1]) - py) - Math.abs(at.y(b.p[1]) - py))
      .slice(0, 7).sort((a, b) => b.p[1] - a.p[1]);
    if (!rows.length) return leave();
    cross.setAttribute("x1", at.x(step));
    cross.setAttribute("x2", at.x(step));
    svg.append(cross);
    tip.replaceChildren(h("b", {}, "step " + whole(step)), ...rows.map((row) =>
      h("span", {}, swatch(row.one), row.one.name, h("i", {}, at.format(row.p[1])))));
    tip.hidden = false;
    const right = at.x(step) > at.width / 2;
    tip.style.left = right ? "" : at.x(step) + 10 + "px";
    tip.style.right = right ? at.width - at.x(step) + 10 + "px" : "";
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", leave);
}

// Detections by score on a logarithmic scale, with the three zones between the thresholds.
function histogram(bins, tau1, tau2) {
  return canvas((width) => {
    const height = 280, pad = { top: 40, right: 14, bottom: 38, left: 52 };
    const inner = width - pad.left - pad.right, count = bins[0].length;
    const most = Math.max(10, ...bins.flat());
    const x = (v) => pad.left + v * inner;
    const y = (n) => height - pad.bottom - (Math.log10(1 + n) / Math.log10(1 + most)) *
      (height - pad.top - pad.bottom);
    const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": "Detections by score" });
    const low = Math.min(...tau2), high = Math.max(...tau2), base = height - pad.bottom;
    const zones = [[0, tau1, "background"], [tau1, low, "ignored"], [high, 1, "learned"]];
    for (const [from, to, name] of zones) {
      if (!(to > from)) continue;
      svg.append(s("rect", { class: "zone " + name, x: x(from), width: x(to) - x(from), y: pad.top,
        height: base - pad.top }));
      if (x(to) - x(from) > name.length * 6.4) {
        svg.append(s("text", { class: "zonename", x: (x(from) + x(to)) / 2, y: pad.top - 24,
          "text-anchor": "middle" }, name));
      }
    }
    for (let n = 10; n <= most; n *= 10) {
      svg.append(s("line", { class: "grid", x1: pad.left, x2: width - pad.right, y1: y(n), y2: y(n) }),
        s("text", { class: "tick", x: pad.left - 8, y: y(n) + 4, "text-anchor": "end" }, whole(n)));
    }
    bins.map((one, k) => [one, ["tp", "misplaced", "bg"][k]]).reverse().forEach(([one, name]) => {
      const top = one.map((n, k) => `L${x(k / count)} ${y(n)}L${x((k + 1) / count)} ${y(n)}`);
      svg.append(s("path", { class: "area " + name, d: `M${x(0)} ${base}${top.join("")}L${x(1)} ${base}Z` }));
    });
    const line = (at, text, anchor) => svg.append(
      s("line", { class: "tau", x1: x(at), x2: x(at), y1: pad.top - 6, y2: base }),
      text ? s("text", { class: "tauname", x: x(at) + (anchor === "end" ? -3 : 3), y: pad.top - 9,
        "text-anchor": anchor }, text) : null);
    line(tau1, "τ₁ " + two(tau1), tau1 > 0.08 ? "end" : "start");
    line(low, high - low < 0.005 ? "τ₂ " + two(low) : `τ₂ ${two(low)} to ${two(high)}`, "start");
    if (high - low >= 0.005) line(high, "", "start");
    for (const v of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
      svg.append(s("text", { class: "tick", x: x(v), y: height - 20, "text-anchor": "middle" }, plain(v)));
    }
    svg.append(s("text", { class: "tick", x: x(0.5), y: height - 4, "text-anchor": "middle" },
      "score of the teacher; heights are logarithmic"));
    return [svg];
  });
}
