// One job: its state, losses, time, generations, ranks, output, checkpoints and events.
"use strict";

import {jobButtons, onAccess} from "./actions.js";
import {Curve, drawCurve, drawGoodput, drawTimeline, generationsOf, picture} from "./charts.js";
import {bytes, classOf, duration, FINAL, make, number, oncePerFrame, plainLine, setText, span, stateOf, Table,
  time} from "./elements.js";
import {EVENTS_SHOWN, eventTable} from "./lists.js";
import {LogPanel} from "./logs.js";
import {read} from "./stream.js";

const RANKS_SHOWN = 1024;
const EVENTS_KEPT = 2000;

const memoryOf = (rank) => (rank.memory || []).reduce((sum, use) => sum + Number(use.bytes || 0), 0);

function rankTable(id) {
  return new Table("Ranks", [
    {title: "Rank", cell: (rank) => rank.rank || 0, kind: "number", link: (rank) => `#/jobs/${id}/output/${rank.rank || 0}`},
    {title: "Host", cell: (rank) => rank.host},
    {title: "Phase", cell: (rank) => rank.phase, kind: "time", tone: (rank) => rank.exit ? "bad" : ""},
    {title: "Step", cell: (rank) => rank.last_step, kind: "number"},
    {title: "Step time", cell: (rank) => span(rank.compute_s), kind: "number"},
    {title: "Waiting", cell: (rank) => rank.wait_share ? `${number(100 * rank.wait_share, 2)} %` : "", kind: "number minor"},
    {title: "Last report", cell: (rank) => rank.last_report_age_s === undefined ? "" : duration(rank.last_report_age_s),
      kind: "number minor"},
    {title: "Memory", cell: (rank) => memoryOf(rank) ? bytes(memoryOf(rank)) : "", kind: "number minor"},
    {title: "Note", cell: (rank) => [rank.exit, rank.waits_in && `waits in ${rank.waits_in}`, rank.straggler && "straggler"]
      .filter(Boolean).join("; "), kind: "reason"},
  ]);
}

function generationTable() {
  return new Table("Generations", [
    {title: "Generation", cell: (entry) => entry.generation || "none yet", kind: "number"},
    {title: "Began", cell: (entry) => time(entry.begin), kind: "time minor"},
    {title: "Lasted", cell: (entry) => duration((entry.end - entry.begin) / 1000), kind: "number"},
    {title: "Newest state and its reason", cell: (entry) => `${entry.states.at(-1).state}: ${entry.reason}`, kind: "reason",
      tone: (entry) => classOf(entry.states.at(-1).state)},
  ]);
}

function checkpointTable() {
  return new Table("Checkpoints", [
    {title: "Step", cell: (info) => info.step, kind: "number"},
    {title: "Size", cell: (info) => bytes(info.size_bytes), kind: "number"},
    {title: "Recorded", cell: (info) => time(info.recorded_unix_ms), kind: "time minor"},
    {title: "Folder", cell: (info) => info.path, kind: "reason"},
  ]);
}

function fillFacts(facts, job) {
  const total = Number(job.goodput?.total_s || 0);
  const share = total ? `${number(100 * (job.goodput.train_s || 0) / total, 3)} % training` : "";
  const loss = job.last_loss === undefined ? "" : `, loss ${number(job.last_loss)}`;
  const rows = [["State", stateOf(job)], ["Reason", job.reason], ["Id", job.job_id], ["Generation", job.generation],
    ["Restarts", `${job.restarts || 0} count towards recovery.max_restarts, ${job.planned_restarts || 0} do not`],
    ["Newest step", job.last_step ? `${job.last_step}${loss}` : ""],
    ["Ranks", `${job.current_ranks || 0} of ${job.spec?.resources?.ranks || 0}`],
    ["Submitted", time(job.submitted_unix_ms)], ["Finished", time(job.finished_unix_ms)], ["Time", share]]
    .filter(([, value]) => value);
  facts.replaceChildren(...rows.flatMap(([name, value]) =>
    [make("dt", {}, name), make("dd", {class: name === "State" ? classOf(value) : ""}, plainLine(String(value)))]));
}

// Whether the event only gives a new reason for the state that the event before it has reported.
const isNewReason = (before, event) =>
  Boolean(before?.state && event.state) && stateOf(before.state) === stateOf(event.state) &&
  (before.generation || 0) === (event.generation || 0);

// Shows the job, and the output of `rank` if it is a number.
export async function jobView(show, id, rank) {
  const title = make("h1", {}, id);
  const buttons = make("div", {class: "buttons"});
  const facts = make("dl");
  const curveSvg = picture("curve", 222, "Loss curve");
  const goodput = picture("time", 18, "How the ranks spent their time");
  const timeline = picture("timeline", 32, "Timeline of generations");
  const [timeLegend, timelineLegend] = [make("ul", {class: "legend"}), make("ul", {class: "legend"})];
  const [generations, ranks, checkpoints, eventList] = [generationTable(), rankTable(id), checkpointTable(), eventTable(false)];
  const logs = new LogPanel(id);
  const section = (name, ...nodes) => make("section", {}, make("h2", {}, name), ...nodes);

  let job = null;
  let events = [];
  let newest = 0;  // the greatest sequence number in `events`
  let curve = new Curve();

  const drawJob = oncePerFrame(() => {
    if (!job || !title.isConnected) return;  // another view may be shown by now
    const name = job.spec?.name || id;
    setText(title, plainLine(name));
    document.title = `${plainLine(name)} - Trainyard`;
    fillFacts(facts, job);
    drawGoodput(goodput, timeLegend, job.goodput);
    ranks.update((job.ranks || []).slice(0, RANKS_SHOWN), (entry) => entry.rank || 0);
    checkpoints.update((job.checkpoints || []).slice().reverse(), (info) => info.step);
    logs.setRanks(Math.max(job.current_ranks || 0, job.spec?.resources?.ranks || 1));
    const offered = stateOf(job);
    if (buttons.dataset.offered !== offered) buttons.replaceChildren(...jobButtons(id, name, offered));
    buttons.dataset.offered = offered;
  });
  const drawEvents = oncePerFrame(() => {
    const until = Number(job?.finished_unix_ms) || Date.now();
    const parts = generationsOf(events, until);
    drawTimeline(timeline, timelineLegend, parts);
    generations.update(parts.slice().reverse(), (entry) => entry.generation);
    eventList.update(events.slice(-EVENTS_SHOWN).reverse(), (event) => event.sequence || `at ${event.time_unix_ms}`);
  });
  const drawLosses = oncePerFrame(() => drawCurve(curveSvg, curve));
  const setJob = (next) => {
    job = next;
    drawJob();
    drawEvents();
  };
  const addEvent = (event) => {
    if (event.step || event.eval) return curve.add(event) && drawLosses();
    // Notices that the store accepts no writes, or accepts them again, are not stored and have no sequence number.
    const sequence = Number(event.sequence || 0);
    if (sequence ? sequence <= newest : !event.notice) return;
    newest = Math.max(newest, sequence);
    // A waiting job may get new reasons for days, which must not displace its other events.
    if (isNewReason(events.at(-1), event) && isNewReason(events.at(-2), events.at(-1))) events.pop();
    events.push(event);
    if (events.length > EVENTS_KEPT) events.shift();
    drawEvents();
  };
  // Reads what there is so far, and returns the position from which the stream continues. The steps are read after the
  // events because the stream repeats no step that was made before the newest of these events.
  const readAll = async () => {
    const list = await read(`jobs/${id}/events`);
    const steps = await read(`jobs/${id}/steps`);
    [events, curve] = [list.events || [], new Curve()];
    newest = Number(events.at(-1)?.sequence || 0);
    for (const event of steps.events || []) curve.add(event);
    setJob(await read(`jobs/${id}`));
    drawLosses();
    return `${newest}.${curve.lastStep}.${curve.lastEvaluation}`;
  };

  window.addEventListener("resize", drawLosses);
  const forget = onAccess(() => {
    buttons.dataset.offered = "";
    drawJob();
  });
  show({title: id, place: "", path: `jobs/${id}/watch`,
    nodes: [make("p", {}, make("a", {href: "#/"}, "All jobs")), title, buttons, facts, section("Loss", curveSvg),
      section("Time", goodput, timeLegend), section("Generations", timeline, timelineLegend, generations.node),
      section("Ranks", ranks.node), section("Output", logs.node), section("Checkpoints", checkpoints.node),
      section("Events", eventList.node)],
    prepare: readAll,
    started: () => rank !== undefined && logs.show(rank),
    isOver: () => FINAL.includes(stateOf(job || {})),
    events: {job: setJob, message: addEvent},
    fallback: readAll,
    close: () => {
      forget();
      window.removeEventListener("resize", drawLosses);
      logs.leave();
    }});
  return logs;
}
