"""Checks views against Spark: load a benchmark's tables, create its views, apply changes, compare after every batch.

A `Benchmark` is data: tables, queries, a generator of files and a model that changes them.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel

from viewkeeper.database import Database
from viewkeeper.errors import Defect, StoreError
from viewkeeper.plan.catalyst import activate_session, front_session
from viewkeeper.verify.reference_model import Change, ReferenceModel

# The oracle: Spark SQL over the model's tables, and the comparison with a view's rows.
#
# Spark keeps the tables on its disks and uses sort-merge joins, which spill, so queries need not fit into its memory.
# If Spark still runs out of memory, its JVM ends (`plan.catalyst`) and an error reports that.
#
# Rows are compared as multisets, with equal types and bitwise equal floats. Where Spark leaves a result open:
#
#     ORDER BY … LIMIT    which of the tied rows are taken: all columns are appended to the order, as views do
#     stddev, variance    sums of DOUBLE in no fixed order: equal to nine digits


Row = dict[str, Any]

_LIMIT = re.compile(r"\bLIMIT\s+(\d+)\s*$", re.IGNORECASE)
_ORDER = re.compile(r"\bORDER\s+BY\b", re.IGNORECASE)
_ORDER_DEPENDENT = re.compile(r"\b(stddev|variance|var)(_samp|_pop)?\s*\(", re.IGNORECASE)
_TOLERANCE = 1e-9
_TWO_QUERY_HEAP_BYTES = 2 << 30


@dataclass(frozen=True)
class Difference:
    """A key of a view with Spark's row and the view's row; None where a side has no row."""

    view: str
    batch: int
    key: Row
    expected: Row | None
    actual: Row | None


class SparkOracle:
    """Spark SQL over the model's tables."""

    def __init__(self, spark: Any) -> None:
        self.spark = front_session(spark)
        # Broadcast tables are held in memory as a whole, and again for each query until the JVM collects them.
        self.spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        max_heap = self.spark._jvm.java.lang.Runtime.getRuntime().maxMemory()
        self._parallel_queries = 2 if max_heap >= _TWO_QUERY_HEAP_BYTES else 1

    def load(self, model: ReferenceModel, tables: Iterable[str] | None = None) -> None:
        """Load the tables in their current state."""
        with self._hint_memory_errors():
            for table in model.schemas if tables is None else tables:
                rows = self.spark.createDataFrame(model.table(table))
                # A checkpoint, because a cached table also keeps the rows that it was built from.
                rows.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY).createOrReplaceTempView(table)

    def close(self) -> None:
        """Drop the tables; Spark removes checkpoints without references."""
        for table in self.spark.catalog.listTables():
            self.spark.catalog.dropTempView(table.name)

    def answer(self, query: str) -> pa.Table:
        with self._hint_memory_errors():
            result: pa.Table = self.spark.sql(self.complete_order(query)).toArrow()
            return result

    def answers(self, views: Mapping[str, str]) -> Iterable[tuple[str, pa.Table]]:
        """Each view's rows, in the views' order; with enough memory, Spark plans one query while another runs."""
        with ThreadPoolExecutor(self._parallel_queries) as pool:
            yield from zip(views, pool.map(self.answer, views.values()), strict=True)

    def complete_order(self, query: str) -> str:
        """The query with all columns appended to its ORDER BY, so that LIMIT has one result."""
        limit = _LIMIT.search(query)
        if limit is None:
            return query
        body = query[: limit.start()].rstrip()
        order = [m.start() for m in _ORDER.finditer(body) if _is_outermost(body[m.end() :])]
        columns = ", ".join(str(n + 1) for n in range(len(self.spark.sql(query).columns)))
        return f"{body}{', ' if order else ' ORDER BY '}{columns} LIMIT {limit[1]}"

    @contextmanager
    def _hint_memory_errors(self) -> Iterator[None]:
        try:
            with activate_session(self.spark):
                yield
        except StoreError as error:
            error.hint += " Or verify fewer views at a time (--views)."
            raise


def is_order_dependent(query: str) -> bool:
    """Whether Spark's floats depend on the order in which it reads the rows."""
    return _ORDER_DEPENDENT.search(query) is not None


def find_differences(
    view: str, batch: int, expected: pa.Table, actual: pa.Table, key: Sequence[str] = (), *, approximate: bool = False
) -> list[Difference]:
    """Rows that only one side has; two with the same key are one difference. Different types are one for the whole
    view."""
    types = [{f.name: str(f.type) for f in rows.schema} for rows in (expected, actual)]
    if types[0] != types[1]:
        return [Difference(view, batch, {}, *types)]
    want, have = (Counter(_countable_row(row, key) for row in rows.to_pylist()) for rows in (expected, actual))
    sides = [defaultdict[tuple[Any, ...], list[Row]](list), defaultdict[tuple[Any, ...], list[Row]](list)]
    for side, rows in zip(sides, (want - have, have - want), strict=True):
        for row in map(dict, rows.elements()):
            side[tuple(row[k] for k in key)].append(row)
    return [
        Difference(view, batch, dict(zip(key, values, strict=True)), missing, surplus)
        for values in dict.fromkeys([*sides[0], *sides[1]])
        for missing, surplus in zip_longest(sides[0][values], sides[1][values])
        if not (approximate and _is_close(missing, surplus))
    ]


def _countable_row(row: Row, key: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """The row as a hashable value: NaN is one value, 0.0 and -0.0 are two except in a key."""
    return tuple(
        (k, _BitwiseFloat(v) if isinstance(v, float) and (k not in key or v != v) else v) for k, v in row.items()
    )


class _BitwiseFloat(float):
    """A float that equals another float with the same bits."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and self.hex() == other.hex()

    def __hash__(self) -> int:
        return hash(self.hex())


def _is_close(left: Row | None, right: Row | None) -> bool:
    if left is None or right is None:
        return False
    pairs = ((left[c], right[c]) for c in left)
    return all(
        math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        if isinstance(a, float) and isinstance(b, float)
        else a == b
        for a, b in pairs
    )


def _is_outermost(text: str) -> bool:
    """Whether the text closes no parenthesis that was opened before it."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return True


LogLine = Callable[[str], None]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its queries as views, its data and its changes."""

    name: str
    """The name in `vk verify NAME`."""
    views: Mapping[str, str]
    """Queries by the name of their view."""
    generate: Callable[[float, Path], Path]
    """Generates files at a scale factor below a directory, one Parquet file per table; existing files are reused."""
    model: Callable[[Path, int], ReferenceModel]
    """Creates the model of the tables in such files, with changes drawn from a seed."""


def load_tables(db: Database, model: ReferenceModel, tables: Iterable[str] | None = None) -> None:
    """Create the tables and put the model's rows."""
    for table in model.schemas if tables is None else tables:
        db.sql(model.schemas[table])
        db.put(table, model.table(table))


def create_views(db: Database, views: Mapping[str, str], log: LogLine = lambda _: None) -> None:
    for name, query in views.items():
        started = time.perf_counter()
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        log(f"{name} loaded in {time.perf_counter() - started:.2f} s")


def apply_changes(db: Database, changes: Sequence[Change]) -> None:
    """Apply the model's changes to the database."""
    for change in changes:
        if change.puts is not None and change.puts.num_rows:
            db.put(change.table, change.puts)
        if change.deletes is not None and change.deletes.num_rows:
            db.delete(change.table, change.deletes)


def view_key(db: Database, view: str) -> list[str]:
    """The key columns of a view."""
    shape = db.sql(f"DESCRIBE {view}")
    if shape is None:
        raise Defect(f"DESCRIBE {view} gives nothing.")
    columns = sorted((c["key"], c["column"]) for c in shape.to_pylist() if c["key"])
    return [column for _, column in columns]


def mentioned_tables(tables: Iterable[str], views: Mapping[str, str]) -> list[str]:
    """The tables that the queries name."""
    words = {word for query in views.values() for word in re.findall(r"\w+", query)}
    return [table for table in tables if table in words]


def verify(
    db: Database,
    files: Path,
    spark: Any,
    benchmark: Benchmark,
    *,
    batches: int,
    seed: int,
    lane: str,
    views: Mapping[str, str] | None = None,
    log: LogLine = print,
) -> list[Difference]:
    """Load, change, compare after every batch; stop at the first batch with differences and return them all."""
    selected = benchmark.views if views is None else views
    model = benchmark.model(files, seed)
    oracle = SparkOracle(spark)
    try:
        tables = mentioned_tables(model.schemas, selected)
        load_tables(db, model, tables)
        create_views(db, selected, log)
        keys = {view: view_key(db, view) for view in selected}
        for batch in range(batches + 1):
            if batch:
                changes = [change for change in model.batch() if change.table in tables]
                model.apply(changes)
                apply_changes(db, changes)
                report = db.refresh(lane, suspend=False)
                log(f"batch {batch}: {report.changes} changes, {report.lane} lane, {report.seconds:.2f} s")
            oracle.load(model, tables)
            found = [
                difference
                for view, expected in oracle.answers(selected)
                for difference in find_differences(
                    view, batch, expected, db.read(view), keys[view], approximate=is_order_dependent(selected[view])
                )
            ]
            if found:
                return found
            log(f"batch {batch}: {len(selected)} views equal")
        return []
    finally:
        oracle.close()
        model.close()
