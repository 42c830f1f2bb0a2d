"""`spark.readStream`: the committed changes of a table or view, exactly once.

An offset is a log position `{"position": p}`. What lies between two offsets never changes, so a micro-batch that Spark
repeats after a failure has the same rows. The first batch of a query that begins with a snapshot starts at no position:
its rows are the whole state at its end.

    start            end              rows
    {position: -1}   {position: p}    every row of the state at p, with weight 1
    {position: p}    {position: q}    what calls in (p, q] did, consolidated: `_w` > 0 came, `_w` < 0 went

A query over a suspended view fails with the reason (VK605), unless the option `stale` lets it wait for what comes after
RESUME. If the view was made anew then, and its changes since the query's offset are not known, the query fails
(VK604) and is begun anew.

The log is held from the last offset that Spark has committed: for an hour after the query was last heard of, or for
good under the name of the option `hold`.
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
from viewkeeper.model.delta import plain
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.read.position_state import consolidated, outside, rows_at
from viewkeeper.read.subscribe import check_since, suspension_of
from viewkeeper.read.suspension import refuse
from viewkeeper.spark.batch_reader import as_spark, is_stale, position_of
from viewkeeper.store.contract.store import Store
from viewkeeper.store.registry import open_store

HELD = 3600.0
SNAPSHOT = -1


@dataclass
class Span(InputPartition):  # type: ignore[misc]
    """The calls of one micro-batch."""

    after: int
    upto: int


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Lives on the driver; `read` runs in a task."""

    def __init__(self, url: str, table: Table, columns: list[str], schema: Any, options: Mapping[str, str]) -> None:
        self.url, self.table, self.columns, self.schema = url, table, columns, schema
        self.begin = options.get("from", "snapshot")
        self.name = options.get("hold")
        self.hold = f"stream:{self.name}" if self.name else f"spark-stream-{secrets.token_hex(8)}"
        self.available: int | None = None
        self.stale = is_stale(options)

    def prepareForTriggerAvailableNow(self) -> None:
        """Without it Spark makes one batch only, and of a query that was killed that is the one left unfinished."""
        store = open_store(self.url, "r")
        try:
            self.available = store.head()
        finally:
            store.close()

    def initialOffset(self) -> dict[str, int]:
        if self.begin == "snapshot":
            return {"position": SNAPSHOT}
        store = open_store(self.url, "w")
        try:
            position = position_of(store, None if self.begin == "now" else self.begin)
            self._keep(store, position)
            return {"position": position}
        finally:
            store.close()

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        store = open_store(self.url, "w")
        try:
            found = store.catalog().of(self.table.id)
            refuse(found, stale=self.stale)
            head = store.head() if self.available is None else self.available
            if start["position"] != SNAPSHOT and suspension_of(found) is None:
                check_since(store, self.table, start["position"])
            self._keep(store, head if start["position"] == SNAPSHOT else start["position"])
            return {"position": head}
        finally:
            store.close()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Span(start["position"], end["position"])]

    def read(self, partition: Span) -> Iterator[pa.RecordBatch]:
        store = open_store(self.url, "r")
        try:
            if partition.after == SNAPSHOT:
                rows = rows_at(store, self.table, self.columns, partition.upto, (None, None))
                rows = rows.append_column(self.table.weight, pa.array(np.ones(rows.num_rows, np.int64)))
            else:
                rows = delta(store, self.table, self.columns, partition.after, partition.upto)
        finally:
            store.close()
        yield from as_spark(rows, self.schema)

    def commit(self, end: dict[str, int]) -> None:
        store = open_store(self.url, "w")
        try:
            self._keep(store, end["position"])
        finally:
            store.close()

    def stop(self) -> None:
        """A hold without a name is left to expire: the query may be started again."""

    def _keep(self, store: Store, position: int) -> None:
        """Keep the log from here on, never forgetting less than a hold of this query's last run does."""
        there = [h.position for h in store.holds() if h.name == self.hold] if self.name else []
        if not there or position >= there[0]:
            with suppress(Unsupported):
                store.hold(self.hold, position, None if self.name else time.time() + HELD)


def delta(store: Store, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
    """The visible rows that came and went in (after, upto], with their weights."""
    stored = [*columns, *([COUNT] if table.is_bag else [])]
    found = plain(store.changes(table, stored, after, upto))
    if table.is_bag:
        counted = pa.array(found[WEIGHT].to_numpy() * found[COUNT].to_numpy())
        found = found.drop_columns([COUNT, WEIGHT]).append_column(WEIGHT, counted)
    rows = consolidated(store, found) if found.num_rows else found
    weights = np.asarray(rows[WEIGHT].to_numpy(), np.int64)
    result = outside(table, rows.select(list(columns)))
    return result.append_column(table.weight, pa.array(weights))
