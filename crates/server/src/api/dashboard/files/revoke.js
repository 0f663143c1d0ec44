// The dialog that takes a claim away. In: a resource and a claim, kept from its opening to its end. Out: one PATCH.
// Never: says less than what it revokes, and never acts without a reason.

import { ask } from "./api.js";
import { $, setText } from "./dom.js";
import { duration } from "./format.js";
import { draw as drawHealth } from "./health.js";
import { fullNameOf } from "./holder.js";

const revoking = { claim: null };

export function openRevoke(resource, claim) {
  revoking.claim = claim;
  const holds = claim.token !== null;
  setText($("revoke-title"), `Revoke a claim on ${resource}`);
  const since = duration(holds ? claim.held : claim.waited);
  setText($("revoke-what"), `${fullNameOf(claim)} ${holds ? "holds" : "waits for"} ${resource}${holds ? ` with token ${claim.token}` : ""}, for ${since} when you opened this.`);
  $("reason").value = "";
  // One that waits has nothing to let go of.
  $("revoke-when").hidden = !holds;
  $("revoke-when").querySelector("[value=now]").checked = true;
  setText($("revoke-error"), "");
  $("revoke").showModal();
  drawHealth();
  $("reason").focus();
}

async function revoke(revoked) {
  const reason = $("reason").value.trim();
  if (!reason) {
    setText($("revoke-error"), "Say why: whoever asks later will want to know.");
    return $("reason").focus();
  }
  const gone = !$("revoke-when").hidden && $("revoke-when").querySelector("[value=gone]").checked;
  try {
    // A header has bytes, not letters: these are UTF-8.
    const bytes = String.fromCharCode(...new TextEncoder().encode(reason));
    await ask(`/v1/claims/${revoking.claim.id}/`, {
      method: "PATCH",
      headers: { "Content-Type": "application/json", "Leasehold-Reason": bytes },
      body: JSON.stringify(gone ? { status: "revoked", when: "gone" } : { status: "revoked" }),
    });
    $("revoke").close();
    revoked();
  } catch (error) {
    setText($("revoke-error"), error.status ? error.message : "Nobody answered: whether it is revoked is not known. Look at the resource, and try again.");
  }
}

/** `revoked` is called after a revocation. */
export function wire(revoked) {
  $("revoke-cancel").addEventListener("click", () => $("revoke").close());
  $("revoke-do").addEventListener("click", () => revoke(revoked));
  $("reason").addEventListener("keydown", (event) => { if (event.key === "Enter" && !$("revoke-do").disabled) revoke(revoked); });
}
