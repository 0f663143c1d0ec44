// Talking to the service. In: paths. Out: JSON, or an error that says what is wrong.
// Never: decides what to show; it only notes how old an answer is (`health.js`).

import { health, noteAge } from "./health.js";
import { headers, refused } from "./session.js";

/** A read may wait six seconds for a leader; a node that takes longer is gone. */
const PATIENCE_MS = 10_000;

export class Refused extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

/** One call. An error without a status: nobody answered. */
export async function ask(path, options = {}) {
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const response = await fetch(path, { signal, cache: "no-store", ...options, headers: headers(options.headers) });
  await check(response);
  if (response.status === 204) return null;
  const body = await response.json();
  return { body, age: response.headers.get("Leasehold-Staleness") };
}

/** A read. Without a leader it takes what this node knows, and how old that may be. */
export async function read(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  if (health.stale) query.set("stale", "true");
  const { body, age } = await ask(query.size ? `${path}?${query}` : path);
  noteAge(age);
  return body;
}

async function check(response) {
  if (response.ok) return;
  if (response.status === 401) refused();
  throw new Refused(response.status, await why(response));
}

async function why(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return body.detail || Object.entries(body).map(([name, what]) => `${name}: ${what}`).join("; ");
  } catch { return text || response.statusText; }
}

/** Server-sent events by fetch, until the stream ends: EventSource can't say who is asking. */
export async function stream(path, lastId, opened, happened) {
  const response = await fetch(path, { headers: headers(lastId ? { "Last-Event-ID": lastId } : {}) });
  await check(response);
  opened();
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    happened(blocks.map(parseEvent));
  }
}

function parseEvent(block) {
  const found = { id: null, data: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) found.id = line.slice(4);
    if (line.startsWith("data: ")) found.data += line.slice(6);
  }
  return { id: found.id, event: found.data ? JSON.parse(found.data) : null };
}
