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
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.runtime.processes.worker import (
    READY,
    WorkerRequest,
    WorkerResponse,
    create_unnamed_file,
    read_tables,
    receive,
    send,
)

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
_MAX_DATAFLOWS = 8
"""Flows that a partner keeps: those of batches that change other tables."""
_MAX_STARTS_PER_HOUR, _HOUR_SECONDS = 3, 3600.0
_STOP_TIMEOUT = 5.0
"""Seconds in which partners must end that have nothing to do any more."""
_MIN_TIMEOUT, _TIMEOUT_FACTOR = 20.0, 10
"""Seconds that a partner is waited for, and how many times as long as this process's part took."""


class SchedulerUnavailable(Exception):
    """A partner did not do its part: the batch has to be run without them."""


class WorkerTask(NamedTuple):
    """What a partner is to do, with what it needs for that: the flow if it does not know it yet, and rows by input."""

    request: WorkerRequest
    dataflow: Dataflow
    rows: Mapping[str, Sequence[pa.Table]]


class WorkerResult(NamedTuple):
    """What came of a partner's work, and what reached its views."""

    response: WorkerResponse
    deltas: Mapping[int, list[pa.Table]]


class WorkerProcess:
    """One process. After `end`, `reap` waits until it is no more."""

    def __init__(self) -> None:
        self.warm_tokens: set[str] = set()
        """Flows that it has run, by their tokens."""
        self._sent_tokens: OrderedDict[str, None] = OrderedDict()
        self._is_ready = False
        self._request: WorkerRequest | None = None
        self._request_fd, self._response_fd = create_unnamed_file(), create_unnamed_file()
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._process: subprocess.Popen[bytes] | None = None
        package = Path(viewkeeper.__file__)
        with theirs:
            descriptors = (theirs.fileno(), self._request_fd, self._response_fd)
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
                self.stop()
                raise
        _live_processes.add(self)

    def poll(self) -> bool:
        """Whether it can be sent work; what it has said is heard. Raises Alone if it is gone."""
        with _unavailable_on_error():
            if not self._is_ready and self._connection.poll(0):
                self._is_ready = self._connection.recv_bytes() == READY
            if self._request is not None and self._connection.poll(0):
                self.receive_result(0)
        return self._is_ready and self._request is None

    def send(self, task: WorkerTask) -> None:
        """Let it work; `hear` waits for what comes of it."""
        if self._request is not None:
            raise Defect("A partner at work is sent more.")
        self._request = task.request
        token = task.request.token
        flow = None if token in self._sent_tokens else task.dataflow
        self._sent_tokens[token] = None
        self._sent_tokens.move_to_end(token)
        forget = [self._sent_tokens.popitem(last=False)[0] for _ in range(len(self._sent_tokens) - _MAX_DATAFLOWS)]
        self.warm_tokens.difference_update(forget)
        with _unavailable_on_error():
            send(
                self._connection,
                self._request_fd,
                task.rows,
                lambda places: replace(task.request, dataflow=flow, dropped_tokens=forget, inputs=places),
            )
        self.warm_tokens.add(token)

    def receive_result(self, timeout: float) -> WorkerResult:
        """What came of its work; Alone if that takes longer than so many seconds."""
        work = self._request
        with _unavailable_on_error():
            if not self._connection.poll(timeout):
                raise TimeoutError("a partner does not answer")
            done: WorkerResponse = receive(self._connection, self._response_fd)
            if work is None or done.request_key != work.key:
                raise ValueError("a partner answers what it was not asked")
            found = {int(view): read_tables(self._response_fd, places) for view, places in done.deltas.items()}
        self._request = None
        return WorkerResult(done, found)

    def stop(self) -> None:
        """Let it end: at once if it is at something."""
        if self._process is not None and (self._request is not None or not self._is_ready):
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Close this process's end of it."""
        self._connection.close()
        files, (self._request_fd, self._response_fd) = (self._request_fd, self._response_fd), (-1, -1)
        for descriptor in files:
            with suppress(OSError):  # it was closed before
                os.close(descriptor)

    def reap(self) -> None:
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT)
        self._process.kill()
        self._process.wait()


class ProcessPool:
    """So many processes beside this one, started when they are first wanted. Used by one thread at a time."""

    def __init__(self, count: int) -> None:
        self.count = count if _has_python() else 0
        self._processes: list[WorkerProcess] = []
        self._start_times: list[float] = []

    def start(self) -> None:
        """Start them if they are not there, without waiting for them."""
        now = time.monotonic()
        self._start_times = [when for when in self._start_times if now - when < _HOUR_SECONDS]
        if self._processes or len(self._start_times) >= _MAX_STARTS_PER_HOUR:
            return
        self._start_times.append(now)
        with self._close_on_error(), suppress(OSError):  # no more processes, or no such program: it is tried again
            for _ in range(self.count):
                self._processes.append(WorkerProcess())
        if len(self._processes) < self.count:
            self.close()

    def poll(self) -> bool:
        """Whether all of them can be sent work."""
        with suppress(SchedulerUnavailable), self._close_on_error():
            return bool(self._processes) and all(partner.poll() for partner in self._processes)
        return False

    def is_warm(self, tokens: Sequence[str]) -> bool:
        """Whether each has run its flow before."""
        return bool(self._processes) and all(t in p.warm_tokens for t, p in zip(tokens, self._processes, strict=False))

    def warm_up(self, tasks: Sequence[WorkerTask]) -> None:
        """Let them make themselves ready for such work."""
        with suppress(SchedulerUnavailable), self._close_on_error():
            for partner, task in zip(self._processes, tasks, strict=False):
                partner.send(task._replace(request=replace(task.request, is_warm_up=True, keep_slots=frozenset())))

    def run(self, tasks: Sequence[WorkerTask], own_work: Callable[[], T]) -> tuple[T, list[WorkerResult]]:
        """What comes of each one's work, and of the caller's beside them. Alone if one of them failed."""
        each = self._processes[: len(tasks)]
        with self._close_on_error():
            for partner, task in zip(each, tasks, strict=True):
                partner.send(task)
            found, patience = _run_own_work(own_work)
            heard = [partner.receive_result(patience) for partner in each]
        if isinstance(found, _CallerError):
            raise found.error
        failed = [h.response.error for h in heard if h.response.error is not None]
        if failed:
            raise SchedulerUnavailable(failed[0])
        return found, heard

    def close(self) -> None:
        each, self._processes = self._processes, []
        for partner in each:
            partner.stop()
        for partner in each:
            partner.reap()

    @contextmanager
    def _close_on_error(self) -> Iterator[None]:
        """One is gone, or what they are at was interrupted: all are ended."""
        try:
            yield
        except BaseException:
            self.close()
            raise


@contextmanager
def _unavailable_on_error() -> Iterator[None]:
    """Whatever is wrong with the way to a partner, it is gone."""
    try:
        yield
    except SchedulerUnavailable:
        raise
    except Exception as error:
        raise SchedulerUnavailable(f"{type(error).__name__}: {error}") from error


class _CallerError(NamedTuple):
    error: Exception


def _run_own_work(work: Callable[[], T]) -> tuple[T | _CallerError, float]:
    """What came of work, and how long who works beside it is waited for."""
    started = time.monotonic()
    found: T | _CallerError
    try:
        found = work()
    except Exception as error:
        found = _CallerError(error)
    return found, max(_MIN_TIMEOUT, _TIMEOUT_FACTOR * (time.monotonic() - started))


def _has_python() -> bool:
    """Whether this program is a Python that can be started again. One that has Python inside would start itself."""
    return Path(sys.executable or "").name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


_live_processes: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _after_fork() -> None:
    """A child that held its parent's end would keep the partner when the parent is gone."""
    for partner in _live_processes:
        partner.close()


os.register_at_fork(after_in_child=_after_fork)
