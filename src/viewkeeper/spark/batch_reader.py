"""`spark.read`: a table or view at one log position, as key ranges that tasks scan in parallel.

    1  the position is chosen when the query is planned (or set by `at`), and the log is held from there for a while
    2  the filters determine the cheapest access path (`read.access`): a range of keys, an index, or a scan
    3  the keys are split into ranges of similar size; an index's ranges are distributed
    4  a task reads its ranges and undoes the changes that the log has after the position

All tasks thus see one state, however late they run. Spark also evaluates every filter: access paths only save work. A
lazy view is computed by one task, at the batch that is published when the task runs.
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
from viewkeeper.read.access.key_ranges import KeyBounds
from viewkeeper.read.access.path import AccessPath, RowRequest, choose_access_path, find_index_path
from viewkeeper.read.access.predicates import (
    EQUAL,
    IS_NULL,
    NOT_NULL,
    PREFIX,
    RequestPredicate,
    SargableTerm,
    comparison_term,
)
from viewkeeper.read.access.requested_rows import read_request
from viewkeeper.read.access.scan import request_schema, scan_path, to_visible_rows
from viewkeeper.read.position_state import rows_at
from viewkeeper.read.state import PositionState
from viewkeeper.read.suspension import refuse_suspended, refuse_suspended_before
from viewkeeper.store.contract.store import Batch, Store
from viewkeeper.store.registry import open_store

HOLD_SECONDS = 3600.0
"""Seconds for which the log is held for a batch query."""
BATCH_ROWS = 65_536
"""Rows of a batch that is passed to Spark."""


@dataclass
class KeyRangePartition(InputPartition):  # type: ignore[misc]
    """The input of one task: key ranges of the table, or of an index that shows the table at `cut`."""

    position: int
    ranges: tuple[KeyBounds, ...]
    index: str = ""
    cut: int = 0


class RowReader(DataSourceReader):  # type: ignore[misc]
    """The reader, created on the driver and sent to every task."""

    def __init__(self, url: str, table: Table, columns: list[str], schema: Any, options: Mapping[str, str]) -> None:
        self.url, self.table, self.columns, self.schema = url, table, columns, schema
        self.partition_count = _positive_option(options, "partitions", 0)
        self.read_position = options.get("at")
        self.stale = is_stale(options)
        self.terms: tuple[SargableTerm, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.terms = tuple(extract_terms(self.table, filters))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        store = open_store(self.url, "w")
        try:
            found = store.catalog().find_by_id(self.table.id)
            if self.table.is_lazy:
                refuse_suspended(found)
                if self.read_position is not None:
                    raise BadValue(
                        f"{self.table.name} is lazy: it shows the published batch.", hint="Leave out option at."
                    )
                return [KeyRangePartition(0, ())]
            batch = store.published_batch()
            position = parse_position(store, self.read_position)
            if self.read_position is None:
                refuse_suspended(found, stale=self.stale)
            else:
                refuse_suspended_before(found, position)
            with suppress(Unsupported):  # a store without a log of its own has its own retention
                store.hold(f"spark-read-{secrets.token_hex(8)}", position, time.time() + HOLD_SECONDS)
            path = self._choose_access_path(store, position, batch)
            partition_count = self.partition_count or default_partition_count()
            if path is not None and path.index is not None and batch is not None:
                groups = _group_ranges(path.ranges.pairs, partition_count)
                return [KeyRangePartition(position, group, path.index.table.name, batch.cut) for group in groups]
            points = store.split_points(self.table, partition_count)
        finally:
            store.close()
        pairs = ((None, None),) if path is None else path.ranges.pairs
        return [
            KeyRangePartition(position, group)
            for group in _group_ranges([p for pair in pairs for p in _split_range(pair, points)], partition_count)
        ]

    def _choose_access_path(self, store: Store, position: int, batch: Batch | None) -> AccessPath | None:
        """The cheapest access path to the rows; None if the store has no key ranges."""
        if not store.is_in_key_order(self.table):
            return None
        state = PositionState(store, position, batch)
        if batch is None or position < batch.cut or not self.table.is_stored:
            state.catalog = Catalog()  # without indexes, which show a later state
        return choose_access_path(state, self._row_request())

    def _row_request(self) -> RowRequest:
        return RowRequest(self.table, RequestPredicate(self.terms), tuple(self.columns))

    def read(self, partition: KeyRangePartition) -> Iterator[pa.RecordBatch]:
        store = open_store(self.url, "r")
        try:
            if self.table.is_lazy:
                yield from to_spark_batches(read_request(store, self._row_request()), self.schema)
                return
            if partition.index:
                yield from to_spark_batches(self._read_by_index(store, partition), self.schema)
                return
            for bounds in partition.ranges:
                yield from to_spark_batches(
                    rows_at(store, self.table, self.columns, partition.position, bounds), self.schema
                )
        finally:
            store.close()

    def _read_by_index(self, store: Store, partition: KeyRangePartition) -> pa.Table:
        state = PositionState(store, partition.position, Batch(0, partition.cut, {}))
        request = self._row_request()
        path = find_index_path(state, request, partition.index)
        if path is None:  # the index was dropped after the query was planned
            raise UnknownName(
                f"The index {partition.index} was dropped while it was read.", hint="Run the query again."
            )
        path = replace(path, ranges=replace(path.ranges, pairs=partition.ranges))
        found = list(scan_path(state, request, path))
        return pa.concat_tables([to_visible_rows(request, request_schema(request).empty_table()), *found])


def _group_ranges(ranges: Sequence[KeyBounds], group_count: int) -> list[tuple[KeyBounds, ...]]:
    """Group neighbouring ranges into at most `group_count` groups; at least one, because Spark needs a partition."""
    group_size = max(1, -(-len(ranges) // group_count))
    return [tuple(ranges[i : i + group_size]) for i in range(0, len(ranges), group_size)] or [()]


def _split_range(key_range: KeyBounds, points: Sequence[bytes]) -> Iterator[KeyBounds]:
    low, high = key_range
    inner_points = [p for p in points if (low is None or p > low) and (high is None or p < high)]
    yield from pairwise([low, *inner_points, high])


def to_spark_batches(rows: pa.Table, schema: Any) -> Iterator[pa.RecordBatch]:
    """The rows as batches in exactly the Arrow schema that Spark expects."""
    expected = to_arrow_schema(schema, timezone="UTC")
    columns = {name.lower(): name for name in rows.column_names}  # a user's schema may use another case
    selected = rows.select([columns[name.lower()] for name in expected.names]).rename_columns(expected.names)
    yield from selected.cast(expected).to_batches(max_chunksize=BATCH_ROWS)


def is_stale(options: Mapping[str, str]) -> bool:
    """Whether the option `stale` requests the old rows of a suspended view."""
    return str(options.get("stale", "false")).lower() == "true"


def parse_position(store: Store, text: str | None) -> int:
    """A log position: the head, or that of a number or token."""
    if text is None:
        return store.head()
    if text.isdecimal():
        return int(text)
    token = Token.parse(text)
    if token.database != store.uuid:
        raise BadValue(f"{text} is a token of another database than {store.url}.", hint="")
    return token.position


def default_partition_count() -> int:
    import os

    return 2 * (os.cpu_count() or 1)


def _positive_option(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not str(text).isdecimal() or int(text) < 1:
        raise BadValue(f"Option {name} is {text!r}, which is no number above 0.", hint="")
    return int(text)


# -- filters -----------------------------------------------------------------------------------------------------------


def extract_terms(table: Table, filters: Sequence[Filter]) -> Iterator[SargableTerm]:
    """The terms of the filters on single columns."""
    columns = {c.name: c for c in table.columns if c.type not in _SESSION_DEPENDENT_TYPES}
    for f in filters:
        (name,) = f.attribute if isinstance(getattr(f, "attribute", None), tuple) and len(f.attribute) == 1 else ("",)
        column = columns.get(name)
        if column is None:
            continue
        if isinstance(f, IsNull | IsNotNull):
            yield SargableTerm(column.name, column.type, IS_NULL if isinstance(f, IsNull) else NOT_NULL)
        elif isinstance(f, StringStartsWith):
            yield SargableTerm(column.name, column.type, PREFIX, (f.value,))
        elif isinstance(f, In):
            values = [comparison_term(column, EQUAL, v) for v in f.value if v is not None]
            if all(v is not None for v in values):
                yield SargableTerm(column.name, column.type, EQUAL, tuple(v.values[0] for v in values if v is not None))
        elif type(f) in _COMPARISONS and (found := comparison_term(column, _COMPARISONS[type(f)], f.value)) is not None:
            yield found


_COMPARISONS = {EqualTo: EQUAL, GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
_SESSION_DEPENDENT_TYPES = (*types.TIMES, types.BINARY)
"""Types whose values Spark passes in a form that depends on its session."""
