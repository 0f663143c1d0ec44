// Whether what the page shows is true. In: what the overview and the stream tell. Out: the head of the page, and `health`.
// Never: lets old numbers pass for new ones: they are dimmed, their age is named, and buttons that can't work are off.

import { $, setText } from "./dom.js";
import { duration, plural } from "./format.js";

export const health = {
  /** The service answers. */
  reachable: true,
  /** This node knows no leader, or can't take commands: reads show what it knows. */
  stale: false,
  /** Why, in the node's words. */
  problem: null,
  /** The event stream is open. */
  streaming: false,
  /** The overview has come once. */
  known: false,
  /** Data was read last then, in ms of `performance.now()`. */
  readAt: null,
  /** How old it may have been by then, in seconds; null: nobody knows. */
  age: 0,
};

/** Whether a change can work now. */
export const canChange = () => health.reachable && !health.stale;

/** Seconds since the data came, for numbers that count. They stand still while nobody answers or nothing is agreed on. */
export const passedSince = (readAt) => (canChange() ? (performance.now() - readAt) / 1000 : 0);

export function noteAge(header) {
  health.age = header === null ? 0 : header === "unknown" ? null : Number(header);
  health.readAt = performance.now();
}

/** The overview came. */
export function noteAnswer(node) {
  Object.assign(health, { reachable: true, stale: !node.ready, problem: node.problem, known: true });
  draw();
}

/** Nobody answered. */
export function noteSilence() {
  health.reachable = false;
  draw();
}

export function noteStream(open) {
  health.streaming = open;
  draw();
}

function age() {
  if (health.readAt === null) return "";
  if (health.age === null) return "What you see is what this node knew last; how old that is, nobody can tell. ";
  return `What you see may be ${duration(health.age + (performance.now() - health.readAt) / 1000)} old. `;
}

function words() {
  if (document.body.dataset.signIn) return ["connecting", "Signed out", ""];
  if (!health.reachable) return ["gone", "Unreachable", `The service can't be reached. ${age()}Nothing can be changed from here. Trying again.`];
  if (!health.known) return ["connecting", "Connecting", ""];
  if (health.stale) return ["stale", "Out of date", `This node takes no commands: ${health.problem}. ${age()}Nothing can be changed.`];
  return ["live", health.streaming ? "Live" : "Live, reconnecting the event stream", ""];
}

/** The head of the page; drawn once a second too, since ages grow. */
export function draw() {
  const [kind, word, notice] = words();
  document.body.dataset.health = kind;
  setText($("live"), word);
  document.title = notice ? `⚠ ${word} · Leasehold` : "Leasehold";
  // The age changes every second; a screen reader is told once what is wrong.
  $("trouble").hidden = !notice;
  setText($("trouble"), notice);
  setText($("trouble-said"), kind === "gone" || kind === "stale" ? word : "");
  for (const button of document.querySelectorAll("button.revoke, #revoke-do")) {
    button.disabled = !canChange();
    button.title = canChange() ? "" : "Nothing can be changed now: see the top of the page.";
  }
}

/** In: the overview's node, and the nodes if the reader may know them. */
export function drawNode(version, node, cluster) {
  const voters = cluster?.nodes.filter((member) => member.voter) ?? [];
  const lost = voters.filter((member) => member.role === "unreachable").length;
  const parts = [`node ${node.id}`];
  if (!node.alone) parts.push(node.leader ? `node ${node.leader} leads` : "no leader");
  if (cluster && cluster.nodes.length > 1) parts.push(lost ? `${lost} of ${plural(voters.length, "node")} lost` : `${plural(voters.length, "node")} up`);
  setText($("node"), parts.join(" · "));
  setText($("version"), `v${version}`);
  $("node").classList.toggle("bad", lost > 0 || (!node.alone && !node.leader));
}
