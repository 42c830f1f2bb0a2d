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
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.runtime.spark.placement import STAGED_CHANGES, Message
from viewkeeper.runtime.spark.staged_changes import StagedFiles, StagedTable
from viewkeeper.store.contract.store import OpenCommit, StreamChange, ViewChange

MIN_REPORTED_ROWS = 32_768
"""Changes of a view in a share from which it is reported: few wait for the others."""

_MAX_TABLES = 256
"""Views that a batch changes up to which its commit is begun ahead: each table is opened first."""

_POLL_INTERVAL = 0.02
"""Seconds between two looks for reports."""

_BASE_TIMEOUT, _TIMEOUT_FACTOR = 1.0, 5
"""Seconds for which a transaction is kept open, and as many times the time until the first report."""


@dataclass(frozen=True)
class ReportPlan:
    """What tasks know of it: the views, the file that tells of each share, and of how many rows at least."""

    views: frozenset[int]
    files: Sequence[str]
    min_rows: int
    encode: Callable[[ViewChange], pa.Table]

    def encode_change(self, view: int, change: ViewChange | StreamChange) -> pa.Table | None:
        """A view's changes as the store takes them; None if they are to wait, or the commit would refuse one."""
        if view not in self.views or not isinstance(change, ViewChange):
            return None
        if change.puts.num_rows + change.deletes.num_rows < self.min_rows:
            return None
        try:
            return self.encode(change)
        except ViewkeeperError:
            return None


def write_report(directory: StateDirectory, plan: ReportPlan, split: int, messages: Sequence[Message]) -> None:
    """In a task: what of it the driver may take at once."""
    changes = [json.loads(payload) | {"view": view} for _, node, view, payload in messages if node == STAGED_CHANGES]
    found = [said for said in changes if "encoded" in said]
    if found:
        name = plan.files[split]
        made = directory / f"{name.removesuffix('.vkr')}-{secrets.token_hex(6)}.vkr"
        made.write_text(json.dumps(found))
        made.replace(directory / name)


class PipelinedCommit:
    """What tasks of a batch have reported, and the store was given of it. `begin`: a commit that changes these tables
    in so many shares, if the store can begin one."""

    def __init__(self, begin_commit: Callable[[Sequence[Table], int], OpenCommit | None]) -> None:
        self._begin_commit = begin_commit
        self.open_commit: OpenCommit | None = None
        self._tables: Mapping[int, Table] = {}
        self._pending_files: dict[int, Path] = {}
        self._report_files: list[Path] = []
        """Also of shares that are not waited for any more: their tasks may still report."""
        self._staged_files: StagedFiles | None = None
        self._applied_splits: set[tuple[int, int]] = set()
        """Of which views, which shares."""
        self.applied_rows: Counter[int] = Counter()
        """How many rows of each view these were."""

    def begin(
        self, directory: StateDirectory, number: int, splits: int, views: frozenset[int], tables: Mapping[int, Table]
    ) -> ReportPlan | None:
        """How so many shares are to report their changes of these views, if the batch changes no other tables than
        `tables`, by view; None if all are to wait."""
        self.close()
        if not views or not directory.is_local or len(tables) > _MAX_TABLES:
            return None
        self.open_commit = self._begin_commit([*tables.values()], splits)
        if self.open_commit is None:
            return None
        names = [f"b{number}-e-{secrets.token_hex(6)}.vkr" for _ in range(splits)]
        self._tables, self._staged_files = tables, StagedFiles(directory)
        self._pending_files = {share: directory / name for share, name in enumerate(names)}
        self._report_files = [*self._pending_files.values()]
        return ReportPlan(views, names, MIN_REPORTED_ROWS, self.open_commit.encode)

    def apply_reports(self, finished: threading.Event) -> None:
        """Take what comes until the job is over. Writers wait for the transaction, so it does not wait for long."""
        began, last = time.monotonic(), math.inf
        while not finished.wait(_POLL_INTERVAL) and time.monotonic() < last:
            self._poll_reports()
            if self._applied_splits and last == math.inf:
                last = time.monotonic() + _BASE_TIMEOUT + _TIMEOUT_FACTOR * (time.monotonic() - began)
        if not finished.is_set():
            self._abort()
        finished.wait()

    def _poll_reports(self) -> None:
        for share, path in list(self._pending_files.items()):
            if share in self._pending_files and path.exists():  # none is after giving up
                del self._pending_files[share]
                try:
                    self._apply_report(share, json.loads(path.read_text()))
                except Exception:  # the commit meets it again, and says so
                    self._abort()
                finally:
                    path.unlink(missing_ok=True)

    def _apply_report(self, split: int, changes: Sequence[Mapping[str, Any]]) -> None:
        if self.open_commit is None or self._staged_files is None:
            return
        for said in changes:
            view = said["view"]
            rows = self._staged_files.table(StagedTable(*said["encoded"]))
            self.open_commit.apply(self._tables[view], rows)
            self._applied_splits.add((view, split))
            self.applied_rows[view] += rows.num_rows

    def unapplied_changes(self, changes: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Of what tasks have told, the changes that the store was not given."""
        self._poll_reports()  # the last ones
        return [(v, payload) for v, payload in changes if (v, json.loads(payload)["share"]) not in self._applied_splits]

    def end(self) -> None:
        """The job is over, and nothing more is taken."""
        self._pending_files = {}
        for path in self._report_files:
            path.unlink(missing_ok=True)
        self._report_files = []
        if self._staged_files is not None:
            self._staged_files.clear()
        self._staged_files = None

    def close(self) -> None:
        """What the store was given and has not committed does not happen."""
        self._abort()
        self.end()

    def _abort(self) -> None:
        if self.open_commit is not None:
            self.open_commit.abort()
        self.open_commit = None
        self._applied_splits.clear()
        self.applied_rows.clear()
        self._pending_files = {}
