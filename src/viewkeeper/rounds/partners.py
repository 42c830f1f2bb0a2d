"""The maintainer's end of its partners (`partner`): they are started, sent work, heard and ended here.

    starting ──▶ idle ──▶ at work ──▶ idle …         gone: it ended, or could not begin; nobody waits for it

One that has gone is started again when it is next wanted, a few times.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import pyarrow as pa

import viewkeeper
from viewkeeper.errors import Defect
from viewkeeper.plan.flow import Flow
from viewkeeper.rounds.parcels import taken, unnamed, written
from viewkeeper.rounds.partner import READY, Done, Work

T = TypeVar("T")

_PROGRAM = "import sys; from viewkeeper.rounds.partner import main; main(*map(int, sys.argv[1:]))"
_FLOWS = 8
"""Flows that a partner keeps: those of batches that change other tables."""
_STARTS = 3
_ENDING = 5.0
"""Seconds in which a partner must end that has nothing to do any more."""
_LEAST_PATIENCE, _MORE = 20.0, 10
"""Seconds that a partner is waited for, and how many times as long as this process's part took."""


class Alone(Exception):
    """A partner did not do its part: the batch has to be run without them."""


class Task(NamedTuple):
    """What a partner is to do, with what it needs for that: the flow if it does not know it yet, and rows by input."""

    work: Work
    flow: Flow
    rows: Mapping[str, Sequence[pa.Table]]


class Partner:
    """One process. `close` ends it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._there, self._back = unnamed(), unnamed()
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = self._at_work = False
        self.rehearsed: set[str] = set()
        """Flows that it has run, by their tokens."""
        self._flows: OrderedDict[str, None] = OrderedDict()
        with theirs:
            descriptors = (theirs.fileno(), self._there, self._back)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, *map(str, descriptors)],
                    pass_fds=descriptors,
                    env={**os.environ, "PYTHONPATH": _path()},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    process_group=0,  # an interruption at the terminal is the maintainer's
                )
            except BaseException:
                self.close()
                raise

    @property
    def is_idle(self) -> bool:
        """Whether it can be sent work. Raises Alone if it is gone."""
        with _or_alone():
            if not self._begun and self._connection.poll(0):
                self._begun = self._connection.recv_bytes() == READY
            if self._at_work and self._connection.poll(0):
                self.hear()
        return self._begun and not self._at_work

    def send(self, task: Task) -> None:
        """Let it work; `hear` waits for what comes of it."""
        if self._at_work:
            raise Defect("A partner at work is sent more.")
        token = task.work.token
        is_new = token not in self._flows
        self._flows[token] = None
        self._flows.move_to_end(token)
        forget = [self._flows.popitem(last=False)[0] for _ in range(len(self._flows) - _FLOWS)]
        self.rehearsed.difference_update(forget)
        with _or_alone():
            given = written(self._there, task.rows)
            sent = replace(task.work, flow=task.flow if is_new else None, forget=forget, given=given)
            self._connection.send_bytes(pickle.dumps(sent, protocol=5))
        self._at_work = True
        self.rehearsed.add(token)

    def hear(self, patience: float | None = None) -> Done:
        """What came of its work; Alone if that takes longer than so many seconds."""
        with _or_alone():
            if not self._connection.poll(patience):
                raise TimeoutError("a partner does not answer")
            done: Done = pickle.loads(self._connection.recv_bytes())
        self._at_work = False
        return done

    def rows(self, done: Done) -> dict[int, list[pa.Table]]:
        """What reached its views; to be asked before it is sent more work."""
        return {int(view): taken(self._back, places) for view, places in done.reached.items()}

    def close(self) -> None:
        self._connection.close()
        os.close(self._there)
        os.close(self._back)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0 if self._at_work else _ENDING)
            self._process.kill()
            self._process.wait()


class Partners:
    """So many processes beside this one, started when they are first wanted. Used by one thread at a time."""

    def __init__(self, count: int) -> None:
        self.count = count if _has_python() else 0
        self._each: list[Partner] | None = None
        self._starts = 0

    def start(self) -> None:
        """Start those that are not there, without waiting for them."""
        if self._each is None and self._starts < _STARTS:
            self._starts += 1
            with suppress(OSError):  # no more processes, or no such program: it is tried again
                self._each = [Partner() for _ in range(self.count)]

    @property
    def are_idle(self) -> bool:
        """Whether all of them can be sent work."""
        try:
            return self._each is not None and all(partner.is_idle for partner in self._each)
        except Alone:
            self.close()
            return False

    def know(self, tokens: Sequence[str]) -> bool:
        """Whether each has run its flow before."""
        return self._each is not None and all(t in p.rehearsed for t, p in zip(tokens, self._each, strict=False))

    def rehearse(self, tasks: Sequence[Task]) -> None:
        """Let them make themselves ready for such work."""
        try:
            for partner, task in zip(self._each or (), tasks, strict=False):
                partner.send(task._replace(work=replace(task.work, rehearses=True, keeps=frozenset())))
        except Alone:
            self.close()

    def run(self, tasks: Sequence[Task], mine: Callable[[], T]) -> tuple[T, list[Done]]:
        """What comes of each one's work, and of the caller's beside them. Alone if one of them failed."""
        each = (self._each or [])[: len(tasks)]
        try:
            for partner, task in zip(each, tasks, strict=True):
                partner.send(task)
            found, error, patience = _tried(mine)
            done = [partner.hear(patience) for partner in each]
        except BaseException:  # one is gone, or nobody waits for them any more
            self.close()
            raise
        if error is not None:
            raise error
        failed = [d.error for d in done if d.error is not None]
        if failed:
            raise Alone(failed[0])
        return cast(T, found), [replace(d, rows=p.rows(d)) for p, d in zip(each, done, strict=True)]

    def close(self) -> None:
        each, self._each = self._each or [], None
        for partner in each:
            partner.close()


class _or_alone:
    """Whatever is wrong with the way to a partner, it is gone."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception):
            raise Alone(str(error)) from error


def _tried(work: Callable[[], T]) -> tuple[T | None, Exception | None, float]:
    """What came of work or what was wrong, and how long who works beside it is waited for."""
    started = time.monotonic()
    found = wrong = None
    try:
        found = work()
    except Exception as error:
        wrong = error
    return found, wrong, max(_LEAST_PATIENCE, _MORE * (time.monotonic() - started))


def _has_python() -> bool:
    """Whether this program is a Python that can be started again. One that has Python inside would start itself."""
    return Path(sys.executable or "").name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def _path() -> str:
    """Where a partner finds this very package, whatever this program has done to its own path."""
    found = str(Path(viewkeeper.__file__).parents[1])
    return os.pathsep.join([found, *filter(None, [os.environ.get("PYTHONPATH")])])
