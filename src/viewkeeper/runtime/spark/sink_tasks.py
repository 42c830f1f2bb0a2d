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
from viewkeeper.runtime.spark.placement import SINK, Message, elsewhere, unpacked
from viewkeeper.runtime.spark.round_tasks import Job
from viewkeeper.runtime.spark.staged_changes import Staged, Taken
from viewkeeper.runtime.spark.upsert_tasks import Target, resolved
from viewkeeper.store.contract.store import StreamChange, ViewChange

_LAST = -1
"""The level of this round."""


@dataclass(frozen=True)
class Sinking:
    """The work of one task (`task.Level`)."""

    job: Any
    flow: Any = None

    def __call__(self, arrived: Iterable[Message]) -> Iterator[Message]:
        tcp_quickack.prompt()
        onward: list[Message] = []
        sunk: dict[int, list[pa.Table]] = defaultdict(list)
        size = 0
        for message in arrived:
            if message[1] == SINK:
                size += len(message[3])
                sunk[message[2]].append(unpacked(message[3]).drop_columns([HASH]))
            else:
                onward.append(message)
        if sunk:
            job: Job = self.job.value
            sees = job.reach is None or job.reach.sees()  # an executor may have joined since the round before
            onward += self._resolved(job, sunk) if sees else [elsewhere()]
            onward.append(placement.arrived(_LAST, size))
        yield from onward

    def _resolved(self, job: Job, sunk: Mapping[int, Sequence[pa.Table]]) -> list[Message]:
        here = worker_cache.at(job)
        staging = here.staging(job)
        try:
            return resolved(job.url, job.targets, sunk, here.crew.alone(1), here.memory, staging)
        finally:
            staging.close()


def changes_of(
    told: Sequence[tuple[int, bytes]], targets: Mapping[int, Target], taken: Taken
) -> list[ViewChange | StreamChange]:
    """In the driver: what tasks have staged, by view."""
    parts: dict[int, list[list[pa.Table]]] = defaultdict(list)
    for view, payload in told:
        parts[view].append([taken.table(Staged(*where)) for where in json.loads(payload)["where"]])
    found: list[ViewChange | StreamChange] = []
    for view, each in parts.items():
        # One part is taken as it is: Arrow forgets how many rows there are where a key has no columns, and the rows of
        # such a view are all one task's.
        tables = [side[0] if len(side) == 1 else pa.concat_tables(side) for side in zip(*each, strict=True)]
        table = targets[view].table
        found.append(ViewChange(table, *tables) if len(tables) == 2 else StreamChange(table, tables[0]))
    return found
