"""`vk demo`: TPC-H, five of its queries as live views, and a stream of orders.

    1  generate the data, `vk load` it table by table
    2  CREATE MATERIALIZED VIEW for queries 1, 3, 5, 13 and 18
    3  for some seconds: new, deleted and changed orders, one refresh per tick; a live screen of throughput, lag and the
       views' first rows, with changed cells marked
    4  compare every view with its query, recomputed by Spark
    5  print the next steps to try

On a terminal step 3 is a live screen; elsewhere (or with --plain) it is a line for each batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from viewkeeper.cli.demo.shop import activation_line, open_demo_database
from viewkeeper.cli.load import load
from viewkeeper.cli.progress import quiet_jvm
from viewkeeper.verify.benchmark_check import SparkOracle, apply_changes, find_differences
from viewkeeper.workloads.tpch import QUERIES, SCHEMAS
from viewkeeper.workloads.tpch.changes import TpchModel, generate

NUMBERS = (1, 3, 5, 13, 18)
VIEW_DISPLAYS: Mapping[int, tuple[str, str | None, tuple[str, ...]]] = {
    1: ("pricing summary", None, ("l_returnflag", "l_linestatus", "sum_qty", "count_order")),
    3: ("unshipped orders", "revenue", ("l_orderkey", "revenue", "o_orderdate")),
    5: ("local suppliers", "revenue", ("n_name", "revenue")),
    13: ("customers by orders", "custdist", ("c_count", "custdist")),
    18: ("large orders", "o_totalprice", ("c_name", "o_orderkey", "o_totalprice")),
}
"""What the screen shows of each view: a title, the column that orders the first rows, and some columns."""
SHOWN_ROWS = 5
ORDERS_PER_BATCH = 20
"""Number of new, of deleted and of changed orders in a batch."""

_NEXT_STEPS = """Try next:
{activate}  vk demo --keep lmdb:./tpch                         the same, kept in a database of your own
  vk sql "SELECT * FROM q5" --db lmdb:./tpch         a query over a view, at one snapshot
  vk explain q3 --format svg --out q3.svg --db lmdb:./tpch
  vk verify tpch --batches 3                         all 22 queries, compared after every batch
  vk demo shop                                       a smaller world that one can follow by eye
  docs/tutorial.md                                   from nothing to a view of your own"""

Rows = list[dict[str, Any]]


@dataclass
class DemoProgress:
    """The totals so far, and the last batch."""

    started: float = field(default_factory=time.monotonic)
    batches: int = 0
    changes: int = 0
    batch_seconds: float = 0.0
    last_lag: float = 0.0
    view_rows: Mapping[str, int] = field(default_factory=dict)
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=40))

    def summary_line(self) -> str:
        seconds = max(time.monotonic() - self.started, 0.001)
        worst = max(self.lags, default=0.0)
        return (
            f"batch {self.batches}   {self.changes:,} changed rows   "
            f"{self.changes / max(self.batch_seconds, 0.001):,.0f} rows/s in batches, "
            f"{self.changes / seconds:,.0f} overall   lag {1000 * self.last_lag:.0f} ms "
            f"(at most {1000 * worst:.0f} in the last {len(self.lags)} batches)"
        )


def demo(
    console: Console,
    directory: Path,
    *,
    url: str | None = None,
    seconds: float = 30,
    scale: float = 0.01,
    plain: bool = False,
) -> bool:
    """Run the demo; return True if every view was equal to its recomputation."""
    with console.status(f"Making TPC-H data, scale factor {scale:g}"):
        files = generate(scale, directory)
    model = TpchModel(files, seed=7)
    try:
        with open_demo_database(url, "tpch") as db:
            _prepare(console, db, files)
            progress = DemoProgress()
            live = console.is_terminal and not plain
            _stream_changes(console, db, model, seconds, progress, live)
            console.print(progress.summary_line(), highlight=False)
            equal = _check_views(console, db, model)
            console.print(f"\n{_NEXT_STEPS.format(activate=activation_line())}", highlight=False)
            return equal
    finally:
        model.close()


def _prepare(console: Console, db: Any, files: Path) -> None:
    for table, statement in SCHEMAS.items():
        with console.status(f"Loading {table}"):
            db.sql(statement)
            report = load(db, db._writes.table(table, "load into"), [files / f"{table}.parquet"])
        console.print(f"[dim]$ vk load {table} {table}.parquet[/dim]   {report.rows:,} rows", highlight=False)
    for number in NUMBERS:
        started = time.perf_counter()
        note = f"Creating q{number}" + (" (the first view also starts Spark, which plans the queries)" * (number == 1))
        with console.status(note), quiet_jvm():
            db.sql(f"CREATE MATERIALIZED VIEW q{number} AS {QUERIES[number]}")
        took = time.perf_counter() - started
        console.print(
            f"[dim]$ vk sql 'CREATE MATERIALIZED VIEW q{number} AS …'[/dim]   {VIEW_DISPLAYS[number][0]}, {took:.1f} s",
            highlight=False,
        )
    console.print()


# -- the stream --------------------------------------------------------------------------------------------------------


def _stream_changes(
    console: Console, db: Any, model: TpchModel, seconds: float, progress: DemoProgress, live: bool
) -> None:
    before = {n: _first_rows(db, n) for n in NUMBERS}
    end = time.monotonic() + seconds
    screen = Live(console=console, auto_refresh=False, transient=False) if live else nullcontext()
    with screen:
        while time.monotonic() < end:
            changes = model.orders_batch(ORDERS_PER_BATCH, ORDERS_PER_BATCH, ORDERS_PER_BATCH)
            model.apply(changes)
            apply_changes(db, changes)
            written = time.monotonic()
            report = db.refresh()
            progress.batches += 1
            progress.changes += report.changes
            progress.batch_seconds += report.seconds
            progress.last_lag = time.monotonic() - written
            progress.lags.append(progress.last_lag)
            after = {n: _first_rows(db, n) for n in NUMBERS}
            if isinstance(screen, Live):
                screen.update(_compose_screen(progress, before, after, console.width), refresh=True)
            else:
                changed = ", ".join(f"{view} {rows}" for view, rows in sorted(report.views.items()) if rows)
                console.print(
                    f"batch {progress.batches}: {report.changes} changes → rows changed: {changed or 'none'}, "
                    f"{1000 * report.seconds:.0f} ms",
                    highlight=False,
                )
            before = after
            time.sleep(0.1)


def _first_rows(db: Any, number: int) -> Rows:
    rows = db.read(f"q{number}")
    if (order_column := VIEW_DISPLAYS[number][1]) is not None:
        rows = rows.sort_by([(order_column, "descending")])
    first: Rows = rows.slice(0, SHOWN_ROWS).to_pylist()
    return first


def _compose_screen(progress: DemoProgress, before: Mapping[int, Rows], after: Mapping[int, Rows], width: int) -> Group:
    grids = [_view_grid(n, before[n], after[n]) for n in NUMBERS]
    return Group(Text(progress.summary_line(), style="bold"), Text(""), Columns(grids, padding=(0, 3)))


def _view_grid(number: int, before: Rows, after: Rows) -> Grid:
    title, _, columns = VIEW_DISPLAYS[number]
    grid = Grid(
        title=f"q{number}  {title}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, min_width=28
    )
    for name in columns:
        grid.add_column(name, justify="left" if name.endswith(("name", "flag", "status")) else "right", no_wrap=True)
    for i in range(SHOWN_ROWS):
        row = after[i] if i < len(after) else dict.fromkeys(columns, "")
        old = before[i] if i < len(before) else {}
        grid.add_row(*(Text(str(row[c]), style="bold green" if row[c] != old.get(c) else "") for c in columns))
    return grid


# -- the check ---------------------------------------------------------------------------------------------------------


def _check_views(console: Console, db: Any, model: TpchModel) -> bool:
    equal = True
    with console.status("Recomputing every view from nothing in Spark"), quiet_jvm():
        oracle = SparkOracle(db._spark())
        oracle.load(model)
        found = {n: (db.read(f"q{n}"), oracle.answer(QUERIES[n])) for n in NUMBERS}
    for number, (stored, recomputed) in found.items():
        is_equal = not find_differences(f"q{number}", 0, recomputed, stored)
        equal = equal and is_equal
        console.print(
            f"  {'✓' if is_equal else '✗'} q{number} {VIEW_DISPLAYS[number][0]}: {stored.num_rows} rows, "
            f"{'equal to' if is_equal else 'DIFFERENT from'} its recomputation in Spark"
        )
    return equal
