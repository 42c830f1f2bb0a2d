"""The process pool: starts worker processes (`worker`), sends them requests, receives results, and ends them.

    starting ──▶ idle ──▶ working ──▶ idle …         ended: the process ended, or could not start

If a transition fails or is interrupted, all worker processes are ended: a late response must not be taken for the
response to another request. They are started again when they are next needed, at most `_MAX_STARTS_PER_HOUR` times an
hour.
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
"""Imports exactly this package, whatever `sys.path` of this program is, and nothing from the working directory."""
_MAX_DATAFLOWS = 8
"""Dataflows that a worker process caches, for batches that change different tables."""
_MAX_STARTS_PER_HOUR, _HOUR_SECONDS = 3, 3600.0
_STOP_TIMEOUT = 5.0
"""Seconds within which an idle worker process must end before it is killed."""
_MIN_TIMEOUT, _TIMEOUT_FACTOR = 20.0, 10
"""Seconds to wait for a worker process: at least the first, or this multiple of this process's own time."""


class SchedulerUnavailable(Exception):
    """A worker process did not run its partition; the batch must run without worker processes."""


class WorkerTask(NamedTuple):
    """A request to a worker process, with its dataflow (sent only if the worker does not have it) and rows by input."""

    request: WorkerRequest
    dataflow: Dataflow
    rows: Mapping[str, Sequence[pa.Table]]


class WorkerResult(NamedTuple):
    """The response of a worker process, and the deltas at its views' sinks."""

    response: WorkerResponse
    deltas: Mapping[int, list[pa.Table]]


class WorkerProcess:
    """One worker process. After `stop`, `reap` waits until it has ended."""

    def __init__(self) -> None:
        self.warm_tokens: set[str] = set()
        """Tokens of the dataflows that the process has run."""
        self._sent_tokens: OrderedDict[str, None] = OrderedDict()
        self._is_ready = False
        self._request: WorkerRequest | None = None
        self._request_fd, self._response_fd = create_unnamed_file(), create_unnamed_file()
        own_socket, worker_socket = socket.socketpair()
        self._connection = Connection(own_socket.detach())
        self._process: subprocess.Popen[bytes] | None = None
        package = Path(viewkeeper.__file__)
        with worker_socket:
            descriptors = (worker_socket.fileno(), self._request_fd, self._response_fd)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, package.parents[1], package, *map(str, descriptors)],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    process_group=0,  # Ctrl-C at the terminal interrupts the maintainer only
                )
            except BaseException:
                self.stop()
                raise
        _live_processes.add(self)

    def poll(self) -> bool:
        """Whether a request can be sent. Receives a finished response; SchedulerUnavailable if the process ended."""
        with _unavailable_on_error():
            if not self._is_ready and self._connection.poll(0):
                self._is_ready = self._connection.recv_bytes() == READY
            if self._request is not None and self._connection.poll(0):
                self.receive_result(0)
        return self._is_ready and self._request is None

    def send(self, task: WorkerTask) -> None:
        """Send a request; `receive_result` waits for the response."""
        if self._request is not None:
            raise Defect("A partner at work is sent more.")
        self._request = task.request
        token = task.request.token
        dataflow = None if token in self._sent_tokens else task.dataflow
        self._sent_tokens[token] = None
        self._sent_tokens.move_to_end(token)
        dropped_tokens = [
            self._sent_tokens.popitem(last=False)[0] for _ in range(len(self._sent_tokens) - _MAX_DATAFLOWS)
        ]
        self.warm_tokens.difference_update(dropped_tokens)
        with _unavailable_on_error():
            send(
                self._connection,
                self._request_fd,
                task.rows,
                lambda locations: replace(
                    task.request, dataflow=dataflow, dropped_tokens=dropped_tokens, inputs=locations
                ),
            )
        self.warm_tokens.add(token)

    def receive_result(self, timeout: float) -> WorkerResult:
        """Return the result of the request; SchedulerUnavailable if it takes longer than `timeout` seconds."""
        request = self._request
        with _unavailable_on_error():
            if not self._connection.poll(timeout):
                raise TimeoutError("a partner does not answer")
            response: WorkerResponse = receive(self._connection, self._response_fd)
            if request is None or response.request_key != request.key:
                raise ValueError("a partner answers what it was not asked")
            deltas = {
                int(view): read_tables(self._response_fd, locations) for view, locations in response.deltas.items()
            }
        self._request = None
        return WorkerResult(response, deltas)

    def stop(self) -> None:
        """End the process: a working one is killed, an idle one ends when its connection is closed."""
        if self._process is not None and (self._request is not None or not self._is_ready):
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Close the connection and the files in this process."""
        self._connection.close()
        files, (self._request_fd, self._response_fd) = (self._request_fd, self._response_fd), (-1, -1)
        for descriptor in files:
            with suppress(OSError):  # closed already
                os.close(descriptor)

    def reap(self) -> None:
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT)
        self._process.kill()
        self._process.wait()


class ProcessPool:
    """A number of worker processes, started when they are first needed. Used by one thread at a time."""

    def __init__(self, count: int) -> None:
        self.count = count if _has_python() else 0
        self._processes: list[WorkerProcess] = []
        self._start_times: list[float] = []

    def start(self) -> None:
        """Start the processes if they do not run, without waiting until they are ready."""
        now = time.monotonic()
        self._start_times = [started for started in self._start_times if now - started < _HOUR_SECONDS]
        if self._processes or len(self._start_times) >= _MAX_STARTS_PER_HOUR:
            return
        self._start_times.append(now)
        with self._close_on_error(), suppress(OSError):  # the process limit, or no such program: retried later
            for _ in range(self.count):
                self._processes.append(WorkerProcess())
        if len(self._processes) < self.count:
            self.close()

    def poll(self) -> bool:
        """Whether a request can be sent to every process."""
        with suppress(SchedulerUnavailable), self._close_on_error():
            return bool(self._processes) and all(process.poll() for process in self._processes)
        return False

    def is_warm(self, tokens: Sequence[str]) -> bool:
        """Whether each process has run its dataflow before."""
        return bool(self._processes) and all(
            token in process.warm_tokens for token, process in zip(tokens, self._processes, strict=False)
        )

    def warm_up(self, tasks: Sequence[WorkerTask]) -> None:
        """Send the tasks as warm-up, so that files are mapped and statements prepared; results are ignored."""
        with suppress(SchedulerUnavailable), self._close_on_error():
            for process, task in zip(self._processes, tasks, strict=False):
                process.send(task._replace(request=replace(task.request, is_warm_up=True, keep_slots=frozenset())))

    def run(self, tasks: Sequence[WorkerTask], own_work: Callable[[], T]) -> tuple[T, list[WorkerResult]]:
        """Run the tasks in the processes and `own_work` in this one at the same time; return the results.

        Raises SchedulerUnavailable if a process failed.
        """
        processes = self._processes[: len(tasks)]
        with self._close_on_error():
            for process, task in zip(processes, tasks, strict=True):
                process.send(task)
            own_result, timeout = _run_own_work(own_work)
            results = [process.receive_result(timeout) for process in processes]
        if isinstance(own_result, _CallerError):
            raise own_result.error
        errors = [result.response.error for result in results if result.response.error is not None]
        if errors:
            raise SchedulerUnavailable(errors[0])
        return own_result, results

    def close(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.stop()
        for process in processes:
            process.reap()

    @contextmanager
    def _close_on_error(self) -> Iterator[None]:
        """End all processes if the block fails or is interrupted."""
        try:
            yield
        except BaseException:
            self.close()
            raise


@contextmanager
def _unavailable_on_error() -> Iterator[None]:
    """Raise any error of the communication with a worker process as SchedulerUnavailable."""
    try:
        yield
    except SchedulerUnavailable:
        raise
    except Exception as error:
        raise SchedulerUnavailable(f"{type(error).__name__}: {error}") from error


class _CallerError(NamedTuple):
    error: Exception


def _run_own_work(work: Callable[[], T]) -> tuple[T | _CallerError, float]:
    """Run `work`; return its result, and the timeout for the worker processes that run at the same time."""
    started = time.monotonic()
    result: T | _CallerError
    try:
        result = work()
    except Exception as error:
        result = _CallerError(error)
    return result, max(_MIN_TIMEOUT, _TIMEOUT_FACTOR * (time.monotonic() - started))


def _has_python() -> bool:
    """Whether `sys.executable` is a Python interpreter; a program that embeds Python would start itself instead."""
    return Path(sys.executable or "").name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


_live_processes: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _after_fork() -> None:
    """Close connections in a forked child: an open copy would keep the workers alive after the parent."""
    for process in _live_processes:
        process.close()


os.register_at_fork(after_in_child=_after_fork)
