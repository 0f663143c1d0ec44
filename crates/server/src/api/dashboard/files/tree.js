// The tree of namespaces. In: `/v1/contention` a level. Out: nested lists that open. Never: reads a level that is closed.

import { read } from "./api.js";
import { $, element, keyed, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { namespaceHash } from "./place.js";

/** The first level, which came with the board. */
export function drawTree(board) {
  $("namespaces").hidden = board.namespaces.length === 0;
  drawLevel($("tree"), board);
}

/** The levels that are open. */
export async function refreshTree() {
  for (const open of $("tree").querySelectorAll("details[open]")) await readLevel(open);
}

async function readLevel(details) {
  drawLevel(details.querySelector("ul"), await read("/v1/contention", { prefix: details.dataset.prefix }));
}

function drawLevel(list, level) {
  keyed(list, level.namespaces, (namespace) => namespace.name, newNamespace, fillNamespace);
  const here = level.resources_here ? plural(level.resources_here, "resource") : "";
  const more = level.more_namespaces ? `${plural(level.more_namespaces, "more namespace")}` : "";
  list.dataset.here = [here && `${here} at this level`, more].filter(Boolean).join(", ");
}

function newNamespace({ name }) {
  const short = name.slice(0, -1).split("/").at(-1);
  const details = element("details", { "data-prefix": name, children: [
    element("summary", { children: [element("b", { text: `${short}/` }), element("span", { className: "hint" })] }),
    element("p", { children: [element("a", { text: `Show the resources of ${name}`, href: namespaceHash(name) })] }),
    element("ul", { className: "tree", "aria-label": `Namespaces in ${name}` }),
  ] });
  details.addEventListener("toggle", () => { if (details.open) readLevel(details).catch(() => {}); });
  return element("li", { children: [details] });
}

function fillNamespace(item, { resources, held, waiting }) {
  const parts = [plural(resources, "resource"), `${count(held)} held`, waiting && `${count(waiting)} waiting`];
  setText(item.querySelector("summary .hint"), parts.filter(Boolean).join(" · "));
}
