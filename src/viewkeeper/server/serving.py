"""What all requests of a server share: the database, its limits, the hub, and the threads for calls that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from viewkeeper.capture.snapshot import Progress
from viewkeeper.errors import Overloaded, ReadOnly, Timeout
from viewkeeper.server.hub import Hub
from viewkeeper.server.metrics import Metrics
from viewkeeper.server.pins import Pins
from viewkeeper.server.tokens import Keyring
from viewkeeper.sql.query import TAG
from viewkeeper.store.base import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What one client may ask of a server."""

    body: int = 64 << 20
    """Bytes of a request's body."""
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
    limits: Limits = field(default_factory=Limits)


class Serving:
    """One database being served. Made in the event loop that serves it."""

    def __init__(self, db: Any, settings: Settings) -> None:
        self.db = db
        self.store: Store = db._store
        self.settings, self.limits = settings, settings.limits
        self.loop = asyncio.get_running_loop()
        self.keyring = None if settings.tokens is None else Keyring(settings.tokens)
        self.metrics = Metrics()
        self.pins = Pins(self.store)
        self.hub = Hub(self.store, self.loop)
        self.pool = ThreadPoolExecutor(16, thread_name_prefix="viewkeeper-request")
        self.statements = asyncio.Semaphore(4)
        self.listening: list[Progress] = []
        """Who wants to know how far the load of a view is."""
        self.active = 0
        self.stopping = False
        self.description = b"{}"
        """The OpenAPI document."""

    async def call(self, work: Callable[..., T], *args: Any, seconds: float | None = None, **named: Any) -> T:
        """A call that may wait for disk or locks, in a thread; over time it is given up, though it may still happen."""
        limit = self.limits.seconds if seconds is None else seconds
        future = self.loop.run_in_executor(self.pool, partial(work, *args, **named))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # also when nobody waits any more
        try:
            return await asyncio.wait_for(asyncio.shield(future), limit)
        except TimeoutError:
            raise Timeout(
                f"The request was not done within {limit:g} s.", hint="It may still be: look before you repeat it."
            ) from None

    def progress(self, what: str, done: int, of: int) -> None:
        """The load of a view tells how far it is."""
        for tell in list(self.listening):
            tell(what, done, of)

    def interrupt(self) -> None:
        """End the queries that Spark runs for this server: nobody waits for their answer any more."""
        session = self.db._session
        if session is not None:
            self.pool.submit(session.sparkContext.cancelJobsWithTag, TAG)

    def writable(self) -> None:
        if self.settings.read_only:
            raise ReadOnly("This server only reads.", hint="It was started with --read-only.")

    def take_subscriber(self) -> None:
        if self.hub.subscribers >= self.limits.subscribers:
            raise Overloaded(f"There are {self.limits.subscribers} subscribers already.")

    def close(self) -> None:
        self.hub.stop()
        self.pins.close()
        self.pool.shutdown(wait=True, cancel_futures=True)
