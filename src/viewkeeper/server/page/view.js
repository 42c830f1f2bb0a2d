// One view or table: its rows with live changes, its SQL, its plan.

import { bytes, cell, clear, count, h, isNumber, plural, seconds, segment, toast } from "./dom.js";
import { live } from "./live.js";
import { Problem, follow, json } from "./net.js";
import { planned } from "./plan.js";
import { coloured } from "./sqltext.js";

const PAGE = 100;
const MOST = 2000;

export function view(main, name, tab) {
  const leaving = new AbortController();
  const facts = h("div.facts");
  const title = h("h1", {}, name);
  const tags = h("span");
  const body = h("div");
  const notices = h("div");
  const tabs = h("div.tabs", { role: "tablist" });
  clear(main, h("div.crumbs", {}, h("a", { href: "#/" }, "Overview"), " / "), h("div.row", {}, title, tags), facts, notices, tabs, body);
  let about = null;
  let inside = null;
  let chosen = null;

  const pages = { rows: ["Rows", () => rows(body, about)], sql: ["SQL", () => definition(body, about)], plan: ["Plan", () => plan(body, about)] };

  function choose(which) {
    inside?.abort();
    inside = null;
    chosen = which;
    for (const button of tabs.children) button.setAttribute("aria-selected", String(button.dataset.tab === which));
    history.replaceState(null, "", `#/view/${segment(name)}${which === "rows" ? "" : `/${which}`}`);
    inside = pages[which][1]() ?? null;
  }

  function show() {
    const now = live.views.get(about.name) ?? live.tables.get(about.name);
    if (!now) return;
    const told = about.kind !== "table"
      ? [["rows", count(now.rows)], ["lag", seconds(now.lag_seconds)], ["changes/s", count(Math.round(now.rate * 10) / 10)], ["state", bytes(now.state_bytes)], ["batch", now.epoch]]
      : [["rows", count(now.rows)], ["written rows/s", count(Math.round(now.rate))]];
    clear(facts, told.map(([label, value]) => h("span", {}, `${label} `, h("b", {}, String(value)))), h("span", {}, "key ", h("b", {}, about.key.map((part) => part.column + (part.descending ? " desc" : "")).join(", ") || "none")));
    clear(tags, about.kind !== "table" ? h("span.tag", {}, now.strategy) : h("span.tag", {}, "table"), " ", about.unique ? null : h("span.tag", { title: "Rows may be there several times" }, "bag"));
    clear(notices, now.suspended ? h("div.notice.bad", { role: "alert" }, `Suspended, these are its rows of batch ${now.epoch}: ${now.suspended}`) : null);
  }

  (async () => {
    try {
      about = await json(`/v1/${segment(name)}`);
      if (about.kind !== "table") about = await json(`/v1/views/${segment(name)}`);
    } catch (error) {
      clear(body, h("div.empty.error", {}, error.message));
      return;
    }
    if (leaving.signal.aborted) return;
    title.textContent = about.name;
    clear(tabs, Object.entries(pages).filter(([key]) => key === "rows" || about.kind !== "table").map(([key, [label]]) => h("button", { type: "button", role: "tab", "data-tab": key, onclick: () => choose(key) }, label)));
    live.addEventListener("change", show, { signal: leaving.signal });
    show();
    const asked = (which) => (about.kind !== "table" && pages[which] ? which : "rows");
    choose(asked(tab));
    addEventListener("hashchange", () => {  // a link or a typed address to another part of this view
      const [page, there, which] = location.hash.replace(/^#\/?/, "").split("/");
      if (page === "view" && there === segment(name) && asked(which) !== chosen) choose(asked(which));
    }, { signal: leaving.signal });
  })();
  return () => { leaving.abort(); inside?.abort(); };
}

// -- rows --------------------------------------------------------------------------------------------------------------

function rows(body, about) {
  const leaving = new AbortController();
  const state = h("span.hint");
  const search = h("input", { type: "search", placeholder: about.key.length > 1 ? `Key: ${about.key.map((part) => part.column).join(", ")}` : `Search by ${about.key[0]?.column ?? "key"}`, "aria-label": "Search by key" });
  const lines = h("tbody");
  const more = h("button", { type: "button", onclick: () => load(cursor) }, "More rows");
  const head = h("tr", {}, about.columns.map((column) => h(isNumber(column.type) ? "th.num" : "th", { scope: "col" }, column.name, h("small", {}, column.type))));
  clear(body, h("div.row", {}, search, h("span.grow"), state), h("p"), h("div.wide", { tabindex: "0" }, h("table", {}, h("thead", {}, head), lines)), h("p"), more);
  const keyed = new Map();
  let cursor = null;
  let seen = 0;
  let waiting = [];
  let loading = true;
  let timer = 0;

  const parts = about.key.map((part) => part.column);
  const types = Object.fromEntries(about.columns.map((column) => [column.name, column.type]));
  const keyOf = (row) => JSON.stringify(parts.map((part) => row[part]));
  const cells = (row) => about.columns.map((column) => cell(row[column.name], column.type));

  function wanted() {
    const text = search.value.trim();
    if (!text) return "";
    const values = parts.length > 1 ? text.split(",").map((value) => value.trim()) : [text];
    const last = values.at(-1);
    if (values.length === 1 && types[parts[0]] === "string" && !about.key[0]?.descending) return `&start=${encodeURIComponent(last)}&stop=${encodeURIComponent(`${last}\u{10ffff}`)}`;
    return values.map((value) => `&prefix=${encodeURIComponent(value)}`).join("");
  }

  async function load(from = null) {
    loading = true;
    try {
      const page = await json(`/v1/${segment(about.name)}/rows?limit=${PAGE}${from ? `&cursor=${from}` : `&level=stale${wanted()}`}`, { signal: leaving.signal });
      if (!from) { lines.replaceChildren(); keyed.clear(); }
      for (const row of page.rows) add(row);
      cursor = page.next;
    } catch (error) {
      if (leaving.signal.aborted) return;
      if (from && error instanceof Problem && error.about.status === 410) { toast("The rows were read anew."); return load(); }
      clear(lines, h("tr", {}, h("td.error", { colSpan: about.columns.length }, error.message)));
      cursor = null;
    }
    more.hidden = !cursor || keyed.size >= MOST;
    loading = false;
    for (const event of waiting) apply(event);
    waiting = [];
    if (!lines.children.length) lines.append(h("tr", {}, h("td.null", { colSpan: about.columns.length }, "no rows")));
  }

  function add(row, before = null, kind = null) {
    const made = h("tr", {}, cells(row));
    if (kind) made.classList.add(kind);
    keyed.set(about.unique ? keyOf(row) : Symbol("row"), { row, made });
    lines.insertBefore(made, before);
  }

  function apply(changes) {
    if (!about.unique) { timer ||= setTimeout(() => { timer = 0; load(); }, 300); return; }  // also while changes never pause
    for (const change of changes) {
      const key = keyOf(change.after ?? change.before);
      const known = keyed.get(key);
      if (!change.after) {
        if (known) { known.made.className = "out"; keyed.delete(key); setTimeout(() => known.made.remove(), 900); }
      } else if (known) {
        clear(known.made, cells(change.after));
        known.row = change.after;
        known.made.className = "";
        void known.made.offsetWidth;
        known.made.className = "up";
      } else if (!search.value.trim()) {
        const following = [...keyed.values()].find((other) => compare(change.after, other.row) < 0);
        if (following || !cursor) { lines.querySelector("td.null[colspan]")?.parentElement.remove(); add(change.after, following?.made ?? null, "in"); }
      }
    }
  }

  function compare(a, b) {
    for (const part of about.key) {
      const [x, y] = [a[part.column], b[part.column]];
      if (x === y) continue;
      const sign = part.descending ? -1 : 1;
      if (x === null || y === null) return sign * (x === null ? -1 : 1) * (part.nulls_last ? -1 : 1);
      if (isNumber(types[part.column])) return sign * (/^(bigint|smallint|tinyint|int)$/.test(types[part.column]) ? (BigInt(x) < BigInt(y) ? -1 : 1) : Number(x) - Number(y));
      return sign * (x < y ? -1 : 1);
    }
    return 0;
  }

  let delay = 0;
  search.addEventListener("input", () => { clearTimeout(delay); delay = setTimeout(() => load(), 150); });
  follow(`/v1/${segment(about.name)}/changes?since=now`, leaving.signal, ({ event, data }) => {
    if (event === "changes") {
      seen += data.changes.length;
      state.textContent = `${plural(seen, "change")} since you came`;
      if (loading) waiting.push(data.changes);
      else apply(data.changes);
    }
    if (event === "reset") load();
    if (event === "end" && data.code) state.textContent = data.detail;
  }, (how) => { if (how === "on" && !seen) { state.textContent = "waiting for changes"; if (!loading || !keyed.size) load(); } });
  load();
  return leaving;
}

// -- its SQL, its plan -------------------------------------------------------------------------------------------------

function definition(body, about) {
  const text = h("pre.sql-text");
  coloured(text, about.sql);
  clear(body, h("div.card", {}, text), h("p"), h("div.row", {}, h("button", { type: "button", onclick: () => navigator.clipboard?.writeText(about.sql).then(() => toast("Copied")) }, "Copy"), h("a", { href: `#/sql?${encodeURIComponent(`SELECT * FROM ${/^\w+$/.test(about.name) ? about.name : `\`${about.name.replaceAll("`", "``")}\``} LIMIT 100`)}` }, "Ask it something")),
    h("p"), h("div.wide", {}, h("table", {}, h("thead", {}, h("tr", {}, ["column", "type", "nullable", "key"].map((label) => h("th", {}, label)))),
      h("tbody", {}, about.columns.map((column) => h("tr", {}, h("td", {}, column.name), h("td", {}, column.type), h("td", {}, column.nullable ? "yes" : "no"), h("td", {}, String(about.key.findIndex((part) => part.column === column.name) + 1 || ""))))))));
}

function plan(body, about) {
  const leaving = new AbortController();
  clear(body, h("div.empty", {}, "Reading the plan …"));
  const load = async () => {
    try {
      const found = await json(`/v1/views/${segment(about.name)}/plan`, { signal: leaving.signal });
      const [left, top] = [body.querySelector(".plan")?.scrollLeft ?? 0, body.querySelector(".plan")?.scrollTop ?? 0];
      clear(body, planned(found));
      Object.assign(body.querySelector(".plan"), { scrollLeft: left, scrollTop: top });
    } catch (error) {
      if (!leaving.signal.aborted) clear(body, h("div.empty.error", {}, error.message));
    }
  };
  load();
  const timer = setInterval(load, 3000);
  leaving.signal.addEventListener("abort", () => clearInterval(timer));
  return leaving;
}
