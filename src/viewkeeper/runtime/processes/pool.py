"""The maintainer's end of its partners (`partner`): they are started, sent work, heard and ended here.

    starting ──▶ idle ──▶ at work ──▶ idle …         gone: it ended, or could not begin; nobody waits for it

Whatever goes wrong or is interrupted between two of these, all of them are ended: an answer that comes late must not be
taken for another one's. They are started again when they are next wanted, a few times an hour.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa

import viewkeeper
from viewkeeper.errors import Defect
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.runtime.processes.worker import READY, Done, Work, receive, send, taken, unnamed

T = TypeVar("T")

_PROGRAM = """
import sys
sys.path.append(sys.argv[1])
import viewkeeper
if viewkeeper.__file__ != sys.argv[2]:
    sys.exit("another viewkeeper")
from viewkeeper.runtime.processes.worker import main
main(*map(int, sys.argv[3:]))
"""
"""Finds this very package, whatever this program has done to its own path, and nothing in the working directory."""
_FLOWS = 8
"""Flows that a partner keeps: those of batches that change other tables."""
_STARTS, _HOUR = 3, 3600.0
_ENDING = 5.0
"""Seconds in which partners must end that have nothing to do any more."""
_LEAST_PATIENCE, _MORE = 20.0, 10
"""Seconds that a partner is waited for, and how many times as long as this process's part took."""


class Alone(Exception):
    """A partner did not do its part: the batch has to be run without them."""


class Task(NamedTuple):
    """What a partner is to do, with what it needs for that: the flow if it does not know it yet, and rows by input."""

    work: Work
    flow: Flow
    rows: Mapping[str, Sequence[pa.Table]]


class Heard(NamedTuple):
    """What came of a partner's work, and what reached its views."""

    done: Done
    rows: Mapping[int, list[pa.Table]]


class Partner:
    """One process. After `end`, `reap` waits until it is no more."""

    def __init__(self) -> None:
        self.rehearsed: set[str] = set()
        """Flows that it has run, by their tokens."""
        self._flows: OrderedDict[str, None] = OrderedDict()
        self._begun = False
        self._work: Work | None = None
        self._there, self._back = unnamed(), unnamed()
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._process: subprocess.Popen[bytes] | None = None
        package = Path(viewkeeper.__file__)
        with theirs:
            descriptors = (theirs.fileno(), self._there, self._back)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, package.parents[1], package, *map(str, descriptors)],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    process_group=0,  # an interruption at the terminal is the maintainer's
                )
            except BaseException:
                self.end()
                raise
        _all.add(self)

    def look(self) -> bool:
        """Whether it can be sent work; what it has said is heard. Raises Alone if it is gone."""
        with _or_alone():
            if not self._begun and self._connection.poll(0):
                self._begun = self._connection.recv_bytes() == READY
            if self._work is not None and self._connection.poll(0):
                self.hear(0)
        return self._begun and self._work is None

    def send(self, task: Task) -> None:
        """Let it work; `hear` waits for what comes of it."""
        if self._work is not None:
            raise Defect("A partner at work is sent more.")
        self._work = task.work
        token = task.work.token
        flow = None if token in self._flows else task.flow
        self._flows[token] = None
        self._flows.move_to_end(token)
        forget = [self._flows.popitem(last=False)[0] for _ in range(len(self._flows) - _FLOWS)]
        self.rehearsed.difference_update(forget)
        with _or_alone():
            send(
                self._connection,
                self._there,
                task.rows,
                lambda places: replace(task.work, flow=flow, forget=forget, given=places),
            )
        self.rehearsed.add(token)

    def hear(self, patience: float) -> Heard:
        """What came of its work; Alone if that takes longer than so many seconds."""
        work = self._work
        with _or_alone():
            if not self._connection.poll(patience):
                raise TimeoutError("a partner does not answer")
            done: Done = receive(self._connection, self._back)
            if work is None or done.work != work.name:
                raise ValueError("a partner answers what it was not asked")
            found = {int(view): taken(self._back, places) for view, places in done.reached.items()}
        self._work = None
        return Heard(done, found)

    def end(self) -> None:
        """Let it end: at once if it is at something."""
        if self._process is not None and (self._work is not None or not self._begun):
            self._process.kill()
        self.let_go()

    def let_go(self) -> None:
        """Close this process's end of it."""
        self._connection.close()
        files, (self._there, self._back) = (self._there, self._back), (-1, -1)
        for descriptor in files:
            with suppress(OSError):  # it was closed before
                os.close(descriptor)

    def reap(self) -> None:
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING)
        self._process.kill()
        self._process.wait()


class Partners:
    """So many processes beside this one, started when they are first wanted. Used by one thread at a time."""

    def __init__(self, count: int) -> None:
        self.count = count if _has_python() else 0
        self._each: list[Partner] = []
        self._starts: list[float] = []

    def start(self) -> None:
        """Start them if they are not there, without waiting for them."""
        now = time.monotonic()
        self._starts = [when for when in self._starts if now - when < _HOUR]
        if self._each or len(self._starts) >= _STARTS:
            return
        self._starts.append(now)
        with self._or_none(), suppress(OSError):  # no more processes, or no such program: it is tried again
            for _ in range(self.count):
                self._each.append(Partner())
        if len(self._each) < self.count:
            self.close()

    def look(self) -> bool:
        """Whether all of them can be sent work."""
        with suppress(Alone), self._or_none():
            return bool(self._each) and all(partner.look() for partner in self._each)
        return False

    def knows(self, tokens: Sequence[str]) -> bool:
        """Whether each has run its flow before."""
        return bool(self._each) and all(t in p.rehearsed for t, p in zip(tokens, self._each, strict=False))

    def rehearse(self, tasks: Sequence[Task]) -> None:
        """Let them make themselves ready for such work."""
        with suppress(Alone), self._or_none():
            for partner, task in zip(self._each, tasks, strict=False):
                partner.send(task._replace(work=replace(task.work, rehearses=True, keeps=frozenset())))

    def run(self, tasks: Sequence[Task], mine: Callable[[], T]) -> tuple[T, list[Heard]]:
        """What comes of each one's work, and of the caller's beside them. Alone if one of them failed."""
        each = self._each[: len(tasks)]
        with self._or_none():
            for partner, task in zip(each, tasks, strict=True):
                partner.send(task)
            found, patience = _tried(mine)
            heard = [partner.hear(patience) for partner in each]
        if isinstance(found, _Wrong):
            raise found.error
        failed = [h.done.error for h in heard if h.done.error is not None]
        if failed:
            raise Alone(failed[0])
        return found, heard

    def close(self) -> None:
        each, self._each = self._each, []
        for partner in each:
            partner.end()
        for partner in each:
            partner.reap()

    @contextmanager
    def _or_none(self) -> Iterator[None]:
        """One is gone, or what they are at was interrupted: all are ended."""
        try:
            yield
        except BaseException:
            self.close()
            raise


@contextmanager
def _or_alone() -> Iterator[None]:
    """Whatever is wrong with the way to a partner, it is gone."""
    try:
        yield
    except Alone:
        raise
    except Exception as error:
        raise Alone(f"{type(error).__name__}: {error}") from error


class _Wrong(NamedTuple):
    error: Exception


def _tried(work: Callable[[], T]) -> tuple[T | _Wrong, float]:
    """What came of work, and how long who works beside it is waited for."""
    started = time.monotonic()
    found: T | _Wrong
    try:
        found = work()
    except Exception as error:
        found = _Wrong(error)
    return found, max(_LEAST_PATIENCE, _MORE * (time.monotonic() - started))


def _has_python() -> bool:
    """Whether this program is a Python that can be started again. One that has Python inside would start itself."""
    return Path(sys.executable or "").name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


_all: weakref.WeakSet[Partner] = weakref.WeakSet()


def _after_fork() -> None:
    """A child that held its parent's end would keep the partner when the parent is gone."""
    for partner in _all:
        partner.let_go()


os.register_at_fork(after_in_child=_after_fork)
