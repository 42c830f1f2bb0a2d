"""One reader of the commits for all subscribers of a process.

    log ──▶ one thread: what changed since? ──▶ for each table with subscribers, once: delta ──▶ bytes of each form
                                                                                                     │
            the event loop: the same bytes into the queue of every subscriber ◀──────────────────────┘

A subscriber joins at the position P that the thread has read up to, reads what lies between its own position and P
by itself, and takes from its queue only what comes after P: nothing is lost between, nothing comes twice. A queue has a
limit in bytes; who is over it is told so and cut off, and resumes from the log when it can.

The thread also keeps the position at which each table last changed, which is what reads are tagged with.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from viewkeeper.errors import SnapshotGone, Unsupported, ViewkeeperError
from viewkeeper.model.catalog.view import Suspension
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.subscribe import Delta, Follower, no_changes, suspension_of
from viewkeeper.resources.poll_backoff import pause_after
from viewkeeper.server.http.event_formats import ARROW_FORM, Form, encode, ending
from viewkeeper.store.contract.store import Store

QUEUE_BYTES = 4 << 20
"""What may wait for one subscriber, unless it is a single event."""

_REMOTE = 0.02
"""Seconds between two looks at a store elsewhere, which its maintainer may look at less often: subscribers wait."""

_UNASKED = 0.02
"""Seconds between two looks that nobody waits for: each takes Python's lock from who writes."""

_log = logging.getLogger("viewkeeper.server")


class Subscriber:
    """One reader of one table's changes. All of it belongs to the event loop."""

    def __init__(self, form: Form, after: int) -> None:
        self.form, self.after = form, after
        self.ended = False
        self.reset = False
        """Whether it ended because the view was made anew: the subscriber reads all rows, and joins again."""
        self.suspended: Suspension | None = None
        """The suspension that it was told of."""
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()

    def give(self, data: bytes) -> bool:
        """Queue an event; False if there is no room for it."""
        if self.ended:
            return True
        if self._queue and self._size + len(data) > QUEUE_BYTES:
            return False
        self._queue.append(data)
        self._size += len(data)
        self._news.set()
        return True

    def end(self, data: bytes, *, drop: bool = False) -> None:
        """The last event. `drop`: what waits is forgotten."""
        if drop:
            self._queue.clear()
        self._queue.append(data)
        self.ended = True
        self._news.set()

    async def taken(self) -> bytes:
        """All that waits, at least one event; empty when there is no more."""
        if not self._queue and not self.ended:
            self._news.clear()
            await self._news.wait()
        found = b"".join(self._queue)
        self._queue.clear()
        self._size = 0
        return found


@dataclass
class _Feed:
    """A table that somebody subscribed to. `at`: what was read up to, by the thread."""

    follower: Follower
    subscribers: set[Subscriber] = field(default_factory=set)
    sent: int = 0
    """The position that subscribers have, in the event loop."""
    at: int = 0

    @property
    def table(self) -> Table:
        return self.follower.table


class Hub:
    """Follows the log of one store."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._loop = store, loop
        self._lock = threading.Lock()
        self._feeds: dict[int, _Feed] = {}
        self._stopping = threading.Event()
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="viewkeeper-hub", daemon=True)
        self.head = self._began = store.head()
        self._changed: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        """Rows changed in each table since this process began, by id."""
        self._knows = True
        self._waiters: set[asyncio.Future[None]] = set()
        self.cut_off = 0
        self.listeners: list[Callable[[], None]] = []
        """Called in the thread after each look that found something."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def wake(self) -> None:
        """Something was committed in this process."""
        self._news.set()

    # -- reads --------------------------------------------------------------------------------------------------------

    def changed_at(self, table: Table) -> int | None:
        """The position at which a table last changed, for a read that begins now; None if the store cannot say."""
        if not self._knows:
            return None
        head = self._store.head()
        if head != self.head:
            with self._lock:
                self._note(head)
        return self._changed.get(table.home, self._began) if self._knows else None

    async def news(self, timeout: float) -> None:
        """Wait until something was committed, or the time is over."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        self._news.set()
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)

    # -- subscribers --------------------------------------------------------------------------------------------------

    def join(self, table: Table, form: Form, since: int) -> tuple[Subscriber, int]:
        """A new subscriber, and the position P up to which it reads by itself."""
        with self._lock:
            feed = self._feeds.get(table.id)
            if feed is None:
                at = self._store.settled(table)
                told = suspension_of(self._store.catalog().of(table.id))
                feed = self._feeds[table.id] = _Feed(Follower(self._store, table, at, told), sent=at, at=at)
                self._news.set()
            subscriber = Subscriber(form, max(since, feed.at))
            subscriber.suspended = feed.follower.told
            feed.subscribers.add(subscriber)
            return subscriber, feed.at

    def leave(self, table: Table, subscriber: Subscriber) -> None:
        with self._lock:
            feed = self._feeds.get(table.id)
            if feed is not None:
                feed.subscribers.discard(subscriber)
                if not feed.subscribers:
                    del self._feeds[table.id]

    @property
    def subscribers(self) -> int:
        return sum(len(feed.subscribers) for feed in list(self._feeds.values()))

    def subscribed(self) -> Mapping[str, int]:
        """Subscribers by table."""
        return {feed.table.name: len(feed.subscribers) for feed in list(self._feeds.values())}

    def beat(self) -> None:
        """A sign of life to every subscriber, with the position it has by now."""
        for feed in list(self._feeds.values()):
            nothing = no_changes(feed.table)
            mark = Delta("progress", feed.table.name, nothing, self._token(feed.sent), time.time(), feed.table)
            data = {form: encode(form, feed.table, mark) for form in _forms(feed)}
            for subscriber in list(feed.subscribers):
                if subscriber.after <= feed.sent and subscriber.form in data:
                    subscriber.give(data[subscriber.form])

    def say_goodbye(self, reason: str) -> None:
        """End every subscription, and say where to resume."""
        for feed in list(self._feeds.values()):
            for subscriber in list(feed.subscribers):
                at = self._token(subscriber.after)
                subscriber.end(ending(subscriber.form, feed.table, None, at, reason))

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        heard, seen = time.monotonic(), self.head
        version = self._store.catalog().version
        while not self._stopping.is_set():
            self._news.clear()
            try:
                head, current = self._store.head(), self._store.catalog()
                if head != seen or current.version != version or self._behind():  # a DROP writes no row
                    with self._lock:
                        self._note(head)
                    seen = head
                    self._read(current.version != version)
                    version = current.version
                    heard = time.monotonic()
                    for listener in self.listeners:
                        listener()
                    self._loop.call_soon_threadsafe(self._told)
                    if not self._store.look_pause:
                        continue  # where the head is a clock it is always another one
            except Exception as error:
                if self._stopping.is_set():
                    return
                _log.warning("The reader of commits failed, and looks again: %s", error)
                time.sleep(0.2)
            waited_for = self._feeds or self._waiters or self.listeners
            pause = pause_after(time.monotonic() - heard) if waited_for else _UNASKED
            self._news.wait(max(pause, min(self._store.look_pause, _REMOTE)))

    def _behind(self) -> bool:
        """Whether a feed has not read up to the head: somebody else noted it first, or the store settles late."""
        feeds = list(self._feeds.values())
        return any(feed.at < self._store.settled(feed.table) for feed in feeds)

    def _note(self, head: int) -> None:
        """Which tables changed. Under the lock."""
        if head <= self.head or not self._knows:
            self.head = max(head, self.head)
            return
        try:
            for table, found in self._store.touched(self.head, head).items():
                self._changed[table] = found.position
                self.rows[table] = self.rows.get(table, 0) + found.rows
        except SnapshotGone:  # the log was cut meanwhile: anything may have changed
            self._changed.clear()
            self._began = head
        except Unsupported:
            self._knows = False
        self.head = head

    def _read(self, catalog_changed: bool) -> None:
        for feed in list(self._feeds.values()):
            try:
                before = feed.table
                if not catalog_changed and self._store.settled(before) <= feed.at:
                    continue
                found = list(feed.follower.news())
                if feed.table.outside != before.outside:
                    self._loop.call_soon_threadsafe(self._reshaped, feed, before, self._token(feed.at))
                for delta in found:
                    if delta.kind == "changes":
                        self._advance(feed, delta.token.position, delta)
                    elif delta.suspended is not None:
                        self._loop.call_soon_threadsafe(self._announce, feed, delta)
                    else:
                        self._forget(feed)
                        self._loop.call_soon_threadsafe(self._restart, feed)
                self._advance(feed, feed.follower.at, None)
            except ViewkeeperError as error:
                self._forget(feed)
                self._loop.call_soon_threadsafe(self._broken, feed, error)

    def _forget(self, feed: _Feed) -> None:
        with self._lock:
            if self._feeds.get(feed.table.id) is feed:  # and not one that somebody has begun meanwhile
                del self._feeds[feed.table.id]

    def _advance(self, feed: _Feed, position: int, delta: Delta | None) -> None:
        """From here on a new subscriber reads by itself up to `position`; those that are there are handed the event."""
        data: dict[Form, bytes] = {}
        encoded: set[Form] = set()
        while True:
            for form in _forms(feed) - encoded:
                data |= {} if delta is None else {form: encode(form, feed.table, delta)}
                encoded.add(form)
            with self._lock:  # somebody may have joined with another form meanwhile: not without its bytes
                if _forms(feed) <= encoded:
                    feed.at = max(feed.at, position)
                    break
        self._loop.call_soon_threadsafe(self._hand_out, feed, position, data)

    # -- in the event loop --------------------------------------------------------------------------------------------

    def _hand_out(self, feed: _Feed, position: int, data: Mapping[Form, bytes]) -> None:
        for subscriber in list(feed.subscribers):
            if position <= subscriber.after or subscriber.ended:
                continue
            found = data.get(subscriber.form)
            if found is not None and not subscriber.give(found):
                self.cut_off += 1
                reason = "You read more slowly than changes come, and were cut off."
                subscriber.end(ending(subscriber.form, feed.table, None, self._token(subscriber.after), reason))
                continue
            subscriber.after = position
        feed.sent = max(feed.sent, position)

    def _announce(self, feed: _Feed, delta: Delta) -> None:
        """The view was suspended: to all that were not told of it when they joined."""
        data = {form: encode(form, feed.table, delta) for form in _forms(feed)}
        for subscriber in list(feed.subscribers):
            if not subscriber.ended and subscriber.suspended != delta.suspended:
                subscriber.suspended = delta.suspended
                subscriber.give(data[subscriber.form])

    def _restart(self, feed: _Feed) -> None:
        """The view was made anew: each reads its rows by itself, as slowly as it likes."""
        for subscriber in list(feed.subscribers):
            if not subscriber.ended:
                subscriber.reset = True
                subscriber.end(b"")

    def _reshaped(self, feed: _Feed, before: Table, at: Token) -> None:
        """An Arrow stream has one schema: its readers come again."""
        for subscriber in list(feed.subscribers):
            if subscriber.form == ARROW_FORM:
                subscriber.end(ending(ARROW_FORM, before, None, at, "The columns have changed."))

    def _broken(self, feed: _Feed, error: ViewkeeperError) -> None:
        for subscriber in list(feed.subscribers):
            subscriber.end(ending(subscriber.form, feed.table, error, self._token(subscriber.after)))

    def _told(self) -> None:
        for waiter in self._waiters:
            with suppress(asyncio.InvalidStateError):
                waiter.set_result(None)
        self._waiters = set()

    def _token(self, position: int) -> Token:
        return Token(self._store.uuid, position)


def _forms(feed: _Feed) -> set[Form]:
    return {subscriber.form for subscriber in list(feed.subscribers)}
