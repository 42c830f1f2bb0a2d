// A view's plan: boxes from left to right by rounds and steps, each with its time in the last batches.

import { bytes, count, h, s, seconds, segment } from "./dom.js";

const WIDTH = 224, GAP = 56, LINE = 15, PAD = 9;
const KEPT = new Set(["table_image", "arrange"]);
const STATE = new Set(["table_image", "arrange", "aggregate", "recompute", "top_k"]);

export function drawn(plan) {
  const boxes = new Map(plan.boxes.map((box) => [box.number, { ...box, lines: lines(box) }]));
  place(plan, boxes);
  const width = Math.max(...[...boxes.values()].map((box) => box.x)) + WIDTH + 20;
  const height = Math.max(...[...boxes.values()].map((box) => box.y + box.tall)) + 20;
  const hottest = Math.max(...[...boxes.values()].map((box) => box.last?.seconds ?? 0), 1e-9);
  const picture = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The plan of ${plan.view}` });
  picture.append(s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path.arrow", { d: "M0 0 L8 4 L0 8 z" }))));
  for (let round = 0; round < plan.rounds; round++) {
    const mine = [...boxes.values()].filter((box) => box.round === round);
    if (mine.length) picture.append(s("text.round", { x: Math.min(...mine.map((box) => box.x)), y: 22 }, `round ${round}`));
  }
  for (const link of plan.links) picture.append(path(boxes.get(link.source), boxes.get(link.target), link.subtracted ? "minus" : "", link.where));
  for (const box of boxes.values()) if (box.reads) picture.append(path(boxes.get(box.reads), box, "reads", "reads this state"));
  for (const box of boxes.values()) picture.append(group(box, hottest));
  return picture;
}

function lines(box) {
  const found = [[box.title, "title"]];
  if (box.key?.length) found.push([`by (${box.key.join(", ")})`, "dimmed"]);
  for (const text of box.lines) found.push([text, "dimmed"]);
  if (box.rows !== null && box.rows !== undefined) found.push([`${count(box.rows)} rows, ${bytes(box.bytes)}`, ""]);
  if (box.shared?.length) found.push([`shared with ${box.shared.join(", ")}`, "dimmed"]);
  if (box.last) found.push([`${seconds(box.last.seconds / box.last.batches)} a batch, ${count(Math.round(box.last.rows / box.last.batches))} rows`, "took"]);
  return found;
}

function group(box, hottest) {
  const made = s(STATE.has(box.kind) ? "g.state" : "g", {}, s("title", {}, box.lines.map(([text]) => text).join("\n")),
    s("rect", { x: box.x, y: box.y, width: WIDTH, height: box.tall, rx: box.kind === "input" || box.kind === "sink" ? 12 : 5 }));
  if (box.last) made.append(s("rect.hot", { x: box.x + 1.5, y: box.y + box.tall - 5, height: 3.5, rx: 1.5, width: Math.max(2, (WIDTH - 3) * box.last.seconds / hottest) }));
  box.lines.forEach(([text, kind], i) => {
    const shown = text.length > 36 ? `${text.slice(0, 35)}…` : text;
    made.append(s(kind ? `text.${kind}` : "text", { x: box.x + PAD, y: box.y + PAD + LINE * (i + 1) - 4 }, shown));
  });
  return made;
}

function path(from, to, kind, text) {
  let d;
  if (to.x > from.x) {
    const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + from.tall / 2, to.x, to.y + to.tall / 2];
    const bend = Math.max(x2 - GAP, x1);
    d = `M${x1} ${y1} H${bend} C${bend + GAP / 2} ${y1} ${bend + GAP / 2} ${y2} ${x2} ${y2}`;
  } else {
    const down = to.y > from.y;
    const [x1, y1, x2, y2] = [from.x + WIDTH / 2, down ? from.y + from.tall : from.y, to.x + WIDTH / 2, down ? to.y : to.y + to.tall];
    d = `M${x1} ${y1} C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`;
  }
  return s(`path.link${kind ? `.${kind}` : ""}`, { d, "marker-end": "url(#arrow)" }, text ? s("title", {}, text) : null);
}

/** Columns: the round's first column, plus one for each step in the round. Lanes: that of the box's first input. */
function place(plan, boxes) {
  const steps = new Map([...boxes.keys()].map((number) => [number, 0]));
  for (let turn = 0; turn < boxes.size; turn++) {
    let moved = false;
    for (const { source, target } of plan.links) {
      if (boxes.get(source).round !== boxes.get(target).round) continue;
      if (steps.get(target) <= steps.get(source)) { steps.set(target, steps.get(source) + 1); moved = true; }
    }
    if (!moved) break;
  }
  let first = 0;
  const firsts = [];
  for (let round = 0; round < plan.rounds; round++) {
    firsts.push(first);
    first += Math.max(0, ...[...boxes.values()].filter((box) => box.round === round).map((box) => steps.get(box.number))) + 1;
  }
  const sources = new Map();
  for (const { source, target } of plan.links) sources.set(target, [...(sources.get(target) ?? []), source]);
  const lanes = new Map([...boxes.values()].filter((box) => box.kind === "input").map((box, lane) => [box.number, lane]));
  const laneOf = (number, seen = new Set()) => {
    if (lanes.has(number) || seen.has(number)) return lanes.get(number) ?? 0;
    seen.add(number);
    const found = (sources.get(number) ?? []).map((source) => laneOf(source, seen)).sort((a, b) => a - b);
    const lane = found.length ? found[Math.floor(found.length / 2)] : 0;
    lanes.set(number, lane);
    return lane;
  };
  for (const number of boxes.keys()) laneOf(number);
  let top = 34;
  for (const lane of [...new Set(lanes.values())].sort((a, b) => a - b)) {
    for (const below of [false, true]) {
      const heights = new Map();
      let end = top;
      for (const box of boxes.values()) {
        if (lanes.get(box.number) !== lane || KEPT.has(box.kind) !== below) continue;
        const column = firsts[box.round] + steps.get(box.number);
        box.x = 14 + column * (WIDTH + GAP);
        box.y = heights.get(column) ?? top;
        box.tall = LINE * box.lines.length + PAD * 2;
        heights.set(column, box.y + box.tall + 12);
        end = Math.max(end, box.y + box.tall + 12);
      }
      top = end;
    }
    top += 10;
  }
}

export function planned(plan) {
  const shared = plan.shares_state_with;
  return [
    h("p.hint", {}, plan.timed ? "Times and rows are averages of the last batches of this server." : "Times are known to the process that maintains: start the server with --maintain.",
      " The bar under a box is its share of the time."),
    shared.length ? h("p", {}, "Shares state with ", shared.slice(0, 12).map((name, i) => [i ? ", " : "", h("a", { href: `#/view/${segment(name)}` }, name)]), shared.length > 12 ? ` and ${shared.length - 12} more` : "", ".") : h("p.hint", {}, "Shares no state with other views."),
    h("div.plan", { tabindex: "0" }, drawn(plan)),
  ];
}
