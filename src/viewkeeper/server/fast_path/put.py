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
from viewkeeper.server.auth import AllowedHosts, is_role_sufficient
from viewkeeper.server.context import ServerContext, shutdown_error
from viewkeeper.server.endpoints import write as endpoints_write
from viewkeeper.server.fast_path.point_read import COMMON_HEADERS
from viewkeeper.server.http.paths import name_of
from viewkeeper.server.http.request import Reply

WRITERS = 4
"""Of a store one writes at a time, or few; who finds them all busy goes the other way, and waits there."""

_OK_RESPONSE = (
    b"HTTP/1.1 200 OK\r\n%s%scontent-type: application/json\r\n" + COMMON_HEADERS + b"%scontent-length: %d\r\n\r\n%s"
)
_UNSUPPORTED_HEADERS = frozenset(
    (
        b"transfer-encoding",
        b"content-encoding",
        b"expect",
        b"upgrade",
        *(c.encode() for c in endpoints_write.PRECONDITION_HEADERS),
    )
)
_log = logging.getLogger("viewkeeper.server")
SendProblem = Callable[[ViewkeeperError, dict[str, Any], Any], Awaitable[int]]
"""Sends a problem: error, scope, send."""


class ClientConnection(Protocol):
    """The connection of a request, in the event loop."""

    def borrow_descriptor(self) -> int | None:
        """What the answer can be written to by another thread; None: by nobody but the event loop."""

    def finish_response(self, cycle: Any, unsent: bytes) -> None:
        """The answer is there, but for its last bytes."""

    def release_descriptor(self) -> None:
        """One writer less has the descriptor."""


class PutRequest:
    """One that is under way. Whoever claims it answers it."""

    def __init__(
        self, table: Table, media: str, cycle: Any, connection: ClientConnection, descriptor: int, writer: _Writer
    ) -> None:
        self.table, self.media, self.cycle = table, media, cycle
        self.connection, self.descriptor, self.writer = connection, descriptor, writer
        self.started = time.perf_counter()
        self.timer: asyncio.TimerHandle | None = None
        self._claim_lock = threading.Lock()

    def claim(self) -> bool:
        return self._claim_lock.acquire(blocking=False)


class FastPuts:
    """Those of one server. All but `_write` and what it calls belongs to the event loop."""

    def __init__(self, context: ServerContext, hosts: AllowedHosts, send_problem: SendProblem) -> None:
        self._context, self._hosts, self._send_problem = context, hosts, send_problem
        self._active_puts: set[PutRequest] = set()
        self._problem_tasks: set[asyncio.Task[None]] = set()
        self._writers = [_Writer(i, self._write) for i in range(WRITERS)]
        self._idle_writers = list(self._writers)
        """The one that was busy last is taken first: what it needs is still near."""

    def try_start(self, cycle: Any, connection: ClientConnection) -> bool:
        """Begin with a request that is there as a whole; False if it is not plain."""
        refused = not self._idle_writers or len(cycle.body) > self._context.limits.body
        found = None if refused else self._match_plain_put(cycle.scope)
        descriptor = None if found is None else connection.borrow_descriptor()
        if found is None or descriptor is None:
            return False
        put = PutRequest(*found, cycle, connection, descriptor, self._idle_writers.pop())
        put.timer = self._context.loop.call_later(self._context.limits.seconds, self._on_timeout, put)
        self._context.active_requests += 1
        self._active_puts.add(put)
        put.writer.queue.put(put)
        return True

    def _match_plain_put(self, scope: Mapping[str, Any]) -> tuple[Table, str] | None:
        """Table and kind of the body, if nothing is wrong or special."""
        serving, parts = self._context, scope["raw_path"].split(b"/")
        if len(parts) != 4 or parts[1] != b"v1" or parts[3] != b"rows" or scope["query_string"]:
            return None
        headers = dict(scope["headers"])
        if not _UNSUPPORTED_HEADERS.isdisjoint(headers) or len(headers) != len(scope["headers"]):
            return None
        if (
            serving.stopping.is_set()
            or serving.active_requests >= serving.limits.requests
            or serving.settings.read_only
        ):
            return None
        try:
            self._hosts.check_request(headers)
            if serving.keyring is not None:
                kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
                if kind.lower() != "bearer" or not is_role_sufficient(serving.keyring.role(token.strip()), "writer"):
                    return None
            media = endpoints_write.body_media_type(headers.get(b"content-type", b"").decode("latin-1"))
            return serving.db._writes.table(name_of(parts[2].decode("ascii")), "put into"), media
        except (ViewkeeperError, UnicodeDecodeError):
            return None

    # -- in a writer's thread ------------------------------------------------------------------------------------------

    def _write(self, put: PutRequest) -> None:
        outcome: bytes | ViewkeeperError | None
        try:
            outcome = self._send_reply(
                put, endpoints_write.put_rows(self._context, put.table, put.media, put.cycle.body)
            )
        except ViewkeeperError as error:
            outcome = error
        except Exception:
            _log.exception("A put failed: %s", put.table.name)
            outcome = errors.server_fault()
        with suppress(RuntimeError):  # the event loop has ended: the server gave up
            self._context.loop.call_soon_threadsafe(self._finish, put, outcome)

    def _send_reply(self, put: PutRequest, reply: Reply) -> bytes | None:
        """What could not be sent of the answer; None if somebody else has answered."""
        if not put.claim():
            return None
        body: Any = reply.body
        cycle = put.cycle
        date = b"".join(b"%s: %s\r\n" % header for header in cycle.default_headers)
        more = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items()).encode()
        ends = b"" if cycle.keep_alive else b"connection: close\r\n"
        answer = _OK_RESPONSE % (date, more, ends, len(body), body)
        try:
            return answer[os.write(put.descriptor, answer) :]
        except BlockingIOError:
            return answer
        except OSError:  # the client has gone, as the event loop will see
            return b""

    # -- in the event loop again ---------------------------------------------------------------------------------------

    def _finish(self, put: PutRequest, outcome: bytes | ViewkeeperError | None) -> None:
        self._idle_writers.append(put.writer)
        self._active_puts.discard(put)
        put.connection.release_descriptor()
        if isinstance(outcome, bytes):
            put.connection.finish_response(put.cycle, outcome)
            self._record_metrics(put, 200)
            self._context.wake_after_write()
        elif outcome is not None and put.claim():
            self._schedule_problem(put, outcome)

    def _on_timeout(self, put: PutRequest) -> None:
        if put.claim():
            limit = f"{self._context.limits.seconds:g} s"
            hint = "It may still be: look before you repeat it."
            self._schedule_problem(put, Timeout(f"The request was not done within {limit}.", hint=hint))

    def _schedule_problem(self, put: PutRequest, error: ViewkeeperError) -> None:
        task = asyncio.create_task(self._report_problem(put, error))
        self._problem_tasks.add(task)
        task.add_done_callback(self._problem_tasks.discard)

    async def _report_problem(self, put: PutRequest, error: ViewkeeperError) -> None:
        self._record_metrics(put, await self._send_problem(error, put.cycle.scope, put.cycle.send))

    def _record_metrics(self, put: PutRequest, status: int) -> None:
        if put.timer is not None:
            put.timer.cancel()
        self._context.active_requests -= 1
        self._context.metrics.request_seconds.observe(time.perf_counter() - put.started)
        self._context.metrics.requests[status // 100].inc()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def abort_active(self) -> None:
        """Answer what was not done within the time that a server has to stop."""
        for put in list(self._active_puts):
            if put.claim():
                self._schedule_problem(put, shutdown_error())
        if self._problem_tasks:
            await asyncio.wait(self._problem_tasks)

    def close(self) -> None:
        """End the writers, each with what it is at. From any thread but theirs."""
        for writer in self._writers:
            writer.queue.put(None)
        for writer in self._writers:
            writer.thread.join()


class _Writer:
    """A thread that does what it is given, one put after another."""

    def __init__(self, number: int, write: Callable[[PutRequest], None]) -> None:
        self.queue: SimpleQueue[PutRequest | None] = SimpleQueue()
        self._write = write
        self.thread = threading.Thread(target=self._run, name=f"viewkeeper-put-{number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (put := self.queue.get()) is not None:
            self._write(put)
