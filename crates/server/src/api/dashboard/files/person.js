// A holder's card: what one person or program holds and waits for. In: `/v1/resources` of that holder. Out: the panel.
// Never: takes what a claim says of itself for proved: the owner stands beside it.

import { read } from "./api.js";
import { $, element, keyed, setText } from "./dom.js";
import { count, duration, plural } from "./format.js";
import { fullNameOf, holdersOf, nameOf } from "./holder.js";
import { resourceHash } from "./place.js";

const LIMIT = 200;
const card = { person: null, query: 0 };

/** Opens the card of a holder (owner, host, user, pid), or closes it with `null`. */
export async function openPerson(person, focus) {
  card.person = person;
  $("person").hidden = person === null;
  if (person === null) return;
  const { owner, ...who } = person;
  setText($("person-title"), nameOf({ owner, who }));
  drawFacts({ Owner: owner, Host: who.host, User: who.user, Process: who.pid });
  if (focus) $("person").focus();
  await refreshPerson();
}

export async function refreshPerson() {
  const { person } = card;
  if (person === null) return;
  const query = ++card.query;
  const { resources, next } = await read("/v1/resources", { ...person, limit: LIMIT });
  if (person !== card.person || query !== card.query) return;
  const held = resources.map((row) => ({ ...row, mine: holdersOf(row).find(isTheirs) }));
  const holds = held.filter((row) => row.mine);
  const waits = held.filter((row) => !row.mine);
  const command = holds.find((row) => row.mine.who?.command)?.mine.who.command;
  drawFacts({ Owner: person.owner, Host: person.host, User: person.user, Process: person.pid, Command: command });
  drawRows("person-holds", holds, (row) => `for ${duration(row.mine.held)}, token ${row.mine.token}`);
  drawRows("person-waits", waits, (row) => `held by ${holdersOf(row).map(fullNameOf).join(", ") || "nobody"}, ${count(row.waiting)} in the queue`);
  setText($("person-note"), next ? `Only the first ${plural(LIMIT, "resource")} are shown.` : "");
}

function isTheirs({ owner, who }) {
  const { person } = card;
  return ["host", "user", "pid"].every((name) => !person[name] || person[name] === who?.[name]) && (!person.owner || person.owner === owner);
}

function drawFacts(facts) {
  const known = Object.entries(facts).filter(([, value]) => value);
  $("person-facts").replaceChildren(...known.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]));
}

function drawRows(id, rows, told) {
  setText($(`${id}-count`), rows.length ? plural(rows.length, "resource") : "nothing");
  keyed($(id), rows, (row) => row.name, newRow, (item, row) => setText(item.lastChild, told(row)));
}

function newRow({ name }) {
  return element("li", { children: [element("a", { text: name, href: resourceHash(name) }), " ", element("span", { className: "hint" })] });
}
