// The page: navigation, the theme, and the one stream of status events.

import { clear, toast } from "./dom.js";
import { live } from "./live.js";
import { overview } from "./overview.js";
import { sql } from "./sql.js";
import { view } from "./view.js";

const main = document.getElementById("main");
const state = document.getElementById("live");
const place = document.getElementById("place");
let leave = () => {};
let shown = "";

function show() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, name, tab] = path.split("/");
  const now = page === "view" ? `view/${name}` : page;
  if (now === shown && page === "view") return;
  shown = now;
  leave();
  clear(main);
  const named = page === "view" ? decodeURIComponent(name).replace(/^~/, "") : "";
  document.title = page === "view" ? `${named} · Viewkeeper` : page === "sql" ? "SQL · Viewkeeper" : "Viewkeeper";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === (page === "sql" ? "sql" : "overview")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave = page === "view" ? view(main, named, tab) : page === "sql" ? sql(main, query ? decodeURIComponent(query) : "") : overview(main);
  scrollTo(0, 0);
}

function theme(next) {
  if (next) localStorage.setItem("viewkeeper-theme", next);
  const wanted = localStorage.getItem("viewkeeper-theme");
  if (wanted) document.documentElement.dataset.theme = wanted;
}

function turn() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  theme(dark ? "light" : "dark");
}

theme();
document.getElementById("theme").addEventListener("click", turn);
document.addEventListener("keydown", (event) => {
  if (/INPUT|TEXTAREA|SELECT/.test(document.activeElement?.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "t") turn();
  if (event.key === "s") { event.preventDefault(); location.hash = "#/sql"; }
  if (event.key === "o") location.hash = "#/";
  if (event.key === "?") toast("/ search · o overview · s SQL · t light or dark · arrows move in the list");
});
addEventListener("hashchange", show);
live.addEventListener("change", () => { place.textContent = live.totals.url ?? ""; });
live.start((how) => {
  state.className = `live ${how}`;
  state.textContent = how === "on" ? "live" : "reconnecting";
});
show();
