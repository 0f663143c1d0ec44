// Who held a resource when. In: claims, newest first. Out: SVG. Never: text as markup.

import { svg } from "./dom.js";
import { clock, duration, time } from "./format.js";
import { nameOf } from "./holder.js";

const SPANS_MAX = 60;
const LANES_MAX = 6;

/** The same holder has the same colour. */
function colour(name) {
  let hash = 7;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
  return hash % 6;
}

function describe(claim) {
  const end = claim.ended ? `${claim.status} ${time(claim.ended)}` : "holds it now";
  return `${nameOf(claim)} (token ${claim.token}) from ${time(claim.since)} for ${duration(claim.held)}: ${end}`;
}

/** Drawn so many pixels wide. Claims have `since`, and `ended` unless they still hold. */
export function timeline(claims, nowMs, width) {
  const spans = claims
    .filter((claim) => claim.since)
    .slice(0, SPANS_MAX)
    .map((claim) => ({ claim, from: Date.parse(claim.since), to: claim.ended ? Date.parse(claim.ended) : nowMs }));
  const said = spans.length ? spans.slice(0, 10).map(({ claim }) => describe(claim)).join("; ") : "nobody has held it yet";
  const picture = svg("svg", { viewBox: `0 0 ${width} 64`, height: 64, role: "img", "aria-label": `Timeline. ${said}` });
  if (!spans.length) {
    picture.append(svg("text", { x: 4, y: 30 }, "nobody has held it yet"));
    return picture;
  }
  const first = Math.min(...spans.map((span) => span.from));
  const length = Math.max(1000, nowMs - first);
  const x = (ms) => ((ms - first) / length) * width;
  picture.append(svg("rect", { x: 0, y: 8, width, height: 30, class: "free" }));
  const lanes = inLanes(spans);
  for (const span of spans) picture.append(spanOf(span, x, lanes));
  for (const part of [0, 0.5, 1]) {
    const anchor = ["start", "middle", "end"][part * 2];
    picture.append(svg("text", { x: part * width, y: 56, "text-anchor": anchor }, clock(first + part * length)));
  }
  return picture;
}

/** Those who held it at the same time stand below each other. Gives back the number of lanes. */
function inLanes(spans) {
  const ends = [];
  for (const span of [...spans].sort((one, other) => one.from - other.from)) {
    const free = ends.findIndex((end) => end <= span.from);
    span.lane = free >= 0 ? free : Math.min(ends.length, LANES_MAX - 1);
    ends[span.lane] = Math.max(ends[span.lane] ?? 0, span.to);
  }
  return Math.max(1, ends.length);
}

function spanOf({ claim, from, to, lane }, x, lanes) {
  const high = 30 / lanes;
  const y = 8 + lane * high;
  const name = nameOf(claim);
  const wide = Math.max(2, x(to) - x(from));
  const group = svg("g", { "data-owner": claim.owner, "data-status": claim.status });
  group.append(svg("title", {}, describe(claim)));
  group.append(svg("rect", { x: x(from), y, width: wide, height: Math.max(1, high - (lanes > 1 ? 1 : 0)), rx: 3, class: `span span-${colour(name)}` }));
  if (wide > 60 && high >= 15) {
    const letters = Math.floor(wide / 6.5) - 1;
    group.append(svg("text", { x: x(from) + 5, y: y + high / 2 + 4, class: "name" }, name.length > letters ? `${name.slice(0, letters - 1)}…` : name));
  }
  if (claim.status === "expired" || claim.status === "revoked") {
    group.append(svg("line", { x1: x(to) - 1.5, x2: x(to) - 1.5, y1: y - 2, y2: y + high + 2, class: "cut" }));
  }
  return group;
}
