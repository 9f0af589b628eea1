// The lists of jobs and hosts, and the events of the cluster.
"use strict";

import {bytes, classOf, make, number, oncePerFrame, setText, stateOf, Table, time} from "./elements.js";
import {hostButtons, onAccess} from "./actions.js";
import {Entries, read} from "./stream.js";

export const EVENTS_SHOWN = 500;

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
  const jobs = new Entries((job) => job.job_id);
  const update = oncePerFrame(() => {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = [...jobs.map.values()].sort(byAge).filter((job) => {
      const text = `${job.spec?.name} ${job.job_id} ${stateOf(job)} ${job.reason || ""}`.toLowerCase();
      return wanted.every((part) => text.includes(part));
    });
    table.update(matches, (job) => job.job_id);
    const more = jobs.map.size >= 1000 ? " Older jobs are not shown; trainctl list shows all." : "";
    setText(count, jobs.map.size === 0 ? "There are no jobs yet. Submit one with trainctl submit." :
      `${matches.length} of ${jobs.map.size} jobs.${more}`);
  });
  const apply = (change) => {
    jobs.apply(change);
    update();
  };
  filter.addEventListener("input", update);
  filter.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    filter.value = "";
    update();
  });
  show({title: "Jobs", place: "#/", nodes: [make("h1", {}, "Jobs"), filter, count, table.node], path: "watch/jobs",
    events: {jobs: apply}, fallback: async () => apply({reset: true, items: (await read("jobs")).jobs})});
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
  const hosts = new Entries((host) => host.name);
  const update = oncePerFrame(() => {
    const list = [...hosts.map.values()].sort((one, other) => one.name < other.name ? -1 : 1);
    table.update(list, (host) => host.name);
    const more = list.length >= 1000 ? " More hosts may exist; trainctl cluster shows all." : "";
    setText(count, `${list.length} ${list.length === 1 ? "host" : "hosts"}.${more}`);
  });
  const apply = (change) => {
    hosts.apply(change);
    update();
  };
  const forget = onAccess(() => {
    for (const host of hosts.map.values()) hosts.map.set(host.name, {...host});
    update();
  });
  show({title: "Hosts", place: "#/hosts", nodes: [make("h1", {}, "Hosts"), count, table.node], path: "watch/hosts",
    events: {hosts: apply}, close: forget,
    fallback: async () => apply({reset: true, items: (await read("hosts")).hosts})});
}

// ---- events ----

function textOf(event) {
  if (event.state) return `${(event.state.state || "").replace("JOB_STATE_", "")}: ${event.state.reason || ""}`;
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
  const events = new Entries((event) => event.sequence);
  const update = oncePerFrame(() => {
    const list = [...events.map.values()].sort((one, other) => Number(other.sequence) - Number(one.sequence));
    table.update(list.slice(0, EVENTS_SHOWN), (event) => event.sequence);
  });
  const apply = (change) => {
    events.apply(change);
    update();
  };
  show({title: "Events", place: "#/events", nodes: [make("h1", {}, "Events of the cluster"), table.node],
    path: "watch/events", events: {events: apply},
    fallback: async () => apply({reset: true, items: (await read("events")).events})});
}
