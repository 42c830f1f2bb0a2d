// Charts: a sparkline of the last minutes, and the batches with their stages.

import { clear, s, seconds } from "./dom.js";

/** A sparkline of at most the last two minutes. */
export function spark(values, width = 64, height = 22) {
  const span = Math.max(values.length, 30) - 1;
  const known = values.filter((value) => value !== null && value !== undefined);
  const most = Math.max(...known, 1e-9);
  const at = (value, i) => `${((i + span + 1 - values.length) / span * width).toFixed(1)} ${(height - 2 - (value ?? 0) / most * (height - 5)).toFixed(1)}`;
  const points = values.map(at);
  const picture = s("svg.spark", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  if (points.length > 1) {
    const from = ((span + 1 - values.length) / span * width).toFixed(1);
    picture.append(
      s("path.area", { d: `M${from} ${height} L${points.join(" L")} L${width} ${height} Z` }),
      s("path", { d: `M${points.join(" L")}`, "vector-effect": "non-scaling-stroke" }),
    );
  }
  return picture;
}

const STAGES = [["capture", "f1"], ["rounds", "f2"], ["commit", "f3"], ["merge", "f4"]];

/** The last batches: a stacked bar of stages for each. Drawn at display width, so that letters are not stretched. */
export function timeline(picture, batches, merges) {
  const width = picture.clientWidth || 640, height = 120, most = 60, low = height - 16;
  const shown = batches.slice(-most).map((batch) => ({ ...batch, merge: 0 }));
  for (const [time, took] of merges ?? []) {
    const owner = shown.findLast((batch) => batch.time <= time);
    if (owner) owner.merge += took;
  }
  const tops = shown.map((batch) => STAGES.reduce((sum, [stage]) => sum + (batch[stage] ?? 0), 0));
  const top = Math.max(...tops, 0.001);
  const each = width / most, gap = Math.min(2, each / 4);
  const parts = [];
  for (const share of [0.5, 1]) {
    const y = low - share * (low - 12);
    parts.push(s("line.grid-line", { x1: 0, x2: width, y1: y, y2: y }), s("text.axis", { x: 2, y: y - 3 }, seconds(top * share)));
  }
  shown.forEach((batch, i) => {
    let y = low;
    const bar = s("g", {}, s("title", {}, `batch ${batch.epoch} · ${batch.changes} changes · ${batch.lane}\n${STAGES.map(([stage]) => `${stage} ${seconds(batch[stage] ?? 0)}`).join("\n")}`));
    const x = width - (shown.length - i) * each + gap / 2;
    for (const [stage, colour] of STAGES) {
      const tall = (batch[stage] ?? 0) / top * (low - 12);
      y -= tall;
      bar.append(s(`rect.${colour}`, { x, y, width: each - gap, height: tall, rx: 1.5 }));
    }
    bar.append(s("rect", { x, y: 0, width: each, height: low, fill: "transparent" }));
    parts.push(bar);
  });
  if (shown.length) {
    parts.push(s("text.axis", { x: width, y: height - 3, "text-anchor": "end" }, `batch ${shown.at(-1).epoch}`));
  }
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  clear(picture, parts);
}
