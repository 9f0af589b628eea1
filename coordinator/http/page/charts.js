// The pictures of a job: its loss curve, how its ranks spent their time, and its generations. Colours never stand alone:
// a legend or a table states the same facts in words.
"use strict";

import {classOf, draw, duration, make, number, stateOf} from "./elements.js";

const POINTS_MAX = 4000;
const POINTS_KEPT = 2000;
const PARTS = [["train_s", "training", "good"], ["save_s", "saving", "save"], ["lost_s", "lost steps", "bad"],
  ["detect_s", "detecting failures", "detect"], ["recover_s", "recovering", "recover"], ["start_s", "starting", "busy"],
  ["queue_s", "waiting for slots", "quiet"], ["pause_s", "paused", "pause"]];

// A picture whose drawing is stretched to the width of the page.
export const picture = (kind, height, label) => draw("svg", {class: `${kind}-picture`, viewBox: `0 0 800 ${height}`,
  role: "img", "aria-label": label, preserveAspectRatio: "none"});

// ---- losses ----

// The points of a curve in order of their steps: {step, loss, evaluation}. If there are more than POINTS_MAX, about
// POINTS_KEPT are kept: the newest evaluations, and the lowest and the highest loss of each part of the steps, so that
// peaks remain.
export class Curve {
  constructor() {
    this.points = [];
    this.lastStep = 0;
    this.lastEvaluation = 0;
  }

  // Returns whether the event is a new point.
  add(event) {
    const report = event.step || event.eval;
    if (!report) return false;
    const evaluation = Boolean(event.eval);
    const step = Number(report.step || 0);
    if (step <= (evaluation ? this.lastEvaluation : this.lastStep)) return false;
    if (evaluation) this.lastEvaluation = step;
    else this.lastStep = step;
    if (!evaluation && report.loss === undefined) return false;
    this.points.push({step, loss: Number(report.loss ?? 0), evaluation});
    if (this.points.length > POINTS_MAX) this.thin();
    return true;
  }

  thin() {
    const evaluations = this.points.filter((point) => point.evaluation).slice(-POINTS_KEPT / 4);
    const steps = this.points.filter((point) => !point.evaluation);
    const part = Math.ceil(steps.length / (POINTS_KEPT / 2 - evaluations.length / 2));
    const kept = new Set([steps[0], steps.at(-1), ...evaluations]);
    const height = (point) => Number.isFinite(point.loss) ? point.loss : Infinity;
    for (let at = 0; at < steps.length; at += part) {
      const some = steps.slice(at, at + part);
      kept.add(some.reduce((low, point) => height(point) < height(low) ? point : low));
      kept.add(some.reduce((high, point) => height(point) > height(high) ? point : high));
    }
    this.points = this.points.filter((point) => kept.has(point));
  }
}

export function drawCurve(svg, curve) {
  svg.replaceChildren();
  // Texts are not stretched: the drawing is as wide as the page.
  const width = Math.max(240, svg.clientWidth || 800);
  const right = width - 15;
  svg.setAttribute("viewBox", `0 0 ${width} 222`);
  const finite = curve.points.filter((point) => Number.isFinite(point.loss));
  if (finite.length === 0) {
    svg.append(draw("text", {x: 60, y: 110}, "The coordinator holds no losses of this job."));
    return;
  }
  let [low, high, first, last] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const {step, loss} of finite) {
    [low, high] = [Math.min(low, loss), Math.max(high, loss)];
    [first, last] = [Math.min(first, step), Math.max(last, step)];
  }
  if (high === low) [low, high] = [low - 0.5, high + 0.5];
  const x = (step) => 60 + (last === first ? 0.5 : (step - first) / (last - first)) * (right - 60);
  const y = (loss) => 15 + (high - loss) / (high - low) * 180;
  for (const part of [0, 0.5, 1]) {
    const loss = low + (high - low) * part;
    svg.append(draw("line", {x1: 60, x2: right, y1: y(loss), y2: y(loss), class: "axis"}));
    svg.append(draw("text", {x: 54, y: y(loss) + 4, "text-anchor": "end"}, number(loss, 3)));
  }
  svg.append(draw("text", {x: 60, y: 214}, `step ${first}`));
  svg.append(draw("text", {x: right, y: 214, "text-anchor": "end"}, `step ${last}`));
  // A loss that is not finite interrupts the line.
  let path = "";
  let pen = "M";
  for (const point of curve.points) {
    if (point.evaluation) continue;
    path += Number.isFinite(point.loss) ? `${pen}${x(point.step).toFixed(1)},${y(point.loss).toFixed(1)}` : "";
    pen = Number.isFinite(point.loss) ? "L" : "M";
  }
  if (path) svg.append(draw("path", {d: path, class: "curve"}));
  for (const {step, loss} of finite.filter((point) => point.evaluation)) {
    svg.append(draw("circle", {cx: x(step), cy: y(loss), r: 3, class: "evaluation"}));
  }
}

// ---- time ----

export function drawGoodput(svg, legend, goodput) {
  const total = Number(goodput?.total_s || 0);
  const parts = PARTS.map(([key, title, tone]) => ({title, tone, seconds: Number(goodput?.[key] || 0)}))
    .filter(({seconds}) => total > 0 && seconds > 0);
  let x = 0;
  svg.replaceChildren(...parts.map(({title, tone, seconds}) => {
    const width = seconds / total * 800;
    const rect = draw("rect", {x, y: 0, width, height: 18, class: tone});
    rect.append(draw("title", {}, `${title}: ${duration(seconds)}`));
    x += width;
    return rect;
  }));
  legend.replaceChildren(...parts.map(({title, tone, seconds}) =>
    make("li", {}, make("span", {class: `mark ${tone}`}), `${title} ${number(100 * seconds / total, 3)} %`)));
}

// The generations of a job in order: {generation, begin, end, states: [{state, from, to}], reason}. `reason` is that of
// the newest change of state. `until` is a time of the browser, whose clock may be behind that of the coordinator.
export function generationsOf(events, until) {
  const generations = new Map();
  let last = null;
  for (const event of events) {
    if (!event.state) continue;
    const at = Number(event.time_unix_ms);
    const id = Number(event.generation || 0);
    if (!generations.has(id)) generations.set(id, {generation: id, begin: at, states: []});
    const entry = generations.get(id);
    if (last) last.to = at;
    last = {state: stateOf(event.state), from: at, to: Math.max(at, until)};
    entry.states.push(last);
    entry.reason = event.state.reason || "";
  }
  for (const entry of generations.values()) entry.end = entry.states.at(-1).to;
  return [...generations.values()];
}

export function drawTimeline(svg, legend, generations) {
  svg.replaceChildren();
  legend.replaceChildren();
  if (generations.length === 0) return;
  const begin = generations[0].begin;
  const whole = Math.max(1, generations.at(-1).end - begin);
  const x = (at) => (at - begin) / whole * 800;
  const states = new Set();
  for (const entry of generations) {
    for (const part of entry.states) {
      states.add(part.state);
      const rect = draw("rect", {x: x(part.from), y: 4, height: 22, class: classOf(part.state),
        width: Math.max(1, x(part.to) - x(part.from))});
      rect.append(draw("title", {}, `generation ${entry.generation}: ${part.state}, ${duration((part.to - part.from) / 1000)}`));
      svg.append(rect);
    }
    svg.append(draw("line", {x1: x(entry.begin), x2: x(entry.begin), y1: 0, y2: 32, class: "axis"}));
  }
  legend.append(...[...states].map((state) =>
    make("li", {}, make("span", {class: `mark ${classOf(state)}`}), state.toLowerCase())));
}
