"""The fast path of a put whose request arrived in one piece.

    event loop   check token, table, headers; any request that is not plain goes to the application (`app`)
         │       wake a writer thread
         ▼
    writer       decode the rows, run the write call, send the reply
         │       notify the event loop
         ▼
    event loop   continue the connection; wake the threads that wait for changes

The reply is thus sent after one thread switch, without a task or a second wait for the GIL. No other thread writes to a
connection between a request and its reply; the writer has a duplicate of the descriptor, which stays valid when the
connection is lost. The event loop sends an error.
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
"""Number of writer threads. A store has one concurrent write, or a few; if all threads are busy, the application
takes the request, and waits there."""

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
        """A descriptor that another thread may write the reply to; None: only the event loop may send."""

    def finish_response(self, cycle: Any, unsent: bytes) -> None:
        """Finish the response after all but the bytes `unsent` were sent."""

    def release_descriptor(self) -> None:
        """Release the descriptor of one writer."""


class PutRequest:
    """A put in progress. The thread that claims it sends the reply."""

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
    """The puts of one server. All but `_write` and what it calls runs in the event loop."""

    def __init__(self, context: ServerContext, hosts: AllowedHosts, send_problem: SendProblem) -> None:
        self._context, self._hosts, self._send_problem = context, hosts, send_problem
        self._active_puts: set[PutRequest] = set()
        self._problem_tasks: set[asyncio.Task[None]] = set()
        self._writers = [_Writer(i, self._write) for i in range(WRITERS)]
        self._idle_writers = list(self._writers)
        """The thread that was busy last is taken first: its data is still in the caches."""

    def try_start(self, cycle: Any, connection: ClientConnection) -> bool:
        """Start a put that arrived in one piece; return False if the application must answer it."""
        is_busy_or_large = not self._idle_writers or len(cycle.body) > self._context.limits.body
        found = None if is_busy_or_large else self._match_plain_put(cycle.scope)
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
        """The table and the body's media type, if the request is plain and valid; None otherwise."""
        context, parts = self._context, scope["raw_path"].split(b"/")
        if len(parts) != 4 or parts[1] != b"v1" or parts[3] != b"rows" or scope["query_string"]:
            return None
        headers = dict(scope["headers"])
        if not _UNSUPPORTED_HEADERS.isdisjoint(headers) or len(headers) != len(scope["headers"]):
            return None
        if (
            context.stopping.is_set()
            or context.active_requests >= context.limits.requests
            or context.settings.read_only
        ):
            return None
        try:
            self._hosts.check_request(headers)
            if context.keyring is not None:
                kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
                if kind.lower() != "bearer" or not is_role_sufficient(context.keyring.role(token.strip()), "writer"):
                    return None
            media = endpoints_write.body_media_type(headers.get(b"content-type", b"").decode("latin-1"))
            return context.db._writes.table(name_of(parts[2].decode("ascii")), "put into"), media
        except (ViewkeeperError, UnicodeDecodeError):
            return None

    # -- in a writer thread --------------------------------------------------------------------------------------------

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
        with suppress(RuntimeError):  # the event loop has ended: the server stopped waiting
            self._context.loop.call_soon_threadsafe(self._finish, put, outcome)

    def _send_reply(self, put: PutRequest, reply: Reply) -> bytes | None:
        """Send the reply and return the bytes that could not be sent; None if another thread has claimed the put."""
        if not put.claim():
            return None
        body: Any = reply.body
        cycle = put.cycle
        date = b"".join(b"%s: %s\r\n" % header for header in cycle.default_headers)
        headers = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items()).encode()
        connection_header = b"" if cycle.keep_alive else b"connection: close\r\n"
        answer = _OK_RESPONSE % (date, headers, connection_header, len(body), body)
        try:
            return answer[os.write(put.descriptor, answer) :]
        except BlockingIOError:
            return answer
        except OSError:  # the client has disconnected; the event loop will notice
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

    # -- shutdown ------------------------------------------------------------------------------------------------------

    async def abort_active(self) -> None:
        """Send an error for every put that was not done within the time that a server has to stop."""
        for put in list(self._active_puts):
            if put.claim():
                self._schedule_problem(put, shutdown_error())
        if self._problem_tasks:
            await asyncio.wait(self._problem_tasks)

    def close(self) -> None:
        """End the writer threads after their current put. Must not be called from a writer thread."""
        for writer in self._writers:
            writer.queue.put(None)
        for writer in self._writers:
            writer.thread.join()


class _Writer:
    """A thread that runs puts one after the other."""

    def __init__(self, number: int, write: Callable[[PutRequest], None]) -> None:
        self.queue: SimpleQueue[PutRequest | None] = SimpleQueue()
        self._write = write
        self.thread = threading.Thread(target=self._run, name=f"viewkeeper-put-{number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (put := self.queue.get()) is not None:
            self._write(put)
