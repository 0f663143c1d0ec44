// Charts with axes, a peak and a value under the pointer or the arrow keys. In: numbers. Out: SVG.
// Never: draws a value that is not there: a step without one is a gap.

import { element, svg } from "./dom.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [46, 8, 14, 18];
const HEIGHT = 96;
const BAR_MAX = 32;

/** A chart in this figure, which has a caption. Give numbers to what it returns. */
export function makeChart(figure) {
  const box = element("div", { className: "chart", tabindex: "0", role: "group" });
  const said = element("output", { className: "readout" });
  figure.append(box, said);
  const chart = { figure, box, said, data: null, cursor: null };
  const point = (i) => {
    chart.cursor = i === null || !chart.data ? null : Math.min(Math.max(i, 0), chart.data.values.length - 1);
    redraw(chart);
  };
  box.addEventListener("pointermove", (event) => {
    const { left, width } = box.getBoundingClientRect();
    const part = (event.clientX - left - LEFT) / Math.max(1, width - LEFT - RIGHT);
    point(chart.data ? Math.round(part * (chart.data.values.length - 1)) : null);
  });
  box.addEventListener("pointerleave", () => point(null));
  box.addEventListener("blur", () => point(null));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !chart.data) return;
    event.preventDefault();
    point((chart.cursor ?? chart.data.values.length) + step);
  });
  new ResizeObserver(() => redraw(chart)).observe(box);
  return (data) => { chart.data = data; redraw(chart); };
}

/** `values`, and `peaks` above them if there are; `at(i)` names a step, `format` a value, `axis` one in few letters; `ends` are the axis's two ends;
    `seconds` says that values are times. */
function redraw({ figure, box, said, data, cursor }) {
  if (!data) return;
  const width = box.clientWidth || 280;
  const all = [...data.values, ...(data.peaks ?? [])].filter((value) => value !== null);
  const most = Math.max(0, ...all);
  const top = data.seconds ? niceSeconds(most) : niceTop(most);
  const steps = Math.max(1, data.values.length - (data.bars ? 0 : 1));
  const x = (i) => LEFT + ((i + (data.bars ? 0.5 : 0)) / steps) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, "aria-hidden": "true" });
  axes(picture, data, width, y, top);
  const scale = { x, y, bar: Math.min(BAR_MAX, Math.max(2, (width - LEFT - RIGHT) / steps - 2)) };
  if (data.peaks) lines(picture, data.peaks, scale, "line peaks");
  if (data.bars) bars(picture, data.values, scale);
  else area(picture, data, scale);
  mark(picture, data, scale, most);
  if (cursor !== null) picture.append(svg("line", { x1: x(cursor), x2: x(cursor), y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor" }));
  box.replaceChildren(picture);
  const summary = all.length ? `peak ${data.format(most)}` : data.empty;
  box.setAttribute("aria-label", `${data.label}: ${summary}. Arrow keys read single values.`);
  said.textContent = cursor === null ? summary : readout(data, cursor);
  figure.classList.toggle("reading", cursor !== null);
}

function readout(data, i) {
  const [value, peak] = [data.values[i], data.peaks?.[i]];
  if (value === null) return `${data.at(i)}: ${data.empty}`;
  return `${data.at(i)}: ${data.format(value)}${peak === undefined || peak === null ? "" : `, longest ${data.format(peak)}`}`;
}

/** The next of 1, 2, 5, 10, …; at least what makes a flat line visible. */
function niceTop(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return power * [1, 2, 5, 10].find((part) => part * power >= most);
}

/** The same for times: full minutes, hours and days above a minute. */
function niceSeconds(most) {
  return [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400].find((top) => most > 50 && top >= most) ?? (most > 86400 ? niceTop(most / 86400) * 86400 : niceTop(most));
}

function axes(picture, data, width, y, top) {
  for (const value of [0, top / 2, top]) {
    picture.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "axis" }));
    if (value !== top / 2) picture.append(svg("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, (data.axis ?? data.format)(value)));
  }
  const [first, last] = data.ends;
  picture.append(
    svg("text", { x: LEFT, y: HEIGHT - 4 }, first),
    svg("text", { x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, last),
  );
}

/** Runs of neighbours that have values. */
function runs(values) {
  const found = [];
  values.forEach((value, i) => {
    if (value === null) return;
    if (i > 0 && values[i - 1] !== null) found.at(-1).push(i);
    else found.push([i]);
  });
  return found;
}

function lines(picture, values, { x, y }, className) {
  for (const run of runs(values)) {
    // A step alone has no neighbour to draw a line to.
    const points = run.length === 1 ? [[x(run[0]) - 2, y(values[run[0]])], [x(run[0]) + 2, y(values[run[0]])]] : run.map((i) => [x(i), y(values[i])]);
    picture.append(svg("polyline", { points: points.map((point) => point.map((part) => part.toFixed(1)).join(",")).join(" "), class: className }));
  }
}

function area(picture, data, scale) {
  const { x, y } = scale;
  const mood = data.bad ? " bad" : "";
  for (const run of runs(data.values)) {
    const points = run.map((i) => `${x(i).toFixed(1)},${y(data.values[i]).toFixed(1)}`).join(" ");
    picture.append(svg("polygon", { points: `${x(run[0])},${y(0)} ${points} ${x(run.at(-1))},${y(0)}`, class: `area${mood}` }));
  }
  lines(picture, data.values, scale, `line${mood}`);
}

function bars(picture, values, { x, y, bar }) {
  values.forEach((value, i) => {
    if (value === null) return;
    const height = Math.max(1, y(0) - y(value));
    picture.append(svg("rect", { x: x(i) - bar / 2, y: y(0) - height, width: bar, height, class: "bar" }));
  });
}

/** A dot where it was most. */
function mark(picture, data, { x, y }, most) {
  const values = data.peaks ?? data.values;
  const at = values.lastIndexOf(most);
  if (most > 0 && at >= 0) picture.append(svg("circle", { cx: x(at), cy: y(most), r: 3, class: "peak" }));
}
