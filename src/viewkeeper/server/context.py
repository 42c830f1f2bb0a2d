"""What all requests of a server share: the database, its limits, the hub, and the threads for calls that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from viewkeeper.capture.snapshot import Cancellation, Progress
from viewkeeper.errors import Overloaded, ReadOnly, Timeout
from viewkeeper.server.auth import Keyring
from viewkeeper.server.hub import Hub
from viewkeeper.server.metrics import Metrics
from viewkeeper.server.pinned_snapshots import SnapshotCache
from viewkeeper.sql.query_limits import QueryLimits, StatementStopped
from viewkeeper.store.contract.store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What one client may ask of a server."""

    body: int = 64 << 20
    """Bytes of a request's body, also when it is unpacked and decoded."""
    rows: int = 4_000_000
    """Of a request's body."""
    page: int = 10_000
    """Rows of a page."""
    answer: int = 1_000_000
    """Rows of a SELECT's answer."""
    url: int = 8_192
    headers: int = 32_768
    requests: int = 256
    """At the same time, without subscribers."""
    subscribers: int = 2_000
    connections: int = 4_096
    seconds: float = 30.0
    """For a request, and for each write to a client that reads slowly."""
    receive_seconds: float = 20.0
    """For a request to arrive, headers and body."""
    heartbeat: float = 15.0


@dataclass(frozen=True)
class Settings:
    """How a server was started. `hosts`: names by which it may be called, besides its own addresses."""

    host: str = "127.0.0.1"
    port: int = 8080
    hosts: tuple[str, ...] = ()
    tokens: str | None = None
    read_only: bool = False
    maintain: bool = False
    max_lag: float | None = None
    suspended: str = "count"
    """Whether suspended views count in the lag of /readyz, or are only listed there: "count" or "list"."""
    limits: Limits = field(default_factory=Limits)


class ServerContext:
    """One database being served. Made in the event loop that serves it."""

    def __init__(self, db: Any, settings: Settings) -> None:
        self.db = db
        self.store: Store = db._store
        self.settings, self.limits = settings, settings.limits
        self.loop = asyncio.get_running_loop()
        self.keyring = None if settings.tokens is None else Keyring(settings.tokens)
        self.metrics = Metrics()
        self.snapshots = SnapshotCache(self.store)
        self.hub = Hub(self.store, self.loop)
        self.thread_pool = ThreadPoolExecutor(16, thread_name_prefix="viewkeeper-request")
        self._statement_slots, self._load_slots = asyncio.Semaphore(4), asyncio.Semaphore(2)
        self._running_queries: set[QueryLimits] = set()
        self._lock = threading.Lock()
        self._load_progress: list[dict[str, tuple[int, int]]] = []
        """Of each statement that loads views: what it is at, and how far that is."""
        self.active_requests = 0
        self.subscribers = 0
        """Streams of changes, and pages that watch."""
        self.stopping = threading.Event()
        self._write_event = threading.Event()
        db._writes.on_write = self._write_event.set
        self._waiting_tasks: set[asyncio.Task[Any]] = set()
        self.openapi_json = b"{}"
        """The OpenAPI document."""

    async def run_in_thread(
        self, function: Callable[..., T], *args: Any, seconds: float | None = None, **kwargs: Any
    ) -> T:
        """A call that may wait for disk or locks, in a thread; over time it is given up, though it may still happen."""
        limit = self.limits.seconds if seconds is None else seconds
        future = self.loop.run_in_executor(self.thread_pool, partial(function, *args, **kwargs))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # also when nobody waits any more
        try:
            async with asyncio.timeout(limit):  # wait_for of Python 3.11 may lose that the caller was cancelled
                return await asyncio.shield(future)
        except TimeoutError:
            raise Timeout(
                f"The request was not done within {limit:g} s.", hint="It may still be: look before you repeat it."
            ) from None

    @contextmanager
    def cancel_on_stop(self) -> Iterator[None]:
        """While nothing has been done for a request yet: a server that stops does not wait for it."""
        task = asyncio.current_task()
        if self.stopping.is_set() or task is None:
            raise stopping_error()
        self._waiting_tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self.stopping.is_set():
                raise
            task.uncancel()
            raise stopping_error() from None
        finally:
            self._waiting_tasks.discard(task)

    @contextmanager
    def track_load(self, report_progress: Progress) -> Iterator[Progress]:
        """While a statement runs in its thread: what is to be told how far its load is, which tells `tell` too.

        A server that is stopping ends the load: nothing of it is published, and what was scanned is kept.
        """
        steps: dict[str, tuple[int, int]] = {}

        def told(what: str, done: int, of: int) -> None:
            if self.stopping.is_set():
                raise Cancellation
            with self._lock:
                steps.pop(what, None)
                if done < of:
                    steps[what] = (done, of)
            report_progress(what, done, of)

        with self._lock:
            self._load_progress.append(steps)
        try:
            yield told
        except Cancellation:
            raise stopping_error() from None
        finally:
            with self._lock:
                self._load_progress.remove(steps)

    def running_loads(self) -> list[dict[str, Any]]:
        """What is being loaded, and how far that is."""
        with self._lock:
            steps = [step for loading in self._load_progress for step in loading.items()]
        return [{"what": what, "done": done, "of": of} for what, (done, of) in steps]

    @contextmanager
    def limit_query(self) -> Iterator[QueryLimits]:
        """A statement that is stopped when this is left before its end, or the server stops."""
        leash = QueryLimits(self.limits.answer)
        self._running_queries.add(leash)
        try:
            if self.stopping.is_set():
                raise stopping_error()
            yield leash
        except StatementStopped:
            if self.stopping.is_set():
                raise stopping_error() from None
            raise
        finally:
            self._running_queries.discard(leash)
            leash.stop()

    @asynccontextmanager
    async def statement_slot(self, permission: str) -> AsyncIterator[None]:
        """A statement's turn: a few run at a time, and those that load views do not keep others waiting."""
        turns = self._load_slots if permission == "define" else self._statement_slots
        try:
            with self.cancel_on_stop():
                async with asyncio.timeout(self.limits.seconds):
                    await turns.acquire()
        except TimeoutError:
            raise Overloaded("Other statements are being run.") from None
        try:
            yield
        finally:
            turns.release()

    def wake_after_write(self) -> None:
        """After an answer: who waits for changes is woken if it was a writer's. Before it they would take Python's lock
        from the thread that sends it. Nobody depends on it: they look for changes by themselves, some time later."""
        if self._write_event.is_set():
            self._write_event.clear()
            self.db._writes.wake()
            self.hub.wake()

    def check_writable(self) -> None:
        if self.settings.read_only:
            raise ReadOnly("This server only reads.", hint="It was started with --read-only.")

    def check_subscribers(self) -> None:
        if self.subscribers >= self.limits.subscribers:
            raise Overloaded(f"There are {self.limits.subscribers} subscribers already.")

    @contextmanager
    def count_subscriber(self) -> Iterator[None]:
        """A subscriber counts from its first event on, also while it takes the rows that are there."""
        self.subscribers += 1
        try:
            yield
        finally:
            self.subscribers -= 1

    def stop(self) -> None:
        """End what has not done anything yet, and queries; what is being written goes on. In the event loop."""
        self.stopping.set()
        for task in list(self._waiting_tasks):
            task.cancel()
        for leash in list(self._running_queries):
            self.loop.run_in_executor(None, leash.stop)  # Spark may take a while to cancel its jobs

    def close(self) -> None:
        for leash in list(self._running_queries):
            leash.stop()
        self.db._writes.on_write = self.db._writes.wake
        self.hub.stop()
        self.snapshots.close()
        self.thread_pool.shutdown(wait=True, cancel_futures=True)


def stopping_error() -> Overloaded:
    """What a request is told that the server has not begun, or has taken back, because it stops."""
    return Overloaded("The server is stopping: nothing was done.", hint="Ask again when it is back.")


def shutdown_error() -> Overloaded:
    """What a request is told that was not done within the time that a server has to stop."""
    return Overloaded("The server stopped before this was done.", hint="It may still be: look before you repeat it.")
