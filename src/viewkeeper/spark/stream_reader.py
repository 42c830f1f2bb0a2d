"""`spark.readStream`: the committed changes of a table or view, exactly once.

An offset is a log position `{"position": p}`. The changes between two offsets never change, so a micro-batch that Spark
repeats after a failure has the same rows. The first batch of a query that begins with a snapshot starts at no position:
its rows are the whole state at its end.

    start            end              rows
    {position: -1}   {position: p}    every row of the state at p, with weight 1
    {position: p}    {position: q}    the changes of the calls in (p, q], consolidated: `_w` > 0 inserted, < 0 deleted

A query over a suspended view fails with the reason (VK605), unless the option `stale` makes it wait for the changes
after RESUME. If RESUME rebuilt the view and its changes since the query's offset are not known, the query fails (VK604)
and must be started anew.

The log is held from the last offset that Spark has committed: until an hour after the query's last call, or without
expiry under the name of the option `hold`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from viewkeeper.errors import Unsupported
from viewkeeper.model.delta import normalize_chunks
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.read.position_state import consolidate_rows, rows_at, to_external_types
from viewkeeper.read.subscribe import check_since, suspension_of
from viewkeeper.read.suspension import refuse_suspended
from viewkeeper.spark.batch_reader import is_stale, parse_position, to_spark_batches
from viewkeeper.store.contract.store import Store
from viewkeeper.store.registry import open_store

HOLD_SECONDS = 3600.0
SNAPSHOT = -1


@dataclass
class PositionSpan(InputPartition):  # type: ignore[misc]
    """The calls of one micro-batch."""

    after: int
    end: int


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader on the driver; `read` runs in a task."""

    def __init__(self, url: str, table: Table, columns: list[str], schema: Any, options: Mapping[str, str]) -> None:
        self.url, self.table, self.columns, self.schema = url, table, columns, schema
        self.start_from = options.get("from", "snapshot")
        self.hold_name = options.get("hold")
        self.hold = f"stream:{self.hold_name}" if self.hold_name else f"spark-stream-{secrets.token_hex(8)}"
        self.available_position: int | None = None
        self.stale = is_stale(options)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the head. Without this method Spark would run one batch only: after a kill, the unfinished one."""
        store = open_store(self.url, "r")
        try:
            self.available_position = store.head()
        finally:
            store.close()

    def initialOffset(self) -> dict[str, int]:
        if self.start_from == "snapshot":
            return {"position": SNAPSHOT}
        store = open_store(self.url, "w")
        try:
            position = parse_position(store, None if self.start_from == "now" else self.start_from)
            self._hold_log(store, position)
            return {"position": position}
        finally:
            store.close()

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        store = open_store(self.url, "w")
        try:
            found = store.catalog().find_by_id(self.table.id)
            refuse_suspended(found, stale=self.stale)
            head = store.head() if self.available_position is None else self.available_position
            if start["position"] != SNAPSHOT and suspension_of(found) is None:
                check_since(store, self.table, start["position"])
            self._hold_log(store, head if start["position"] == SNAPSHOT else start["position"])
            return {"position": head}
        finally:
            store.close()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [PositionSpan(start["position"], end["position"])]

    def read(self, partition: PositionSpan) -> Iterator[pa.RecordBatch]:
        store = open_store(self.url, "r")
        try:
            if partition.after == SNAPSHOT:
                rows = rows_at(store, self.table, self.columns, partition.end, (None, None))
                rows = rows.append_column(self.table.weight_column, pa.array(np.ones(rows.num_rows, np.int64)))
            else:
                rows = read_delta(store, self.table, self.columns, partition.after, partition.end)
        finally:
            store.close()
        yield from to_spark_batches(rows, self.schema)

    def commit(self, end: dict[str, int]) -> None:
        store = open_store(self.url, "w")
        try:
            self._hold_log(store, end["position"])
        finally:
            store.close()

    def stop(self) -> None:
        """Keep the hold: one without a name expires by itself, because the query may be started again."""

    def _hold_log(self, store: Store, position: int) -> None:
        """Hold the log from the position, but never later than the hold of this query's last run."""
        held = [h.position for h in store.holds() if h.name == self.hold] if self.hold_name else []
        if not held or position >= held[0]:
            with suppress(Unsupported):
                store.hold(self.hold, position, None if self.hold_name else time.time() + HOLD_SECONDS)


def read_delta(store: Store, table: Table, columns: Sequence[str], after: int, end: int) -> pa.Table:
    """The visible rows inserted and deleted in (after, end], with their weights."""
    stored = [*columns, *([COUNT] if table.is_bag else [])]
    found = normalize_chunks(store.changes(table, stored, after, end))
    if table.is_bag:
        weights_with_counts = pa.array(found[WEIGHT].to_numpy() * found[COUNT].to_numpy())
        found = found.drop_columns([COUNT, WEIGHT]).append_column(WEIGHT, weights_with_counts)
    rows = consolidate_rows(store, found) if found.num_rows else found
    weights = np.asarray(rows[WEIGHT].to_numpy(), np.int64)
    result = to_external_types(table, rows.select(list(columns)))
    return result.append_column(table.weight_column, pa.array(weights))
