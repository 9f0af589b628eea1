// The output of ranks, as `trainctl logs` shows it: a number of last lines, then new lines as they come. The oldest lines
// are removed beyond a limit, and what a terminal would execute is shown as text.
"use strict";

import {make, oncePerFrame, plainLine, setText} from "./elements.js";
import {callStream} from "./stream.js";

const TAIL_LINES = 200;
const LINES_MAX = 2000;
const CHARACTERS_MAX = 1 << 20;

const decoder = new TextDecoder();

// The text of a line, whose bytes are in base64 and may not be valid UTF-8.
function textOf(line) {
  const raw = atob(line.text || "");
  return plainLine(decoder.decode(Uint8Array.from(raw, (character) => character.charCodeAt(0))));
}

export class LogPanel {
  constructor(job) {
    this.job = job;
    this.lines = [];      // {node, size}
    this.characters = 0;
    this.waiting = [];    // lines that the next frame shows
    this.redraw = oncePerFrame(() => this.draw());
    this.select = make("select", {id: "log-rank"}, make("option", {value: "all"}, "all ranks"),
      make("option", {value: "0"}, "rank 0"));
    this.select.value = "0";
    this.button = make("button", {type: "button"}, "Show output");
    this.state = make("span", {class: "quiet", role: "status"});
    this.output = make("pre", {class: "output", tabindex: "0", role: "log", "aria-label": "Output", "aria-live": "off"});
    this.output.hidden = true;
    this.node = make("div", {}, make("div", {class: "bar"}, make("label", {for: "log-rank"}, "Output of"), this.select,
      this.button, this.state), this.output);
    this.button.addEventListener("click", () => this.abort ? this.close("stopped") : this.open());
    this.select.addEventListener("change", () => this.abort && this.open());
    this.onVisible = () => this.abort && document.hidden && this.close("stopped, because the tab was hidden");
    document.addEventListener("visibilitychange", this.onVisible);
  }

  // Offers the ranks 0 to count - 1, and never removes one.
  setRanks(count) {
    for (let rank = this.select.options.length - 1; rank < count; ++rank) {
      this.select.append(make("option", {value: String(rank)}, `rank ${rank}`));
    }
  }

  show(rank) {
    this.setRanks(rank + 1);
    this.select.value = String(rank);
    this.open();
    this.node.scrollIntoView();
  }

  async open() {
    this.close("");
    this.clear();
    this.output.hidden = false;
    setText(this.button, "Stop");
    setText(this.state, "following");
    const abort = this.abort = new AbortController();
    const ranks = this.select.value === "all" ? [] : [Number(this.select.value)];
    const request = {job_id: this.job, follow: true, tail_lines: TAIL_LINES, ranks};
    try {
      await callStream("Logs", request, abort.signal, (line) => this.add(line, ranks.length !== 1));
      if (this.abort === abort) this.close("the output has ended");
    } catch (error) {
      if (this.abort === abort) this.close(error instanceof TypeError ? "the connection was lost" : error.message);
    }
  }

  close(why) {
    this.abort?.abort();
    this.abort = null;
    setText(this.button, "Show output");
    setText(this.state, why);
  }

  leave() {
    document.removeEventListener("visibilitychange", this.onVisible);
    this.close("");
  }

  clear() {
    this.output.replaceChildren();
    this.lines = [];
    this.waiting = [];
    this.characters = 0;
  }

  add(line, withRank) {
    const text = `${withRank ? `[${line.rank || 0}] ` : ""}${textOf(line)}`;
    this.waiting.push({text, isError: line.is_stderr});
    if (this.waiting.length > LINES_MAX) this.waiting.shift();
    this.redraw();
  }

  draw() {
    const {scrollTop, scrollHeight, clientHeight} = this.output;
    const follows = scrollTop + clientHeight >= scrollHeight - 8;
    const added = this.waiting.map(({text, isError}) => {
      const node = make("span", {class: isError ? "stderr" : ""}, text + "\n");
      this.lines.push({node, size: text.length});
      this.characters += text.length;
      return node;
    });
    this.waiting = [];
    this.output.append(...added);
    let old = 0;
    while (this.lines.length - old > LINES_MAX || this.characters > CHARACTERS_MAX) {
      this.lines[old].node.remove();
      this.characters -= this.lines[old].size;
      old += 1;
    }
    this.lines.splice(0, old);
    if (follows) this.output.scrollTop = this.output.scrollHeight;
  }
}
