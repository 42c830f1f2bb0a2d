"""A few threads, each with a DuckDB of its own: for many short pieces of work that do not depend on each other.

DuckDB, Arrow and numpy work outside of Python's lock, so two threads are nearly twice as fast on two cores; a DuckDB
connection runs one statement at a time. The first DuckDB does what is done alone, with all threads inside it and all
of the memory that is theirs; together they have a share each.
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
"""Threads that are taken without being asked for: each has a DuckDB of its own, and a share of the memory."""


def default_pool_size() -> int:
    """As many threads as the process may use processors, up to a few."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, _MAX_DEFAULT_THREADS)


_GIL_SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread that waits for Python's lock is given it. What lies between two calls into DuckDB, Arrow
or numpy is mostly shorter; by Python's own 5 ms, who comes back from one waits long for who is between many."""
_interval_lock = module_lock()
_saved_intervals: list[float] = []
"""The interval that was found, once for each crew at work in this process."""


@contextmanager
def short_gil_switch_interval() -> Iterator[None]:
    """While several threads share Python's lock, none keeps it for long."""
    with _interval_lock:
        _saved_intervals.append(_saved_intervals[0] if _saved_intervals else sys.getswitchinterval())
        sys.setswitchinterval(min(_GIL_SWITCH_INTERVAL, _saved_intervals[0]))
    try:
        yield
    finally:
        with _interval_lock:
            found = _saved_intervals.pop()
            if not _saved_intervals:
                sys.setswitchinterval(found)


def _restore_switch_interval() -> None:
    """The crews at work are the parent's."""
    if _saved_intervals:
        sys.setswitchinterval(_saved_intervals[0])
        _saved_intervals.clear()


os.register_at_fork(after_in_child=_restore_switch_interval)


class DuckDBPool:
    """`size` threads, the caller's among them. The others start when they are first needed."""

    def __init__(self, size: int, memory: MemoryBudget, setup: Callable[[Any], None]) -> None:
        self.size = size
        self.primary = PreparedStatements(setup, threads=size, memory=memory)
        self.memory = memory
        """What all of them may take; it may change between two pieces of work."""
        self._setup = setup
        self._secondaries: list[PreparedStatements] = []
        self._create_lock = threading.Lock()
        self._threads: ThreadPool | None = None
        self._equalized_count = 0
        """Statements that were prepared when all knew the same."""

    def use_primary(self, cores: int | None = None) -> PreparedStatements:
        """The first DuckDB, with all cores for one statement, or with so many."""
        self.primary.set_threads(cores or self.size)
        self.primary.set_memory_limit(self.memory.duckdb_bytes)
        return self.primary

    def use_all(self) -> list[PreparedStatements]:
        """All of them, one core each."""
        self.primary.set_threads(1)
        for duck in self._ensure_all():
            duck.set_memory_limit(self.memory.duckdb_bytes // self.size)
        return [self.primary, *self._secondaries]

    def _ensure_all(self) -> list[PreparedStatements]:
        with self._create_lock:
            while len(self._secondaries) < self.size - 1:
                self._secondaries.append(PreparedStatements(self._setup, threads=1, memory=self.memory))
            return [self.primary, *self._secondaries]

    @property
    def prepared_count(self) -> int:
        """How many statements were prepared so far."""
        return sum(duck.prepared_count for duck in (self.primary, *self._secondaries))

    def statement_keys(self) -> frozenset[StatementKey]:
        """The statements that one of them has prepared."""
        return frozenset(
            statement for duck in (self.primary, *self._secondaries) for statement in duck.statement_keys()
        )

    def prepare(self, statement: StatementKey) -> None:
        """Prepare a statement in all of them; one that cannot be is left to whoever runs it."""
        for duck in self._ensure_all():
            with suppress(duckdb.Error):
                duck.prepare(statement)

    def run_on_each(self, work: Callable[[PreparedStatements], None]) -> None:
        """Call `work` once in every thread, with the thread's DuckDB. The first error is raised when all have ended."""
        ducks, threads = self.use_all(), self._get_threads()
        if threads is None:
            work(self.primary)
            return
        with short_gil_switch_interval():
            pending = [threads.submit(work, duck) for duck in ducks[1:]]
            try:
                work(self.primary)
            finally:
                errors = [error for task in pending if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        if self.prepared_count != self._equalized_count:
            threads.submit(self._equalize_statements)

    def run_in_background(self, work: Callable[[], R]) -> Callable[[], R]:
        """Call `work` in another thread, if there is one, beside what the caller does next; gives what waits for it."""
        threads = self._get_threads()
        if threads is None:
            done = work()
            return lambda: done
        return threads.submit(work).result

    def _get_threads(self) -> ThreadPool | None:
        if self._threads is None and self.size > 1:
            self._threads = ThreadPool(self.size - 1, thread_name_prefix="viewkeeper-batch")
        return self._threads

    def _equalize_statements(self) -> None:
        """Beside what comes next: all know the same statements, so it does not matter who takes a piece of work."""
        for duck in self._secondaries:
            duck.copy_statements(self.primary)
            self.primary.copy_statements(duck)
        self._equalized_count = self.prepared_count

    def map(self, work: Callable[[PreparedStatements, T], R], items: Sequence[T]) -> list[R]:
        """`work` for each item, in whichever thread is free; the results in the items' order."""
        waiting = iter(enumerate(items))
        found: dict[int, R] = {}

        def take(duck: PreparedStatements) -> None:
            # `next` of an enumerate over a sequence runs no Python code: no two threads get the same item.
            for place, item in waiting:
                found[place] = work(duck, item)

        if len(items) > 1:
            self.run_on_each(take)
        else:
            take(self.primary)
        return [found[place] for place in range(len(items))]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        for duck in (self.primary, *self._secondaries):
            duck.close()
