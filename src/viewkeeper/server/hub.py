"""The hub: one reader of the commits for all subscribers of a process.

    log ──▶ one thread polls for commits ──▶ for each table with subscribers, once: delta ──▶ bytes in each format
                                                                                                     │
            the event loop: the same bytes into the queue of every subscriber ◀──────────────────────┘

A subscriber joins at the position P that the thread has read up to. It reads the changes between its own position and P
from the log, and takes only what comes after P from its queue: no change is lost or duplicated in between. A queue has
a limit in bytes; a subscriber that exceeds it gets the reason and is cut off, and can resume from the log.

The thread also tracks the position at which each table last changed, for the ETags of reads.
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
from viewkeeper.read.subscribe import Delta, Follower, empty_changes, suspension_of
from viewkeeper.resources.poll_backoff import poll_pause
from viewkeeper.server.http.event_formats import ARROW_FORMAT, EventFormat, encode_delta, encode_stream_end
from viewkeeper.store.contract.store import Store

MAX_QUEUE_BYTES = 4 << 20
"""Maximum bytes in the queue of one subscriber, except that a single event always fits."""

_MAX_REMOTE_PAUSE = 0.02
"""Maximum seconds between two polls of a remote store, even if its maintainer polls less often: subscribers wait."""

_IDLE_PAUSE = 0.02
"""Seconds between two polls that no subscriber waits for: each poll takes the GIL from writers."""

_log = logging.getLogger("viewkeeper.server")


class Subscriber:
    """One reader of one table's changes. It belongs to the event loop."""

    def __init__(self, event_format: EventFormat, position: int) -> None:
        self.event_format, self.position = event_format, position
        self.ended = False
        self.reset = False
        """Whether it ended because the view was rebuilt: the subscriber then reads all rows, and subscribes again."""
        self.suspended: Suspension | None = None
        """The suspension that was reported to it."""
        self._events: deque[bytes] = deque()
        self._size = 0
        self._event_ready = asyncio.Event()

    def enqueue(self, data: bytes) -> bool:
        """Queue an event; return False if there is no room for it."""
        if self.ended:
            return True
        if self._events and self._size + len(data) > MAX_QUEUE_BYTES:
            return False
        self._events.append(data)
        self._size += len(data)
        self._event_ready.set()
        return True

    def end(self, data: bytes, *, discard_queue: bool = False) -> None:
        """Queue the last event. `discard_queue`: drop the events before it."""
        if discard_queue:
            self._events.clear()
        self._events.append(data)
        self.ended = True
        self._event_ready.set()

    async def wait_for_events(self) -> bytes:
        """All queued events, at least one; empty when there are no more."""
        if not self._events and not self.ended:
            self._event_ready.clear()
            await self._event_ready.wait()
        found = b"".join(self._events)
        self._events.clear()
        self._size = 0
        return found


@dataclass
class _TableFeed:
    """A table with subscribers. `read_position`: the position that the thread has read up to."""

    follower: Follower
    subscribers: set[Subscriber] = field(default_factory=set)
    sent_position: int = 0
    """The position that subscribers have received, in the event loop."""
    read_position: int = 0

    @property
    def table(self) -> Table:
        return self.follower.table


class Hub:
    """Follows the log of one store."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._loop = store, loop
        self._lock = threading.Lock()
        self._feeds: dict[int, _TableFeed] = {}
        self._stopping = threading.Event()
        self._wake_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="viewkeeper-hub", daemon=True)
        self.head = self._start_position = store.head()
        self._change_positions: dict[int, int] = {}
        self.changed_rows: dict[int, int] = {}
        """Rows changed in each table since this process began, by table id."""
        self._tracks_changes = True
        self._waiters: set[asyncio.Future[None]] = set()
        self.cut_off_count = 0
        self.listeners: list[Callable[[], None]] = []
        """Called in the thread after each poll that found a commit."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake_event.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def wake(self) -> None:
        """Poll now, because this process has committed."""
        self._wake_event.set()

    # -- reads --------------------------------------------------------------------------------------------------------

    def last_change_position(self, table: Table) -> int | None:
        """The position at which a table last changed, for a read that begins now; None if the store cannot tell."""
        if not self._tracks_changes:
            return None
        head = self._store.head()
        if head != self.head:
            with self._lock:
                self._record_changes(head)
        return self._change_positions.get(table.storage_id, self._start_position) if self._tracks_changes else None

    async def wait_for_commit(self, timeout: float) -> None:
        """Wait for a commit, or until the timeout."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        self._wake_event.set()
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)

    # -- subscribers --------------------------------------------------------------------------------------------------

    def subscribe(self, table: Table, event_format: EventFormat, since: int) -> tuple[Subscriber, int]:
        """Add a subscriber; return it and the position P up to which it reads the log itself."""
        with self._lock:
            feed = self._feeds.get(table.id)
            if feed is None:
                position = self._store.settled_position(table)
                suspension = suspension_of(self._store.catalog().find_by_id(table.id))
                feed = self._feeds[table.id] = _TableFeed(
                    Follower(self._store, table, position, suspension), sent_position=position, read_position=position
                )
                self._wake_event.set()
            subscriber = Subscriber(event_format, max(since, feed.read_position))
            subscriber.suspended = feed.follower.reported_suspension
            feed.subscribers.add(subscriber)
            return subscriber, feed.read_position

    def unsubscribe(self, table: Table, subscriber: Subscriber) -> None:
        with self._lock:
            feed = self._feeds.get(table.id)
            if feed is not None:
                feed.subscribers.discard(subscriber)
                if not feed.subscribers:
                    del self._feeds[table.id]

    @property
    def subscribers(self) -> int:
        return sum(len(feed.subscribers) for feed in list(self._feeds.values()))

    def subscribers_by_table(self) -> Mapping[str, int]:
        """The number of subscribers by table."""
        return {feed.table.name: len(feed.subscribers) for feed in list(self._feeds.values())}

    def send_heartbeat(self) -> None:
        """Send every subscriber a progress event with its current position."""
        for feed in list(self._feeds.values()):
            empty = empty_changes(feed.table)
            mark = Delta("progress", feed.table.name, empty, self._token(feed.sent_position), time.time(), feed.table)
            data = {
                event_format: encode_delta(event_format, feed.table, mark) for event_format in _formats_in_use(feed)
            }
            for subscriber in list(feed.subscribers):
                if subscriber.position <= feed.sent_position and subscriber.event_format in data:
                    subscriber.enqueue(data[subscriber.event_format])

    def end_subscriptions(self, reason: str) -> None:
        """End every subscription, with the token to resume from."""
        for feed in list(self._feeds.values()):
            for subscriber in list(feed.subscribers):
                token = self._token(subscriber.position)
                subscriber.end(encode_stream_end(subscriber.event_format, feed.table, None, token, reason))

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        last_commit, read_head = time.monotonic(), self.head
        version = self._store.catalog().version
        while not self._stopping.is_set():
            self._wake_event.clear()
            try:
                head, current = self._store.head(), self._store.catalog()
                if (
                    head != read_head or current.version != version or self._has_unread_commits()
                ):  # a DROP writes no row
                    with self._lock:
                        self._record_changes(head)
                    read_head = head
                    self._read_feeds(current.version != version)
                    version = current.version
                    last_commit = time.monotonic()
                    for listener in self.listeners:
                        listener()
                    self._loop.call_soon_threadsafe(self._notify_waiters)
                    if not self._store.poll_interval:
                        continue  # where the head is a clock, it is different on every poll
            except Exception as error:
                if self._stopping.is_set():
                    return
                _log.warning("The reader of commits failed, and looks again: %s", error)
                time.sleep(0.2)
            waited_for = self._feeds or self._waiters or self.listeners
            pause = poll_pause(time.monotonic() - last_commit) if waited_for else _IDLE_PAUSE
            self._wake_event.wait(max(pause, min(self._store.poll_interval, _MAX_REMOTE_PAUSE)))

    def _has_unread_commits(self) -> bool:
        """Whether a feed has not read up to the head: a reader noted the head first, or the store settles late."""
        feeds = list(self._feeds.values())
        return any(feed.read_position < self._store.settled_position(feed.table) for feed in feeds)

    def _record_changes(self, head: int) -> None:
        """Record which tables changed. The caller holds the lock."""
        if head <= self.head or not self._tracks_changes:
            self.head = max(head, self.head)
            return
        try:
            for table, found in self._store.changed_tables(self.head, head).items():
                self._change_positions[table] = found.position
                self.changed_rows[table] = self.changed_rows.get(table, 0) + found.changed_rows
        except SnapshotGone:  # the log was truncated meanwhile: any table may have changed
            self._change_positions.clear()
            self._start_position = head
        except Unsupported:
            self._tracks_changes = False
        self.head = head

    def _read_feeds(self, catalog_changed: bool) -> None:
        for feed in list(self._feeds.values()):
            try:
                before = feed.table
                if not catalog_changed and self._store.settled_position(before) <= feed.read_position:
                    continue
                found = list(feed.follower.read_new_deltas())
                if feed.table.external_schema != before.external_schema:
                    self._loop.call_soon_threadsafe(
                        self._end_arrow_streams, feed, before, self._token(feed.read_position)
                    )
                for delta in found:
                    if delta.kind == "changes":
                        self._advance(feed, delta.token.position, delta)
                    elif delta.suspended is not None:
                        self._loop.call_soon_threadsafe(self._announce_suspension, feed, delta)
                    else:
                        self._remove_feed(feed)
                        self._loop.call_soon_threadsafe(self._reset_subscribers, feed)
                self._advance(feed, feed.follower.position, None)
            except ViewkeeperError as error:
                self._remove_feed(feed)
                self._loop.call_soon_threadsafe(self._fail_subscribers, feed, error)

    def _remove_feed(self, feed: _TableFeed) -> None:
        with self._lock:
            if self._feeds.get(feed.table.id) is feed:  # and not a feed that was created meanwhile
                del self._feeds[feed.table.id]

    def _advance(self, feed: _TableFeed, position: int, delta: Delta | None) -> None:
        """Move the feed to `position`: new subscribers read the log up to it, existing ones get the event."""
        data: dict[EventFormat, bytes] = {}
        encoded: set[EventFormat] = set()
        while True:
            for event_format in _formats_in_use(feed) - encoded:
                data |= {} if delta is None else {event_format: encode_delta(event_format, feed.table, delta)}
                encoded.add(event_format)
            with self._lock:  # a subscriber with another format may have joined meanwhile, and needs its bytes
                if _formats_in_use(feed) <= encoded:
                    feed.read_position = max(feed.read_position, position)
                    break
        self._loop.call_soon_threadsafe(self._deliver, feed, position, data)

    # -- in the event loop --------------------------------------------------------------------------------------------

    def _deliver(self, feed: _TableFeed, position: int, data: Mapping[EventFormat, bytes]) -> None:
        for subscriber in list(feed.subscribers):
            if position <= subscriber.position or subscriber.ended:
                continue
            found = data.get(subscriber.event_format)
            if found is not None and not subscriber.enqueue(found):
                self.cut_off_count += 1
                reason = "You read more slowly than changes come, and were cut off."
                subscriber.end(
                    encode_stream_end(
                        subscriber.event_format, feed.table, None, self._token(subscriber.position), reason
                    )
                )
                continue
            subscriber.position = position
        feed.sent_position = max(feed.sent_position, position)

    def _announce_suspension(self, feed: _TableFeed, delta: Delta) -> None:
        """Report a suspension to all subscribers that did not learn of it when they joined."""
        data = {event_format: encode_delta(event_format, feed.table, delta) for event_format in _formats_in_use(feed)}
        for subscriber in list(feed.subscribers):
            if not subscriber.ended and subscriber.suspended != delta.suspended:
                subscriber.suspended = delta.suspended
                subscriber.enqueue(data[subscriber.event_format])

    def _reset_subscribers(self, feed: _TableFeed) -> None:
        """Reset the subscribers of a rebuilt view: each reads the rows itself, at its own speed."""
        for subscriber in list(feed.subscribers):
            if not subscriber.ended:
                subscriber.reset = True
                subscriber.end(b"")

    def _end_arrow_streams(self, feed: _TableFeed, old_table: Table, token: Token) -> None:
        """End the Arrow streams after a schema change, because a stream has one schema; the readers subscribe again."""
        for subscriber in list(feed.subscribers):
            if subscriber.event_format == ARROW_FORMAT:
                subscriber.end(encode_stream_end(ARROW_FORMAT, old_table, None, token, "The columns have changed."))

    def _fail_subscribers(self, feed: _TableFeed, error: ViewkeeperError) -> None:
        for subscriber in list(feed.subscribers):
            subscriber.end(
                encode_stream_end(subscriber.event_format, feed.table, error, self._token(subscriber.position))
            )

    def _notify_waiters(self) -> None:
        for waiter in self._waiters:
            with suppress(asyncio.InvalidStateError):
                waiter.set_result(None)
        self._waiters = set()

    def _token(self, position: int) -> Token:
        return Token(self._store.uuid, position)


def _formats_in_use(feed: _TableFeed) -> set[EventFormat]:
    return {subscriber.event_format for subscriber in list(feed.subscribers)}
