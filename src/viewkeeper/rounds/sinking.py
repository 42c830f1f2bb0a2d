"""The last level of a divided batch: each task resolves its share of the views' changes, by key, and stages it.

What becomes of a key depends on its own rows only, so rows travel to the task that owns the hash of their view's key.
The driver is told where the puts and deletes lie; it reads them when it publishes, and holds none of them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from viewkeeper.errors import Contradiction, ViewkeeperError
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import Table
from viewkeeper.rounds import messages, worker
from viewkeeper.rounds.blame import NOBODYS, Failed
from viewkeeper.rounds.messages import CHANGED, SINK, Message, damaged, elsewhere, failed, unpacked
from viewkeeper.rounds.sink import resolve
from viewkeeper.rounds.staged import Staged, Taken
from viewkeeper.rounds.targets import Target
from viewkeeper.rounds.task import Job
from viewkeeper.store.base import StreamChange, ViewChange
from viewkeeper.store.registry import open_store

_LAST = -1
"""The level of this round."""


@dataclass(frozen=True)
class Sinking:
    """The work of one task."""

    job: Any

    def __call__(self, arrived: Iterable[Message]) -> Iterator[Message]:
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
            onward.append(messages.arrived(_LAST, size))
        yield from onward

    def _resolved(self, job: Job, sunk: Mapping[int, Sequence[pa.Table]]) -> list[Message]:
        here = worker.at(job)
        counted = _Counted(job.url)
        staging = here.staging(job)
        told: list[Message] = []
        try:
            for view, deltas in sunk.items():
                target = job.targets[view]
                try:
                    change = resolve(here.crew.alone(1), counted, target.table, deltas, here.memory)
                except Contradiction as wrong:
                    return [damaged(target.sink, wrong)]
                except NOBODYS:
                    raise
                except Exception as error:  # on rows of this view
                    text = error.message if isinstance(error, ViewkeeperError) else f"{type(error).__name__}: {error}"
                    return [failed(Failed(target.sink, text.splitlines()[0]))]
                if change is not None:
                    tables = [change.delta] if isinstance(change, StreamChange) else [change.puts, change.deletes]
                    where = [staging.add(table) for table in tables]
                    told.append((0, CHANGED, view, json.dumps(where).encode()))
        finally:
            counted.close()
            staging.close()
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


def changes_of(
    told: Sequence[tuple[int, bytes]], targets: Mapping[int, Target], taken: Taken
) -> list[ViewChange | StreamChange]:
    """In the driver: what tasks have staged, by view."""
    parts: dict[int, list[list[pa.Table]]] = defaultdict(list)
    for view, payload in told:
        parts[view].append([taken.table(Staged(*where)) for where in json.loads(payload)])
    found: list[ViewChange | StreamChange] = []
    for view, each in parts.items():
        # One part is taken as it is: Arrow forgets how many rows there are where a key has no columns, and the rows of
        # such a view are all one task's.
        tables = [side[0] if len(side) == 1 else pa.concat_tables(side) for side in zip(*each, strict=True)]
        table = targets[view].table
        found.append(ViewChange(table, *tables) if len(tables) == 2 else StreamChange(table, tables[0]))
    return found
