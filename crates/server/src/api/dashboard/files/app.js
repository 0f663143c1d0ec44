// The dashboard. In: `/v1/overview`, `/v1/resources`, `/v1/cluster` and the stream `/v1/events`. Out: this page.
// Never: keeps a table of its own. The server pages and searches; an event only says that it is time to ask again.

import { chart, timeline } from "./draw.js";

const $ = (id) => document.getElementById(id);
const PAGE = 50;
const state = { rows: [], next: null, wanted: PAGE, selected: null, detail: null, lastId: null, stale: false, refreshing: false, query: 0, detailQuery: 0, revoking: null, single: 0, focus: false };

// ---- talking to the service

function headers(more = {}) {
  const key = sessionStorage.getItem("leasehold-key");
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

class Refused extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers(options.headers) });
  if (response.status === 401) $("sign-in").hidden = false;
  if (!response.ok) throw new Refused(response.status, await why(response));
  return response.status === 204 ? null : response.json();
}

async function why(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return body.detail || Object.entries(body).map(([name, what]) => `${name}: ${what}`).join("; ");
  } catch { return text || response.statusText; }
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// ---- words and numbers

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min` : `${Math.floor(seconds / 86400)} days`;
}

const count = (number) => number.toLocaleString();
const time = (stamp) => new Date(stamp).toLocaleString();
const show = (data) => (data === null ? "" : typeof data === "string" ? data : JSON.stringify(data));

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function describe(claim) {
  const end = claim.ended ? `${claim.status} ${time(claim.ended)}` : "holds it now";
  return `${claim.owner} (token ${claim.token}) from ${time(claim.since)} for ${duration(claim.held)}: ${end}`;
}

// ---- tiles and charts

async function refreshOverview() {
  const overview = await ask("/v1/overview");
  $("held").textContent = count(overview.held);
  $("waiting").textContent = count(overview.waiting);
  $("count").textContent = count(overview.resources);
  $("token").textContent = count(overview.last_token);
  const { series } = overview;
  const perMinute = (values) => values.map((value) => (value * 60) / series.step);
  const means = series.granted.map((grants, i) => (grants ? series.waited[i] / grants : 0));
  draw("grants", perMinute(series.granted), "grants a minute", (value) => count(Math.round(value)));
  draw("waits", means, "mean wait in seconds", (value) => value.toFixed(2));
  const losses = series.expired.map((expired, i) => expired + series.revoked[i]);
  draw("losses", perMinute(losses), "expired and revoked a minute", (value) => count(Math.round(value)), true);
}

function draw(id, values, what, format, bad) {
  const now = format(values.at(-1));
  const most = format(Math.max(0, ...values));
  $(id).replaceChildren(chart(values, `${what} over the last half hour: now ${now}, at most ${most}`, bad));
  $(`${id}-now`).textContent = now;
}

// ---- the cluster

async function refreshCluster() {
  let cluster;
  if (state.single > 0) return void (state.single -= 1);
  try {
    cluster = await ask("/v1/cluster");
  } catch (error) {
    if (error.status !== 404) throw error;
    state.single = 30; // It may become one, but not every two seconds.
    $("cluster-summary").textContent = "A single node, without a cluster.";
    $("cluster-summary").className = "hint";
    $("nodes").replaceChildren();
    return;
  }
  if (cluster.nodes.length === 1 && cluster.leader) {
    $("cluster-summary").textContent = "A single node, without a cluster.";
    $("cluster-summary").className = "hint";
    return $("nodes").replaceChildren();
  }
  const lost = cluster.nodes.filter((node) => node.role === "unreachable");
  const leader = cluster.leader ? `node ${cluster.leader} leads in term ${cluster.term}` : "no leader: nothing can be changed";
  const health = lost.length ? `${lost.length} of ${cluster.nodes.length} nodes can't be reached` : "all nodes are well";
  $("cluster-summary").textContent = `${health}; ${leader}. You see node ${cluster.node}.`;
  $("cluster-summary").className = lost.length || !cluster.leader ? "error" : "";
  $("nodes").replaceChildren(...cluster.nodes.map(nodeItem));
}

function nodeItem(node) {
  const item = element("li", undefined, node.role);
  item.append(element("b", `Node ${node.id}: ${node.role}`));
  const contact = node.last_contact_ms === null || node.last_contact_ms === undefined ? "" : `, heard ${duration(node.last_contact_ms / 1000)} ago`;
  item.append(element("div", `${node.address ?? ""}`, "hint"));
  item.append(element("div", `log ${count(node.log ?? 0)}${node.lag === null ? "" : `, ${count(node.lag)} behind`}${contact}`, "hint"));
  return item;
}

// ---- the list

function listPath(after, limit) {
  const query = new URLSearchParams({ limit });
  if ($("search").value) query.set("search", $("search").value);
  if ($("state").value !== "any") query.set("state", $("state").value);
  if (after) query.set("after", after);
  return `/v1/resources?${query}`;
}

/** Reads until there are `wanted` rows: a search that finds little takes several answers. */
async function readRows(wanted, after) {
  const rows = [];
  do {
    const page = await ask(listPath(after, Math.min(500, wanted - rows.length)));
    rows.push(...page.resources);
    after = page.next;
  } while (after && rows.length < wanted);
  return { rows, next: after };
}

/** Reads as many rows as are wanted anew; whoever asked last draws. */
async function refreshList() {
  const query = ++state.query;
  const { rows, next } = await readRows(state.wanted, null);
  if (query !== state.query) return;
  state.rows = rows;
  state.next = next;
  drawList();
}

function restartList() {
  state.wanted = PAGE;
  guarded(refreshList);
}

function drawList() {
  const list = $("list");
  const known = new Map([...list.children].map((item) => [item.dataset.name, item]));
  const items = state.rows.map((row) => {
    const item = known.get(row.name) ?? newItem(row.name);
    fillItem(item.firstChild, row);
    return item;
  });
  // Only what changed is touched: the focus and a screen reader stay where they are.
  if (items.length !== list.children.length || items.some((item, i) => item !== list.children[i])) list.replaceChildren(...items);
  $("more").hidden = !state.next;
  const shown = count(state.rows.length);
  $("found").textContent = state.rows.length ? `${shown} shown${state.next ? ", and there are more" : ""}` : "nothing matches";
}

function newItem(name) {
  const item = element("li");
  item.dataset.name = name;
  const button = element("button");
  button.type = "button";
  button.append(element("span", name, "name"), element("span", "", "left"), element("span", "", "who"), element("span", "", "queue"));
  button.addEventListener("click", () => select(name, true));
  item.append(button);
  return item;
}

function fillItem(button, row) {
  const set = (selector, text, badge) => {
    const part = button.querySelector(selector);
    if (part.textContent !== text) part.textContent = text;
    if (badge !== undefined) part.classList.toggle("badge", badge);
  };
  const { holder } = row;
  set(".who", holder ? `held by ${holder.owner} for ${duration(holder.held)}` : "free");
  set(".left", holder ? (holder.remaining === null ? "no ttl" : `${duration(holder.remaining)} left`) : "");
  set(".queue", row.waiting ? `${count(row.waiting)} waiting` : "", row.waiting > 0);
  button.setAttribute("aria-current", String(row.name === state.selected));
}

// ---- one resource

async function select(name, focus) {
  state.selected = name;
  location.hash = encodeURIComponent(name);
  state.detail = null;
  // What can't be seen yet can't have the focus: whichever answer comes first and is drawn gives it.
  if (focus) state.focus = true;
  drawList();
  await refreshDetail();
}

function deselect() {
  state.selected = null;
  state.focus = false;
  history.replaceState(null, "", location.pathname);
  $("detail").hidden = true;
  document.querySelector(".split").classList.remove("open");
  drawList();
}

async function refreshDetail() {
  const name = state.selected;
  if (name === null) return;
  const query = ++state.detailQuery;
  let detail;
  try {
    detail = await ask(`/v1/resources/${encodeURIComponent(name)}`);
  } catch (error) {
    if (error.status !== 404) throw error;
    detail = { name, now: new Date().toISOString(), holder: null, waiting: 0, queue: [], finished: 0, history: [] };
  }
  if (name !== state.selected || query !== state.detailQuery) return; // Something newer was asked meanwhile.
  state.detail = { ...detail, readAt: performance.now() };
  drawDetail();
}

function drawDetail() {
  const { detail } = state;
  const passed = (performance.now() - detail.readAt) / 1000;
  $("detail").hidden = false;
  document.querySelector(".split").classList.add("open");
  $("detail-title").textContent = detail.name;
  drawHolder(detail.holder, passed);
  const nowMs = Date.parse(detail.now) + passed * 1000;
  const held = detail.holder ? [{ ...detail.holder, held: detail.holder.held + passed }] : [];
  $("timeline").replaceChildren(timeline([...held, ...detail.history], nowMs, describe, $("timeline").clientWidth || 800));
  $("queue-count").textContent = detail.waiting ? `${count(detail.waiting)} waiting` : "nobody waits";
  $("history-count").textContent = detail.finished ? `${count(detail.finished)} remembered` : "nothing yet";
  fillTable("queue", queueRows(detail.queue, passed));
  fillTable("history", detail.history.map(historyRow));
  if (state.focus) {
    state.focus = false;
    $("detail").focus();
  }
}

function drawHolder(holder, passed) {
  if (!holder) return $("holder").replaceChildren(element("p", "Free: nobody holds it."));
  const list = element("dl");
  const put = (name, value) => { if (value) list.append(element("dt", name), element("dd", value)); };
  put("Held by", holder.owner);
  put("Since", `${time(holder.since)} (${duration(holder.held + passed)})`);
  put("Remaining", holder.remaining === null ? "until it is released" : duration(Math.max(0, holder.remaining - passed)));
  put("Revoking", holder.revoking && "told to let go; it can't renew");
  put("Token", String(holder.token));
  put("Ttl", holder.ttl === null ? "none" : `${duration(holder.ttl)}, renewed ${count(holder.renewals)} times`);
  put("Data", show(holder.data));
  put("Claim", holder.id);
  // The button keeps its place while numbers change, so that nobody loses it under a finger.
  const button = $("holder").querySelector("button")?.dataset.claim === holder.id ? $("holder").querySelector("button") : revokeButton(holder);
  const before = $("holder").querySelector("dl");
  if (before && button.isConnected) before.replaceWith(list);
  else $("holder").replaceChildren(list, button);
}

function revokeButton(claim) {
  const button = element("button", "Revoke…", "revoke");
  button.type = "button";
  button.dataset.claim = claim.id;
  button.setAttribute("aria-label", `Revoke the claim of ${claim.owner}`);
  button.addEventListener("click", () => openRevoke(claim));
  return button;
}

function fillTable(id, rows) {
  $(id).hidden = rows.length === 0;
  const body = $(id).tBodies[0];
  if (rows.length !== body.rows.length || rows.some((made, i) => made !== body.rows[i])) body.replaceChildren(...rows);
}

function row(...cells) {
  const made = element("tr");
  for (const cell of cells) {
    const data = element("td");
    data.append(cell);
    made.append(data);
  }
  return made;
}

/** Rows stay the same elements while their claims wait: a button never vanishes under a finger. */
function queueRows(queue, passed) {
  const known = new Map([...$("queue").tBodies[0].rows].map((made) => [made.dataset.claim, made]));
  return queue.map((claim) => {
    const made = known.get(claim.id) ?? row("", claim.owner, "", show(claim.data), revokeButton(claim));
    made.dataset.claim = claim.id;
    made.cells[0].textContent = claim.position;
    made.cells[2].textContent = duration(claim.waited + passed);
    return made;
  });
}

function historyRow(claim) {
  const ended = element("span", claim.status, claim.status);
  const told = claim.reason ? `${claim.status}: ${claim.reason}` : claim.status;
  ended.textContent = told;
  return row(claim.token === null ? "–" : String(claim.token), claim.owner, ended, duration(claim.held), time(claim.ended ?? claim.created));
}

// ---- revoking

function openRevoke(claim) {
  state.revoking = claim;
  $("revoke-what").textContent = `${claim.owner} ${claim.token === null ? "waits for" : "holds"} ${state.selected}.`;
  $("reason").value = "";
  // One that waits has nothing to let go of.
  $("revoke-when").hidden = claim.token === null;
  $("revoke-when").querySelector("[value=now]").checked = true;
  $("revoke-error").textContent = "";
  $("revoke").showModal();
  $("reason").focus();
}

async function revoke() {
  const reason = $("reason").value.trim();
  if (!reason) {
    $("revoke-error").textContent = "Say why: whoever asks later will want to know.";
    return $("reason").focus();
  }
  const gone = !$("revoke-when").hidden && $("revoke-when").querySelector("[value=gone]").checked;
  try {
    // A header has bytes, not letters: these are UTF-8.
    const bytes = String.fromCharCode(...new TextEncoder().encode(reason));
    await ask(`/v1/claims/${state.revoking.id}/`, {
      method: "PATCH",
      headers: { "Content-Type": "application/json", "Leasehold-Reason": bytes },
      body: JSON.stringify(gone ? { status: "revoked", when: "gone" } : { status: "revoked" }),
    });
    $("revoke").close();
    await refreshDetail();
  } catch (error) {
    $("revoke-error").textContent = error.message;
  }
}

// ---- the stream

/** Server-sent events by fetch: EventSource can't say who is asking. */
async function listen() {
  for (;;) {
    try {
      const more = state.lastId ? { "Last-Event-ID": state.lastId } : {};
      const response = await fetch("/v1/events", { headers: headers(more) });
      if (!response.ok) throw new Refused(response.status, await why(response));
      live(true);
      refreshSoon();
      await readEvents(response.body.getReader());
    } catch (error) {
      live(false, error.status ? error.message : "");
    }
    live(false);
    await new Promise((done) => setTimeout(done, 1000));
  }
}

async function readEvents(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    const events = blocks.map(parseEvent).filter((event) => event);
    if (events.length) happened(events);
  }
}

function parseEvent(block) {
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) state.lastId = line.slice(4);
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  return data ? JSON.parse(data) : null;
}

function happened(events) {
  const feed = $("feed");
  const news = events.filter((event) => event.kind !== "renewed").slice(-30).map((event) => {
    const what = event.kind === "lagged" ? "events were missed" : `${event.kind}: ${event.resource}, ${event.owner}${event.token ? `, token ${event.token}` : ""}`;
    return element("li", `${event.time ? new Date(event.time).toLocaleTimeString() : ""} ${what}`, event.kind);
  });
  feed.prepend(...news.reverse());
  while (feed.children.length > 60) feed.lastChild.remove();
  refreshSoon();
}

/** However much happens, the service is asked at most about three times a second, and never twice at once. What
    happens while it is being asked may not be in its answer: then it is asked once more. */
async function refreshSoon() {
  state.stale = true;
  if (state.refreshing) return;
  state.refreshing = true;
  while (state.stale) {
    await new Promise((done) => setTimeout(done, 300));
    state.stale = false;
    await Promise.all([refreshList, refreshDetail, refreshOverview].map((refresh) => refresh().catch(failed)));
  }
  state.refreshing = false;
}

function live(on, detail = "") {
  $("live").classList.toggle("on", on);
  $("live").textContent = on ? "live" : `reconnecting${detail ? `: ${detail}` : ""}`;
}

function failed(error) {
  notice(error.status ? error.message : "The service can't be reached; trying again.");
}

async function guarded(work) {
  try {
    await work();
    notice("");
  } catch (error) {
    failed(error);
  }
}

// ---- wiring

let typing = 0;
$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(restartList, 120);
});
$("state").addEventListener("change", restartList);
$("more").addEventListener("click", () => { state.wanted += PAGE; guarded(refreshList); });
$("close").addEventListener("click", deselect);
$("revoke-cancel").addEventListener("click", () => $("revoke").close());
$("revoke-do").addEventListener("click", revoke);
$("reason").addEventListener("keydown", (event) => { if (event.key === "Enter") revoke(); });
$("use-key").addEventListener("click", () => { sessionStorage.setItem("leasehold-key", $("key").value); location.reload(); });
document.addEventListener("keydown", (event) => {
  const writes = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
  if (event.key === "/" && !writes && !$("revoke").open) { event.preventDefault(); $("search").focus(); }
  if (event.key === "Escape" && !$("revoke").open && state.selected !== null) deselect();
});

const every = (ms, work) => { guarded(work); setInterval(() => { if (!document.hidden) guarded(work); }, ms); };
every(5000, refreshOverview);
every(2000, refreshCluster);
// Numbers that count go on by themselves; the list is asked anew now and then, for what no event tells.
setInterval(() => { if (state.detail && !document.hidden) drawDetail(); }, 1000);
every(10000, () => Promise.all([refreshList(), refreshDetail()]));
if (location.hash.length > 1) guarded(() => select(decodeURIComponent(location.hash.slice(1)), false));
listen();
