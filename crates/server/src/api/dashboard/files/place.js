// Where the reader is. In: the part of the address after `#`. Out: a resource, a holder or a namespace; and links to each.
// Never: keeps a place of its own: the address is the only one, so Back, Forward and links from elsewhere work.

/** A name in an address: readable, with its slashes. */
const encoded = (name) => name.split("/").map(encodeURIComponent).join("/");

export const resourceHash = (name) => `#/resource/${encoded(name)}`;
export const namespaceHash = (prefix) => (prefix ? `#/namespace/${encoded(prefix)}` : "#/");

export function personHash({ owner, who }) {
  const { host, user, pid } = who ?? {};
  const known = Object.entries({ owner, host, user, pid }).filter(([, value]) => value);
  return `#/holder?${new URLSearchParams(known)}`;
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

/** What the address names now. */
export function place() {
  const hash = location.hash;
  const rest = (start) => decoded(hash.slice(start.length));
  if (hash.startsWith("#/resource/")) return { kind: "resource", name: rest("#/resource/") };
  if (hash.startsWith("#/namespace/")) return { kind: "namespace", prefix: rest("#/namespace/") };
  if (hash.startsWith("#/holder?")) return { kind: "holder", person: Object.fromEntries(new URLSearchParams(hash.slice("#/holder?".length))) };
  return { kind: "all" };
}

/** Goes somewhere, as a link would. */
export function go(hash) {
  if (location.hash !== hash) location.hash = hash;
}

export function onMove(action) {
  addEventListener("hashchange", action);
}
