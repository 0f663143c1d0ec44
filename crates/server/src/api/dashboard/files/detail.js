// One resource: who holds it, who waits, who held it before. In: `/v1/resources/<name>`. Out: the panel.
// Never: opens by itself: the address says whether it is open (`place.js`).

import { read } from "./api.js";
import { makeChart } from "./chart.js";
import { $, button, element, keyed, setText } from "./dom.js";
import { brief, count, duration, plural, show, time, when } from "./format.js";
import { canChange, passedSince } from "./health.js";
import { fullNameOf, holdersOf, modeOf, nameOf, personLink } from "./holder.js";
import { resourceHash } from "./place.js";
import { slotBoxes } from "./slots.js";
import { timeline } from "./timeline.js";
import { openRevoke } from "./revoke.js";

const detail = { name: null, shown: null, readAt: 0, query: 0, focus: false };
const charts = { waits: makeChart($("resource-waits")), holds: makeChart($("resource-holds")) };

/** Opens a resource, or closes the panel with `null`. */
export async function openDetail(name, focus) {
  if (name !== detail.name) Object.assign(detail, { name, shown: null });
  $("detail").hidden = name === null;
  if (name === null) return;
  setText($("detail-title"), name);
  if (focus) $("detail").focus();
  if (detail.shown) return;
  $("detail-body").hidden = true;
  setText($("detail-note"), "reading");
  await refreshDetail();
}

export async function refreshDetail() {
  const { name } = detail;
  if (name === null) return;
  const query = ++detail.query;
  const found = await readResource(name);
  // Closed, or another one was opened meanwhile.
  if (name !== detail.name || query !== detail.query) return;
  Object.assign(detail, { shown: found.resource, readAt: performance.now() });
  $("detail-body").hidden = !found.resource;
  setText($("detail-note"), found.note);
  drawDetail();
}

async function readResource(name) {
  try {
    return { resource: await read(`/v1/resources/${encodeURIComponent(name)}`), note: "" };
  } catch (error) {
    const note = { 404: "Nobody holds this resource or waits for it, and its past is forgotten.", 403: "Your rights don't let you read this resource." }[error.status];
    if (!note) throw error;
    return { resource: null, note };
  }
}

/** Draws what was read; numbers that count go on by themselves. */
export function drawDetail() {
  const { shown } = detail;
  if (!shown) return;
  const passed = passedSince(detail.readAt);
  drawHolders(holdersOf(shown), passed);
  setText($("holder-count"), holdersNote(shown));
  $("slots").hidden = !shown.slots;
  $("slots").replaceChildren(...(shown.slots ? [slotBoxes(shown)] : []));
  const held = holdersOf(shown).map((holder) => ({ ...holder, held: holder.held + passed }));
  const nowMs = Date.parse(shown.now) + passed * 1000;
  $("timeline").replaceChildren(timeline([...held, ...shown.history], nowMs, $("timeline").clientWidth || 800));
  drawTimes([...held, ...shown.history].reverse());
  setText($("queue-count"), shown.waiting ? queueNote(shown) : "nobody waits");
  setText($("history-count"), shown.finished ? `${plural(shown.finished, "claim")} remembered` : "nothing yet");
  $("queue").hidden = !shown.queue.length;
  keyed($("queue").tBodies[0], shown.queue, (claim) => claim.id, queueRow, (row, claim) => fillQueueRow(row, claim, passed));
  $("history").hidden = !shown.history.length;
  keyed($("history").tBodies[0], shown.history, (claim) => claim.id, historyRow, () => {});
}

function holdersNote(shown) {
  const { holders, holder_count: all } = shown;
  const cut = all > holders.length ? `, the first ${count(holders.length)} are shown` : "";
  return modeOf(shown) + cut;
}

function queueNote({ waiting, queue }) {
  return waiting > queue.length ? `${count(waiting)} waiting, the first ${count(queue.length)} are shown` : `${count(waiting)} waiting`;
}

/** Wait and hold times of this resource, oldest claim first. */
function drawTimes(claims) {
  const granted = claims.filter((claim) => claim.since);
  const common = { bars: true, seconds: true, format: brief, empty: "none yet", ends: ["oldest", "newest"], at: (i) => `${personOf(granted[i])}, ${time(granted[i].since)}` };
  charts.waits({ ...common, label: "Wait before each grant", values: granted.map((claim) => claim.waited) });
  charts.holds({ ...common, label: "Time held", values: granted.map((claim) => claim.held) });
}

const personOf = (claim) => `token ${claim.token}, ${fullNameOf(claim)}`;

function drawHolders(holders, passed) {
  $("free").hidden = holders.length > 0;
  setText($("free"), detail.shown.waiting ? "Nobody holds it. It is reserved for the first in the queue." : "Nobody holds it.");
  keyed($("holder"), holders, (holder) => holder.id, newHolder, (item, holder) => fillHolder(item, holder, passed));
}

function newHolder(holder) {
  return element("div", { className: "holder", children: [element("dl"), ...revokeButtons(holder)] });
}

/** The button keeps its place while numbers change, so that nobody loses it under a finger. */
function fillHolder(item, holder, passed) {
  const list = item.querySelector("dl");
  const put = (name, value) => {
    let term = [...list.querySelectorAll("dt")].find((known) => known.textContent === name);
    if (!value) return term && (term.nextSibling.remove(), term.remove());
    if (!term) list.append(term = element("dt", { text: name }), element("dd", { children: value instanceof Node ? [value] : [] }));
    if (!(value instanceof Node)) setText(term.nextSibling, value);
  };
  put("Held by", personLink(holder));
  put("Owner", holder.who && holder.owner);
  put("Since", `${time(holder.since)} (${duration(holder.held + passed)})`);
  put("Remaining", holder.remaining === null ? "until it is released" : duration(Math.max(0, holder.remaining - passed)));
  put("Revoking", holder.revoking && `told to let go; it can't renew${holder.reason ? `: ${holder.reason}` : ""}`);
  put("Waited", duration(holder.waited));
  put("Token", String(holder.token));
  put("Slots", holder.slots && holder.slots.join(", "));
  put("Also holds", othersOf(holder));
  put("Session", holder.session);
  put("Ttl", holder.ttl === null ? "none" : `${duration(holder.ttl)}, ${holder.renewals ? `renewed ${plural(holder.renewals, "time")}` : "not renewed yet"}`);
  put("Data", dataOf(holder));
  put("Claim", holder.id);
}

/** The other resources of a set, each with a link: they come and go together. */
function othersOf({ set }) {
  if (!set) return null;
  const links = set.items.filter(({ resource }) => resource !== detail.name).flatMap(({ resource, mode }, i) => [
    i ? ", " : "", element("a", { text: resource, href: resourceHash(resource) }), mode === "exclusive" ? "" : ` (${mode})`,
  ]);
  const hidden = set.others_hidden ? `${links.length ? " and " : ""}${plural(set.others_hidden, "resource")} that you may not read` : "";
  return element("span", { children: [...links, hidden] });
}

/** How a waiting claim wants the resource, what else it wants, and whom it waits for. */
function wantOf(claim) {
  const how = { shared: "to share it", slots: `${plural(claim.take ?? 1, "slot")}` }[claim.mode] ?? "alone";
  const others = othersOf(claim);
  const state = claim.reserves ? ", reserved: waits for the others" : claim.behind ? `, behind ${nameOf(claim.behind)}` : "";
  return element("span", { children: [how, ...(others ? [" with ", others] : []), state] });
}

function revokeButtons(claim) {
  if (!claim.may_revoke) return [];
  const resource = detail.name;
  const made = button("Revoke…", "revoke", () => openRevoke(resource, claim));
  made.setAttribute("aria-label", `Revoke the claim of ${fullNameOf(claim)} on ${resource}`);
  made.disabled = !canChange();
  return [made];
}

function row(...cells) {
  return element("tr", { children: cells.map(([label, ...content]) => element("td", { "data-label": label, children: content })) });
}

function queueRow(claim) {
  return row(["#", ""], ["Who", personLink(claim)], ["Wants it", ""], ["Waiting for", ""], ["Data", dataOf(claim)], ["Action", ...revokeButtons(claim)]);
}

/** What the name does not say already. */
function dataOf({ data, who }) {
  if (data === null) return "";
  const known = who && typeof data === "object" && Object.keys(data).every((name) => ["host", "user", "pid", "command", "program"].includes(name));
  return known ? "" : show(data);
}

function fillQueueRow(made, claim, passed) {
  setText(made.cells[0], String(claim.position));
  const want = wantOf(claim);
  // Links keep their place while numbers change.
  if (made.cells[2].textContent !== want.textContent) made.cells[2].replaceChildren(want);
  setText(made.cells[3], duration(claim.waited + passed));
}

function historyRow(claim) {
  const told = element("span", { text: claim.reason ? `${claim.status}: ${claim.reason}` : claim.status, className: claim.status });
  return row(["Token", claim.token === null ? "–" : String(claim.token)], ["Who", personLink(claim)], ["Ended", told], ["Waited", duration(claim.waited)], ["Held", duration(claim.held)], ["When", when(claim.ended ?? claim.created)]);
}
