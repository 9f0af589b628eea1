// The status page: reads the JSON of /api/v1 once a second and shows it. Read-only. All text from outside is inserted as
// text, never as markup. The token is kept in the storage of the tab and sent in a header.
"use strict";

const POLL_MS = 1000;
const RANKS_SHOWN = 1024;
const EVENTS_SHOWN = 500;
const SVG = "http://www.w3.org/2000/svg";
const known = new Map();  // path -> {tag, data}: the newest answers
let view = null;          // {paths, draw}: what is shown
let serial = 0;           // grows with each change of the view, so that late answers are dropped

const byId = (id) => document.getElementById(id);

// ---- elements ----

// Makes an element. `children` are elements or texts.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- values ----

const stateOf = (job) => (job.state || "").replace("JOB_STATE_", "");
const FINAL = ["SUCCEEDED", "FAILED", "CANCELLED"];

function classOf(state) {
  if (state === "RUNNING" || state === "SUCCEEDED") return "good";
  if (state === "FAILED" || state === "RECOVERING") return "bad";
  return state === "STARTING" || state === "PLACED" || state === "STOPPING" ? "busy" : "quiet";
}

function number(value, digits = 4) {
  if (value === undefined || value === null) return "";
  const parsed = Number(value);
  return Number.isFinite(parsed) ? String(Number(parsed.toPrecision(digits))) : String(value);
}

function bytes(value) {
  let size = Number(value || 0);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1024 || unit === "TiB") return `${number(size, 3)} ${unit}`;
    size /= 1024;
  }
  return "";
}

function time(ms) {
  if (!Number(ms)) return "";
  const date = new Date(Number(ms));
  const two = (part) => String(part).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(Number(seconds) || 0));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
}

// ---- tables ----

// A table whose rows are kept by key, so that an update changes only the cells that differ. A column is
// {title, cell(row) -> text, kind, link(row)}.
class Table {
  constructor(caption, columns) {
    this.columns = columns;
    this.rows = new Map();
    this.body = make("tbody");
    const titles = columns.map((column) => make("th", {scope: "col", class: column.kind || ""}, column.title));
    this.node = make("div", {class: "wide", tabindex: "0", role: "region", "aria-label": caption},
      make("table", {}, make("thead", {}, make("tr", {}, ...titles)), this.body));
  }

  update(items, keyOf) {
    const seen = new Set();
    let at = this.body.firstChild;
    for (const item of items) {
      const key = String(keyOf(item));
      if (seen.has(key)) continue;
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, row = this.makeRow());
      this.fill(row, item);
      if (row === at) at = at.nextSibling;
      else this.body.insertBefore(row, at);
    }
    for (const [key, row] of this.rows) {
      if (seen.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
  }

  makeRow() {
    return make("tr", {}, ...this.columns.map((column) =>
      make("td", {class: column.kind || ""}, column.link ? make("a") : null)));
  }

  fill(row, item) {
    this.columns.forEach((column, index) => {
      const cell = row.children[index];
      const target = column.link ? cell.firstChild : cell;
      setText(target, String(column.cell(item) ?? ""));
      if (column.link) target.setAttribute("href", column.link(item));
      if (column.tone) cell.className = `${column.kind || ""} ${column.tone(item)}`;
    });
  }
}

// ---- views ----

function showJobs() {
  const filter = make("input", {type: "search", id: "filter", "aria-label": "Filter jobs",
    placeholder: "Filter by name, id, state or reason"});
  const count = make("p", {class: "quiet", "aria-live": "polite"});
  const table = new Table("Jobs", [
    {title: "Name", cell: (job) => job.spec?.name || job.job_id, link: (job) => `#/jobs/${job.job_id}`},
    {title: "State", cell: stateOf, kind: "time", tone: (job) => classOf(stateOf(job))},
    {title: "Step", cell: (job) => job.last_step, kind: "number"},
    {title: "Loss", cell: (job) => Number(job.last_step) ? number(job.last_loss) : "", kind: "number"},
    {title: "Ranks", cell: (job) => job.current_ranks ?? job.spec?.resources?.ranks, kind: "number minor"},
    {title: "Restarts", cell: (job) => job.restarts ?? 0, kind: "number minor"},
    {title: "Submitted", cell: (job) => time(job.submitted_unix_ms), kind: "time minor"},
    {title: "Reason", cell: (job) => job.reason},
  ]);
  const update = (list) => {
    const jobs = list?.jobs || [];
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = jobs.filter((job) => {
      const text = `${job.spec?.name} ${job.job_id} ${stateOf(job)} ${job.reason || ""}`.toLowerCase();
      return wanted.every((part) => text.includes(part));
    });
    table.update(matches, (job) => job.job_id);
    const more = list?.next_page_token ? " The older jobs are not shown; trainctl list shows all." : "";
    setText(count, `${matches.length} of ${jobs.length} jobs.${more}`);
  };
  filter.addEventListener("input", () => update(known.get("jobs")?.data));
  show("Jobs", "#/", ["jobs"], [make("h1", {}, "Jobs"), filter, count, table.node], ([list]) => update(list));
}

function showHosts() {
  const count = make("p", {class: "quiet"});
  const stateOfHost = (host) => {
    if (!host.attached) return "not connected";
    if (!host.reachable) return "unreachable";
    if (host.trouble) return "in trouble";
    return host.draining ? "draining" : host.cordoned ? "cordoned" : "ready";
  };
  const table = new Table("Hosts", [
    {title: "Name", cell: (host) => host.name},
    {title: "State", cell: stateOfHost, tone: (host) => stateOfHost(host) === "ready" ? "good" : "bad"},
    {title: "Free slots", cell: (host) => `${host.slots_free || 0} of ${host.slots || 0}`, kind: "number"},
    {title: "Jobs", cell: (host) => (host.jobs || []).join(", ")},
    {title: "GPUs", cell: (host) => host.gpus || 0, kind: "number minor"},
    {title: "Cores", cell: (host) => host.cores || 0, kind: "number minor"},
    {title: "Memory", cell: (host) => bytes(host.memory_bytes), kind: "number minor"},
    {title: "Free disk", cell: (host) => bytes(host.disk_free_bytes), kind: "number minor"},
    {title: "Version", cell: (host) => host.version, kind: "minor"},
    {title: "Note", cell: (host) => host.trouble || host.cordon_reason || host.gpu_note},
  ]);
  show("Hosts", "#/hosts", ["hosts"], [make("h1", {}, "Hosts"), count, table.node], ([list]) => {
    table.update(list?.hosts || [], (host) => host.name);
    const more = list?.next_page_token ? " More hosts are not shown; trainctl cluster shows all." : "";
    setText(count, `${(list?.hosts || []).length} hosts.${more}`);
  });
}

function textOf(event) {
  if (event.state) return `${(event.state.state || "").replace("JOB_STATE_", "")}: ${event.state.reason || ""}`;
  if (event.notice) return (event.notice.rule ? `[${event.notice.rule}] ` : "") + (event.notice.text || "");
  if (event.checkpoint) return `checkpoint of step ${event.checkpoint.step}, ${bytes(event.checkpoint.size_bytes)}`;
  if (event.probe) return `probe of rank ${event.probe.rank || 0} on ${event.probe.host || ""}`;
  return "";
}

function eventTable(ofCluster) {
  const columns = [
    {title: "Time", cell: (event) => time(event.time_unix_ms), kind: "time"},
    {title: "Generation", cell: (event) => event.generation, kind: "number minor"},
    {title: "Host", cell: (event) => event.host, kind: "minor"},
    {title: "Event", cell: textOf, tone: (event) =>
      event.notice?.level === "error" ? "bad" : event.notice?.level === "warning" ? "busy" : ""},
  ];
  if (ofCluster) {
    columns.splice(1, 0, {title: "Job", cell: (event) => event.job_id,
      link: (event) => event.job_id ? `#/jobs/${event.job_id}` : "#/events"});
  }
  return new Table("Events", columns);
}

const newestFirst = (list) => (list?.events || []).slice(-EVENTS_SHOWN).reverse();

function showEvents() {
  const table = eventTable(true);
  show("Events", "#/events", ["events"], [make("h1", {}, "Events of the cluster"), table.node],
    ([list]) => table.update(newestFirst(list), (event) => event.sequence));
}

// ---- one job ----

// The generations of a job in order: {generation, begin, end, states: [{state, from, to}], reason}. `reason` is that of
// the newest change of state.
function generationsOf(events, until) {
  const generations = new Map();
  let last = null;
  for (const event of events) {
    if (!event.state) continue;
    const at = Number(event.time_unix_ms);
    const id = Number(event.generation || 0);
    if (!generations.has(id)) generations.set(id, {generation: id, begin: at, states: []});
    const entry = generations.get(id);
    if (last) last.to = at;
    last = {state: event.state.state.replace("JOB_STATE_", ""), from: at, to: until};
    entry.states.push(last);
    entry.reason = event.state.reason || "";
    entry.restarts = event.state.restarts;
  }
  for (const entry of generations.values()) entry.end = entry.states.at(-1).to;
  return [...generations.values()];
}

function drawTimeline(svg, generations) {
  svg.replaceChildren();
  if (generations.length === 0) return;
  const begin = generations[0].begin;
  const span = Math.max(1, generations.at(-1).end - begin);
  const x = (at) => (at - begin) / span * 800;
  for (const entry of generations) {
    for (const part of entry.states) {
      const rect = draw("rect", {x: x(part.from), y: 4, height: 22, class: classOf(part.state),
        width: Math.max(1, x(part.to) - x(part.from))});
      rect.append(draw("title", {}, `generation ${entry.generation}: ${part.state}, ${duration((part.to - part.from) / 1000)}`));
      svg.append(rect);
    }
    svg.append(draw("line", {x1: x(entry.begin), x2: x(entry.begin), y1: 0, y2: 32, class: "axis"}));
  }
}

function drawGoodput(svg, goodput) {
  svg.replaceChildren();
  const total = Number(goodput?.total_s || 0);
  if (total <= 0) return;
  const tones = {train_s: "good", save_s: "lost", lost_s: "bad", detect_s: "bad", recover_s: "bad", start_s: "busy",
    queue_s: "quiet", pause_s: "quiet"};
  let x = 0;
  for (const [part, tone] of Object.entries(tones)) {
    const width = Number(goodput[part] || 0) / total * 800;
    if (width <= 0) continue;
    const rect = draw("rect", {x, y: 0, width, height: 18, class: tone});
    rect.append(draw("title", {}, `${part.replace("_s", "")}: ${duration(goodput[part])}`));
    svg.append(rect);
    x += width;
  }
}

function drawCurve(svg, list) {
  svg.replaceChildren();
  const points = (list?.events || []).map((event) => ({step: Number((event.step || event.eval)?.step || 0),
    loss: Number((event.step || event.eval)?.loss ?? 0), evaluation: Boolean(event.eval)}));
  const finite = points.filter((point) => Number.isFinite(point.loss));
  if (finite.length === 0) {
    svg.append(draw("text", {x: 60, y: 110}, "The coordinator holds no losses of this job."));
    return 0;
  }
  let [low, high, first, last] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const {step, loss} of finite) {
    [low, high] = [Math.min(low, loss), Math.max(high, loss)];
    [first, last] = [Math.min(first, step), Math.max(last, step)];
  }
  if (high === low) [low, high] = [low - 0.5, high + 0.5];
  const x = (step) => 60 + (last === first ? 0.5 : (step - first) / (last - first)) * 725;
  const y = (loss) => 15 + (high - loss) / (high - low) * 180;
  for (const part of [0, 0.5, 1]) {
    const loss = low + (high - low) * part;
    svg.append(draw("line", {x1: 60, x2: 785, y1: y(loss), y2: y(loss), class: "axis"}));
    svg.append(draw("text", {x: 54, y: y(loss) + 4, "text-anchor": "end"}, number(loss, 3)));
  }
  svg.append(draw("text", {x: 60, y: 214}, `step ${first}`));
  svg.append(draw("text", {x: 785, y: 214, "text-anchor": "end"}, `step ${last}`));
  // A loss that is not finite interrupts the line.
  let path = "";
  let pen = "M";
  for (const point of points) {
    if (point.evaluation) continue;
    path += Number.isFinite(point.loss) ? `${pen}${x(point.step).toFixed(1)},${y(point.loss).toFixed(1)}` : "";
    pen = Number.isFinite(point.loss) ? "L" : "M";
  }
  if (path) svg.append(draw("path", {d: path, class: "curve"}));
  for (const {step, loss} of finite.filter((point) => point.evaluation)) {
    svg.append(draw("circle", {cx: x(step), cy: y(loss), r: 3, class: "evaluation"}));
  }
  return finite.length;
}

function rankTable() {
  return new Table("Ranks", [
    {title: "Rank", cell: (rank) => rank.rank || 0, kind: "number"},
    {title: "Host", cell: (rank) => rank.host},
    {title: "Phase", cell: (rank) => rank.phase, tone: (rank) => rank.exit ? "bad" : ""},
    {title: "Step", cell: (rank) => rank.last_step, kind: "number"},
    {title: "Last report", cell: (rank) => rank.last_report_age_s === undefined ? "" : duration(rank.last_report_age_s),
      kind: "number minor"},
    {title: "Memory", cell: (rank) => bytes((rank.memory || []).reduce((sum, use) => sum + Number(use.bytes || 0), 0)),
      kind: "number minor"},
    {title: "Note", cell: (rank) => [rank.exit, rank.waits_in && `waits in ${rank.waits_in}`, rank.straggler && "straggler"]
      .filter(Boolean).join("; ")},
  ]);
}

function showJob(id) {
  const title = make("h1", {}, id);
  const facts = make("dl");
  const picture = (height, label) => draw("svg", {viewBox: `0 0 800 ${height}`, role: "img", "aria-label": label});
  const curve = picture(222, "Loss curve");
  const goodput = picture(18, "How the ranks spent their time");
  const timeline = picture(32, "Timeline of generations");
  const generations = new Table("Generations", [
    {title: "Generation", cell: (entry) => entry.generation || "none yet", kind: "number"},
    {title: "Began", cell: (entry) => time(entry.begin), kind: "time"},
    {title: "Lasted", cell: (entry) => duration((entry.end - entry.begin) / 1000), kind: "number"},
    {title: "Newest state and its reason", cell: (entry) => `${entry.states.at(-1).state}: ${entry.reason}`,
      tone: (entry) => classOf(entry.states.at(-1).state)},
  ]);
  const ranks = rankTable();
  const events = eventTable(false);
  const checkpoints = new Table("Checkpoints", [
    {title: "Step", cell: (info) => info.step, kind: "number"},
    {title: "Size", cell: (info) => bytes(info.size_bytes), kind: "number"},
    {title: "Recorded", cell: (info) => time(info.recorded_unix_ms), kind: "time minor"},
    {title: "Folder", cell: (info) => info.path},
  ]);
  const section = (name, ...nodes) => make("section", {}, make("h2", {}, name), ...nodes);
  show(`Job ${id}`, "", [`jobs/${id}`, `jobs/${id}/events`, `jobs/${id}/steps`],
    [make("p", {}, make("a", {href: "#/"}, "All jobs")), title, facts, section("Loss", curve),
      section("Time", goodput), section("Generations", timeline, generations.node), section("Ranks", ranks.node),
      section("Checkpoints", checkpoints.node), section("Events", events.node)],
    ([job, list, steps]) => {
      if (job) {
        setText(title, job.spec?.name || id);
        fillFacts(facts, job);
        drawGoodput(goodput, job.goodput);
        ranks.update((job.ranks || []).slice(0, RANKS_SHOWN), (rank) => rank.rank || 0);
        checkpoints.update((job.checkpoints || []).slice().reverse(), (info) => info.step);
      }
      const until = Number(job?.finished_unix_ms) || Date.now();
      const parts = generationsOf(list?.events || [], until);
      drawTimeline(timeline, parts);
      generations.update(parts.slice().reverse(), (entry) => entry.generation);
      events.update(newestFirst(list), (event) => event.sequence);
      drawCurve(curve, steps);
    });
}

function fillFacts(facts, job) {
  const goodput = job.goodput?.total_s ? `${number(100 * (job.goodput.train_s || 0) / job.goodput.total_s, 3)} % training` : "";
  const rows = [["State", stateOf(job)], ["Reason", job.reason], ["Id", job.job_id], ["Generation", job.generation],
    ["Restarts", `${job.restarts || 0} after failures, ${job.planned_restarts || 0} on request`],
    ["Newest step", job.last_step ? `${job.last_step}${job.last_loss === undefined ? "" : `, loss ${number(job.last_loss)}`}` : ""],
    ["Ranks", `${job.current_ranks || 0} of ${job.spec?.resources?.ranks || 0}`],
    ["Submitted", time(job.submitted_unix_ms)], ["Finished", time(job.finished_unix_ms)], ["Time", goodput]]
    .filter(([, value]) => value);
  facts.replaceChildren(...rows.flatMap(([name, value]) =>
    [make("dt", {}, name), make("dd", {class: name === "State" ? classOf(value) : ""}, String(value))]));
}

// ---- reading ----

class Refused extends Error {}

// Returns whether the data of the path has changed.
async function read(path) {
  const before = known.get(path);
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  if (before) headers["If-None-Match"] = before.tag;
  const response = await fetch(`api/v1/${path}`, {headers, cache: "no-store", credentials: "omit"});
  if (response.status === 304) return false;
  const data = await response.json();
  if (response.status === 401) throw new Refused(data.message);
  if (!response.ok) throw new Error(data.message || `the coordinator answered ${response.status}`);
  known.set(path, {tag: response.headers.get("ETag"), data});
  return true;
}

function askForToken(reason) {
  byId("login").hidden = false;
  byId("content").hidden = true;
  byId("forget").hidden = true;
  setText(byId("login-reason"), reason);
  setText(byId("notice"), "");
}

async function refresh() {
  const now = serial;
  const current = view;
  try {
    const changed = await Promise.all([...current.paths, "info"].map(read));
    if (now !== serial) return;
    setText(byId("notice"), "");
    byId("login").hidden = true;
    byId("content").hidden = false;
    byId("forget").hidden = !sessionStorage.getItem("token");
    const info = known.get("info").data;
    setText(byId("cluster"), `${info.hosts || 0} hosts, ${info.slots_free || 0} of ${info.slots || 0} slots free, ` +
      `version ${info.version}`);
    if (!current.drawn || changed.slice(0, -1).some(Boolean)) {
      current.draw(current.paths.map((path) => known.get(path)?.data));
      current.drawn = true;
    }
  } catch (error) {
    if (now !== serial) return;
    if (error instanceof Refused) askForToken(error.message);
    else setText(byId("notice"), error instanceof TypeError ? "The coordinator does not answer." : error.message);
  }
}

async function poll() {
  if (!document.hidden && byId("login").hidden) await refresh();
  setTimeout(poll, POLL_MS);
}

function show(title, current, paths, nodes, drawView) {
  serial += 1;
  known.clear();
  view = {paths, draw: drawView, drawn: false};
  document.title = `${title} - Trainyard`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  byId("content").replaceChildren(...nodes);
  refresh();
}

function route() {
  const [, name, id] = location.hash.split("/");
  if (location.hash === "#content") return;
  if (name === "jobs" && /^[a-z0-9]{1,64}$/i.test(id || "")) showJob(id);
  else if (name === "hosts") showHosts();
  else if (name === "events") showEvents();
  else showJobs();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value.trim());
  byId("token").value = "";
  byId("login").hidden = true;
  known.clear();
  refresh();
});
byId("forget").addEventListener("click", () => {
  sessionStorage.removeItem("token");
  known.clear();
  byId("content").replaceChildren();
  route();
});
window.addEventListener("hashchange", route);
route();
setTimeout(poll, POLL_MS);
