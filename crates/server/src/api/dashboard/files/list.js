// The list of resources. In: `/v1/resources`, page by page. Out: a row each, with a link.
// Never: keeps a table of its own: the server pages and searches, however many there are.

import { read } from "./api.js";
import { $, element, keyed, setText } from "./dom.js";
import { count, duration, plural } from "./format.js";
import { holdersOf, modeOf, namesOf } from "./holder.js";
import { namespaceHash, place, resourceHash } from "./place.js";

const PAGE = 50;
const PAGE_MAX = 500;
const list = { rows: [], next: null, wanted: PAGE, query: 0, prefix: "" };

function filters() {
  const state = $("state").value;
  return { prefix: list.prefix, search: $("search").value, state: state === "any" ? "" : state };
}

/** Reads until there are `wanted` rows: a search that finds little takes several answers. Whoever asked last draws. */
export async function refreshList() {
  const query = ++list.query;
  const rows = [];
  let after = "";
  do {
    const page = await read("/v1/resources", { ...filters(), after, limit: Math.min(PAGE_MAX, list.wanted - rows.length) });
    rows.push(...page.resources);
    after = page.next;
  } while (after && rows.length < list.wanted && query === list.query);
  if (query !== list.query) return;
  Object.assign(list, { rows, next: after });
  drawList();
}

export function moreRows() {
  list.wanted += PAGE;
  return refreshList();
}

export function restartList() {
  list.wanted = PAGE;
  return refreshList();
}

/** Shows one namespace alone; whether that is another one than before. */
export function scopeList(prefix) {
  const changed = prefix !== list.prefix;
  list.prefix = prefix;
  $("scope").hidden = !prefix;
  const steps = prefix.split("/").filter(Boolean);
  const links = steps.map((step, i) => element("a", { text: `${step}/`, href: namespaceHash(`${steps.slice(0, i + 1).join("/")}/`) }));
  $("scope").replaceChildren(element("a", { text: "All", href: "#/" }), ...links.flatMap((link) => [" › ", link]));
  return changed;
}

export function drawList() {
  const here = place();
  const selected = here.kind === "resource" ? here.name : null;
  keyed($("list"), list.rows, (row) => row.name, newRow, (item, row) => fillRow(item, row, row.name === selected));
  $("more").hidden = !list.next;
  setText($("found"), found());
}

function found() {
  const { prefix, search, state } = filters();
  if (list.rows.length) return list.next ? `${count(list.rows.length)} shown, and there are more` : plural(list.rows.length, "resource");
  return prefix || search || state ? "Nothing matches. Clear the search to see everything." : "There are no resources yet.";
}

function newRow(row) {
  const parts = ["name", "left", "who", "queue"].map((className) => element("span", { className }));
  parts[0].textContent = row.name;
  const item = element("li", { children: [element("a", { href: resourceHash(row.name), children: parts })] });
  item.dataset.name = row.name;
  return item;
}

function fillRow(item, row, selected) {
  const link = item.firstChild;
  const set = (name, text) => setText(link.querySelector(`.${name}`), text);
  const [holder] = holdersOf(row);
  const told = [modeOf(row), holder && `held for ${duration(holder.held)} by ${namesOf(row)}`].filter(Boolean);
  set("who", told.join(", ") || (row.waiting ? "reserved" : "free"));
  set("left", holder ? (holder.remaining === null ? "no ttl" : `${duration(holder.remaining)} left`) : "");
  set("queue", row.waiting ? `${count(row.waiting)} waiting` : "");
  link.querySelector(".queue").classList.toggle("badge", row.waiting > 0);
  if (selected) link.setAttribute("aria-current", "true");
  else link.removeAttribute("aria-current");
}
