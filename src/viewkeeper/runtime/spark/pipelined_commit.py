"""Pipelined commit: writes the upserts of finished tasks to the store while later tasks still run.

    task 1 ▓▓▓▓ report   task 3 ▓▓▓▓ …          a store of one file has one writer: without pipelining it would wait
    task 2 ▓▓▓▓ report   task 4 ▓▓▓▓ …          for the last task, and then all other cores would wait for it
    driver      ▒▒▒ ▒▒▒      ▒▒▒ ▒▒▒ publish

A task of the first round that has resolved many rows of a view (`upsert_tasks`) also writes them as the store's bytes,
with a report file. The driver's thread that waits for the job applies them to the commit's transaction. This is done
only for views whose key begins with the table's key: a split is then a range of the view's keys, so each page is
touched for one split only. The rows of a split depend only on the published state and the log, so every attempt of a
task reports the same rows. The job's result decides: if the job fails, or the store refuses a row, the transaction is
aborted, and nothing is published.
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
"""Changed rows of a view in a split from which on they are reported; fewer rows are applied at the end."""

_MAX_TABLES = 256
"""Maximum number of changed views for a pipelined commit, because it has to open each table first."""

_POLL_INTERVAL = 0.02
"""Seconds between two polls for reports."""

_BASE_TIMEOUT, _TIMEOUT_FACTOR = 1.0, 5
"""The transaction is kept open for the first (in seconds) plus this multiple of the time until the first report."""


@dataclass(frozen=True)
class ReportPlan:
    """The task side of a pipelined commit: the views, the report file of each split, and the minimum number of rows."""

    views: frozenset[int]
    files: Sequence[str]
    min_rows: int
    encode: Callable[[ViewChange], pa.Table]

    def encode_change(self, view: int, change: ViewChange | StreamChange) -> pa.Table | None:
        """Return a view's changes in the store's encoding; None if they are too few, or the store refuses a row."""
        if view not in self.views or not isinstance(change, ViewChange):
            return None
        if change.puts.num_rows + change.deletes.num_rows < self.min_rows:
            return None
        try:
            return self.encode(change)
        except ViewkeeperError:
            return None


def write_report(directory: StateDirectory, plan: ReportPlan, split: int, messages: Sequence[Message]) -> None:
    """In a task: write the report about the encoded changes that the driver may apply at once."""
    changes = [json.loads(payload) | {"view": view} for _, node, view, payload in messages if node == STAGED_CHANGES]
    reported = [change for change in changes if "encoded" in change]
    if reported:
        name = plan.files[split]
        temporary = directory / f"{name.removesuffix('.vkr')}-{secrets.token_hex(6)}.vkr"
        temporary.write_text(json.dumps(reported))
        temporary.replace(directory / name)


class PipelinedCommit:
    """Applies reported changes of a batch's tasks to an open commit.

    `begin_commit` opens a commit for these tables and this number of splits; None if the store cannot.
    """

    def __init__(self, begin_commit: Callable[[Sequence[Table], int], OpenCommit | None]) -> None:
        self._begin_commit = begin_commit
        self.open_commit: OpenCommit | None = None
        self._tables: Mapping[int, Table] = {}
        self._pending_files: dict[int, Path] = {}
        self._report_files: list[Path] = []
        """All report files, also of splits that are no longer pending: their tasks may still write one."""
        self._staged_files: StagedFiles | None = None
        self._applied_splits: set[tuple[int, int]] = set()
        """(View id, split) of the changes that were applied."""
        self.applied_rows: Counter[int] = Counter()
        """Number of applied rows by view."""

    def begin(
        self, directory: StateDirectory, number: int, splits: int, views: frozenset[int], tables: Mapping[int, Table]
    ) -> ReportPlan | None:
        """Open the commit and return the plan for the tasks' reports about `views`; None if there is no pipelining.

        `tables` are the tables of all views that the batch changes, by view.
        """
        self.close()
        if not views or not directory.is_local or len(tables) > _MAX_TABLES:
            return None
        self.open_commit = self._begin_commit([*tables.values()], splits)
        if self.open_commit is None:
            return None
        names = [f"b{number}-e-{secrets.token_hex(6)}.vkr" for _ in range(splits)]
        self._tables, self._staged_files = tables, StagedFiles(directory)
        self._pending_files = {split: directory / name for split, name in enumerate(names)}
        self._report_files = [*self._pending_files.values()]
        return ReportPlan(views, names, MIN_REPORTED_ROWS, self.open_commit.encode)

    def apply_reports(self, finished: threading.Event) -> None:
        """Apply reports until the job has ended; abort the transaction if that takes too long, since writers wait."""
        started, deadline = time.monotonic(), math.inf
        while not finished.wait(_POLL_INTERVAL) and time.monotonic() < deadline:
            self._poll_reports()
            if self._applied_splits and deadline == math.inf:
                deadline = time.monotonic() + _BASE_TIMEOUT + _TIMEOUT_FACTOR * (time.monotonic() - started)
        if not finished.is_set():
            self._abort()
        finished.wait()

    def _poll_reports(self) -> None:
        for split, path in list(self._pending_files.items()):
            if split in self._pending_files and path.exists():  # `_abort` empties the dict
                del self._pending_files[split]
                try:
                    self._apply_report(split, json.loads(path.read_text()))
                except Exception:  # the final commit raises the error again
                    self._abort()
                finally:
                    path.unlink(missing_ok=True)

    def _apply_report(self, split: int, changes: Sequence[Mapping[str, Any]]) -> None:
        if self.open_commit is None or self._staged_files is None:
            return
        for change in changes:
            view = change["view"]
            rows = self._staged_files.table(StagedTable(*change["encoded"]))
            self.open_commit.apply(self._tables[view], rows)
            self._applied_splits.add((view, split))
            self.applied_rows[view] += rows.num_rows

    def unapplied_changes(self, changes: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Return those of the tasks' staged changes that were not applied yet."""
        self._poll_reports()  # the last ones
        return [(v, payload) for v, payload in changes if (v, json.loads(payload)["share"]) not in self._applied_splits]

    def end(self) -> None:
        """Stop applying reports after the job has ended, and delete the report files."""
        self._pending_files = {}
        for path in self._report_files:
            path.unlink(missing_ok=True)
        self._report_files = []
        if self._staged_files is not None:
            self._staged_files.clear()
        self._staged_files = None

    def close(self) -> None:
        """Abort the transaction if it is not committed, and delete the report files."""
        self._abort()
        self.end()

    def _abort(self) -> None:
        if self.open_commit is not None:
            self.open_commit.abort()
        self.open_commit = None
        self._applied_splits.clear()
        self.applied_rows.clear()
        self._pending_files = {}
