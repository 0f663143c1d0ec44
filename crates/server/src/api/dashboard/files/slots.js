// The slots of a resource as boxes. In: a resource with slots and its holders. Out: a list, one box for each slot.
// Never: more boxes than a person can look at: the rest is counted.

import { element } from "./dom.js";
import { plural } from "./format.js";
import { fullNameOf, personLink } from "./holder.js";

const BOXES_MAX = 200;

export function slotBoxes({ slots: { of }, holders }) {
  const held = new Map(holders.flatMap((holder) => (holder.slots ?? []).map((slot) => [slot, holder])));
  const shown = Math.min(of, BOXES_MAX);
  const boxes = Array.from({ length: shown }, (_, i) => box(i + 1, held.get(i + 1)));
  const rest = of > shown ? [element("li", { text: `and ${plural(of - shown, "slot")} more` })] : [];
  return element("ol", { className: "slots", children: [...boxes, ...rest] });
}

function box(number, holder) {
  const said = holder ? [`${number} `, personLink(holder)] : [`${number} free`];
  return element("li", { className: holder ? "slot taken" : "slot", title: holder ? fullNameOf(holder) : "free", children: said });
}
