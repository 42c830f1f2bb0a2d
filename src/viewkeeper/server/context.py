"""What all requests of a server share: the database, its limits, the hub, and the threads for blocking calls."""

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
    """Limits of a server's clients."""

    body: int = 64 << 20
    """Bytes of a request's body, also after decompression and decoding."""
    rows: int = 4_000_000
    """Rows of a request's body."""
    page: int = 10_000
    """Rows of a page."""
    answer: int = 1_000_000
    """Rows of a SELECT's result."""
    url: int = 8_192
    headers: int = 32_768
    requests: int = 256
    """Concurrent requests, without subscribers."""
    subscribers: int = 2_000
    connections: int = 4_096
    seconds: float = 30.0
    """Seconds for a request, and for each write to a client that reads slowly."""
    receive_seconds: float = 20.0
    """Seconds for a request to arrive, headers and body."""
    heartbeat: float = 15.0


@dataclass(frozen=True)
class Settings:
    """The settings of a server. `hosts`: names by which it may be called, besides its own addresses."""

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
    """One database being served. It must be created in the event loop that serves it."""

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
        """For each statement that loads views: its current steps, and their progress."""
        self.active_requests = 0
        self.subscribers = 0
        """Number of streams of changes, and of pages that watch the status."""
        self.stopping = threading.Event()
        self._write_event = threading.Event()
        db._writes.on_write = self._write_event.set
        self._waiting_tasks: set[asyncio.Task[Any]] = set()
        self.openapi_json = b"{}"
        """The OpenAPI document."""

    async def run_in_thread(
        self, function: Callable[..., T], *args: Any, seconds: float | None = None, **kwargs: Any
    ) -> T:
        """Run a blocking call in a thread. After `seconds` the request fails, though the call may still complete."""
        limit = self.limits.seconds if seconds is None else seconds
        future = self.loop.run_in_executor(self.thread_pool, partial(function, *args, **kwargs))
        future.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # also when no caller waits any more
        try:
            async with asyncio.timeout(limit):  # wait_for of Python 3.11 may lose a cancellation of the caller
                return await asyncio.shield(future)
        except TimeoutError:
            raise Timeout(
                f"The request was not done within {limit:g} s.", hint="It may still be: look before you repeat it."
            ) from None

    @contextmanager
    def cancel_on_stop(self) -> Iterator[None]:
        """For the part of a request that has no effect yet: a stopping server cancels it instead of waiting for it."""
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
        """For a statement that runs in a thread: yields the callback for its load's progress, which records it and
        calls `report_progress`.

        A stopping server cancels the load: nothing of it is published, and what was scanned is kept.
        """
        load_steps: dict[str, tuple[int, int]] = {}

        def record(step: str, done: int, total: int) -> None:
            if self.stopping.is_set():
                raise Cancellation
            with self._lock:
                load_steps.pop(step, None)
                if done < total:
                    load_steps[step] = (done, total)
            report_progress(step, done, total)

        with self._lock:
            self._load_progress.append(load_steps)
        try:
            yield record
        except Cancellation:
            raise stopping_error() from None
        finally:
            with self._lock:
                self._load_progress.remove(load_steps)

    def running_loads(self) -> list[dict[str, Any]]:
        """The loads in progress, and how far they are."""
        with self._lock:
            steps = [step for loading in self._load_progress for step in loading.items()]
        return [{"what": name, "done": done, "of": total} for name, (done, total) in steps]

    @contextmanager
    def limit_query(self) -> Iterator[QueryLimits]:
        """The limits of a statement, which is stopped when the context is left before its end, or the server stops."""
        limits = QueryLimits(self.limits.answer)
        self._running_queries.add(limits)
        try:
            if self.stopping.is_set():
                raise stopping_error()
            yield limits
        except StatementStopped:
            if self.stopping.is_set():
                raise stopping_error() from None
            raise
        finally:
            self._running_queries.discard(limits)
            limits.stop()

    @asynccontextmanager
    async def statement_slot(self, permission: str) -> AsyncIterator[None]:
        """Wait for a slot to run a statement. Statements that load views have slots of their own, so others need not
        wait."""
        slots = self._load_slots if permission == "define" else self._statement_slots
        try:
            with self.cancel_on_stop():
                async with asyncio.timeout(self.limits.seconds):
                    await slots.acquire()
        except TimeoutError:
            raise Overloaded("Other statements are being run.") from None
        try:
            yield
        finally:
            slots.release()

    def wake_after_write(self) -> None:
        """After a reply to a writer, wake the threads that wait for changes. Waking them before the reply would let
        them take the GIL from the thread that sends it. Nothing depends on this call: they also poll."""
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
        """Count a subscriber from its first event on, also while it still receives the existing rows."""
        self.subscribers += 1
        try:
            yield
        finally:
            self.subscribers -= 1

    def stop(self) -> None:
        """Cancel requests without an effect so far, and queries; writes in progress go on. Runs in the event loop."""
        self.stopping.set()
        for task in list(self._waiting_tasks):
            task.cancel()
        for limits in list(self._running_queries):
            self.loop.run_in_executor(None, limits.stop)  # Spark may take a while to cancel its jobs

    def close(self) -> None:
        for limits in list(self._running_queries):
            limits.stop()
        self.db._writes.on_write = self.db._writes.wake
        self.hub.stop()
        self.snapshots.close()
        self.thread_pool.shutdown(wait=True, cancel_futures=True)


def stopping_error() -> Overloaded:
    """The error of a request that a stopping server has not begun, or has cancelled."""
    return Overloaded("The server is stopping: nothing was done.", hint="Ask again when it is back.")


def shutdown_error() -> Overloaded:
    """The error of a request that was not completed within the time that a server has to stop."""
    return Overloaded("The server stopped before this was done.", hint="It may still be: look before you repeat it.")
