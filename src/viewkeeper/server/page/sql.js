// The SQL editor: highlighting, completion of names, results as a table, errors at their place, progress of a load.

import { cell, clear, count, h, isNumber, plural, seconds } from "./dom.js";
import { live } from "./live.js";
import { events, json, request } from "./net.js";
import { KEYWORDS, coloured } from "./sqltext.js";

const KEPT = "viewkeeper-sql";

export function sql(main, given) {
  const behind = h("pre", { "aria-hidden": "true" });
  const text = h("textarea", { spellcheck: false, autocomplete: "off", autocapitalize: "off", "aria-label": "A statement", rows: 4, placeholder: "SELECT * FROM …" });
  const list = h("ul.complete", { role: "listbox", hidden: true });
  const editor = h("div.editor", {}, behind, text);
  const run = h("button.primary", { type: "button", onclick: () => go() }, "Run");
  const answer = h("div.answer", { "aria-live": "polite" });
  const columns = new Map();
  let wrong = [-1, -1];
  let chosen = 0;
  let options = [];
  let running = null;

  text.value = given || sessionStorage.getItem(KEPT) || "";
  clear(main, h("div.row", {}, h("h1", {}, "SQL"), h("span.grow"), h("span.hint", {}, "Ctrl+Enter runs it; Tab completes names"), run), h("p"), h("div", {}, editor, list), answer);
  colour();
  text.focus();
  names();

  async function names() {
    try {
      const [tables, views] = await Promise.all([json("/v1/tables"), json("/v1/views")]);
      for (const one of [...tables.tables, ...views.views]) columns.set(one.name, one.columns);
    } catch { /* completion then has fewer names */ }
  }

  function colour() {
    coloured(behind, `${text.value}\n`, ...wrong);
    behind.scrollTop = text.scrollTop;
    text.style.height = "auto";
    text.style.height = `${Math.min(Math.max(text.scrollHeight, 112), innerHeight * 0.5)}px`;
  }

  // -- completion ------------------------------------------------------------------------------------------------------

  const word = () => /[\w`]*$/.exec(text.value.slice(0, text.selectionStart))[0];

  function complete(force = false) {
    const begun = word();
    if (!begun && !force) return hide();
    const start = begun.replace("`", "").toLowerCase();
    const found = [];
    const offer = (name, kind) => { if (name.toLowerCase().startsWith(start) && name.toLowerCase() !== start && !found.some((one) => one[0] === name)) found.push([name, kind]); };
    for (const name of [...live.views.keys(), ...columns.keys()]) offer(name, live.tables.has(name) ? "table" : "view");
    for (const [name, list_] of columns) if (text.value.includes(name)) for (const column of list_) offer(column.name, column.type);
    for (const list_ of columns.values()) for (const column of list_) offer(column.name, column.type);
    for (const keyword of KEYWORDS) offer(keyword, "");
    options = found.slice(0, 12);
    if (!options.length) return hide();
    chosen = 0;
    list.hidden = false;
    paint();
    const [left, top] = caret();
    list.style.left = `${Math.min(left, editor.clientWidth - 220) + editor.offsetLeft}px`;
    list.style.top = `${top + editor.offsetTop}px`;
  }

  function paint() {
    clear(list, options.map(([name, kind], i) => h("li", { role: "option", "aria-selected": String(i === chosen), onmousedown: (event) => { event.preventDefault(); chosen = i; take(); } }, name, h("small", {}, kind))));
  }

  function caret() {
    const mark = h("span", {}, "\u200b");
    const before = h("pre", {}, text.value.slice(0, text.selectionStart), mark);
    editor.append(before);
    const found = [mark.offsetLeft, mark.offsetTop + 24 - text.scrollTop];
    before.remove();
    return found;
  }

  function take() {
    const begun = word();
    const name = options[chosen][0];
    const spelled = /^\w+$/.test(name) ? name : `\`${name.replaceAll("`", "``")}\``;
    const at = text.selectionStart;
    text.setRangeText(spelled, at - begun.length, at, "end");
    hide();
    colour();
  }

  function hide() { list.hidden = true; options = []; }

  text.addEventListener("input", () => { wrong = [-1, -1]; sessionStorage.setItem(KEPT, text.value); colour(); complete(); });
  text.addEventListener("scroll", () => { behind.scrollTop = text.scrollTop; });
  text.addEventListener("blur", hide);
  text.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") { event.preventDefault(); hide(); go(); return; }
    if (event.ctrlKey && event.key === " ") { event.preventDefault(); complete(true); return; }
    if (list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); chosen = (chosen + (event.key === "ArrowDown" ? 1 : options.length - 1)) % options.length; paint(); }
    else if (event.key === "Tab" || event.key === "Enter") { event.preventDefault(); take(); }
    else if (event.key === "Escape") { event.preventDefault(); hide(); }
  });

  // -- running ---------------------------------------------------------------------------------------------------------

  async function go() {
    const statement = text.value.trim().replace(/;+\s*$/, "");
    if (!statement || running) return;
    running = new AbortController();
    run.disabled = true;
    wrong = [-1, -1];
    colour();
    const bar = h("progress");
    const told = h("span.hint", {}, "running …");
    clear(answer, h("div.card", {}, told, bar));
    const began = performance.now();
    try {
      const found = await request("/v1/sql", { method: "POST", headers: { "content-type": "application/json", accept: "text/event-stream" }, body: JSON.stringify({ sql: statement }), signal: running.signal });
      if (!found.ok) { fail(await found.json(), statement); return; }
      let ended = false;
      for await (const { event, data } of events(found)) {
        ended ||= event === "error" || event === "done";
        if (event === "progress") { bar.max = data.of || 1; bar.value = data.done; told.textContent = `${data.what}: ${count(data.done)} of ${count(data.of)}`; }
        if (event === "error") fail(data, statement);
        if (event === "done") { done(data, (performance.now() - began) / 1000); names(); }
      }
      if (!ended) fail({ detail: "The server went before it had answered.", hint: "What was begun may still happen." }, statement);
    } catch (error) {
      fail({ detail: error.message, hint: "" }, statement);
    } finally {
      running = null;
      run.disabled = false;
    }
  }

  function done(data, took) {
    const each = data.statements ?? [data];
    clear(answer, each.map((one, i) => result(one, i === each.length - 1 ? h("span.hint", {}, seconds(took)) : null)));
  }

  /** The result of one statement. */
  function result(data, hint) {
    if (!data.columns) return h("div.row", {}, h("span.tag.good", {}, "done"), data.done || "ok", hint);
    if (data.columns.length === 1 && data.columns[0].name === "plan") return h("div.card", {}, h("pre.sql-text", {}, data.rows.map((row) => row.plan).join("\n")));
    const cut = data.count > data.rows.length ? `, the first ${count(data.rows.length)} shown` : "";
    return [h("div.row", {}, h("span.tag.good", {}, plural(data.count, "row")), cut, hint), h("p"),
      h("div.wide", { tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, data.columns.map((column) => h(isNumber(column.type) ? "th.num" : "th", {}, column.name, h("small", {}, column.type))))),
        h("tbody", {}, data.rows.slice(0, 1000).map((row) => h("tr", {}, data.columns.map((column) => cell(row[column.name], column.type)))))))];
  }

  function fail(problem, statement) {
    const lead = text.value.indexOf(statement);
    if (problem.offset !== undefined) wrong = [lead + problem.offset, lead + problem.offset + problem.length];
    else if (problem.line) {
      const lines = statement.split("\n");
      const start = lines.slice(0, problem.line - 1).join("\n").length + (problem.line > 1 ? 1 : 0) + (problem.column ?? 0);
      wrong = [lead + start, lead + (problem.column ? start + 1 : start + (lines[problem.line - 1]?.length ?? 0))];
    }
    colour();
    clear(answer, h("div.notice.bad", { role: "alert" }, h("b", {}, problem.code ? `${problem.code} ` : ""), problem.detail ?? "It failed.", " ", problem.hint ?? ""));
  }

  if (given) go();
  return () => running?.abort();
}
