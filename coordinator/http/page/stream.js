// Reads from the coordinator: single answers, streams of events and lines. The token is kept in the storage of the tab
// and sent in a header, which pages of other sites cannot set. EventSource cannot set headers, so streams use fetch.
"use strict";

const SILENCE_MS = 15000;      // the coordinator sends a comment every 5 s
const WAIT_MS = [500, 5000];   // the first and the longest wait between attempts to connect again

const [NOT_FOUND, OUT_OF_RANGE] = [5, 11];  // codes of google.rpc.Code

// The call had no token, or the wrong one.
export class Refused extends Error {}

export const token = () => sessionStorage.getItem("token") || "";

async function request(path, options = {}) {
  const headers = {"Trainyard-Client": "the-status-page", ...options.headers};
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const response = await fetch(`api/v1/${path}`, {...options, headers, cache: "no-store", credentials: "omit"});
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  const text = problem.message || `the coordinator answered ${response.status}`;
  if (response.status === 401) throw new Refused(text);
  throw Object.assign(new Error(text), {http: response.status, code: problem.code});
}

export const read = async (path) => (await request(path)).json();

// Calls a method of JobService.
export async function call(method, message, user = "") {
  const headers = {"Content-Type": "application/json"};
  if (user) headers["Trainyard-User"] = user;
  return (await request(`JobService/${method}`, {method: "POST", headers, body: JSON.stringify(message)})).json();
}

// Calls `onLine` for each line of the body of a response.
async function readLines(response, onLine, onBytes) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const {value, done} = await reader.read();
    if (done) return;
    onBytes();
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) onLine(line);
  }
}

// Calls a streaming method once, and `onMessage` for each message of its stream. Rejects if the stream fails.
export async function callStream(method, message, signal, onMessage) {
  const response = await request(`JobService/${method}`, {method: "POST", signal, body: JSON.stringify(message),
    headers: {"Content-Type": "application/json"}});
  let problem = null;
  await readLines(response, (line) => {
    if (!line) return;
    const {result, error} = JSON.parse(line);
    if (error) problem = error;
    else onMessage(result);
  }, () => {});
  if (problem) throw Object.assign(new Error(problem.message), {code: problem.code});
}

// A stream of events that is opened again, until `close` is called, after errors (with a growing wait) and when the tab
// is shown again. Hidden tabs hold no stream, because browsers open only six connections to a server. The last id that
// was received is sent, so that nothing is lost and nothing comes twice.
//   events     name -> function(data); "message" is the default name
//   onState    function(text): "" when the stream works
//   onRefused  function(error): a token is missing or wrong
//   onLost     function(error): what is watched does not exist, or the coordinator no longer knows the last id
//   fallback   async function(): reads the data once if too many streams are open
export class EventStream {
  constructor(path, {events, onState, onRefused, onLost, fallback, lastId = ""}) {
    Object.assign(this, {path, events, onState, onRefused, onLost, fallback, lastId});
    this.attempts = 0;
    this.closed = false;
    this.onVisible = () => document.hidden ? this.abort?.abort() : this.wake?.();
    document.addEventListener("visibilitychange", this.onVisible);
    this.run();
  }

  close() {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.onVisible);
    this.abort?.abort();
    this.wake?.();
  }

  // Waits until the time has passed or `wake` is called.
  pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async run() {
    while (!this.closed) {
      if (document.hidden) {
        await this.pause(60000);
        continue;
      }
      try {
        await this.readOnce();
      } catch (error) {
        if (this.closed) return;
        if (error instanceof Refused) {
          this.close();
          return this.onRefused(error);
        }
        if (error.http === 404 || error.code === OUT_OF_RANGE) {
          this.close();
          return this.onLost(error);
        }
        if (!document.hidden) await this.fail(error);
      }
      if (this.closed) return;
      const wait = Math.min(WAIT_MS[0] * 2 ** this.attempts, WAIT_MS[1]);
      this.attempts += 1;
      if (!document.hidden) await this.pause(wait * (0.5 + Math.random() / 2));
    }
  }

  async fail(error) {
    const unreachable = error instanceof TypeError || error.name === "AbortError";
    this.onState(unreachable ? "The coordinator does not answer; this page tries again." : error.message);
    if (error.http !== 503 || !this.fallback) return;
    await this.fallback().catch(() => {});
  }

  async readOnce() {
    this.abort = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.abort.abort(), SILENCE_MS);
    };
    heard();
    try {
      const headers = {Accept: "text/event-stream"};
      if (this.lastId) headers["Last-Event-ID"] = this.lastId;
      const response = await request(this.path, {headers, signal: this.abort.signal});
      this.onState("");
      let event = {name: "message", data: [], id: null};
      await readLines(response, (line) => {
        if (line === "") {
          this.dispatch(event);
          event = {name: "message", data: [], id: null};
        } else if (line.startsWith("data: ")) event.data.push(line.slice(6));
        else if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("id: ")) event.id = line.slice(4);
      }, heard);
    } finally {
      clearTimeout(timer);
    }
  }

  dispatch({name, data, id}) {
    if (data.length === 0 || this.closed) return;
    this.attempts = 0;
    if (id !== null) this.lastId = id;
    const content = JSON.parse(data.join("\n"));
    // A busy coordinator may begin the stream before it knows that it cannot continue it.
    if (name === "end" && [NOT_FOUND, OUT_OF_RANGE].includes(content.code)) {
      this.close();
      return this.onLost(Object.assign(new Error(content.message), {code: content.code}));
    }
    this.events[name]?.(content);
  }
}

// The entries of a list that a stream keeps up to date.
export class Entries {
  constructor(keyOf) {
    this.keyOf = keyOf;
    this.map = new Map();
  }

  apply({reset, items, gone}) {
    if (reset) this.map.clear();
    for (const item of items || []) this.map.set(this.keyOf(item), item);
    for (const key of gone || []) this.map.delete(key);
  }
}
