// Holders are people and programs. In: claims. Out: their names, as text and as links to their cards.
// Never: hides the owner whom the service has seen behind what a claim says of itself: cards and dialogs show both.

import { element } from "./dom.js";
import { count, plural } from "./format.js";
import { personHash } from "./place.js";

/** Those who hold a resource, the first of many. */
export const holdersOf = (row) => row.holders;

/** How they hold it, where that is not alone: "shared by 3", "3 of 5 slots". */
export function modeOf({ mode, slots, holder_count: holders }) {
  if (mode === "shared") return `shared by ${count(holders)}`;
  return slots ? `${count(slots.held)} of ${plural(slots.of, "slot")} held` : "";
}

/** "ada@alpha pid 12 (pg_dump)"; the owner where the claim says nothing of a host or a user. */
export function nameOf({ owner, who }) {
  const { host, user, pid, command } = who ?? {};
  const place = host ? (user ? `${user}@${host}` : host) : user ?? owner;
  const cut = command && command.length > 60 ? `${command.slice(0, 59)}…` : command;
  return [place, pid && `pid ${pid}`, cut && `(${cut})`].filter(Boolean).join(" ");
}

/** The same with the owner, where that is something else: nobody has checked the rest. */
export function fullNameOf(claim) {
  const name = nameOf(claim);
  return claim.who && name !== claim.owner ? `${name}, owner ${claim.owner}` : name;
}

/** "ada@alpha pid 12", or "ada@alpha pid 12 and 2 more". */
export function namesOf({ holders, holder_count: all }) {
  return all > 1 ? `${nameOf(holders[0])} and ${count(all - 1)} more` : nameOf(holders[0]);
}

/** A link to the card of a claim's maker. */
export function personLink(claim) {
  return element("a", { text: nameOf(claim), href: personHash(claim), title: fullNameOf(claim), className: "person" });
}
