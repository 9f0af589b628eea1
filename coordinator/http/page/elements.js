// Elements, texts and tables. All text from outside is inserted as text, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// Makes an element. `children` are elements or texts.
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Returns a function that calls `action` once before the next frame, however often it is called itself.
export function oncePerFrame(action) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      action();
    });
  };
}

// ---- values ----

export const stateOf = (job) => (job.state || "").replace("JOB_STATE_", "");
export const FINAL = ["SUCCEEDED", "FAILED", "CANCELLED"];

export function classOf(state) {
  if (state === "RUNNING" || state === "SUCCEEDED") return "good";
  if (state === "FAILED" || state === "RECOVERING") return "bad";
  return state === "STARTING" || state === "PLACED" || state === "STOPPING" ? "busy" : "quiet";
}

export function number(value, digits = 4) {
  if (value === undefined || value === null) return "";
  const parsed = Number(value);
  return Number.isFinite(parsed) ? String(Number(parsed.toPrecision(digits))) : String(value);
}

export function bytes(value) {
  let size = Number(value || 0);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1024 || unit === "TiB") return `${number(size, 3)} ${unit}`;
    size /= 1024;
  }
  return "";
}

export function time(ms) {
  if (!Number(ms)) return "";
  const date = new Date(Number(ms));
  const two = (part) => String(part).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(Number(seconds) || 0));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
}

// A short time, with a unit that suits it: "12.3 ms".
export function span(seconds) {
  const value = Number(seconds || 0);
  if (value <= 0) return "";
  return value < 1 ? `${number(value * 1000, 3)} ms` : `${number(value, 3)} s`;
}

// Characters that a terminal would execute, or that would change the order of others, become visible. Escape sequences
// for colours are removed.
export function plainLine(text) {
  return text.replace(/\x1b\[[0-9;:]*m/g, "").replace(
    /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\uffff]/g,
    (character) => {
      const code = character.charCodeAt(0);
      return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
    });
}

// ---- lists ----

// A field for words that the items of a list must contain; Escape empties it. `select` returns the items whose text,
// `textOf(item)`, contains all these words.
export function filterField(label, placeholder, onChange) {
  const node = make("input", {type: "search", id: "filter", "aria-label": label, placeholder});
  node.addEventListener("input", onChange);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    node.value = "";
    onChange();
  });
  const select = (items, textOf) => {
    const wanted = node.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (wanted.length === 0) return items;
    return items.filter((item) => {
      const text = textOf(item).toLowerCase();
      return wanted.every((part) => text.includes(part));
    });
  };
  return {node, select};
}

// Shows a long list by pages: the place in the list, and buttons. Hidden while the list has one page.
export class Pager {
  constructor(what, size, onChange) {
    Object.assign(this, {what, size, first: 0});
    this.place = make("span", {"aria-live": "polite"});
    const button = (text, distance) => {
      const node = make("button", {type: "button"}, text);
      node.addEventListener("click", () => {
        this.first += distance;
        onChange();
      });
      return node;
    };
    this.back = button("Previous", -size);
    this.next = button("Next", size);
    this.node = make("div", {class: "bar", role: "group", "aria-label": `Pages of ${what}`, hidden: ""}, this.back,
      this.place, this.next);
  }

  // Returns the items of the current page. If the list has become too short for that page, its last page is current.
  cut(items) {
    const last = Math.max(0, Math.floor((items.length - 1) / this.size) * this.size);
    this.first = Math.min(Math.max(0, this.first), last);
    const end = Math.min(this.first + this.size, items.length);
    this.node.hidden = items.length <= this.size;
    this.back.disabled = this.first === 0;
    this.next.disabled = end === items.length;
    setText(this.place, `${this.what} ${this.first + 1} to ${end} of ${items.length} are shown`);
    return items.slice(this.first, end);
  }
}

// ---- tables ----

// A table whose rows are kept by key, so that an update changes only the cells that differ. A row whose item is the same
// object as before is left as it is. A column is {title, cell(item) -> text, kind, link(item), tone(item), node(item)}.
export class Table {
  constructor(caption, columns) {
    this.columns = columns;
    this.rows = new Map();  // key -> {row, item}
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
      let entry = this.rows.get(key);
      if (!entry) this.rows.set(key, entry = {row: this.makeRow(), item: null});
      if (entry.item !== item) this.fill(entry.row, item);
      entry.item = item;
      if (entry.row === at) at = at.nextSibling;
      else this.body.insertBefore(entry.row, at);
    }
    for (const [key, {row}] of this.rows) {
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
      if (column.node) return cell.replaceChildren(...column.node(item));
      const target = column.link ? cell.firstChild : cell;
      setText(target, plainLine(String(column.cell(item) ?? "")));
      if (column.link) target.setAttribute("href", column.link(item));
      if (column.tone) cell.className = `${column.kind || ""} ${column.tone(item)}`;
    });
  }
}
