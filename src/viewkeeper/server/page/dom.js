// DOM elements, and formatted values.

/** h("a.tag", {href: "#/"}, "text", child): an element; names with "on" are listeners. */
export function h(what, given = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElement(tag || "div"), classes, given, children);
}

/** The same for SVG. */
export function s(what, given = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), classes, given, children);
}

function filled(element, classes, given, children) {
  if (classes.length) element.classList.add(...classes);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof element[name] === "string" && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function clear(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function count(number) {
  if (number === null || number === undefined) return "–";
  if (Math.abs(number) < 10000) return Number.isInteger(number) ? String(number) : number.toFixed(number < 10 ? 1 : 0);
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= size) return `${(number / size).toFixed(Math.abs(number) >= 100 * size ? 0 : 1)}${unit}`;
  }
  return String(number);
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let size = number;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000) return `${size < 10 && unit !== "B" ? size.toFixed(1) : Math.round(size)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

export function seconds(number) {
  if (number === null || number === undefined) return "–";
  if (number === 0) return "0 s";
  if (number < 0.001) return `${Math.round(number * 1e6)} µs`;
  if (number < 1) return `${(number * 1000).toFixed(number < 0.1 ? 1 : 0)} ms`;
  if (number < 120) return `${number.toFixed(number < 10 ? 1 : 0)} s`;
  if (number < 7200) return `${Math.round(number / 60)} min`;
  return `${(number / 3600).toFixed(1)} h`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function toast(text) {
  const box = h("div.toast", {}, text);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), 4000);
}

const NUMBERS = /^(tinyint|smallint|int|bigint|float|double|decimal|int\d+|uint\d+|decimal128)/;
export const isNumber = (type) => NUMBERS.test(type);

/** A cell of a table: NULL is not an empty text. */
export function cell(value, type) {
  if (value === null || value === undefined) return h("td.null", {}, "NULL");
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return h(isNumber(type) ? "td.num" : "td", { title: text.length > 40 ? text : null }, text);
}

export const segment = (name) => encodeURIComponent(/^(~|\.\.?$|views$|tables$|sql$|status$|events$)/.test(name) ? `~${name}` : name);
