// The overview: the current activity, and every view.

import { spark, timeline } from "./charts.js";
import { bytes, clear, count, h, plural, s, seconds, segment } from "./dom.js";
import { live } from "./live.js";

const HEIGHT = 44;
const COLUMNS = [
  ["name", "View", "name"], ["rows", "Rows", "num.opt"], ["lag_seconds", "Lag", "num"], ["rate", "Changes/s", "num"],
  ["state_bytes", "State", "num.opt"], ["epoch", "Batch", "num.opt"], ["strategy", "Strategy", "opt"],
];

export function overview(main) {
  const stats = h("div.cards");
  const notices = h("div");
  const picture = s("svg.timeline", { role: "img", "aria-label": "The last batches with their stages" });
  const stages = h("div.legend");
  const tables = h("div");
  const search = h("input", { type: "search", placeholder: "Search views  ( / )", "aria-label": "Search views", oninput: () => list() });
  const number = h("span.hint");
  const inner = h("div.inner");
  const head = h("div.line.head", { role: "row" });
  const box = h("div.list", { role: "table", "aria-label": "Views", onscroll: () => draw() }, head, inner);
  let order = { by: "name", down: false };
  let shown = [];

  clear(head, COLUMNS.map(([by, title, kind]) => h(`span.${kind}`, { role: "columnheader" }, h("button", {
    type: "button",
    onclick: () => { order = { by, down: order.by === by ? !order.down : by !== "name" }; list(); },
  }, title))));
  clear(main, notices, stats, h("div.two", {},
    h("section.card", {}, h("h2", {}, "Batches ", h("small", {}, "the last sixty, by what they spent their time on")), picture, stages),
    h("section.card", {}, h("h2", {}, "Tables ", h("small", {}, "where writers write")), tables)),
  h("div.row", {}, h("h2", {}, "Views"), number, h("span.grow"), search), h("p"), box);

  function list() {
    if (!live.known) return;
    const wanted = search.value.trim().toLowerCase();
    const sign = order.down ? -1 : 1;
    const value = (view) => (order.by === "name" ? view.name.toLowerCase() : view[order.by] ?? -1);
    shown = [...live.views.values()].filter((view) => view.name.toLowerCase().includes(wanted));
    shown.sort((a, b) => Number(Boolean(b.suspended)) - Number(Boolean(a.suspended))
      || (value(a) < value(b) ? -sign : value(a) > value(b) ? sign : a.name < b.name ? -1 : 1));
    number.textContent = wanted ? `${shown.length} of ${live.views.size}` : plural(live.views.size, "view");
    inner.style.height = `${Math.max(shown.length, 1) * HEIGHT}px`;
    draw();
  }

  function draw() {
    const first = Math.max(0, Math.floor(box.scrollTop / HEIGHT) - 4);
    const last = Math.min(shown.length, first + Math.ceil((box.clientHeight || 600) / HEIGHT) + 10);
    const focused = document.activeElement?.dataset?.name;
    clear(inner, shown.slice(first, last).map((view, i) => line(view, first + i)));
    if (!shown.length) inner.append(h("div.empty", {}, live.views.size ? "No view is called so." : "There are no views yet. The SQL page makes one."));
    if (focused) inner.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  function line(view, place) {
    const made = h("a.line", { href: `#/view/${segment(view.name)}`, role: "row", "data-name": view.name },
      h("span.name", { role: "cell", title: view.name }, view.suspended ? h("span.tag.bad", { title: view.suspended }, "suspended") : null, view.suspended ? " " : null, view.name),
      h("span.num.opt", { role: "cell" }, count(view.rows)),
      h("span.lag", { role: "cell" }, spark(view.lags), h(view.lag_seconds > 1 ? "span.late" : "span", {}, view.suspended ? "–" : seconds(view.lag_seconds))),
      h("span.num", { role: "cell" }, count(Math.round(view.rate * 10) / 10)),
      h("span.num.opt", { role: "cell" }, bytes(view.state_bytes)),
      h("span.num.opt", { role: "cell" }, String(view.epoch)),
      h("span.opt", { role: "cell" }, h("span.tag", {}, view.strategy)));
    made.style.top = `${place * HEIGHT}px`;
    return made;
  }

  function show() {
    if (!live.known) {
      clear(stats, h("p.hint", {}, "Waiting for the server's first report."));
      return;
    }
    const now = live.totals;
    const late = [...live.views.values()].filter((view) => view.suspended).length;
    clear(notices,
      now.error ? h("div.notice.bad", { role: "alert" }, `Maintenance failed and is tried again: ${now.error}`) : null,
      late ? h("div.notice", {}, `${plural(late, "view is", "views are")} suspended. ALTER MATERIALIZED VIEW … RESUME brings one back.`) : null,
      live.loads.map((load) => h("div.notice", {}, `A view is being loaded, ${load.what}: ${count(load.done)} of ${count(load.of)}`)));
    clear(stats,
      stat("Lag", seconds(now.lag_seconds), now.lag_changes ? plural(now.lag_changes, "change waits", "changes wait") : "nothing waits", live.lags),
      stat("Writes", [count(Math.round(live.writes.at(-1) ?? 0)), h("small", {}, " rows/s")], `log ${bytes(now.log_bytes)}, position ${now.position}`, live.writes),
      stat("Batch", String(now.epoch), now.recent?.p50_seconds === undefined ? "none by this maintainer" : `p50 ${seconds(now.recent.p50_seconds)}, p99 ${seconds(now.recent.p99_seconds)}`, live.batches.map((batch) => batch.capture + batch.rounds + (batch.commit ?? 0))),
      stat("State", bytes(now.state_bytes), `${count([...live.views.values()].reduce((sum, view) => sum + (view.rows ?? 0), 0))} rows in ${plural(live.views.size, "view")}`, live.states),
      stat("Maintainer", waits(now), now.maintainer ?? "start vk run, or vk serve --maintain", live.waits),
      stat("Subscribers", count(now.subscribers), now.read_only ? "this server only reads" : "of this server", live.readers));
    timeline(picture, live.batches, now.merges?.last);
    const took = Object.fromEntries((now.stages ?? []).map((stage) => [stage.name, stage]));
    clear(stages, [["capture", "k1"], ["rounds", "k2"], ["commit", "k3"], ["merge", "k4"]].map(([name, colour]) => h("span", {}, h(`i.${colour}`), `${name === "rounds" ? "run" : name} ${name === "merge" ? plural(now.merges?.count ?? 0, "merge") : seconds(took[name]?.seconds ?? null)}`)));
    clear(tables, [...live.tables.values()].slice(0, 8).map((table) => h("div.row", {}, h("a", { href: `#/view/${segment(table.name)}` }, table.name), h("span.grow"), h("span.dim", {}, plural(table.rows, "row")), h(table.rate ? "span.tag.good" : "span.tag", {}, `${count(Math.round(table.rate))}/s`))),
      live.tables.size > 8 ? h("p.hint", {}, `and ${live.tables.size - 8} more`) : null,
      live.tables.size ? null : h("p.hint", {}, "There are no tables yet."));
    list();
  }

  const keys = (event) => {
    if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement?.tagName)) { event.preventDefault(); search.focus(); }
    const lines = [...inner.querySelectorAll("a.line")];
    const at = lines.indexOf(document.activeElement);
    if (event.key === "ArrowDown" && (at >= 0 || document.activeElement === search)) { event.preventDefault(); lines[at + 1]?.focus(); }
    if (event.key === "ArrowUp" && at >= 0) { event.preventDefault(); (lines[at - 1] ?? search).focus(); }
  };
  document.addEventListener("keydown", keys);
  live.addEventListener("change", show);
  addEventListener("resize", show);
  show();
  return () => {
    document.removeEventListener("keydown", keys);
    live.removeEventListener("change", show);
    removeEventListener("resize", show);
  };
}

function stat(label, value, sub, values) {
  return h("div.card.stat", {}, h("div.label", {}, label), h("div.value", {}, value), h("div.sub", { title: sub }, sub), values ? spark(values, 180, 30) : null);
}

/** The maintainer's activity, in a word or two. */
function waits(now) {
  if (now.error) return h("span.error", {}, "fails");
  if (!now.maintainer) return h("span.late", {}, "nobody");
  return now.lag_changes ? "at work" : h("span.ok", {}, "waits for writes");
}
