"""`vk demo shop`: a shop whose views change while the user watches.

    1  open a database in a temporary directory, fill the shop, create its views
    2  for some seconds: make a few changes, refresh once, show what changed in the views
    3  recompute every view from the tables in DuckDB and compare
    4  print the next steps to try

On a terminal step 2 is a live screen; elsewhere (or with --plain) it is a line for each change.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text

import viewkeeper
from viewkeeper.cli.progress import quiet_jvm
from viewkeeper.errors import NameTaken
from viewkeeper.resources.prepared_statements import connect
from viewkeeper.workloads.shop import TABLES, VIEWS, Shop

_NEXT_STEPS = """Try next:
{activate}  vk demo shop --keep lmdb:./shop --seconds 5       the same, kept in a database of your own
  vk sql "SHOW VIEWS" --db lmdb:./shop              what is there
  vk explain by_category --db lmdb:./shop           how a view is kept fresh
  vk get by_category toys --db lmdb:./shop          one row by its key
  docs/tutorial.md                                  from nothing to a view of your own"""

Rows = Mapping[Any, dict[str, Any]]
"""A view's rows by their first column, which is its key here."""


@dataclass(frozen=True)
class DemoBatch:
    """One batch: the changes of the tables, and the cells of the views that changed."""

    changes: list[str]
    report: Any
    views: Mapping[str, Rows]
    changed_cells: Mapping[str, dict[Any, dict[str, tuple[Any, Any]]]]
    """view → key → column → (before, after); None stands for a row that did not exist."""


def demo(console: Console, *, url: str | None = None, seconds: float = 20, plain: bool = False) -> bool:
    """Run the demo; return True if every view was equal to its recomputation."""
    with open_demo_database(url, "shop") as db:
        shop = Shop(db)
        with console.status("Opening the shop"):
            shop.open()
        console.print(f"A shop with {len(TABLES)} tables; {len(VIEWS)} materialized views over them:")
        for name, query in VIEWS.items():
            console.print(f"\nCREATE MATERIALIZED VIEW {name} AS\n{query}", highlight=False, style="dim")
            note = f"Creating {name} (the first view also starts Spark, which plans the queries)"
            with console.status(note), quiet_jvm():
                db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        console.print()
        screen = _print_lines if plain or not console.is_terminal else _show_screen
        batches, changes, busy = screen(console, _run_batches(db, shop, seconds))
        batch_ms = 1000 * busy / max(batches, 1)
        console.print(f"{changes} changes reached {len(VIEWS)} views in {batches} batches, {batch_ms:.1f} ms each.")
        equal = _check_views(console, db)
        console.print(f"\n{_NEXT_STEPS.format(activate=activation_line())}", highlight=False)
        return equal


def activation_line() -> str:
    """The line that puts `vk` on the path, for users of `make demo`; empty if `vk` is there already."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("vk") is not None or not script.is_file():
        return ""
    script_path = os.path.relpath(script)
    return f"  source {script_path:<43}puts vk on your path: do this first\n"


@contextmanager
def open_demo_database(url: str | None, name: str) -> Iterator[Any]:
    """The database of `--keep`, which must be new, or a database of this name in a temporary directory."""
    if url is None:
        with tempfile.TemporaryDirectory(prefix="vk-demo-") as path, viewkeeper.open(f"lmdb:{path}/{name}") as db:
            yield db
        return
    with viewkeeper.open(url) as db:
        if db._catalog().tables:
            raise NameTaken(f"{url} has tables already, and --keep needs a new database.", hint="Name another one.")
        yield db


def _run_batches(db: Any, shop: Shop, seconds: float) -> Iterator[DemoBatch]:
    """Yield batches at a pace that a user can follow, until the time is over."""
    views = _read_views(db)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        changes = [shop.change() for _ in range(shop.random.randint(1, 3))]
        report = db.refresh()
        before, views = views, _read_views(db)
        changed = {name: _find_changed_cells(before[name], views[name]) for name in views}
        yield DemoBatch(changes, report, views, changed)
        time.sleep(0.4)


def _read_views(db: Any) -> dict[str, Rows]:
    return {name: {next(iter(row.values())): row for row in db.read(name).to_pylist()} for name in VIEWS}


def _find_changed_cells(before: Rows, after: Rows) -> dict[Any, dict[str, tuple[Any, Any]]]:
    found = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key, {}), after.get(key, {})
        if old != new:
            found[key] = {c: (old.get(c), new.get(c)) for c in (new or old) if old.get(c) != new.get(c)}
    return found


# -- plain lines -------------------------------------------------------------------------------------------------------


_MAX_SHOWN_ROWS = 3
"""Rows printed for each view and batch."""


def _print_lines(console: Console, batches: Iterator[DemoBatch]) -> tuple[int, int, float]:
    total = _DemoTotals()
    for batch in batches:
        total.add(batch)
        console.print(_headline(batch), highlight=False)
        for change in batch.changes:
            console.print(f"  {change}", highlight=False)
        for view, rows in batch.changed_cells.items():
            for key, cells in list(rows.items())[:_MAX_SHOWN_ROWS]:
                console.print(f"    {view}[{key}]  {_format_cells(cells)}", highlight=False, markup=False, style="dim")
            if len(rows) > _MAX_SHOWN_ROWS:
                console.print(f"    {view}: {len(rows) - _MAX_SHOWN_ROWS} more rows", highlight=False, style="dim")
    return total.batches, total.changes, total.seconds


def _headline(batch: DemoBatch) -> str:
    changes, rows = len(batch.changes), sum(map(len, batch.changed_cells.values()))
    report = batch.report
    return (
        f"batch {report.epoch}: {changes} change{'s'[: changes != 1]} → {rows} view row{'s'[: rows != 1]}, "
        f"{report.lane} lane, {1000 * report.seconds:.1f} ms"
    )


def _format_cells(cells: Mapping[str, tuple[Any, Any]]) -> str:
    if all(before is None for before, _ in cells.values()):
        return "new: " + ", ".join(f"{c} {after}" for c, (_, after) in cells.items())
    if all(after is None for _, after in cells.values()):
        return "gone"
    return ", ".join(f"{c} {before} → {after}" for c, (before, after) in cells.items())


@dataclass
class _DemoTotals:
    batches: int = 0
    changes: int = 0
    seconds: float = 0
    log: deque[Text] = field(default_factory=lambda: deque(maxlen=16))

    def add(self, batch: DemoBatch) -> None:
        self.batches += 1
        self.changes += len(batch.changes)
        self.seconds += batch.report.seconds


# -- the live screen ---------------------------------------------------------------------------------------------------


def _show_screen(console: Console, batches: Iterator[DemoBatch]) -> tuple[int, int, float]:
    total = _DemoTotals()
    with Live(console=console, auto_refresh=False) as live:
        for batch in batches:
            total.add(batch)
            total.log.extend(Text(change) for change in batch.changes)
            live.update(_compose_screen(batch, total, console.width), refresh=True)
    return total.batches, total.changes, total.seconds


def _compose_screen(batch: DemoBatch, total: _DemoTotals, width: int) -> Group:
    """The changes on the left, the views beside them; 80 columns have room for two of the three views."""
    log = Panel(Group(*total.log), title="changes", width=34, height=18)
    parts: list[Any] = [log, Group(_view_grid("by_category", batch), _view_grid("order_lines", batch, 5))]
    if width >= 116:
        parts.append(_view_grid("ratings", batch))
    side_by_side = Grid.grid(padding=(0, 1))
    side_by_side.add_row(*parts)
    return Group(Text(_headline(batch), style="bold"), side_by_side)


def _view_grid(view: str, batch: DemoBatch, last: int | None = None) -> Grid:
    """A view as a table with changed cells marked. A long view shows the rows that changed last, then the highest
    keys."""
    rows, changed = batch.views[view], batch.changed_cells[view]
    keys = sorted(rows)
    if last is not None:
        keys = sorted(sorted(keys, key=lambda k: (k in changed, k))[-last:])
    names = list(next(iter(rows.values()), {}))
    grid = Grid(title=view, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in names:
        grid.add_column(name, justify="left" if name in ("category", "item") else "right")
    for key in keys:
        marked = changed.get(key, {})
        grid.add_row(*(Text(str(v), style="bold green" if c in marked else "") for c, v in rows[key].items()))
    return grid


# -- the check ---------------------------------------------------------------------------------------------------------


def _check_views(console: Console, db: Any) -> bool:
    """Compare each view with the same query over the tables, recomputed by DuckDB."""
    equal = True
    with connect() as connection:
        for table in ("items", "orders", "reviews"):
            connection.register(table, db.read(table))
        for name, query in VIEWS.items():
            stored, recomputed = db.read(name), connection.sql(query).to_arrow_table()
            is_equal = _sorted_rows(stored) == _sorted_rows(recomputed)
            equal = equal and is_equal
            verdict = "equal to" if is_equal else "DIFFERENT from"
            console.print(
                f"  {'✓' if is_equal else '✗'} {name}: {stored.num_rows} rows, {verdict} its recomputation in DuckDB"
            )
    return equal


def _sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())
