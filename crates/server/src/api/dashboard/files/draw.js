// Pictures: the charts of the last half hour and the timeline of one resource, as SVG.
// In: numbers. Out: elements. Never: text as markup; everything is set as an attribute or as text.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}

/** A line with the area below it; `label` is what a screen reader says. */
export function chart(values, label, bad = false) {
  const [width, height] = [300, 60];
  const top = Math.max(1e-9, ...values);
  const x = (i) => (i / Math.max(1, values.length - 1)) * width;
  const y = (value) => height - 2 - (value / top) * (height - 6);
  const points = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  const mood = bad ? " bad" : "";
  picture.append(
    svg("line", { x1: 0, x2: width, y1: height - 2, y2: height - 2, class: "axis" }),
    svg("polygon", { points: `0,${height - 2} ${points} ${width},${height - 2}`, class: "area" + mood }),
    svg("polyline", { points, class: "line" + mood }),
  );
  return picture;
}

/** The same owner has the same colour. */
function colour(owner) {
  let hash = 7;
  for (const letter of owner) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
  return hash % 6;
}

function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** Who held a resource when, drawn so many pixels wide. Claims: newest first, each with `since`, and `ended` unless it still holds. */
export function timeline(claims, nowMs, describe, width) {
  const spans = claims
    .filter((claim) => claim.since)
    .slice(0, 60)
    .map((claim) => ({ claim, from: Date.parse(claim.since), to: claim.ended ? Date.parse(claim.ended) : nowMs }));
  const said = spans.length ? spans.map(({ claim }) => describe(claim)).slice(0, 10).join("; ") : "nobody has held it yet";
  const picture = svg("svg", { viewBox: `0 0 ${width} 64`, height: 64, role: "img", "aria-label": `Timeline. ${said}` });
  if (!spans.length) {
    picture.append(svg("text", { x: 4, y: 30 }, "nobody has held it yet"));
    return picture;
  }
  // The newest part: as much as keeps single spans visible.
  const first = Math.min(...spans.map((span) => span.from));
  const length = Math.max(1000, nowMs - first);
  const x = (ms) => ((ms - first) / length) * width;
  picture.append(svg("rect", { x: 0, y: 8, width, height: 30, class: "free" }));
  for (const { claim, from, to } of spans) {
    const wide = Math.max(2, x(to) - x(from));
    const group = svg("g", { "data-owner": claim.owner, "data-status": claim.status });
    group.append(svg("title", {}, describe(claim)));
    group.append(svg("rect", { x: x(from), y: 8, width: wide, height: 30, rx: 3, class: `span span-${colour(claim.owner)}` }));
    if (wide > 60) {
      const name = claim.owner.length * 6.5 > wide ? claim.owner.slice(0, Math.floor(wide / 6.5) - 1) + "…" : claim.owner;
      group.append(svg("text", { x: x(from) + 5, y: 27, class: "name" }, name));
    }
    if (claim.status === "expired" || claim.status === "revoked") {
      group.append(svg("line", { x1: x(to) - 1.5, x2: x(to) - 1.5, y1: 6, y2: 40, class: "cut" }));
    }
    picture.append(group);
  }
  for (const part of [0, 0.5, 1]) {
    const anchor = ["start", "middle", "end"][part * 2];
    picture.append(svg("text", { x: part * width, y: 56, "text-anchor": anchor }, clock(first + part * length)));
  }
  return picture;
}
