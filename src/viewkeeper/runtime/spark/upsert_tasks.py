"""Views whose changes tasks resolve, where their rows meet by key, and what a task makes of them.

What becomes of a key depends on its own rows only. So rows travel to the task that owns the hash of their view's key
(`sinking`), unless they are *at home*, all rows of a key being one task's already:

    Δ sales (home: id) ──a lookup that stays──▶ placed (key: id)     a call names a key once: a share of the log
                                                                      has what it was and what it became
    aggregate (home: shop) ──────────────────▶ totals (key: shop)    a group's rows have travelled to its owner

The columns of a home are all in the view's key, so rows that agree in the key agree in them.
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
    """A view's table, and the operator at its end, which is told of errors."""

    table: Table
    sink: str


def co_located_views(
    dataflow: Dataflow,
    active: Set[str],
    co_located: Set[str],
    inputs: Mapping[str, InputSource],
    targets: Mapping[int, ViewTarget],
) -> Mapping[int, bool]:
    """The views whose rows need not travel: `live` operators are reached in this batch, `staying` ones are lookups that
    run where their source did. With each whether a share of the log is a range of its keys."""
    found = {view: _log_order(dataflow, active, co_located, inputs, target) for view, target in targets.items()}
    return {view: in_order for view, in_order in found.items() if in_order is not None}


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
    """The one way by which rows come to it, if it is one."""
    found = [segment for segment in operator.segments() if segment.source in active]
    return found[0] if len(found) == 1 else None


def _source_columns(segment: Segment, columns: Sequence[str | None]) -> list[str | None]:
    """The columns of its source that some of its own are; None where one is no column as it is."""
    plain = {n.name: str(n.expr.value) for n in segment.exprs if n.expr.op == "column"}
    return [plain.get(name) if name is not None else None for name in columns]


def route_by_key(
    statements: PreparedStatements, target: ViewTarget, delta: pa.Table, partitions: int
) -> Iterator[Message]:
    """A view's rows on their way to the tasks that own their keys; a bag's equal ones, which may be many, as one."""
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
    """Puts and deletes of views, staged: where they lie. `url`: of the store; `share`: of the log that they are of,
    which may be reported (`early`)."""
    told: list[Message] = []
    counted = _StoreRowCounts(url)
    try:
        for view, deltas in sink_deltas.items():
            target = targets[view]
            try:
                with attribute_errors(target.sink):
                    change = resolve_upserts(statements, counted, target.table, deltas, memory)
            except Contradiction as wrong:
                return [corrupt_state_message(target.sink, wrong)]
            except OperatorError as failure:
                return [operator_error_message(failure)]
            if change is not None:
                tables = [change.delta] if isinstance(change, StreamChange) else [change.puts, change.deletes]
                said: dict[str, Any] = {"where": [staging.add(table) for table in tables], "share": split}
                if report_plan is not None and (encoded := report_plan.encode_change(view, change)) is not None:
                    said["encoded"] = staging.add(encoded)
                told.append((0, STAGED_CHANGES, view, json.dumps(said).encode()))
    finally:
        counted.close()
    return told


class _StoreRowCounts:
    """Who knows how often a bag's rows are there: the store, opened when it is first asked."""

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
