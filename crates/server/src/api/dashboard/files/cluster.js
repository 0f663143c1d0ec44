// The nodes. In: `/v1/cluster`, for those who may ask. Out: a card a node. Never: a number that nobody knows.

import { ask } from "./api.js";
import { $, element, keyed, setText } from "./dom.js";
import { count, duration, plural } from "./format.js";

/** The cluster, or null where the reader may not know, or nobody can tell. */
export async function readCluster(you) {
  if (!you.admin) return null;
  try {
    return (await ask("/v1/cluster")).body;
  } catch (error) {
    if (error.status) return null;
    throw error;
  }
}

/** `here` is what the node that answers knows itself. */
export function drawCluster(cluster, here) {
  const several = cluster !== null && cluster.nodes.length > 1;
  $("cluster").hidden = !several;
  if (!several) return;
  const lost = cluster.nodes.filter((node) => node.role === "unreachable");
  const health = lost.length ? `${lost.length} of ${cluster.nodes.length} nodes can't be reached` : "all nodes are well";
  const leader = here.leader ? `node ${here.leader} leads in term ${cluster.term}` : "no leader: nothing can be changed";
  setText($("cluster-summary"), `${health}; ${leader}. You see node ${cluster.node}.`);
  $("cluster-summary").className = lost.length || !here.leader ? "error" : "";
  keyed($("nodes"), cluster.nodes, (node) => String(node.id), () => element("li"), fillNode);
}

function fillNode(item, node) {
  item.className = node.role;
  item.replaceChildren(
    element("b", { text: `Node ${node.id}: ${node.role}` }),
    element("div", { text: [node.url || node.address, node.version && `v${node.version}`].filter(Boolean).join(" · "), className: "hint" }),
    element("div", { text: progress(node), className: "hint" }),
  );
}

function progress(node) {
  const known = node.log !== null && node.log !== undefined;
  if (node.role === "unreachable") {
    const heard = node.last_contact_ms ? `last heard ${duration(node.last_contact_ms / 1000)} ago` : "not heard of";
    return known && node.log ? `${heard}, at log ${count(node.log)} then` : `${heard}, log unknown`;
  }
  const parts = [known ? `log ${count(node.log)}` : "log unknown"];
  if (known && node.lag !== null) parts.push(node.lag ? `${plural(node.lag, "entry", "entries")} behind` : "up to date");
  return parts.join(", ");
}
