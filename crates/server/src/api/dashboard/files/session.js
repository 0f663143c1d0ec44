// Who is signed in. In: a key or token, typed once. Out: the headers of every call. Never: outlives its tab.

import { $, setText } from "./dom.js";

const PLACE = "leasehold-credentials";

/** Headers of the page's calls. The first one keeps the server from asking the browser for a password: the page has a form. */
export function headers(more = {}) {
  const credentials = sessionStorage.getItem(PLACE);
  return { ...more, "Leasehold-Page": "1", ...(credentials ? { Authorization: `Bearer ${credentials}` } : {}) };
}

export const hasCredentials = () => sessionStorage.getItem(PLACE) !== null;

function showForm(message) {
  document.body.dataset.signIn = "needed";
  setText($("sign-in-error"), message);
  if (!$("sign-in").contains(document.activeElement)) $("credentials").focus();
}

export function hideForm() {
  delete document.body.dataset.signIn;
}

/** The server took no credentials, or not these. */
export function refused() {
  const had = hasCredentials();
  sessionStorage.removeItem(PLACE);
  if (had) showForm("This key or token was not accepted, or is no longer valid.");
  else if (!document.body.dataset.signIn) showForm("");
}

/** In: what the server says of the caller. */
export function showUser(you) {
  const named = you.access_control && you.known;
  setText($("user"), named ? you.user : "");
  $("sign-out").hidden = !hasCredentials();
  $("open-sign-in").hidden = !you.access_control || you.known;
  // A plain link can't carry the key of this tab: the browser would ask for a password.
  $("metrics-link").hidden = you.access_control;
}

/** `start` is called when there is something to try. */
export function wire(start) {
  const signIn = () => {
    const typed = $("credentials").value.trim().replace(/^Bearer\s+/i, "");
    $("credentials").value = "";
    if (!/^[!-~]+$/.test(typed)) return showForm("A key or token has letters, digits and signs, without spaces: paste it whole.");
    sessionStorage.setItem(PLACE, typed);
    setText($("sign-in-error"), "");
    start();
  };
  $("sign-in-do").addEventListener("click", signIn);
  $("credentials").addEventListener("keydown", (event) => { if (event.key === "Enter") signIn(); });
  $("open-sign-in").addEventListener("click", () => showForm(""));
  $("sign-out").addEventListener("click", () => {
    sessionStorage.removeItem(PLACE);
    location.reload();
  });
}
