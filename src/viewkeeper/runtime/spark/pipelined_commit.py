"""Views' changes that the store is given while later tasks still run.

    task 1 ▓▓▓▓ report   task 3 ▓▓▓▓ …          a store of one file has one writer: it would wait for the last task,
    task 2 ▓▓▓▓ report   task 4 ▓▓▓▓ …          and then all cores but its own for it
    driver      ▒▒▒ ▒▒▒      ▒▒▒ ▒▒▒ publish

Tasks of the first round that have resolved many rows (`resolving`) leave them also as the bytes that the store writes,
and a report; the thread that waits for the job gives them to the transaction of the commit. Only views whose key begins
as the table's: a share is a range of its keys, so each page is touched for one share. What a share gives depends on
the published state and the log alone: whichever attempt has reported it, the rows are the same. The job's result is
what counts: if it fails, or the store refuses a row, the transaction is given up, and nothing has happened.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper.errors import ViewkeeperError
from viewkeeper.model.schema import Table
from viewkeeper.resources.directory import Directory
from viewkeeper.runtime.spark.placement import CHANGED, Message
from viewkeeper.runtime.spark.staged_changes import Staged, Taken
from viewkeeper.store.contract.store import Begun, StreamChange, ViewChange

ROWS = 32_768
"""Changes of a view in a share from which it is reported: few wait for the others."""

_TABLES = 256
"""Views that a batch changes up to which its commit is begun ahead: each table is opened first."""

_LOOKS = 0.02
"""Seconds between two looks for reports."""

_PATIENCE, _TIMES = 1.0, 5
"""Seconds for which a transaction is kept open, and as many times the time until the first report."""


@dataclass(frozen=True)
class Reports:
    """What tasks know of it: the views, the file that tells of each share, and of how many rows at least."""

    views: frozenset[int]
    names: Sequence[str]
    rows: int
    encode: Callable[[ViewChange], pa.Table]

    def encoded(self, view: int, change: ViewChange | StreamChange) -> pa.Table | None:
        """A view's changes as the store takes them; None if they are to wait, or the commit would refuse one."""
        if view not in self.views or not isinstance(change, ViewChange):
            return None
        if change.puts.num_rows + change.deletes.num_rows < self.rows:
            return None
        try:
            return self.encode(change)
        except ViewkeeperError:
            return None


def report(directory: Directory, wanted: Reports, share: int, told: Sequence[Message]) -> None:
    """In a task: what of it the driver may take at once."""
    changes = [json.loads(payload) | {"view": view} for _, node, view, payload in told if node == CHANGED]
    found = [said for said in changes if "encoded" in said]
    if found:
        name = wanted.names[share]
        made = directory / f"{name.removesuffix('.vkr')}-{secrets.token_hex(6)}.vkr"
        made.write_text(json.dumps(found))
        made.replace(directory / name)


class Early:
    """What tasks of a batch have reported, and the store was given of it. `begin`: a commit that changes these tables
    in so many shares, if the store can begin one."""

    def __init__(self, begin: Callable[[Sequence[Table], int], Begun | None]) -> None:
        self._begin = begin
        self.begun: Begun | None = None
        self._tables: Mapping[int, Table] = {}
        self._waiting: dict[int, Path] = {}
        self._reports: list[Path] = []
        """Also of shares that are not waited for any more: their tasks may still report."""
        self._taken: Taken | None = None
        self._applied: set[tuple[int, int]] = set()
        """Of which views, which shares."""
        self.rows: Counter[int] = Counter()
        """How many rows of each view these were."""

    def expect(
        self, directory: Directory, number: int, shares: int, views: frozenset[int], tables: Mapping[int, Table]
    ) -> Reports | None:
        """How so many shares are to report their changes of these views, if the batch changes no other tables than
        `tables`, by view; None if all are to wait."""
        self.close()
        if not views or not directory.is_local or len(tables) > _TABLES:
            return None
        self.begun = self._begin([*tables.values()], shares)
        if self.begun is None:
            return None
        names = [f"b{number}-e-{secrets.token_hex(6)}.vkr" for _ in range(shares)]
        self._tables, self._taken = tables, Taken(directory)
        self._waiting = {share: directory / name for share, name in enumerate(names)}
        self._reports = [*self._waiting.values()]
        return Reports(views, names, ROWS, self.begun.encode)

    def watch(self, over: threading.Event) -> None:
        """Take what comes until the job is over. Writers wait for the transaction, so it does not wait for long."""
        began, last = time.monotonic(), math.inf
        while not over.wait(_LOOKS) and time.monotonic() < last:
            self._look()
            if self._applied and last == math.inf:
                last = time.monotonic() + _PATIENCE + _TIMES * (time.monotonic() - began)
        if not over.is_set():
            self._give_up()
        over.wait()

    def _look(self) -> None:
        for share, path in list(self._waiting.items()):
            if share in self._waiting and path.exists():  # none is after giving up
                del self._waiting[share]
                try:
                    self._take(share, json.loads(path.read_text()))
                except Exception:  # the commit meets it again, and says so
                    self._give_up()
                finally:
                    path.unlink(missing_ok=True)

    def _take(self, share: int, reported: Sequence[Mapping[str, Any]]) -> None:
        if self.begun is None or self._taken is None:
            return
        for said in reported:
            view = said["view"]
            rows = self._taken.table(Staged(*said["encoded"]))
            self.begun.apply(self._tables[view], rows)
            self._applied.add((view, share))
            self.rows[view] += rows.num_rows

    def left(self, changes: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Of what tasks have told, the changes that the store was not given."""
        self._look()  # the last ones
        return [(v, payload) for v, payload in changes if (v, json.loads(payload)["share"]) not in self._applied]

    def end(self) -> None:
        """The job is over, and nothing more is taken."""
        self._waiting = {}
        for path in self._reports:
            path.unlink(missing_ok=True)
        self._reports = []
        if self._taken is not None:
            self._taken.clear()
        self._taken = None

    def close(self) -> None:
        """What the store was given and has not committed does not happen."""
        self._give_up()
        self.end()

    def _give_up(self) -> None:
        if self.begun is not None:
            self.begun.give_up()
        self.begun = None
        self._applied.clear()
        self.rows.clear()
        self._waiting = {}
