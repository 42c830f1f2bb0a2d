"""The last round of a divided batch: each task resolves its views' changes, by range of keys, and stages them.

It runs only for views whose rows need an exchange by key; those of co-located views were resolved in earlier rounds
(`upsert_tasks`). Tasks report the locations of the staged upserts and tombstones. The driver maps them when it
publishes, so it holds none of them in memory.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from viewkeeper.model.names import HASH
from viewkeeper.runtime.spark import placement, tcp_quickack, worker_cache
from viewkeeper.runtime.spark.placement import SINK_ROWS, Message, decode_payload, state_unreachable_message
from viewkeeper.runtime.spark.round_tasks import StageTaskContext
from viewkeeper.runtime.spark.staged_changes import StagedFiles, StagedTable
from viewkeeper.runtime.spark.upsert_tasks import ViewTarget, stage_upserts
from viewkeeper.store.contract.store import StreamChange, ViewChange

_LAST_ROUND = -1
"""The number by which this round reports its received bytes."""


@dataclass(frozen=True)
class UpsertTask:
    """The work of one task of the last round."""

    context: Any
    dataflow: Any = None

    def __call__(self, received: Iterable[Message]) -> Iterator[Message]:
        tcp_quickack.disable_delayed_acks()
        output: list[Message] = []
        sink_deltas: dict[int, list[pa.Table]] = defaultdict(list)
        size = 0
        for message in received:
            if message[1] == SINK_ROWS:
                size += len(message[3])
                sink_deltas[message[2]].append(decode_payload(message[3]).drop_columns([HASH]))
            else:
                output.append(message)
        if sink_deltas:
            stage_context: StageTaskContext = self.context.value
            # An executor may have joined since the previous round.
            can_reach_state = stage_context.reachability is None or stage_context.reachability.is_reachable()
            output += (
                self._stage_upserts(stage_context, sink_deltas) if can_reach_state else [state_unreachable_message()]
            )
            output.append(placement.received_bytes_message(_LAST_ROUND, size))
        yield from output

    def _stage_upserts(self, context: StageTaskContext, sink_deltas: Mapping[int, Sequence[pa.Table]]) -> list[Message]:
        cache = worker_cache.cache_for(context)
        staging = cache.create_staging_file(context)
        try:
            return stage_upserts(
                context.url, context.targets, sink_deltas, cache.pool.use_primary(1), cache.memory, staging
            )
        finally:
            staging.close()


def collect_changes(
    staged_changes: Sequence[tuple[int, bytes]], targets: Mapping[int, ViewTarget], staged_files: StagedFiles
) -> list[ViewChange | StreamChange]:
    """In the driver: return the changes that tasks have staged, one for each view."""
    parts: dict[int, list[list[pa.Table]]] = defaultdict(list)
    for view, payload in staged_changes:
        parts[view].append([staged_files.table(StagedTable(*location)) for location in json.loads(payload)["where"]])
    changes: list[ViewChange | StreamChange] = []
    for view, view_parts in parts.items():
        # A single part is not concatenated, since Arrow loses the row count of a table without columns. A view whose
        # key has no columns always has a single part.
        tables = [side[0] if len(side) == 1 else pa.concat_tables(side) for side in zip(*view_parts, strict=True)]
        table = targets[view].table
        changes.append(ViewChange(table, *tables) if len(tables) == 2 else StreamChange(table, tables[0]))
    return changes
