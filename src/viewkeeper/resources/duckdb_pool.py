"""A pool of threads with one DuckDB connection each, for many short pieces of work that do not depend on each other.

DuckDB, Arrow and numpy release the GIL while they work, so two threads are nearly twice as fast on two cores, whereas a
DuckDB connection runs one statement at a time. The primary connection runs work that has no parallel part, with all
threads inside DuckDB and all of the pool's DuckDB memory; when all connections work, each has an equal share.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import duckdb

from viewkeeper.model.threads import ThreadPool
from viewkeeper.resources.fork_guard import module_lock
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements, StatementKey

T = TypeVar("T")
R = TypeVar("R")


_MAX_DEFAULT_THREADS = 8
"""Default limit of the thread count: each thread has a DuckDB connection of its own, and a share of the memory."""


def default_pool_size() -> int:
    """Return the number of processors that this process may use, at most `_MAX_DEFAULT_THREADS`."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, _MAX_DEFAULT_THREADS)


_GIL_SWITCH_INTERVAL = 0.0005
"""GIL switch interval in seconds while several threads work. With Python's default of 5 ms, a thread that returns from
DuckDB waits up to 5 ms for another thread that is between two short native calls (D76)."""
_interval_lock = module_lock()
_saved_intervals: list[float] = []
"""The original interval, once for each pool at work in this process."""


@contextmanager
def short_gil_switch_interval() -> Iterator[None]:
    """Shorten the GIL switch interval inside the block, so that no thread holds the GIL for long."""
    with _interval_lock:
        _saved_intervals.append(_saved_intervals[0] if _saved_intervals else sys.getswitchinterval())
        sys.setswitchinterval(min(_GIL_SWITCH_INTERVAL, _saved_intervals[0]))
    try:
        yield
    finally:
        with _interval_lock:
            original = _saved_intervals.pop()
            if not _saved_intervals:
                sys.setswitchinterval(original)


def _restore_switch_interval() -> None:
    """Restore the interval in a forked child: the pools at work are the parent's."""
    if _saved_intervals:
        sys.setswitchinterval(_saved_intervals[0])
        _saved_intervals.clear()


os.register_at_fork(after_in_child=_restore_switch_interval)


class DuckDBPool:
    """A pool of `size` threads, including the caller's. The other threads start when they are first needed."""

    def __init__(self, size: int, memory: MemoryBudget, setup: Callable[[Any], None]) -> None:
        self.size = size
        self.primary = PreparedStatements(setup, threads=size, memory=memory)
        self.memory = memory
        """Memory of all connections together; it may change between two pieces of work."""
        self._setup = setup
        self._secondaries: list[PreparedStatements] = []
        self._create_lock = threading.Lock()
        self._threads: ThreadPool | None = None
        self._equalized_count = 0
        """Number of prepared statements when all connections last had the same ones."""

    def use_primary(self, cores: int | None = None) -> PreparedStatements:
        """Return the primary connection, allowed to use `cores` threads for a statement, by default `size`."""
        self.primary.set_threads(cores or self.size)
        self.primary.set_memory_limit(self.memory.duckdb_bytes)
        return self.primary

    def use_all(self) -> list[PreparedStatements]:
        """Return all connections, with one core each."""
        self.primary.set_threads(1)
        for statements in self._ensure_all():
            statements.set_memory_limit(self.memory.duckdb_bytes // self.size)
        return [self.primary, *self._secondaries]

    def _ensure_all(self) -> list[PreparedStatements]:
        with self._create_lock:
            while len(self._secondaries) < self.size - 1:
                self._secondaries.append(PreparedStatements(self._setup, threads=1, memory=self.memory))
            return [self.primary, *self._secondaries]

    @property
    def prepared_count(self) -> int:
        """Number of statements prepared so far."""
        return sum(statements.prepared_count for statements in (self.primary, *self._secondaries))

    def statement_keys(self) -> frozenset[StatementKey]:
        """Return the statements that at least one connection has prepared."""
        return frozenset(
            key for statements in (self.primary, *self._secondaries) for key in statements.statement_keys()
        )

    def prepare(self, statement: StatementKey) -> None:
        """Prepare a statement on all connections. If that fails, the error is left to the run of the statement."""
        for statements in self._ensure_all():
            with suppress(duckdb.Error):
                statements.prepare(statement)

    def run_on_each(self, work: Callable[[PreparedStatements], None]) -> None:
        """Call `work` once in every thread, with the thread's connection. Raise the first error when all have ended."""
        connections, threads = self.use_all(), self._get_threads()
        if threads is None:
            work(self.primary)
            return
        with short_gil_switch_interval():
            pending = [threads.submit(work, connection) for connection in connections[1:]]
            try:
                work(self.primary)
            finally:
                errors = [error for task in pending if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        if self.prepared_count != self._equalized_count:
            threads.submit(self._equalize_statements)

    def run_in_background(self, work: Callable[[], R]) -> Callable[[], R]:
        """Start `work` in another thread if the pool has one; return a function that waits for the result."""
        threads = self._get_threads()
        if threads is None:
            result = work()
            return lambda: result
        return threads.submit(work).result

    def _get_threads(self) -> ThreadPool | None:
        if self._threads is None and self.size > 1:
            self._threads = ThreadPool(self.size - 1, thread_name_prefix="viewkeeper-batch")
        return self._threads

    def _equalize_statements(self) -> None:
        """Copy prepared statements between the connections, in the background, so that any thread can take any work."""
        for secondary in self._secondaries:
            secondary.copy_statements(self.primary)
            self.primary.copy_statements(secondary)
        self._equalized_count = self.prepared_count

    def map(self, work: Callable[[PreparedStatements, T], R], items: Sequence[T]) -> list[R]:
        """Call `work` for each item, in any free thread; return the results in the order of the items."""
        remaining = iter(enumerate(items))
        results: dict[int, R] = {}

        def drain(statements: PreparedStatements) -> None:
            # `next` of an enumerate over a sequence runs no Python code, so no two threads get the same item.
            for index, item in remaining:
                results[index] = work(statements, item)

        if len(items) > 1:
            self.run_on_each(drain)
        else:
            drain(self.primary)
        return [results[index] for index in range(len(items))]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        for statements in (self.primary, *self._secondaries):
            statements.close()
