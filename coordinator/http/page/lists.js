// The lists of jobs and hosts, and the events of the cluster.
"use strict";

import {bytes, classOf, filterField, make, number, oncePerFrame, Pager, setText, stateOf, Table, time} from "./elements.js";
import {hostButtons, onAccess} from "./actions.js";
import {Entries, read} from "./stream.js";

export const EVENTS_SHOWN = 500;
const HOSTS_PER_PAGE = 500;

// Reads the entries that a stream of the list would send: the newest jobs or events, or all pages of the hosts.
async function readList(name) {
  const items = [];
  let page = "";
  do {
    const answer = await read(page ? `${name}?page_token=${page}` : name);
    items.push(...answer[name] || []);
    page = name === "hosts" ? answer.next_page_token : "";
  } while (page);
  return items;
}

// A list that the stream watch/NAME keeps up to date: its entries, a function that draws it, and the arguments that
// `show` needs to follow the stream.
function liveList(name, keyOf, draw) {
  const entries = new Entries(keyOf);
  const update = oncePerFrame(() => draw(entries.map));
  const apply = (change) => {
    entries.apply(change);
    update();
  };
  const source = {path: `watch/${name}`, events: {[name]: apply},
    fallback: async () => apply({reset: true, items: await readList(name)})};
  return {entries, update, source};
}

// ---- jobs ----

const byAge = (one, other) => Number(other.submitted_unix_ms || 0) - Number(one.submitted_unix_ms || 0) ||
  (one.job_id < other.job_id ? 1 : -1);

export function jobsView(show) {
  const filter = filterField("Filter jobs", "Filter by name, id, state or reason   ( / )", () => update());
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
    const matches = filter.select([...jobs.values()].sort(byAge), (job) =>
      `${job.spec?.name} ${job.job_id} ${stateOf(job)} ${job.reason || ""}`);
    table.update(matches, (job) => job.job_id);
    const more = jobs.size >= 1000 ? " Older jobs are not shown; trainctl list shows all." : "";
    setText(count, jobs.size === 0 ? "There are no jobs yet. Submit one with trainctl submit." :
      `${matches.length} of ${jobs.size} jobs.${more}`);
  });
  show({title: "Jobs", place: "#/", nodes: [make("h1", {}, "Jobs"), filter.node, count, table.node], ...source});
}

// ---- hosts ----

function stateOfHost(host) {
  if (!host.attached) return "not connected";
  if (!host.reachable) return "unreachable";
  if (host.trouble) return "in trouble";
  return host.draining ? "draining" : host.cordoned ? "cordoned" : "ready";
}

const noteOf = (host) => host.trouble || host.cordon_reason || host.gpu_note || "";

export function hostsView(show) {
  const count = make("p", {class: "quiet", "aria-live": "polite"});
  const pager = new Pager("hosts", HOSTS_PER_PAGE, () => update());
  const filter = filterField("Filter hosts", "Filter by name, state, job, version or note   ( / )", () => {
    pager.first = 0;
    update();
  });
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
    {title: "Note", cell: noteOf, kind: "reason"},
    {title: "Actions", node: (host) => [make("div", {class: "buttons"}, ...hostButtons(host))]},
  ]);
  const {entries, update, source} = liveList("hosts", (host) => host.name, (hosts) => {
    const list = [...hosts.values()].sort((one, other) => one.name < other.name ? -1 : 1);
    const matches = filter.select(list, (host) =>
      `${host.name} ${stateOfHost(host)} ${(host.jobs || []).join(" ")} ${host.version || ""} ${noteOf(host)}`);
    table.update(pager.cut(matches), (host) => host.name);
    setText(count, `${matches.length === list.length ? "" : `${matches.length} of `}${list.length} ` +
      `${list.length === 1 ? "host" : "hosts"}.`);
  });
  const forget = onAccess(() => {
    for (const host of entries.map.values()) entries.map.set(host.name, {...host});
    update();
  });
  show({title: "Hosts", place: "#/hosts", close: forget, ...source,
    nodes: [make("h1", {}, "Hosts"), filter.node, count, pager.node, table.node]});
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
