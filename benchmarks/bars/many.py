"""What `views.py` has measured, kept: `results/views.json` has the last run of each command, `results/views.md` tells.

A run says on which machine it was made and how busy that was when it began; runs of other commands stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
HEAD = """# Thousands of views: what was run

A batch is 25,000 changed lines, durable; seconds are the median of three (with nothing shared, from
500 different views on: of one), cpu is processor time; changes/s counts the put and the batch, one after the other.
`apart` is one of the views by itself, times their number. Some views of each line were compared with the same
views made WITH (share = false), after the load and after the batches: `differ` says how many were not the same. Bars
for 10,000 views at scale 1: defining 60 s; load 15 s (Q6), 20 s (Q1), 60 s (Q3 and Q10, drawn constants);
a batch 1 s (Q6, Q1); memory 6 GB.
"""


@dataclass(frozen=True)
class Line:
    """What was measured of one template with so many views; seconds, and for `apart` what n of them would take."""

    template: str
    constants: str
    views: int
    distinct: int
    rows: int
    define: float
    members: float
    load: float
    put: float
    batch: float
    cpu: float
    apart_load: float
    apart_batch: float
    differ: int
    memory: float
    named: bool = False
    missed: tuple[str, ...] = ()
    changes: int = 25_000


def show(line: Line, first: bool) -> None:
    if first:
        print(
            f"{'':4} {'constants':9} {'views':>6} {'distinct':>8} {'rows':>9} | {'define':>7} {'members':>7}"
            f" {'load':>7} | {'put':>6} {'batch':>6} {'(cpu)':>6} | apart: {'load':>8} {'batch':>7} | differ  GB"
        )
    print(
        f"{line.template:4} {line.constants:9} {line.views:6} {line.distinct:8} {line.rows:9} | {line.define:7.2f}"
        f" {line.members:7.2f} {line.load:7.2f} | {line.put:6.2f} {line.batch:6.3f} {line.cpu:6.3f} |"
        f" {line.apart_load:15.1f} {line.apart_batch:7.1f} | {line.differ:6} {line.memory:5.1f}"
        f"{'  missed: ' + ', '.join(line.missed) if line.missed else ''}",
        flush=True,
    )


def keep(command_text: str, run: dict[str, Any]) -> None:
    path = RESULTS / "views.json"
    known = json.loads(path.read_text()) if path.exists() else {"benchmark": "views", "runs": {}}
    known["runs"][command_text] = run
    path.write_text(json.dumps(known, indent=2) + "\n")
    (RESULTS / "views.md").write_text("\n".join(_told(known["runs"])))


def command(words: list[str]) -> str:
    """The call without what does not change its meaning."""
    where = words.index("--data") if "--data" in words else len(words)
    return " ".join(w for w in (*words[:where], *words[where + 2 :]) if w != "--keep")


def _told(runs: dict[str, Any]) -> Iterator[str]:
    yield HEAD
    for said, run in runs.items():
        yield f"## `python benchmarks/views.py {said}`\n"
        about = ", ".join(f"{name}: {value}" for name, value in run["machine"].items())
        yield f"Scale {run['scale']}; load of the machine before {run['load']}; {about}.\n"
        yield from _lines(run["lines"])
        yield from _different(run["different"])


def _lines(lines: list[dict[str, Any]]) -> Iterator[str]:
    if not lines:
        return
    head = ["query", "constants", "views", "distinct", "rows", "define", "load", "batch", "cpu", "changes/s"]
    head = [*head, "apart: load", "apart: batch", "GB", "differ", "missed"]
    yield f"| {' | '.join(head)} |"
    yield "| --- | --- |" + " ---: |" * 12 + " --- |"
    for line in lines:
        rate = line["changes"] / (line["put"] + line["batch"])
        counts = [f"{line[name]:,}" for name in ("views", "distinct", "rows")]
        seconds = [f"{line[name]:.3f}" for name in ("define", "load", "batch", "cpu")]
        apart = [f"{line[name]:,.1f}" if line[name] else "–" for name in ("apart_load", "apart_batch")]
        last = [f"{line['memory']:.1f}", str(line["differ"]), ", ".join(line["missed"]) or "–"]
        cells = [line["template"].upper(), line["constants"], *counts, *seconds, f"{rate:,.0f}", *apart, *last]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _different(found: list[dict[str, Any]]) -> Iterator[str]:
    if not found:
        return
    yield "Different views: selections, groups and joins drawn at random (`bars/different.py`).\n"
    yield "| views | define and load | batch | s | (cpu) | statements | lookups | GB | differ |"
    yield "| ---: | ---: | --- |" + " ---: |" * 6
    for one in found:
        ways = [
            (f"{one['together']:.3f}", f"{one['together_cpu']:.3f}"),
            (f"{one['apart']:.3f}", f"{one['apart_cpu']:.3f}"),
        ]
        counted = [[str(one[what][i]) for what in ("statements", "lookups")] for i in range(2)]
        begun = [f"{one['views']:,}", f"{one['define']:.1f}", "together", *ways[0], *counted[0]]
        ended = [f"{one['memory']:.1f}", str(one["differ"])]
        yield f"| {' | '.join([*begun, *ended])} |"
        yield f"| {' | '.join(['', '', 'lookups by themselves', *ways[1], *counted[1], '', ''])} |"
        ratio = one["one_by_one"] / one["together"]
        told = f"one after the other (of ten, times {one['views']:,}): {ratio:.1f} times as long"
        yield f"| | | {told} | {one['one_by_one']:.1f} | | | | | |"
    yield ""
