"""The short way of a put whose request came in one piece.

    event loop   who, and into which table? whatever is not plain goes the way that all requests go (`app`)
         │       wakes a writer
         ▼
    writer       rows, the write call, and the answer into the socket
         │       tells the event loop
         ▼
    event loop   the connection goes on; who waits for changes is woken

So the answer is out after one change of threads, without a task or a second wait for Python's lock. Nobody else writes
to a connection between a request and its answer; the writer has a descriptor of its own, which stays what it is when
the connection is lost. An error is told by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

from viewkeeper.errors import Timeout, ViewkeeperError
from viewkeeper.model.schema import Table
from viewkeeper.server import errors
from viewkeeper.server.auth import Hosts, allows
from viewkeeper.server.context import Serving, given_up
from viewkeeper.server.endpoints import write as endpoints_write
from viewkeeper.server.fast_path.point_read import SAME
from viewkeeper.server.http.paths import name_of
from viewkeeper.server.http.request import Reply

WRITERS = 4
"""Of a store one writes at a time, or few; who finds them all busy goes the other way, and waits there."""

_FOUND = b"HTTP/1.1 200 OK\r\n%s%scontent-type: application/json\r\n" + SAME + b"%scontent-length: %d\r\n\r\n%s"
_NOT_PLAIN = frozenset(
    (
        b"transfer-encoding",
        b"content-encoding",
        b"expect",
        b"upgrade",
        *(c.encode() for c in endpoints_write.CONDITIONS),
    )
)
_log = logging.getLogger("viewkeeper.server")
Tell = Callable[[ViewkeeperError, dict[str, Any], Any], Awaitable[int]]
"""Sends a problem: error, scope, send."""


class Connected(Protocol):
    """The connection of a request, in the event loop."""

    def descriptor(self) -> int | None:
        """What the answer can be written to by another thread; None: by nobody but the event loop."""

    def answered(self, cycle: Any, rest: bytes) -> None:
        """The answer is there, but for its last bytes."""

    def let_go(self) -> None:
        """One writer less has the descriptor."""


class Put:
    """One that is under way. Whoever claims it answers it."""

    def __init__(
        self, table: Table, media: str, cycle: Any, connected: Connected, descriptor: int, writer: _Writer
    ) -> None:
        self.table, self.media, self.cycle = table, media, cycle
        self.connected, self.descriptor, self.writer = connected, descriptor, writer
        self.started = time.perf_counter()
        self.timer: asyncio.TimerHandle | None = None
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        return self._claimed.acquire(blocking=False)


class Puts:
    """Those of one server. All but `_write` and what it calls belongs to the event loop."""

    def __init__(self, serving: Serving, hosts: Hosts, tell: Tell) -> None:
        self._serving, self._hosts, self._tell = serving, hosts, tell
        self._underway: set[Put] = set()
        self._telling: set[asyncio.Task[None]] = set()
        self._writers = [_Writer(i, self._write) for i in range(WRITERS)]
        self._idle = list(self._writers)
        """The one that was busy last is taken first: what it needs is still near."""

    def take(self, cycle: Any, connected: Connected) -> bool:
        """Begin with a request that is there as a whole; False if it is not plain."""
        refused = not self._idle or len(cycle.body) > self._serving.limits.body
        found = None if refused else self._plain(cycle.scope)
        descriptor = None if found is None else connected.descriptor()
        if found is None or descriptor is None:
            return False
        put = Put(*found, cycle, connected, descriptor, self._idle.pop())
        put.timer = self._serving.loop.call_later(self._serving.limits.seconds, self._late, put)
        self._serving.active += 1
        self._underway.add(put)
        put.writer.given.put(put)
        return True

    def _plain(self, scope: Mapping[str, Any]) -> tuple[Table, str] | None:
        """Table and kind of the body, if nothing is wrong or special."""
        serving, parts = self._serving, scope["raw_path"].split(b"/")
        if len(parts) != 4 or parts[1] != b"v1" or parts[3] != b"rows" or scope["query_string"]:
            return None
        headers = dict(scope["headers"])
        if not _NOT_PLAIN.isdisjoint(headers) or len(headers) != len(scope["headers"]):
            return None
        if serving.stopping.is_set() or serving.active >= serving.limits.requests or serving.settings.read_only:
            return None
        try:
            self._hosts.check(headers)
            if serving.keyring is not None:
                kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
                if kind.lower() != "bearer" or not allows(serving.keyring.role(token.strip()), "writer"):
                    return None
            media = endpoints_write.media_of(headers.get(b"content-type", b"").decode("latin-1"))
            return serving.db._writes.table(name_of(parts[2].decode("ascii")), "put into"), media
        except (ViewkeeperError, UnicodeDecodeError):
            return None

    # -- in a writer's thread ------------------------------------------------------------------------------------------

    def _write(self, put: Put) -> None:
        outcome: bytes | ViewkeeperError | None
        try:
            outcome = self._sent(put, endpoints_write.put_rows(self._serving, put.table, put.media, put.cycle.body))
        except ViewkeeperError as error:
            outcome = error
        except Exception:
            _log.exception("A put failed: %s", put.table.name)
            outcome = errors.unexpected()
        with suppress(RuntimeError):  # the event loop has ended: the server gave up
            self._serving.loop.call_soon_threadsafe(self._done, put, outcome)

    def _sent(self, put: Put, reply: Reply) -> bytes | None:
        """What could not be sent of the answer; None if somebody else has answered."""
        if not put.claim():
            return None
        body: Any = reply.body
        cycle = put.cycle
        date = b"".join(b"%s: %s\r\n" % header for header in cycle.default_headers)
        more = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items()).encode()
        ends = b"" if cycle.keep_alive else b"connection: close\r\n"
        answer = _FOUND % (date, more, ends, len(body), body)
        try:
            return answer[os.write(put.descriptor, answer) :]
        except BlockingIOError:
            return answer
        except OSError:  # the client has gone, as the event loop will see
            return b""

    # -- in the event loop again ---------------------------------------------------------------------------------------

    def _done(self, put: Put, outcome: bytes | ViewkeeperError | None) -> None:
        self._idle.append(put.writer)
        self._underway.discard(put)
        put.connected.let_go()
        if isinstance(outcome, bytes):
            put.connected.answered(put.cycle, outcome)
            self._count(put, 200)
            self._serving.answered()
        elif outcome is not None and put.claim():
            self._refuse(put, outcome)

    def _late(self, put: Put) -> None:
        if put.claim():
            limit = f"{self._serving.limits.seconds:g} s"
            hint = "It may still be: look before you repeat it."
            self._refuse(put, Timeout(f"The request was not done within {limit}.", hint=hint))

    def _refuse(self, put: Put, error: ViewkeeperError) -> None:
        task = asyncio.create_task(self._told(put, error))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _told(self, put: Put, error: ViewkeeperError) -> None:
        self._count(put, await self._tell(error, put.cycle.scope, put.cycle.send))

    def _count(self, put: Put, status: int) -> None:
        if put.timer is not None:
            put.timer.cancel()
        self._serving.active -= 1
        self._serving.metrics.seconds.observe(time.perf_counter() - put.started)
        self._serving.metrics.requests[status // 100].inc()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def give_up(self) -> None:
        """Answer what was not done within the time that a server has to stop."""
        for put in list(self._underway):
            if put.claim():
                self._refuse(put, given_up())
        if self._telling:
            await asyncio.wait(self._telling)

    def close(self) -> None:
        """End the writers, each with what it is at. From any thread but theirs."""
        for writer in self._writers:
            writer.given.put(None)
        for writer in self._writers:
            writer.thread.join()


class _Writer:
    """A thread that does what it is given, one put after another."""

    def __init__(self, number: int, write: Callable[[Put], None]) -> None:
        self.given: SimpleQueue[Put | None] = SimpleQueue()
        self._write = write
        self.thread = threading.Thread(target=self._run, name=f"viewkeeper-put-{number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (put := self.given.get()) is not None:
            self._write(put)
