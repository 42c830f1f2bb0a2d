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

from viewkeeper.model.threads import Threads
from viewkeeper.resources.fork_guard import module_lock
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck, Known

T = TypeVar("T")
R = TypeVar("R")


_MOST = 8
"""Threads that are taken without being asked for: each has a DuckDB of its own, and a share of the memory."""


def usual_size() -> int:
    """As many threads as the process may use processors, up to a few."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, _MOST)


_TURN = 0.0005
"""Seconds after which a thread that waits for Python's lock is given it. What lies between two calls into DuckDB, Arrow
or numpy is mostly shorter; by Python's own 5 ms, who comes back from one waits long for who is between many."""
_turning = module_lock()
_usual: list[float] = []
"""The interval that was found, once for each crew at work in this process."""


@contextmanager
def short_turns() -> Iterator[None]:
    """While several threads share Python's lock, none keeps it for long."""
    with _turning:
        _usual.append(_usual[0] if _usual else sys.getswitchinterval())
        sys.setswitchinterval(min(_TURN, _usual[0]))
    try:
        yield
    finally:
        with _turning:
            found = _usual.pop()
            if not _usual:
                sys.setswitchinterval(found)


def _after_fork() -> None:
    """The crews at work are the parent's."""
    if _usual:
        sys.setswitchinterval(_usual[0])
        _usual.clear()


os.register_at_fork(after_in_child=_after_fork)


class Crew:
    """`size` threads, the caller's among them. The others start when they are first needed."""

    def __init__(self, size: int, memory: Memory, setup: Callable[[Any], None]) -> None:
        self.size = size
        self.first = Duck(setup, threads=size, memory=memory)
        self.memory = memory
        """What all of them may take; it may change between two pieces of work."""
        self._setup = setup
        self._others: list[Duck] = []
        self._making = threading.Lock()
        self._threads: Threads | None = None
        self._evened = 0
        """Statements that were prepared when all knew the same."""

    def alone(self, cores: int | None = None) -> Duck:
        """The first DuckDB, with all cores for one statement, or with so many."""
        self.first.spread(cores or self.size)
        self.first.limit(self.memory.ducks)
        return self.first

    def together(self) -> list[Duck]:
        """All of them, one core each."""
        self.first.spread(1)
        for duck in self._all():
            duck.limit(self.memory.ducks // self.size)
        return [self.first, *self._others]

    def _all(self) -> list[Duck]:
        with self._making:
            while len(self._others) < self.size - 1:
                self._others.append(Duck(self._setup, threads=1, memory=self.memory))
            return [self.first, *self._others]

    @property
    def made(self) -> int:
        """How many statements were prepared so far."""
        return sum(duck.made for duck in (self.first, *self._others))

    def known(self) -> frozenset[Known]:
        """The statements that one of them has prepared."""
        return frozenset(statement for duck in (self.first, *self._others) for statement in duck.known())

    def prepare(self, statement: Known) -> None:
        """Prepare a statement in all of them; one that cannot be is left to whoever runs it."""
        for duck in self._all():
            with suppress(duckdb.Error):
                duck.prepare(statement)

    def each(self, work: Callable[[Duck], None]) -> None:
        """Call `work` once in every thread, with the thread's DuckDB. The first error is raised when all have ended."""
        ducks, threads = self.together(), self._pool()
        if threads is None:
            work(self.first)
            return
        with short_turns():
            pending = [threads.submit(work, duck) for duck in ducks[1:]]
            try:
                work(self.first)
            finally:
                errors = [error for task in pending if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        if self.made != self._evened:
            threads.submit(self._even)

    def beside(self, work: Callable[[], R]) -> Callable[[], R]:
        """Call `work` in another thread, if there is one, beside what the caller does next; gives what waits for it."""
        threads = self._pool()
        if threads is None:
            done = work()
            return lambda: done
        return threads.submit(work).result

    def _pool(self) -> Threads | None:
        if self._threads is None and self.size > 1:
            self._threads = Threads(self.size - 1, thread_name_prefix="viewkeeper-batch")
        return self._threads

    def _even(self) -> None:
        """Beside what comes next: all know the same statements, so it does not matter who takes a piece of work."""
        for duck in self._others:
            duck.learn(self.first)
            self.first.learn(duck)
        self._evened = self.made

    def map(self, work: Callable[[Duck, T], R], items: Sequence[T]) -> list[R]:
        """`work` for each item, in whichever thread is free; the results in the items' order."""
        waiting = iter(enumerate(items))
        found: dict[int, R] = {}

        def take(duck: Duck) -> None:
            # `next` of an enumerate over a sequence runs no Python code: no two threads get the same item.
            for place, item in waiting:
                found[place] = work(duck, item)

        if len(items) > 1:
            self.each(take)
        else:
            take(self.first)
        return [found[place] for place in range(len(items))]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        for duck in (self.first, *self._others):
            duck.close()
