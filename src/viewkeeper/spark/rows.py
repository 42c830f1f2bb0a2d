"""`spark.read`: a table or view at one log position, as key ranges that tasks scan in parallel.

    1  the position is chosen when the query is planned (or given by `at`), and the log is held from there for a while
    2  the table is cut into key ranges of similar size; filters on leading key columns narrow them
    3  a task scans its range and undoes what the log says came after the position

So all tasks see one state, however late they run. Every filter is also left to Spark: the ranges only spare work.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.conversion import to_arrow_schema
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from viewkeeper.errors import BadValue, Unsupported
from viewkeeper.model import types
from viewkeeper.model.keys import prefix_range
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.at import Bounds, rows_at
from viewkeeper.store.base import Store
from viewkeeper.store.registry import open_store

HELD = 3600.0
"""Seconds for which the log is kept for a batch query."""
ROWS = 65_536
"""Rows of a batch that is handed to Spark."""


@dataclass
class KeyRange(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    position: int
    start: bytes | None
    stop: bytes | None


class RowReader(DataSourceReader):  # type: ignore[misc]
    """Made on the driver, sent to every task."""

    def __init__(self, url: str, table: Table, columns: list[str], schema: Any, options: Mapping[str, str]) -> None:
        self.url, self.table, self.columns, self.schema = url, table, columns, schema
        self.parts = _number(options, "partitions", 0)
        self.at = options.get("at")
        self.bounds: Bounds = (None, None)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.bounds = key_bounds(self.table, filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        store = open_store(self.url, "w")
        try:
            position = position_of(store, self.at)
            with suppress(Unsupported):  # a store without a log of its own keeps what it keeps
                store.hold(f"spark-read-{secrets.token_hex(8)}", position, time.time() + HELD)
            points = store.split_points(self.table, self.parts or default_parts())
        finally:
            store.close()
        low, high = self.bounds
        inside = [p for p in points if (low is None or p > low) and (high is None or p < high)]
        return [KeyRange(position, start, stop) for start, stop in pairwise([low, *inside, high])]

    def read(self, partition: KeyRange) -> Iterator[pa.RecordBatch]:
        store = open_store(self.url, "r")
        try:
            rows = rows_at(store, self.table, self.columns, partition.position, (partition.start, partition.stop))
            yield from as_spark(rows, self.schema)
        finally:
            store.close()


def as_spark(rows: pa.Table, schema: Any) -> Iterator[pa.RecordBatch]:
    """Batches in exactly the Arrow schema that Spark expects."""
    expected = to_arrow_schema(schema, timezone="UTC")
    known = {name.lower(): name for name in rows.column_names}  # a schema of the user's own may spell them otherwise
    asked = rows.select([known[name.lower()] for name in expected.names]).rename_columns(expected.names)
    yield from asked.cast(expected).to_batches(max_chunksize=ROWS)


def position_of(store: Store, text: str | None) -> int:
    """A log position: the head, or what a number or token says."""
    if text is None:
        return store.head()
    if text.isdecimal():
        return int(text)
    token = Token.parse(text)
    if token.database != store.uuid:
        raise BadValue(f"{text} is a token of another database than {store.url}.", hint="")
    return token.position


def default_parts() -> int:
    import os

    return 2 * (os.cpu_count() or 1)


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not str(text).isdecimal() or int(text) < 1:
        raise BadValue(f"Option {name} is {text!r}, which is no number above 0.", hint="")
    return int(text)


# -- filters -----------------------------------------------------------------------------------------------------------

_PUSHED = (types.TINYINT, types.SMALLINT, types.INT, types.BIGINT, types.STRING, types.BOOLEAN, types.DATE)


def key_bounds(table: Table, filters: Sequence[Filter]) -> Bounds:
    """The range of keys that can pass the filters: equality on leading columns, then one range."""
    prefix: list[Any] = []
    for part, column in zip(table.key, table.key_columns, strict=True):
        mine = [f for f in filters if getattr(f, "attribute", None) == (column.name,) and column.type in _PUSHED]
        equal = [f.value for f in mine if isinstance(f, EqualTo)]
        if equal:
            prefix.append(equal[0])
            continue
        low, high = prefix_range(table, tuple(prefix))
        for f in mine:
            for value, kind in _ends(f):
                start, stop = prefix_range(table, (*prefix, value))
                # Descending columns are stored inverted: a lower bound of values is an upper bound of keys.
                if (kind in ("ge", "gt")) != part.descending:
                    bound = start if kind in ("ge", "le") else stop
                    low = bound if low is None or (bound is not None and bound > low) else low
                else:
                    bound = stop if kind in ("ge", "le") else start
                    high = bound if high is None or (bound is not None and bound < high) else high
        return low, high
    return prefix_range(table, tuple(prefix))


def _ends(f: Filter) -> Iterator[tuple[Any, str]]:
    kinds = {GreaterThan: "gt", GreaterThanOrEqual: "ge", LessThan: "lt", LessThanOrEqual: "le"}
    if type(f) in kinds:
        yield f.value, kinds[type(f)]
    elif isinstance(f, In) and (values := [v for v in f.value if v is not None]):
        yield min(values), "ge"
        yield max(values), "le"
