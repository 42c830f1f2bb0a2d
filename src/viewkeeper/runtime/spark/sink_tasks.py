"""The last level of a divided batch: each task resolves its share of the views' changes, by key, and stages it.

It is there for rows that had to travel once more; those that are at home (`resolving`) were resolved where they were.
The driver is told where the puts and deletes lie; it reads them when it publishes, and holds none of them.
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
"""The level of this round."""


@dataclass(frozen=True)
class UpsertTask:
    """The work of one task (`task.Level`)."""

    context: Any
    dataflow: Any = None

    def __call__(self, received: Iterable[Message]) -> Iterator[Message]:
        tcp_quickack.disable_delayed_acks()
        onward: list[Message] = []
        sunk: dict[int, list[pa.Table]] = defaultdict(list)
        size = 0
        for message in received:
            if message[1] == SINK_ROWS:
                size += len(message[3])
                sunk[message[2]].append(decode_payload(message[3]).drop_columns([HASH]))
            else:
                onward.append(message)
        if sunk:
            job: StageTaskContext = self.context.value
            sees = (
                job.reachability is None or job.reachability.is_reachable()
            )  # an executor may have joined since the round before
            onward += self._stage_upserts(job, sunk) if sees else [state_unreachable_message()]
            onward.append(placement.received_bytes_message(_LAST_ROUND, size))
        yield from onward

    def _stage_upserts(self, context: StageTaskContext, sink_deltas: Mapping[int, Sequence[pa.Table]]) -> list[Message]:
        here = worker_cache.cache_for(context)
        staging = here.create_staging_file(context)
        try:
            return stage_upserts(
                context.url, context.targets, sink_deltas, here.pool.use_primary(1), here.memory, staging
            )
        finally:
            staging.close()


def collect_changes(
    staged_changes: Sequence[tuple[int, bytes]], targets: Mapping[int, ViewTarget], staged_files: StagedFiles
) -> list[ViewChange | StreamChange]:
    """In the driver: what tasks have staged, by view."""
    parts: dict[int, list[list[pa.Table]]] = defaultdict(list)
    for view, payload in staged_changes:
        parts[view].append([staged_files.table(StagedTable(*where)) for where in json.loads(payload)["where"]])
    found: list[ViewChange | StreamChange] = []
    for view, each in parts.items():
        # One part is taken as it is: Arrow forgets how many rows there are where a key has no columns, and the rows of
        # such a view are all one task's.
        tables = [side[0] if len(side) == 1 else pa.concat_tables(side) for side in zip(*each, strict=True)]
        table = targets[view].table
        found.append(ViewChange(table, *tables) if len(tables) == 2 else StreamChange(table, tables[0]))
    return found
