"""This tree against another one: the same TPC-H batches by turns, in one run.

    python benchmarks/against.py --other PYTHON [--scale 1] [--batches 9] [--views NUMBERS] [--data DIR] [--check]

`--other` is the interpreter of another checkout's environment (`git worktree add …`, then `make setup` there). Each of
the two makes the tables and views in a process of its own, which stays; then a batch goes through one, then through the
other, and the next begins with the other. A line for each of put, refresh, freshness (both together) and the first
batch after opening again: the median of this tree's batches, of the other's, and their ratio, by the clock and by
processor time, which is what counts on a machine that has other work. Bar: refresh and freshness ≤ 1.05.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bars.asked import some_of

BAR = 1.05
WHAT = ("put", "refresh", "freshness", "opened")


class Side:
    """One of the two, in its process."""

    def __init__(self, python: str, options: list[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        command = [python, str(Path(__file__).resolve()), "--side", *options]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.told: dict[str, list[tuple[float, float]]] = {name: [] for name in WHAT}
        self._answer()  # all is made

    def do(self, what: str) -> Any:
        print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        while line := self._process.stdout.readline() if self._process.stdout is not None else "":
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self._process.args!r} ended")

    def batch(self) -> None:
        found = self.do("batch")
        for name in ("put", "refresh"):
            self.told[name].append(tuple(found[name]))
        self.told["freshness"].append((found["put"][0] + found["refresh"][0], found["put"][1] + found["refresh"][1]))

    def open_again(self) -> None:
        self.told["opened"].append(tuple(self.do("reopen")["opened"]))

    def end(self) -> None:
        self._process.communicate("end\n")


def side(options: argparse.Namespace) -> None:
    """The process of one side: makes everything, then does what it is told."""
    import viewkeeper as vk
    from viewkeeper.verify.benchmark_check import apply_changes, create_views, load_tables
    from viewkeeper.workloads import tpch
    from viewkeeper.workloads.tpch.changes import TpchModel, generate

    queries = tpch.views(map(int, options.views)) if options.views else tpch.views()
    with tempfile.TemporaryDirectory(prefix="vk-against-") as scratch:
        url = f"lmdb:{scratch}/db"
        model = TpchModel(generate(options.scale, options.data), 1)
        db = vk.open(url, durability="none")
        load_tables(db, model)
        create_views(db, queries)

        def timed(work: Any) -> tuple[float, float]:
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            return time.perf_counter() - wall, time.process_time() - cpu

        def batch() -> dict[str, Any]:
            changes = model.batch()
            model.apply(changes)
            return {"put": timed(lambda: apply_changes(db, changes)), "refresh": timed(lambda: db.refresh("driver"))}

        print(json.dumps({"version": vk.__version__, "views": len(queries)}), flush=True)
        for line in sys.stdin:
            if line.strip() == "batch":
                print(json.dumps(batch()), flush=True)
            elif line.strip() == "reopen":
                db.close()
                db = vk.open(url, durability="none")
                print(json.dumps({"opened": batch()["refresh"]}), flush=True)
            else:
                break
        db.close()
        model.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", help="the other checkout's Python")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--batches", type=int, default=9)
    parser.add_argument("--views", type=some_of(map(str, range(1, 23))), help="queries, with commas; all if not given")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "viewkeeper-tpch")
    parser.add_argument("--small", action="store_true", help="scale 0.01, three batches, against itself if no other")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the bar is missed")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options)
        return 0
    if options.small:
        options.scale, options.batches, options.other = 0.01, 3, options.other or sys.executable
    if not options.other:
        parser.error("--other is missing")
    given = ["--scale", f"{options.scale:g}", "--data", str(options.data)]
    given += ["--views", ",".join(options.views)] if options.views else []
    sides = {"this": Side(sys.executable, given), "other": Side(options.other, given)}
    both = list(sides.values())
    for turn in range(options.batches + 2):
        for one in (both, both[::-1])[turn % 2]:
            one.batch()
    for turn in range(2):
        for one in (both, both[::-1])[turn % 2]:
            one.open_again()
    for one in both:
        one.end()
    found = {name: _compared(name, sides) for name in WHAT}
    print(f"{'':>10} {'this':>10} {'other':>10} {'ratio':>6} {'this cpu':>10} {'other cpu':>10} {'ratio':>6}")
    for name, (this, other, cpu, others) in found.items():
        print(
            f"{name:>10} {1000 * this:>7.1f} ms {1000 * other:>7.1f} ms {this / other:>6.2f}"
            f" {1000 * cpu:>7.1f} ms {1000 * others:>7.1f} ms {cpu / others:>6.2f}"
        )
    if options.json:
        told = {"benchmark": "against", "scale": options.scale, "batches": options.batches, "found": found}
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    missed = any(found[name][0] > BAR * found[name][1] for name in ("refresh", "freshness"))
    return int(options.check and missed)


def _compared(name: str, sides: dict[str, Side]) -> tuple[float, float, float, float]:
    """Medians without the first two batches, in which statements are prepared: the clock's, then the processor's."""
    (this, cpu), (other, others) = (_medians(one.told[name][0 if name == "opened" else 2 :]) for one in sides.values())
    return this, other, cpu, others


def _medians(found: list[tuple[float, float]]) -> tuple[float, float]:
    walls, cpus = zip(*found, strict=True)
    return statistics.median(walls), statistics.median(cpus)


if __name__ == "__main__":
    raise SystemExit(main())
