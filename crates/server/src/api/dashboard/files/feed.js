// What happened just now. In: the stream `/v1/events`, from some events back. Out: a list, newest first.
// Never: grows: the oldest lines go.

import { stream } from "./api.js";
import { $, element } from "./dom.js";
import { clock, duration } from "./format.js";
import { noteStream } from "./health.js";
import { personLink } from "./holder.js";
import { resourceHash } from "./place.js";

const LINES = 60;
/** What there is comes with the stream's first piece; after this long there is nothing. */
const QUIET_MS = 1000;
const KINDS = "queued,active,revoking,aborted,expired,released,revoked,withdrawn";
const PATH = `/v1/events?last=${LINES}&who=true&kind=${KINDS}`;
const WORDS = {
  queued: "waits for", active: "got", revoking: "was told to let go of", aborted: "aborted its claim on",
  expired: "let expire", released: "released", revoked: "was revoked from", withdrawn: "stopped waiting for",
};
let lastId = null;

/** Reads for ever; `changed` is called after something happened. */
export async function listen(changed) {
  for (;;) {
    try {
      await stream(PATH, lastId, () => { noteStream(true); changed(); setTimeout(noteQuiet, QUIET_MS); }, (blocks) => happened(blocks, changed));
    } catch (error) {
      if (error.status === 401) return noteStream(false);
    }
    noteStream(false);
    await new Promise((done) => setTimeout(done, 1000));
  }
}

function happened(blocks, changed) {
  lastId = blocks.findLast((block) => block.id)?.id ?? lastId;
  const events = blocks.map((block) => block.event).filter(Boolean);
  if (!events.length) return;
  $("feed").prepend(...events.slice(-LINES).map(line).reverse());
  while ($("feed").children.length > LINES) $("feed").lastChild.remove();
  $("feed-none").hidden = true;
  changed();
}

function noteQuiet() {
  $("feed-none").hidden = $("feed").children.length > 0;
}

function line(event) {
  if (event.kind === "lagged") return element("li", { text: "Some events were missed here.", className: "hint" });
  const after = event.kind === "active" && event.waited > 0 ? `after ${duration(event.waited)}` : event.held ? `after ${duration(event.held)}` : "";
  const more = [after, event.token && `token ${event.token}`, event.reason && `“${event.reason}”`].filter(Boolean).join(", ");
  return element("li", { className: event.kind, children: [
    element("time", { text: clock(event.time), datetime: event.time }), " ",
    personLink(event), ` ${WORDS[event.kind]} `,
    element("a", { text: event.resource, href: resourceHash(event.resource) }), more && element("span", { text: ` ${more}`, className: "hint" }),
  ].filter(Boolean) });
}
