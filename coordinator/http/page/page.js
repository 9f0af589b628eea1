// The status page: shows one view at a time and keeps it up to date with a stream of events.
"use strict";

import {updateAccess} from "./actions.js";
import {byId, setText} from "./elements.js";
import {jobView} from "./job.js";
import {eventsView, hostsView, jobsView} from "./lists.js";
import {EventStream, read, Refused, token} from "./stream.js";

const RETRY_MS = 2000;
const TOTALS_MS = 30000;
let view = null;    // what is shown
let stream = null;  // of the view
let serial = 0;     // grows with each change of the view, so that late answers are dropped
let shownJob = null;  // {id, logs} if the view is that of a job

function showInfo(info) {
  setText(byId("cluster"), `${info.hosts || 0} ${info.hosts === 1 ? "host" : "hosts"}, ${info.slots_free || 0} of ${info.slots || 0} slots free, ` +
    `version ${info.version}`);
}

function showState(text) {
  setText(byId("notice"), text);
  setText(byId("live"), text ? "not connected" : "live");
}

function askForToken(reason) {
  byId("login").hidden = false;
  byId("content").hidden = true;
  byId("forget").hidden = true;
  setText(byId("login-reason"), reason);
  setText(byId("notice"), "");
  setText(byId("live"), "");
  byId("token").focus();
}

function ready() {
  byId("login").hidden = true;
  byId("content").hidden = false;
  byId("forget").hidden = !token();
}

// Reads what the view begins with, then follows its stream.
async function follow(now) {
  let lastId = "";
  try {
    showInfo(await read("info"));
    if (view.prepare) lastId = await view.prepare();
  } catch (error) {
    if (now !== serial) return;
    if (error instanceof Refused) return askForToken(error.message);
    showState(error instanceof TypeError ? "The coordinator does not answer; this page tries again." : error.message);
    if (error.http !== 404) setTimeout(() => now === serial && follow(now), RETRY_MS);
    return;
  }
  if (now !== serial) return;
  ready();
  showState("");
  if (!view.hasStarted) view.started?.();
  view.hasStarted = true;
  if (view.isOver?.()) return setText(byId("live"), "");
  const again = () => {
    if (now !== serial) return;
    stream?.close();
    follow(now);
  };
  stream = new EventStream(view.path, {lastId, fallback: view.fallback, onLost: again,
    onState: (text) => now === serial && showState(text),
    onRefused: (error) => now === serial && askForToken(error.message),
    // An end without an error code means that the job has ended: reads the whole view once more. After an error, the
    // stream connects again.
    events: {info: showInfo, end: ({code}) => code || again(), ...view.events}});
}

function show(next) {
  serial += 1;
  stream?.close();
  stream = null;
  view?.close?.();
  view = next;
  document.title = `${view.title} - Trainyard`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === view.place) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  setText(byId("done"), "");
  byId("content").replaceChildren(...view.nodes);
  window.scrollTo(0, 0);
  follow(serial);
}

async function route() {
  const [, name, id, part, rank] = location.hash.split("/");
  if (name === "jobs" && /^[a-z0-9]{1,64}$/i.test(id || "")) {
    const wanted = part === "output" && /^[0-9]{1,6}$/.test(rank || "") ? Number(rank) : undefined;
    if (shownJob?.id === id && wanted !== undefined) return shownJob.logs.show(wanted);
    shownJob = {id, logs: await jobView(show, id, wanted)};
    return;
  }
  shownJob = null;
  if (name === "hosts") hostsView(show);
  else if (name === "events") eventsView(show);
  else jobsView(show);
}

// The address stays that of the view, which it names after a reload.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("content").focus();
});
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("token").value.trim();
  byId("token").value = "";
  // A header cannot hold other characters, for example those that a chat program has inserted.
  if (!/^[!-~]+$/.test(text)) {
    return askForToken("A token consists of letters, digits and -._~+/= only; copy it from its file again.");
  }
  sessionStorage.setItem("token", text);
  updateAccess();
  serial += 1;
  follow(serial);
});
byId("forget").addEventListener("click", () => {
  sessionStorage.removeItem("token");
  updateAccess();
  shownJob = null;
  route();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const keys = {"/": () => byId("filter")?.focus(), j: () => location.assign("#/"), h: () => location.assign("#/hosts"),
    e: () => location.assign("#/events")};
  if (!keys[event.key] || byId("confirm").open) return;
  event.preventDefault();
  keys[event.key]();
});
// The streams of the lists contain the totals, that of a job does not.
setInterval(() => {
  if (shownJob && !document.hidden && byId("login").hidden) read("info").then(showInfo, () => {});
}, TOTALS_MS);
window.addEventListener("hashchange", route);
route();
updateAccess();
