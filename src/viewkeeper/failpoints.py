"""Fault injection: named points at which tests kill the process or make the disk fail.

    VK_CRASH_AT=commit.3.before     the process kills itself with SIGKILL when it passes that point;
                                    `name@2` means the second pass
    VK_STOP_AT=commit.3.before      the process stops itself with SIGSTOP, and resumes on SIGCONT
    VK_CRASH_ONCE=PATH              only the first process that creates this file dies or stops, so that of many
                                    processes exactly one does, once; a stopped process resumes only when the file is
                                    no longer empty, even if SIGCONT arrives earlier
    VK_FAIL_AT=run.sync=ENOSPC      the point raises that OSError; `name@2=EIO` means from the second pass on

The points of a commit have the number of its step in their names. An unarmed point costs one comparison with None. A
test sets the variables for a child process, and uses `fail_at` in its own process.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from viewkeeper.errors import Defect

POINTS: Mapping[str, str] = {
    "write.before": "a write call begins its transaction",
    "write.middle": "its rows and log entries are written, nothing is committed",
    "write.kept": "so are those of the synchronous views",
    "commit.1.before": "a batch begins",
    "commit.1.after": "its cut is chosen",
    "commit.2.before": "its changes are read",
    "run.write.before": "a file of runs is about to be made",
    "run.write.middle": "its bytes are written",
    "run.sync": "they are about to be flushed",
    "run.write.after": "the file is complete, and no manifest lists it",
    "commit.2.after": "the rounds are done",
    "commit.3.before": "the commit begins",
    "commit.3.middle": "the views' rows are written, the batch record is not",
    "commit.4.before": "everything is written, nothing is published",
    "commit.4.after": "the batch is published",
    "commit.5.merge": "merging begins",
    "merge.write.before": "runs are merged in memory",
    "merge.write.after": "the merged file is complete",
    "merge.adopted": "the next manifest will list it",
    "commit.5.truncate": "the log is about to be cut",
    "commit.5.truncate.middle": "its entries are deleted, its new floor is not written",
    "commit.5.collect": "files that nobody lists are about to be deleted",
    "table.changed": "a table's definition changed, its rows are as they were",
    "table.dropped": "a table is out of the catalog, its rows are there",
    "view.planned": "a view's number is taken",
    "family.parameters": "the table of a family's parameters is there, the family is not",
    "members.table": "the table for the parameters of new members is there, empty",
    "members.written": "the parameters of new members are written, their names are not",
    "member.dropped": "the name of a member is gone, its parameters are there",
    "member.expelled": "a member that failed is a view by itself, suspended, and its parameters are there",
    "load.part.after": "a part of a large table is scanned and kept",
    "load.1.after": "a view is loaded, nothing is published",
    "load.2.after": "it has caught up",
    "view.kept": "a synchronous view is listed, nothing is committed",
    "view.published": "a new definition is published, the old one's rows are there",
    "view.dropped": "a view is out of the catalog, its rows are there",
    "remake.after": "a scheduled view is made anew, nothing is published",
    "mend.before": "damaged state was found",
    "mend.after": "it is made anew and published",
    "backup.copied": "the store is copied, its run files are not",
    "task.before": "a Spark task begins its level",
    "task.after": "its runs are written, its report is not sent",
}
"""Every point, and the state of the work when it is passed."""


@dataclass
class _ArmedPoint:
    name: str
    on_pass: int
    error: int | None = None
    signal: int = signal.SIGKILL
    passes: int = 0


def _parse_variable(variable: str, signal_number: int | None) -> list[_ArmedPoint]:
    text = os.environ.get(variable)
    if not text:
        return []
    point, _, code = text.partition("=")
    name, _, on_pass = point.partition("@")
    if signal_number is None:
        return [_ArmedPoint(name, int(on_pass or 1), error=getattr(errno, code or "EIO"))]
    return [_ArmedPoint(name, int(on_pass or 1), signal=signal_number)]


_once_file = os.environ.get("VK_CRASH_ONCE")
_armed_points: list[_ArmedPoint] | None = [
    *_parse_variable("VK_CRASH_AT", signal.SIGKILL),
    *_parse_variable("VK_STOP_AT", signal.SIGSTOP),
    *_parse_variable("VK_FAIL_AT", None),
] or None


def hit(name: str) -> None:
    """Kill, stop or fail at this point if it is armed."""
    if _armed_points is not None:
        for armed in _armed_points:
            if armed.name == name:
                _trigger(armed)


def _trigger(armed: _ArmedPoint) -> None:
    armed.passes += 1
    if armed.passes < armed.on_pass or (armed.signal == signal.SIGSTOP and armed.passes > armed.on_pass):
        return
    if armed.error is not None:
        raise OSError(armed.error, os.strerror(armed.error))
    if _once_file is not None:
        try:
            os.close(os.open(_once_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
    os.kill(os.getpid(), armed.signal)
    while _once_file is not None and Path(_once_file).stat().st_size == 0:
        os.kill(os.getpid(), armed.signal)


@contextmanager
def fail_at(name: str, error: int, from_pass: int = 1) -> Iterator[None]:
    """Make the point raise this OSError inside the block, from pass `from_pass` on."""
    global _armed_points
    if name not in POINTS:
        raise Defect(f"There is no point {name}.")
    previous = _armed_points
    _armed_points = [*(previous or ()), _ArmedPoint(name, from_pass, error)]
    try:
        yield
    finally:
        _armed_points = previous
