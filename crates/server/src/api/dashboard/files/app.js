// The dashboard's road. In: the address (`place.js`), the overview, the event stream. Out: calls to one file a part:
// health.js the head, overview.js tiles and charts, board.js and tree.js contention, list.js, detail.js, person.js, feed.js.
// Never: keeps a table of its own. An event only says that it is time to ask again.

import { ask } from "./api.js";
import { refreshBoard } from "./board.js";
import { drawCluster, readCluster } from "./cluster.js";
import { drawDetail, openDetail, refreshDetail } from "./detail.js";
import { $, setText } from "./dom.js";
import { listen } from "./feed.js";
import * as health from "./health.js";
import { drawList, moreRows, refreshList, restartList, scopeList } from "./list.js";
import { drawOverview } from "./overview.js";
import { openPerson, refreshPerson } from "./person.js";
import { go, namespaceHash, onMove, place } from "./place.js";
import * as revoke from "./revoke.js";
import * as session from "./session.js";

const OVERVIEW_MS = 2000;
const REFRESH_MS = 3000;
const PAUSE_MS = 300;
const app = { started: false, stale: false, refreshing: false, asking: false, prefix: "" };

/** Whether the service is there, who asks, and its numbers. Everything else follows from that. */
async function refreshOverview() {
  if (app.asking) return;
  app.asking = true;
  try {
    const { body } = await ask("/v1/overview");
    health.noteAnswer(body.node);
    session.hideForm();
    session.showUser(body.you);
    drawOverview(body);
    if (!app.started) begin();
    const cluster = await readCluster(body.you);
    health.drawNode(body.version, body.node, cluster);
    drawCluster(cluster, body.node);
  } catch (error) {
    failed(error);
  } finally {
    app.asking = false;
  }
}

/** Once the service has let this reader in. */
function begin() {
  app.started = true;
  listen(refreshSoon).finally(() => { app.started = false; });
  moved();
  refreshBoard().catch(failed);
}

/** However much happens, the service is asked at most about three times a second, and never twice at once. What
    happens while it is being asked may not be in its answer: then it is asked once more. */
async function refreshSoon() {
  app.stale = true;
  if (app.refreshing) return;
  app.refreshing = true;
  while (app.stale) {
    await new Promise((done) => setTimeout(done, PAUSE_MS));
    app.stale = false;
    await Promise.all([refreshOverview, refreshList, refreshDetail, refreshPerson, refreshBoard].map((refresh) => refresh().catch(failed)));
  }
  app.refreshing = false;
}

/** Nobody answered: the head says so. No leader: the overview knows. What remains is said in a line of its own. */
function failed(error) {
  if (error.status === undefined) {
    if (error instanceof TypeError || error.name === "TimeoutError" || error.name === "AbortError") return health.noteSilence();
    throw error;
  }
  if (error.status === 401) return;
  if (error.status >= 500) return void setTimeout(refreshOverview, PAUSE_MS);
  notice(error.message);
}

function notice(text) {
  setText($("notice"), text);
  $("notice").hidden = !text;
}

/** The address has changed. The focus follows, so that keyboard and screen reader are where the eyes are. */
function moved(event) {
  const here = place();
  const opens = here.kind === "resource" || here.kind === "holder";
  $("work").classList.toggle("open", opens);
  if (!opens) app.prefix = here.prefix ?? "";
  if ($("revoke").open) $("revoke").close();
  const changed = scopeList(app.prefix);
  openDetail(here.kind === "resource" ? here.name : null, Boolean(event)).catch(failed);
  openPerson(here.kind === "holder" ? here.person : null, Boolean(event)).catch(failed);
  if (event && !opens) $("resources").focus({ preventScroll: true });
  (changed ? restartList() : refreshList()).catch(failed);
  drawList();
}

const close = () => go(namespaceHash(app.prefix));

function wireKeys() {
  document.addEventListener("keydown", (event) => {
    const writes = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
    if ($("revoke").open || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && !writes) { event.preventDefault(); $("search").focus(); }
    if (event.key === "Escape" && $("work").classList.contains("open")) close();
  });
}

function wire() {
  let typing = 0;
  const search = () => restartList().then(() => notice("")).catch(failed);
  $("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 120); });
  $("state").addEventListener("change", search);
  $("more").addEventListener("click", () => moreRows().catch(failed));
  $("close").addEventListener("click", close);
  $("person-close").addEventListener("click", close);
  for (const part of document.querySelectorAll(".origin")) part.textContent = location.origin;
  wireKeys();
  onMove(moved);
  session.wire(refreshOverview);
  revoke.wire(refreshSoon);
}

wire();
const every = (ms, work) => setInterval(() => { if (!document.hidden) work(); }, ms);
every(OVERVIEW_MS, () => { if (!document.body.dataset.signIn) refreshOverview(); });
// For what no event tells: renewals, and what another node knows.
every(REFRESH_MS, () => { if (app.started && health.health.reachable) refreshSoon(); });
every(1000, () => { health.draw(); drawDetail(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refreshOverview(); });
refreshOverview();
