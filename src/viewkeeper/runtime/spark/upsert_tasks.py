"""Upsert resolution in Spark tasks: which views need no exchange by key, and the resolution of their changes.

The result for a key depends on the key's own rows only. Rows are sent to the task that owns the hash of their view's
key (`sink_tasks`), unless the view is *co-located*: one task has all rows of a key already, because they were
distributed by columns that all belong to the view's key:

    Δ sales (by id) ──co-located lookup──▶ placed (key: id)     a call names a key once, so a split of the log has
                                                                the key's row before and after
    aggregate (by shop) ─────────────────▶ totals (key: shop)   a group's rows are at the task that owns the group
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import Contradiction
from viewkeeper.model.names import HASH, WEIGHT, quoted
from viewkeeper.model.schema import Table
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.inputs import InputSource, LogRange
from viewkeeper.runtime.operator_errors import OperatorError, attribute_errors
from viewkeeper.runtime.spark.pipelined_commit import ReportPlan
from viewkeeper.runtime.spark.placement import (
    SINK_ROWS,
    STAGED_CHANGES,
    Message,
    corrupt_state_message,
    operator_error_message,
    route_rows,
)
from viewkeeper.runtime.spark.staged_changes import StagingFile
from viewkeeper.runtime.upserts import merge_bag_rows, resolve_upserts
from viewkeeper.store.contract.store import StreamChange
from viewkeeper.store.registry import open_store


@dataclass(frozen=True)
class ViewTarget:
    """A view's table, and its sink operator, to which errors are attributed."""

    table: Table
    sink: str


def co_located_views(
    dataflow: Dataflow,
    active: Set[str],
    co_located: Set[str],
    inputs: Mapping[str, InputSource],
    targets: Mapping[int, ViewTarget],
) -> Mapping[int, bool]:
    """Return the co-located views, each with whether a split of the log is a range of the view's keys.

    `active` operators are those that rows reach in this batch; `co_located` are lookups that run in their source's
    task.
    """
    log_orders = {view: _log_order(dataflow, active, co_located, inputs, target) for view, target in targets.items()}
    return {view: in_order for view, in_order in log_orders.items() if in_order is not None}


def _log_order(
    dataflow: Dataflow, active: Set[str], co_located: Set[str], inputs: Mapping[str, InputSource], target: ViewTarget
) -> bool | None:
    operator, names = dataflow.operators[target.sink], [c.name for c in target.table.columns]
    segment = _single_segment(operator, active)
    if segment is None:
        return None
    columns = _source_columns(segment, [segment.exprs[names.index(k.column)].name for k in target.table.key])
    while True:
        operator = dataflow.operators[segment.source]
        if operator.input_table is not None and isinstance(inputs.get(operator.id), LogRange):
            key = [k.column for k in dataflow.tables[operator.input_table].key]
            return columns[:1] == key[:1] if set(key) <= set(columns) else None
        if operator.grouping_columns is not None:
            return False if set(operator.grouping_columns) <= set(columns) else None
        segment = (
            _single_segment(operator, active) if operator.id in co_located and operator.lookup is not None else None
        )
        if segment is None:
            return None
        columns = _source_columns(segment, columns)


def _single_segment(operator: Operator, active: Set[str]) -> Segment | None:
    """Return the only segment by which rows reach the operator in this batch; None if there are several or none."""
    segments = [segment for segment in operator.segments() if segment.source in active]
    return segments[0] if len(segments) == 1 else None


def _source_columns(segment: Segment, columns: Sequence[str | None]) -> list[str | None]:
    """Return the source column of each of these columns; None for one that is no unchanged source column."""
    source_names = {n.name: str(n.expr.value) for n in segment.exprs if n.expr.op == "column"}
    return [source_names.get(name) if name is not None else None for name in columns]


def route_by_key(
    statements: PreparedStatements, target: ViewTarget, delta: pa.Table, partitions: int
) -> Iterator[Message]:
    """Route a view's rows to the tasks that own their keys; equal rows of a bag are merged first."""
    keys = ", ".join(quoted(k.column) for k in target.table.key)
    delta = delta.rename_columns([*(c.name for c in target.table.columns), WEIGHT])
    if target.table.is_bag:
        delta = merge_bag_rows(statements, target.table, delta)
    if keys:
        hashes = statements.run(f"SELECT hash({keys}) AS {HASH} FROM input", input=delta)[HASH]
    else:  # a view of one row
        hashes = pa.chunked_array([pa.array(np.zeros(delta.num_rows, np.uint64))])
    return route_rows(SINK_ROWS, target.table.id, delta.append_column(HASH, hashes), partitions)


def stage_upserts(
    url: str,
    targets: Mapping[int, ViewTarget],
    sink_deltas: Mapping[int, Sequence[pa.Table]],
    statements: PreparedStatements,
    memory: MemoryBudget,
    staging: StagingFile,
    split: int = -1,
    report_plan: ReportPlan | None = None,
) -> list[Message]:
    """Resolve and stage the upserts of views; return messages with their locations, or with an error.

    `url` is the store's. `split` is the split of the log that the rows are from; `report_plan` adds the store's
    encoding of large changes, for a pipelined commit.
    """
    messages: list[Message] = []
    row_counts = _StoreRowCounts(url)
    try:
        for view, deltas in sink_deltas.items():
            target = targets[view]
            try:
                with attribute_errors(target.sink):
                    change = resolve_upserts(statements, row_counts, target.table, deltas, memory)
            except Contradiction as contradiction:
                return [corrupt_state_message(target.sink, contradiction)]
            except OperatorError as failure:
                return [operator_error_message(failure)]
            if change is not None:
                tables = [change.delta] if isinstance(change, StreamChange) else [change.puts, change.deletes]
                content: dict[str, Any] = {"where": [staging.add(table) for table in tables], "share": split}
                if report_plan is not None and (encoded := report_plan.encode_change(view, change)) is not None:
                    content["encoded"] = staging.add(encoded)
                messages.append((0, STAGED_CHANGES, view, json.dumps(content).encode()))
    finally:
        row_counts.close()
    return messages


class _StoreRowCounts:
    """Reads the stored counts of a bag's rows; the store is opened at the first read."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Any = None

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        if self._store is None:
            self._store = open_store(self._url, "r")
        return self._store.get_rows(table, keys, columns)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
