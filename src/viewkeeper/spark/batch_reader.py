"""`spark.read`: a table or view at one log position, as key ranges that tasks scan in parallel.

    1  the position is chosen when the query is planned (or given by `at`), and the log is held from there for a while
    2  filters say which way is the cheapest (`read.access`): a range of keys, an index, or all rows
    3  keys are cut into ranges of similar size; an index's ranges are shared out
    4  a task reads its ranges and undoes what the log says came after the position

So all tasks see one state, however late they run. Every filter is also left to Spark: the ways only spare work. A lazy
view is worked out by one task, from the batch that is published then.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from viewkeeper.errors import BadValue, UnknownName, Unsupported
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.access.key_ranges import Bounds
from viewkeeper.read.access.path import Wanted, Way, by_index, choose
from viewkeeper.read.access.predicates import EQUAL, NULL, PREFIX, THERE, Term, Where, compared
from viewkeeper.read.access.requested_rows import table_wanted
from viewkeeper.read.access.scan import by_way, schema_of, shown
from viewkeeper.read.position_state import rows_at
from viewkeeper.read.state import Positions
from viewkeeper.read.suspension import refuse, refuse_behind
from viewkeeper.store.contract.store import Batch, Store
from viewkeeper.store.registry import open_store

HELD = 3600.0
"""Seconds for which the log is kept for a batch query."""
ROWS = 65_536
"""Rows of a batch that is handed to Spark."""


@dataclass
class Share(InputPartition):  # type: ignore[misc]
    """What one task reads: ranges of keys of the table, or of an index that shows the table at `cut`."""

    position: int
    pairs: tuple[Bounds, ...]
    index: str = ""
    cut: int = 0


class RowReader(DataSourceReader):  # type: ignore[misc]
    """Made on the driver, sent to every task."""

    def __init__(self, url: str, table: Table, columns: list[str], schema: Any, options: Mapping[str, str]) -> None:
        self.url, self.table, self.columns, self.schema = url, table, columns, schema
        self.parts = _number(options, "partitions", 0)
        self.at = options.get("at")
        self.stale = is_stale(options)
        self.terms: tuple[Term, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.terms = tuple(pushed(self.table, filters))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        store = open_store(self.url, "w")
        try:
            found = store.catalog().of(self.table.id)
            if self.table.is_lazy:
                refuse(found)
                if self.at is not None:
                    raise BadValue(
                        f"{self.table.name} is lazy: it shows the published batch.", hint="Leave out option at."
                    )
                return [Share(0, ())]
            batch = store.published()
            position = position_of(store, self.at)
            if self.at is None:
                refuse(found, stale=self.stale)
            else:
                refuse_behind(found, position)
            with suppress(Unsupported):  # a store without a log of its own keeps what it keeps
                store.hold(f"spark-read-{secrets.token_hex(8)}", position, time.time() + HELD)
            way = self._way(store, position, batch)
            parts = self.parts or default_parts()
            if way is not None and way.index is not None and batch is not None:
                shares = _shared(way.ranges.pairs, parts)
                return [Share(position, share, way.index.table.name, batch.cut) for share in shares]
            points = store.split_points(self.table, parts)
        finally:
            store.close()
        pairs = ((None, None),) if way is None else way.ranges.pairs
        return [Share(position, share) for share in _shared([p for pair in pairs for p in _cut(pair, points)], parts)]

    def _way(self, store: Store, position: int, batch: Batch | None) -> Way | None:
        """How the rows are best reached; None where ranges of keys are not known."""
        if not store.in_key_order(self.table):
            return None
        source = Positions(store, position, batch)
        if batch is None or position < batch.cut or not self.table.is_stored:
            source.catalog = Catalog()  # indexes show what came later
        return choose(source, self._wanted())

    def _wanted(self) -> Wanted:
        return Wanted(self.table, Where(self.terms), tuple(self.columns))

    def read(self, partition: Share) -> Iterator[pa.RecordBatch]:
        store = open_store(self.url, "r")
        try:
            if self.table.is_lazy:
                yield from as_spark(table_wanted(store, self._wanted()), self.schema)
                return
            if partition.index:
                yield from as_spark(self._indexed(store, partition), self.schema)
                return
            for bounds in partition.pairs:
                yield from as_spark(rows_at(store, self.table, self.columns, partition.position, bounds), self.schema)
        finally:
            store.close()

    def _indexed(self, store: Store, partition: Share) -> pa.Table:
        source = Positions(store, partition.position, Batch(0, partition.cut, {}))
        wanted = self._wanted()
        way = by_index(source, wanted, partition.index)
        if way is None:  # dropped since: what it would have given is read from the table, once
            raise UnknownName(
                f"The index {partition.index} was dropped while it was read.", hint="Run the query again."
            )
        way = replace(way, ranges=replace(way.ranges, pairs=partition.pairs))
        found = list(by_way(source, wanted, way))
        return pa.concat_tables([shown(wanted, schema_of(wanted).empty_table()), *found])


def _shared(pairs: Sequence[Bounds], parts: int) -> list[tuple[Bounds, ...]]:
    """Neighbours together, in as many shares; one, at least: Spark wants a partition."""
    each = max(1, -(-len(pairs) // parts))
    return [tuple(pairs[i : i + each]) for i in range(0, len(pairs), each)] or [()]


def _cut(pair: Bounds, points: Sequence[bytes]) -> Iterator[Bounds]:
    low, high = pair
    inside = [p for p in points if (low is None or p > low) and (high is None or p < high)]
    yield from pairwise([low, *inside, high])


def as_spark(rows: pa.Table, schema: Any) -> Iterator[pa.RecordBatch]:
    """Batches in exactly the Arrow schema that Spark expects."""
    expected = to_arrow_schema(schema, timezone="UTC")
    known = {name.lower(): name for name in rows.column_names}  # a schema of the user's own may spell them otherwise
    asked = rows.select([known[name.lower()] for name in expected.names]).rename_columns(expected.names)
    yield from asked.cast(expected).to_batches(max_chunksize=ROWS)


def is_stale(options: Mapping[str, str]) -> bool:
    """Whether the option `stale` asks for the old rows of a suspended view."""
    return str(options.get("stale", "false")).lower() == "true"


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


def pushed(table: Table, filters: Sequence[Filter]) -> Iterator[Term]:
    """What filters say of single columns."""
    columns = {c.name: c for c in table.columns if c.type not in _UNSURE}
    for f in filters:
        (name,) = f.attribute if isinstance(getattr(f, "attribute", None), tuple) and len(f.attribute) == 1 else ("",)
        column = columns.get(name)
        if column is None:
            continue
        if isinstance(f, IsNull | IsNotNull):
            yield Term(column.name, column.type, NULL if isinstance(f, IsNull) else THERE)
        elif isinstance(f, StringStartsWith):
            yield Term(column.name, column.type, PREFIX, (f.value,))
        elif isinstance(f, In):
            values = [compared(column, EQUAL, v) for v in f.value if v is not None]
            if all(v is not None for v in values):
                yield Term(column.name, column.type, EQUAL, tuple(v.values[0] for v in values if v is not None))
        elif type(f) in _OPS and (found := compared(column, _OPS[type(f)], f.value)) is not None:
            yield found


_OPS = {EqualTo: EQUAL, GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
_UNSURE = (*types.TIMES, types.BINARY)
"""Types whose values Spark hands over in ways that depend on its session."""
