// Keeps the page up to date: the server says that something may have changed, and the page is fetched again. Without this
// script every page can be read, and every form sent.
"use strict";
const main = document.querySelector("main");

// A form that its user is filling in stays as it is.
const isInUse = () => {
  const isChanged = (field) => {
    if (field.type === "checkbox") return field.checked !== field.defaultChecked;
    if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
    const first = [...field.options].findIndex((option) => option.defaultSelected);
    return field.selectedIndex !== Math.max(first, 0);
  };
  const changed = [...main.querySelectorAll("input:not([type=hidden]), select")].some(isChanged);
  const at = document.activeElement;
  return changed || main.querySelector("details[open]") || (at && main.contains(at) && at.matches("input, select, button, summary"));
};

// A second click on a form that is being sent would send it twice. After ten seconds the user may try again.
let sent = { form: null, at: 0 };
document.addEventListener("submit", (event) => {
  if (sent.form === event.target && event.timeStamp - sent.at < 10000) event.preventDefault();
  else sent = { form: event.target, at: event.timeStamp };
});

// Returns what the page says below its content.
const refresh = async () => {
  if (document.hidden || isInUse()) return "";
  const answer = await fetch(location.href, { headers: { "x-unstun-refresh": "yes" } });
  if (!answer.ok) return "this page shows an earlier state; load it again to see why it cannot be shown";
  const text = await answer.text();
  if (isInUse()) return "";
  const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("#live");
  const shown = document.querySelector("#live");
  if (fresh && fresh.innerHTML !== shown.innerHTML) shown.replaceChildren(...fresh.childNodes);
  return "";
};

// A browser opens six connections to a host, for all its pages: one that is not shown, or was left, keeps none.
const follow = () => {
  const changes = new EventSource("/live");
  const state = document.querySelector("#state");
  changes.addEventListener("tick", () => { refresh().then((said) => { state.textContent = said; }).catch(() => {}); });
  changes.onerror = () => {
    // The daemon answers otherwise: the session has ended.
    if (changes.readyState === EventSource.CLOSED) location.reload();
    state.textContent = "no connection to the daemon; trying again";
  };
  return changes;
};

if (main.dataset.live === "yes") {
  let changes = null;
  const look = () => {
    changes?.close();
    changes = document.hidden ? null : follow();
  };
  look();
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", () => changes?.close());
  addEventListener("pageshow", (event) => { if (event.persisted) look(); });
}
