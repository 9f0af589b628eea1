// What an operator may do from the page: each action is confirmed in a dialog, which names its target and its effect,
// and is then a call of JobService, with the checks and the records of any other call.
"use strict";

import {byId, make, setText} from "./elements.js";
import {call, read, Refused} from "./stream.js";

const NOW = ["now", "Do not wait for the end of a step and for a save"];

// name -> {method, title, effect, options: [[key, label]], states: the states of a job in which the action is offered,
//   once: each dialog sends an id, so that sending it again after a lost answer has no further effect}
const JOB_ACTIONS = {
  pause: {method: "Pause", title: "Pause", options: [NOW], states: ["QUEUED", "PLACED", "STARTING", "RUNNING", "RECOVERING"],
    effect: "The job saves, ends its ranks and frees its slots. It stays paused until it is resumed."},
  resume: {method: "Resume", title: "Resume", states: ["PAUSED"],
    options: [["from_start", "Resume even if no checkpoint contains the steps that were made"]],
    effect: "The job waits for slots and continues from its newest checkpoint."},
  save: {method: "Save", title: "Save", options: [], states: ["RUNNING"], once: true,
    effect: "The job saves a checkpoint after the next step and continues."},
  restart: {method: "Restart", title: "Restart", options: [NOW], states: ["PLACED", "STARTING", "RUNNING"], once: true,
    effect: "The job saves, ends its ranks and forms a new group of ranks."},
  cancel: {method: "Cancel", title: "Cancel", options: [["save", "Save first; if the save fails, the job continues"]],
    states: ["QUEUED", "PLACED", "STARTING", "RUNNING", "RECOVERING", "STOPPING", "PAUSED"], danger: true,
    effect: "The job ends for good and frees its slots."},
};

const hostAction = (action, title, effect, options = []) =>
  ({method: "SetHost", title, effect, options, fixed: {action: `ACTION_${action}`}});
const HOST_ACTIONS = {
  cordon: hostAction("CORDON", "Cordon", "No new ranks are placed on the host. Ranks that run there continue."),
  uncordon: hostAction("UNCORDON", "Uncordon", "Ranks may be placed on the host again."),
  drain: {...hostAction("DRAIN", "Drain", "No new ranks are placed on the host, and its jobs move to other hosts, each " +
    "after a step and a save.", [NOW]), danger: true},
};

let access = {may_operate: false, why: ""};
const listeners = new Set();

// Asks the coordinator what the token allows.
export async function updateAccess() {
  try {
    access = await read("whoami");
  } catch (error) {
    if (error instanceof Refused) access = {may_operate: false, why: ""};
  }
  setText(byId("access"), access.may_operate ? "operator" : access.why ? "read-only" : "");
  byId("access").title = access.why || "";
  for (const listener of listeners) listener();
}

// Calls `listener` after each check of what the token allows, until the returned function is called.
export function onAccess(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const randomId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

function ask(action, target, fixed) {
  const id = randomId();
  const dialog = byId("confirm");
  const reason = make("input", {id: "confirm-reason", maxlength: "500", autocomplete: "off"});
  const user = make("input", {id: "confirm-user", maxlength: "64", autocomplete: "off"});
  user.value = sessionStorage.getItem("user") || "";
  const boxes = action.options.map(([key, label]) =>
    [key, make("input", {type: "checkbox", id: `confirm-${key}`}), make("label", {for: `confirm-${key}`}, label)]);
  const problem = make("p", {class: "bad", role: "alert"});
  const submit = make("button", {type: "submit", class: action.danger ? "danger" : "primary"},
    `${action.title} ${target.split(" ")[0]}`);
  const back = make("button", {type: "button"}, "Back");
  const form = make("form", {class: "dialog"}, make("h2", {id: "confirm-title"}, `${action.title} ${target}?`),
    make("p", {}, action.effect), ...boxes.map(([, box, label]) => make("div", {class: "check"}, box, label)),
    make("label", {for: "confirm-reason"}, "Reason (is recorded)"), reason,
    make("label", {for: "confirm-user"}, "Your name (is recorded, not verified)"), user, problem,
    make("div", {class: "buttons"}, submit, back));
  back.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!/^[ -~]*$/.test(user.value.trim())) {
      return setText(problem, "The name is sent in a header, so it may consist of printable ASCII characters only.");
    }
    sessionStorage.setItem("user", user.value.trim());
    submit.disabled = true;
    setText(problem, "");
    try {
      const options = Object.fromEntries(boxes.map(([key, box]) => [key, box.checked]));
      const message = {...fixed, ...action.fixed, ...options, reason: reason.value.trim()};
      if (action.once) message.request_id = id;
      await call(action.method, message, user.value.trim());
      dialog.close();
      setText(byId("done"), `${action.title} was requested for ${target}.`);
    } catch (error) {
      setText(problem, error instanceof TypeError ? "The coordinator does not answer." : error.message);
    }
    submit.disabled = false;
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  reason.focus();
}

function buttons(actions, names, target, fixed) {
  return names.map((name) => {
    const action = actions[name];
    const button = make("button", {type: "button", class: action.danger ? "danger" : "", "aria-haspopup": "dialog"},
      action.title);
    button.addEventListener("click", () => ask(action, target, fixed));
    return button;
  });
}

// The buttons for a job in this state; none if the token does not allow them.
export function jobButtons(id, name, state) {
  if (!access.may_operate) return [];
  const names = Object.keys(JOB_ACTIONS).filter((key) => JOB_ACTIONS[key].states.includes(state));
  return buttons(JOB_ACTIONS, names, name && name !== id ? `job ${name} (${id})` : `job ${id}`, {job_id: id});
}

export function hostButtons(host) {
  if (!access.may_operate) return [];
  const names = host.cordoned ? ["uncordon"] : ["cordon"];
  if (host.attached) names.push("drain");
  return buttons(HOST_ACTIONS, names, `host ${host.name}`, {name: host.name});
}
