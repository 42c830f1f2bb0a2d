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
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.inputs import Given, LogRows
from viewkeeper.runtime.operator_errors import Failed, attributed_to
from viewkeeper.runtime.spark.pipelined_commit import Reports
from viewkeeper.runtime.spark.placement import CHANGED, SINK, Message, damaged, failed, routed
from viewkeeper.runtime.spark.staged_changes import Staging
from viewkeeper.runtime.upserts import merged, resolve
from viewkeeper.store.contract.store import StreamChange
from viewkeeper.store.registry import open_store


@dataclass(frozen=True)
class Target:
    """A view's table, and the operator at its end, which is told of errors."""

    table: Table
    sink: str


def at_home(
    flow: Flow, live: Set[str], staying: Set[str], given: Mapping[str, Given], targets: Mapping[int, Target]
) -> Mapping[int, bool]:
    """The views whose rows need not travel: `live` operators are reached in this batch, `staying` ones are lookups that
    run where their source did. With each whether a share of the log is a range of its keys."""
    found = {view: _at_home(flow, live, staying, given, target) for view, target in targets.items()}
    return {view: in_order for view, in_order in found.items() if in_order is not None}


def _at_home(flow: Flow, live: Set[str], staying: Set[str], given: Mapping[str, Given], target: Target) -> bool | None:
    operator, names = flow.operators[target.sink], [c.name for c in target.table.columns]
    segment = _only(operator, live)
    if segment is None:
        return None
    columns = _plain(segment, [segment.exprs[names.index(k.column)].name for k in target.table.key])
    while True:
        operator = flow.operators[segment.source]
        if operator.changes_of is not None and isinstance(given.get(operator.id), LogRows):
            key = [k.column for k in flow.tables[operator.changes_of].key]
            return columns[:1] == key[:1] if set(key) <= set(columns) else None
        if operator.groups_by is not None:
            return False if set(operator.groups_by) <= set(columns) else None
        segment = _only(operator, live) if operator.id in staying and operator.seeks is not None else None
        if segment is None:
            return None
        columns = _plain(segment, columns)


def _only(operator: Operator, live: Set[str]) -> Segment | None:
    """The one way by which rows come to it, if it is one."""
    found = [segment for segment in operator.segments() if segment.source in live]
    return found[0] if len(found) == 1 else None


def _plain(segment: Segment, columns: Sequence[str | None]) -> list[str | None]:
    """The columns of its source that some of its own are; None where one is no column as it is."""
    plain = {n.name: str(n.expr.value) for n in segment.exprs if n.expr.op == "column"}
    return [plain.get(name) if name is not None else None for name in columns]


def by_key(duck: Duck, target: Target, delta: pa.Table, parts: int) -> Iterator[Message]:
    """A view's rows on their way to the tasks that own their keys; a bag's equal ones, which may be many, as one."""
    keys = ", ".join(quoted(k.column) for k in target.table.key)
    delta = delta.rename_columns([*(c.name for c in target.table.columns), WEIGHT])
    if target.table.is_bag:
        delta = merged(duck, target.table, delta)
    if keys:
        hashes = duck.run(f"SELECT hash({keys}) AS {HASH} FROM input", input=delta)[HASH]
    else:  # a view of one row
        hashes = pa.chunked_array([pa.array(np.zeros(delta.num_rows, np.uint64))])
    return routed(SINK, target.table.id, delta.append_column(HASH, hashes), parts)


def resolved(
    url: str,
    targets: Mapping[int, Target],
    sunk: Mapping[int, Sequence[pa.Table]],
    duck: Duck,
    memory: Memory,
    staging: Staging,
    share: int = -1,
    reports: Reports | None = None,
) -> list[Message]:
    """Puts and deletes of views, staged: where they lie. `url`: of the store; `share`: of the log that they are of,
    which may be reported (`early`)."""
    told: list[Message] = []
    counted = _Counted(url)
    try:
        for view, deltas in sunk.items():
            target = targets[view]
            try:
                with attributed_to(target.sink):
                    change = resolve(duck, counted, target.table, deltas, memory)
            except Contradiction as wrong:
                return [damaged(target.sink, wrong)]
            except Failed as failure:
                return [failed(failure)]
            if change is not None:
                tables = [change.delta] if isinstance(change, StreamChange) else [change.puts, change.deletes]
                said: dict[str, Any] = {"where": [staging.add(table) for table in tables], "share": share}
                if reports is not None and (encoded := reports.encoded(view, change)) is not None:
                    said["encoded"] = staging.add(encoded)
                told.append((0, CHANGED, view, json.dumps(said).encode()))
    finally:
        counted.close()
    return told


class _Counted:
    """Who knows how often a bag's rows are there: the store, opened when it is first asked."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Any = None

    def get_many(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        if self._store is None:
            self._store = open_store(self._url, "r")
        return self._store.get_many(table, keys, columns)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
