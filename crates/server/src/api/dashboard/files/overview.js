// Tiles and charts. In: `/v1/overview`; for readers of a part, the board's counts. Out: numbers now, and the last half hour.
// Never: a mean of nothing: a step in which nobody was granted has no wait.

import { makeChart } from "./chart.js";
import { $, setText } from "./dom.js";
import { brief, clock, count } from "./format.js";

const charts = Object.fromEntries(["grants", "queue-chart", "waits", "holds", "losses"].map((id) => [id, makeChart($(id))]));

/** Whether this reader is told of the whole service. */
let whole = false;

export function drawOverview(overview) {
  whole = overview.series !== undefined;
  $("charts").hidden = $("token-tile").hidden = !whole;
  $("first-use").hidden = !whole || overview.resources > 0;
  if (!whole) return;
  drawCounts(overview);
  setText($("token"), count(overview.last_token));
  drawCharts(overview.series, overview.waiting);
}

/** The counts of those resources that this reader may see, for whom the overview has none. */
export function drawVisible(board) {
  if (!whole) drawCounts(board);
}

function drawCounts({ held, waiting, resources }) {
  $("now").hidden = false;
  setText($("held"), count(held));
  setText($("waiting"), count(waiting));
  setText($("count"), count(resources));
}

function drawCharts(series, waitingNow) {
  const perMinute = (values) => values.map((value) => (value * 60) / series.step);
  const mean = (sums, numbers) => sums.map((sum, i) => (numbers[i] ? sum / numbers[i] : null));
  const peaks = (most, numbers) => most.map((value, i) => (numbers[i] ? value : null));
  const common = {
    at: (i) => clock((series.start + i * series.step) * 1000),
    ends: ["30 min ago", "now"],
  };
  const number = (value) => count(value < 10 ? Math.round(value * 10) / 10 : Math.round(value));
  const few = (value) => value.toLocaleString(undefined, { notation: "compact" });
  const draw = (id, label, values, more = {}) => charts[id]({ ...common, label, values, format: number, axis: more.format ?? few, empty: "none", ...more });
  draw("grants", "Grants a minute", perMinute(series.granted));
  draw("queue-chart", "Claims that wait", waitingOverTime(series, waitingNow));
  draw("waits", "Wait before a grant", mean(series.waited, series.granted), { peaks: peaks(series.waited_max, series.granted), seconds: true, format: brief, empty: "no grants" });
  draw("holds", "Time held", mean(series.held, series.freed), { peaks: peaks(series.held_max, series.freed), seconds: true, format: brief, empty: "none ended" });
  const losses = series.expired.map((expired, i) => expired + series.revoked[i]);
  draw("losses", "Expired and revoked a minute", perMinute(losses), { bad: true });
}

/** How many waited at the end of each step: counted back from those who wait now. */
function waitingOverTime({ queued, unqueued }, now) {
  const waiting = [];
  for (let i = queued.length - 1, left = now; i >= 0; i -= 1) {
    waiting.unshift(Math.max(0, left));
    left += unqueued[i] - queued[i];
  }
  return waiting;
}
