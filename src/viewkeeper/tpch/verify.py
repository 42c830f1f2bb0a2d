"""Verify: load TPC-H, make the views, stream changes, and compare every view with recomputing after every batch."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper.engine import Database
from viewkeeper.plan.catalyst import at_work, front_session
from viewkeeper.tpch import QUERIES, SCHEMAS
from viewkeeper.tpch.changes import Change, Model

Row = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """A key of a view with the row that Spark has for it and the one that is there; None where there is none."""

    view: str
    batch: int
    key: Row
    expected: Row | None
    got: Row | None


def load(db: Database, model: Model, tables: Iterable[str] = SCHEMAS) -> None:
    """Create the tables and put the model's rows."""
    for table in tables:
        db.sql(SCHEMAS[table])
        db.put(table, model.table(table))


def create_views(db: Database, numbers: Iterable[int] = QUERIES, say: Callable[[str], None] = lambda _: None) -> None:
    for number in numbers:
        started = time.perf_counter()
        db.sql(f"CREATE MATERIALIZED VIEW q{number} AS {QUERIES[number]}")
        say(f"q{number} loaded in {time.perf_counter() - started:.2f} s")


def apply(db: Database, changes: Sequence[Change]) -> None:
    """The same changes on the store."""
    for change in changes:
        if change.puts is not None and change.puts.num_rows:
            db.put(change.table, change.puts)
        if change.deletes is not None and change.deletes.num_rows:
            db.delete(change.table, change.deletes)


class SparkOracle:
    """Spark SQL's own answer, over the model's tables."""

    def __init__(self, spark: Any) -> None:
        self.spark = front_session(spark)

    def load(self, model: Model) -> None:
        with at_work(self.spark):
            for table in SCHEMAS:
                self.spark.createDataFrame(model.table(table)).createOrReplaceTempView(table)

    def answer(self, number: int) -> pa.Table:
        with at_work(self.spark):
            result: pa.Table = self.spark.sql(QUERIES[number]).toArrow()
            return result


def differences(view: str, batch: int, expected: pa.Table, got: pa.Table, key: Sequence[str] = ()) -> list[Difference]:
    """Rows that only one side has, as multisets; two of the same key are one difference."""
    want, have = (Counter(tuple(r.items()) for r in t.to_pylist()) for t in (expected, got))
    sides = [defaultdict[tuple[Any, ...], list[Row]](list), defaultdict[tuple[Any, ...], list[Row]](list)]
    for side, rows in zip(sides, (want - have, have - want), strict=True):
        for row in map(dict, rows.elements()):
            side[tuple(row[k] for k in key)].append(row)
    return [
        Difference(view, batch, dict(zip(key, values, strict=True)), missing, surplus)
        for values in dict.fromkeys([*sides[0], *sides[1]])
        for missing, surplus in zip_longest(sides[0][values], sides[1][values])
    ]


def key_of(db: Database, view: str) -> list[str]:
    """The columns by which a view is kept."""
    shape = db.sql(f"DESCRIBE {view}")
    assert shape is not None
    columns = sorted((c["key"], c["column"]) for c in shape.to_pylist() if c["key"])
    return [column for _, column in columns]


def verify(
    db: Database,
    files: Path,
    spark: Any,
    *,
    batches: int,
    seed: int,
    lane: str,
    numbers: Sequence[int] = tuple(QUERIES),
    say: Callable[[str], None] = print,
) -> list[Difference]:
    """Load, change, compare after every batch; stops at the first batch with differences and returns them."""
    model = Model(files, seed)
    try:
        load(db, model)
        create_views(db, numbers, say)
        oracle = SparkOracle(spark)
        orders = max(5, model.rows("SELECT count(*) AS n FROM orders")["n"][0].as_py() // 200)
        for batch in range(batches + 1):
            if batch:
                changes = [*model.orders_batch(orders, orders, orders), *model.dimensions_batch(orders)]
                model.apply(changes)
                apply(db, changes)
                report = db.refresh(lane)
                say(f"batch {batch}: {report.changes} changes, {report.lane} lane, {report.seconds:.2f} s")
            oracle.load(model)
            for number in numbers:
                view = f"q{number}"
                found = differences(view, batch, oracle.answer(number), db.read(view), key_of(db, view))
                if found:
                    return found
            say(f"batch {batch}: {len(numbers)} views equal")
        return []
    finally:
        model.close()
