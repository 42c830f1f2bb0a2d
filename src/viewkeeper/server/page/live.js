// The server's status events, kept for all pages: views, tables, batches, and their recent history.

import { follow } from "./net.js";

const KEPT = 120;

class Live extends EventTarget {
  views = new Map();
  tables = new Map();
  batches = [];
  totals = {};
  loads = [];
  writes = [];
  lags = [];
  states = [];
  waits = [];
  readers = [];

  /** Whether a status event has arrived: not before the token dialog is answered. */
  get known() {
    return this.totals.time !== undefined;
  }

  start(state) {
    follow("/v1/events", new AbortController().signal, (event) => this.take(event), state);
  }

  take({ event, data }) {
    if (event !== "hello" && event !== "pulse") return;
    if (event === "hello") {
      this.views.clear();
      this.tables.clear();
      this.batches = [];
    }
    const now = data.time;
    const passed = Math.max(0.2, now - (this.totals.time ?? now - 1));
    for (const name of data.gone ?? []) {
      this.views.delete(name);
      this.tables.delete(name);
    }
    for (const one of data.tables) this.#note(this.tables, one);
    for (const one of data.views) this.#note(this.views, one);
    let written = 0;
    for (const map of [this.tables, this.views]) {
      for (const one of map.values()) {
        const rate = (one.changed - one.before) / passed;
        one.before = one.changed;
        one.rate = one.rate === undefined ? 0 : one.rate * 0.6 + rate * 0.4;
        if (one.rate < 0.05) one.rate = 0;
        if (map === this.tables) written += rate;
        else push(one.lags, one.suspended ? null : one.lag_seconds);
      }
    }
    push(this.writes, Math.max(0, written));
    push(this.lags, data.lag_seconds);
    push(this.states, data.state_bytes);
    push(this.waits, data.lag_changes);
    push(this.readers, data.subscribers);
    this.batches = [...this.batches, ...data.batches].slice(-KEPT);
    this.loads = data.loads;
    const { views, tables, batches, loads, gone, ...totals } = data;
    this.totals = totals;
    this.dispatchEvent(new Event("change"));
  }

  #note(map, one) {
    const known = map.get(one.name);
    if (known) Object.assign(known, one);
    else map.set(one.name, { ...one, before: one.changed, lags: [] });
  }
}

function push(list, value) {
  list.push(value);
  if (list.length > KEPT) list.shift();
}

export const live = new Live();
