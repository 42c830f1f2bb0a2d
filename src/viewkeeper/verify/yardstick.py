"""Views against Spark's own answer: load a benchmark's tables, make its views, stream changes, compare every batch.

A yardstick is a benchmark as data: tables, queries, a generator of files and a model that changes them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viewkeeper.engine import Database
from viewkeeper.errors import Defect
from viewkeeper.verify.model import Change, Model
from viewkeeper.verify.recompute import Difference, SparkOracle, differences, is_in_no_order

Say = Callable[[str], None]


@dataclass(frozen=True)
class Yardstick:
    """A benchmark: its queries as views, its data and its changes."""

    name: str
    """In `vk verify NAME`."""
    views: Mapping[str, str]
    """Queries by the name of the view that holds them."""
    generate: Callable[[float, Path], Path]
    """Files at a scale factor, below a directory, one Parquet file a table; made once."""
    model: Callable[[Path, int], Model]
    """The tables of such files, with changes drawn from a seed."""


def load(db: Database, model: Model, tables: Iterable[str] | None = None) -> None:
    """Create the tables and put the model's rows."""
    for table in model.schemas if tables is None else tables:
        db.sql(model.schemas[table])
        db.put(table, model.table(table))


def create_views(db: Database, views: Mapping[str, str], say: Say = lambda _: None) -> None:
    for name, query in views.items():
        started = time.perf_counter()
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        say(f"{name} loaded in {time.perf_counter() - started:.2f} s")


def apply(db: Database, changes: Sequence[Change]) -> None:
    """The same changes on the store."""
    for change in changes:
        if change.puts is not None and change.puts.num_rows:
            db.put(change.table, change.puts)
        if change.deletes is not None and change.deletes.num_rows:
            db.delete(change.table, change.deletes)


def key_of(db: Database, view: str) -> list[str]:
    """The columns by which a view is kept."""
    shape = db.sql(f"DESCRIBE {view}")
    if shape is None:
        raise Defect(f"DESCRIBE {view} gives nothing.")
    columns = sorted((c["key"], c["column"]) for c in shape.to_pylist() if c["key"])
    return [column for _, column in columns]


def named(tables: Iterable[str], views: Mapping[str, str]) -> list[str]:
    """The tables that these queries name."""
    words = {word for query in views.values() for word in re.findall(r"\w+", query)}
    return [table for table in tables if table in words]


def verify(
    db: Database,
    files: Path,
    spark: Any,
    yardstick: Yardstick,
    *,
    batches: int,
    seed: int,
    lane: str,
    views: Mapping[str, str] | None = None,
    say: Say = print,
) -> list[Difference]:
    """Load, change, compare after every batch; stops at the first batch with differences and returns them all."""
    chosen = yardstick.views if views is None else views
    model = yardstick.model(files, seed)
    oracle = SparkOracle(spark)
    try:
        tables = named(model.schemas, chosen)
        load(db, model, tables)
        create_views(db, chosen, say)
        keys = {view: key_of(db, view) for view in chosen}
        for batch in range(batches + 1):
            if batch:
                changes = [change for change in model.batch() if change.table in tables]
                model.apply(changes)
                apply(db, changes)
                report = db.refresh(lane, suspend=False)
                say(f"batch {batch}: {report.changes} changes, {report.lane} lane, {report.seconds:.2f} s")
            oracle.load(model, tables)
            found = [
                one
                for view, expected in oracle.answers(chosen)
                for one in differences(
                    view, batch, expected, db.read(view), keys[view], near=is_in_no_order(chosen[view])
                )
            ]
            if found:
                return found
            say(f"batch {batch}: {len(chosen)} views equal")
        return []
    finally:
        oracle.close()
        model.close()
