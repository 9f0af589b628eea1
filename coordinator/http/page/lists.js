// The lists of jobs and hosts, and the events of the cluster.
"use strict";

import {bytes, classOf, make, number, oncePerFrame, setText, stateOf, Table, time} from "./elements.js";
import {hostButtons, onAccess} from "./actions.js";
import {Entries, read} from "./stream.js";

export const EVENTS_SHOWN = 500;

// A list that the feed watch/NAME keeps up to date: its entries by key, and what `show` needs of it.
function liveList(name, keyOf, draw) {
  const entries = new Entries(keyOf);
  const update = oncePerFrame(() => draw(entries.map));
  const apply = (change) => {
    entries.apply(change);
    update();
  };
  const source = {path: `watch/${name}`, events: {[name]: apply},
    fallback: async () => apply({reset: true, items: (await read(name))[name]})};
  return {entries, update, source};
}

// ---- jobs ----

const byAge = (one, other) => Number(other.submitted_unix_ms || 0) - Number(one.submitted_unix_ms || 0) ||
  (one.job_id < other.job_id ? 1 : -1);

export function jobsView(show) {
  const filter = make("input", {type: "search", id: "filter", "aria-label": "Filter jobs",
    placeholder: "Filter by name, id, state or reason   ( / )"});
  const count = make("p", {class: "quiet", "aria-live": "polite"});
  const table = new Table("Jobs", [
    {title: "Name", cell: (job) => job.spec?.name || job.job_id, link: (job) => `#/jobs/${job.job_id}`, kind: "name"},
    {title: "State", cell: stateOf, kind: "state", tone: (job) => classOf(stateOf(job))},
    {title: "Step", cell: (job) => job.last_step, kind: "number"},
    {title: "Loss", cell: (job) => Number(job.last_step) ? number(job.last_loss) : "", kind: "number"},
    {title: "Ranks", cell: (job) => job.current_ranks ?? job.spec?.resources?.ranks, kind: "number minor"},
    {title: "Restarts", cell: (job) => job.restarts ?? 0, kind: "number minor"},
    {title: "Submitted", cell: (job) => time(job.submitted_unix_ms), kind: "time minor"},
    {title: "Reason", cell: (job) => job.reason, kind: "reason minor"},
  ]);
  const {update, source} = liveList("jobs", (job) => job.job_id, (jobs) => {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = [...jobs.values()].sort(byAge).filter((job) => {
      const text = `${job.spec?.name} ${job.job_id} ${stateOf(job)} ${job.reason || ""}`.toLowerCase();
      return wanted.every((part) => text.includes(part));
    });
    table.update(matches, (job) => job.job_id);
    const more = jobs.size >= 1000 ? " Older jobs are not shown; trainctl list shows all." : "";
    setText(count, jobs.size === 0 ? "There are no jobs yet. Submit one with trainctl submit." :
      `${matches.length} of ${jobs.size} jobs.${more}`);
  });
  filter.addEventListener("input", update);
  filter.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    filter.value = "";
    update();
  });
  show({title: "Jobs", place: "#/", nodes: [make("h1", {}, "Jobs"), filter, count, table.node], ...source});
}

// ---- hosts ----

function stateOfHost(host) {
  if (!host.attached) return "not connected";
  if (!host.reachable) return "unreachable";
  if (host.trouble) return "in trouble";
  return host.draining ? "draining" : host.cordoned ? "cordoned" : "ready";
}

export function hostsView(show) {
  const count = make("p", {class: "quiet"});
  const table = new Table("Hosts", [
    {title: "Name", cell: (host) => host.name, kind: "name"},
    {title: "State", cell: stateOfHost, kind: "state", tone: (host) => stateOfHost(host) === "ready" ? "good" : "bad"},
    {title: "Free slots", cell: (host) => `${host.slots_free || 0} of ${host.slots || 0}`, kind: "number"},
    {title: "Jobs", kind: "minor", node: (host) => (host.jobs || []).flatMap((job) => [make("a", {href: `#/jobs/${job}`}, job), " "])},
    {title: "GPUs", cell: (host) => host.gpus || 0, kind: "number minor"},
    {title: "Cores", cell: (host) => host.cores || 0, kind: "number minor"},
    {title: "Memory", cell: (host) => bytes(host.memory_bytes), kind: "number minor"},
    {title: "Free disk", cell: (host) => bytes(host.disk_free_bytes), kind: "number minor"},
    {title: "Version", cell: (host) => host.version, kind: "minor"},
    {title: "Note", cell: (host) => host.trouble || host.cordon_reason || host.gpu_note, kind: "reason"},
    {title: "Actions", node: (host) => [make("div", {class: "buttons"}, ...hostButtons(host))]},
  ]);
  const {entries, update, source} = liveList("hosts", (host) => host.name, (hosts) => {
    const list = [...hosts.values()].sort((one, other) => one.name < other.name ? -1 : 1);
    table.update(list, (host) => host.name);
    const more = list.length >= 1000 ? " More hosts may exist; trainctl cluster shows all." : "";
    setText(count, `${list.length} ${list.length === 1 ? "host" : "hosts"}.${more}`);
  });
  const forget = onAccess(() => {
    for (const host of entries.map.values()) entries.map.set(host.name, {...host});
    update();
  });
  show({title: "Hosts", place: "#/hosts", nodes: [make("h1", {}, "Hosts"), count, table.node], close: forget,
    ...source});
}

// ---- events ----

function textOf(event) {
  if (event.state) return `${stateOf(event.state)}: ${event.state.reason || ""}`;
  if (event.notice) return (event.notice.rule ? `[${event.notice.rule}] ` : "") + (event.notice.text || "");
  if (event.checkpoint) return `checkpoint of step ${event.checkpoint.step}, ${bytes(event.checkpoint.size_bytes)}`;
  if (event.probe) return `probe of rank ${event.probe.rank || 0} on ${event.probe.host || ""}`;
  return "";
}

export function eventTable(ofCluster) {
  const columns = [
    {title: "Time", cell: (event) => time(event.time_unix_ms), kind: "time"},
    {title: "Generation", cell: (event) => event.generation, kind: "number minor"},
    {title: "Host", cell: (event) => event.host, kind: "minor"},
    {title: "Event", cell: textOf, kind: "reason", tone: (event) =>
      event.notice?.level === "error" ? "bad" : event.notice?.level === "warning" ? "busy" : ""},
  ];
  if (ofCluster) {
    columns.splice(1, 0, {title: "Job", cell: (event) => event.job_id, kind: "time",
      link: (event) => event.job_id ? `#/jobs/${event.job_id}` : "#/events"});
  }
  return new Table("Events", columns);
}

export function eventsView(show) {
  const table = eventTable(true);
  const {source} = liveList("events", (event) => event.sequence, (events) => {
    const list = [...events.values()].sort((one, other) => Number(other.sequence) - Number(one.sequence));
    table.update(list.slice(0, EVENTS_SHOWN), (event) => event.sequence);
  });
  show({title: "Events", place: "#/events", nodes: [make("h1", {}, "Events of the cluster"), table.node],
    ...source});
}
