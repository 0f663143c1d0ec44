// The contention board. In: `/v1/contention`. Out: the longest queues, waits and holds, each with its holder and a link.
// Never: asks the server for more than a tenth of its time: looking at everything takes longer where there is more.

import { read } from "./api.js";
import { $, element, keyed, setText } from "./dom.js";
import { brief, count, duration } from "./format.js";
import { holdersOf, personLink } from "./holder.js";
import { drawVisible } from "./overview.js";
import { resourceHash } from "./place.js";
import { drawTree, refreshTree } from "./tree.js";

const SHOWN = 5;
const PAUSE_MS = 1000;
let notBefore = 0;

/** Asks anew, unless it was asked just now. */
export async function refreshBoard() {
  const start = performance.now();
  if (start < notBefore) return;
  notBefore = Infinity;
  try {
    const board = await read("/v1/contention");
    drawBoard(board);
    drawVisible(board);
    drawTree(board);
    await refreshTree();
  } finally {
    notBefore = performance.now() + Math.max(PAUSE_MS, 10 * (performance.now() - start));
  }
}

function drawBoard(board) {
  const columns = {
    "by-queue": [board.longest_queue, (row) => `${count(row.waiting)} waiting`],
    "by-wait": [board.longest_wait, (row) => duration(row.longest_wait)],
    "by-hold": [board.longest_hold, (row) => duration(Math.max(...holdersOf(row).map((holder) => holder.held)))],
  };
  for (const [id, [rows, size]] of Object.entries(columns)) {
    const shown = rows.filter((row) => holdersOf(row).length || row.waiting).slice(0, SHOWN);
    keyed($(id), shown, (row) => row.name, newRow, (item, row) => fillRow(item, row, size(row)));
    $(`${id}-none`).hidden = shown.length > 0;
  }
  setText($("mean-wait"), board.mean_wait === null ? "–" : brief(board.mean_wait));
  setText($("longest-wait"), board.longest_wait.length ? brief(board.longest_wait[0].longest_wait) : "–");
  setText($("board-note"), board.complete ? "" : `Only the first ${count(board.looked_at)} names were looked at.`);
}

function newRow(row) {
  return element("li", { children: [
    element("a", { text: row.name, href: resourceHash(row.name), title: row.name, className: "name" }),
    element("b", { className: "size" }),
    element("span", { className: "who" }),
  ] });
}

function fillRow(item, row, size) {
  setText(item.querySelector(".size"), size);
  const who = item.querySelector(".who");
  const holders = holdersOf(row);
  const key = holders.map((holder) => holder.id).join();
  if (who.dataset.holders === key) return;
  who.dataset.holders = key;
  who.replaceChildren(holders.length ? personLink(holders[0]) : "free", ...(holders.length > 1 ? [` and ${holders.length - 1} more`] : []));
}
