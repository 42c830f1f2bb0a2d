"""One connection: its limits, and the short ways of what is asked most.

Limits are on the number of connections, and on the size and the time of a request's headers. A plain read by key is
answered as soon as its headers are there (`point`), a put that is there as a whole by a writer's thread (`puts`);
everything else is a task of the application (`app`).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from viewkeeper.server import errors
from viewkeeper.server.context import Limits
from viewkeeper.server.errors import Refused
from viewkeeper.server.fast_path.point_read import Point
from viewkeeper.server.fast_path.put import Puts

_BODY_AHEAD = 1 << 20


class Connection(HttpToolsProtocol):
    """A client's connection, in the event loop."""

    def __init__(self, *args: Any, limits: Limits, point: Point, puts: Puts, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits, self._point, self._puts = limits, point, puts
        self._answered = False
        self._waiting: asyncio.TimerHandle | None = None
        self._size = 0
        self._in_headers = True
        self._for_the_rest: asyncio.TimerHandle | None = None
        self._receiving = False
        self._begun: tuple[Any, Any] | None = None
        """A request whose body may be in the bytes that are being looked at, and who would answer it."""
        self._descriptor: int | None = None
        self._lent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.close()
            return
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._has_the_rest()
        super().connection_lost(exc)
        if not self._lent:
            self._close_descriptor()

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            if self._waiting is None:
                self._wait_for_headers()
            self._size += len(data)
            if self._size > self._limits.headers + self._limits.url and not self._ends(data):
                self._refuse(Refused(431, f"The headers have more than {self._limits.headers} bytes.", ""))
                return
        self._receiving = True
        try:
            super().data_received(data)
        finally:
            self._receiving = False
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._start_asgi_task(*begun)

    def _ends(self, data: bytes) -> bool:
        """Whether the headers end in this piece; what follows is body."""
        return b"\r\n\r\n" in data[: self._limits.headers + self._limits.url]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.url:
            self._refuse(Refused(414, f"The URL has more than {self._limits.url} bytes.", "POST /v1/sql takes more."))

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._in_headers, self._size = False, 0
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._refuse(Refused(400, f"The request has {hosts} Host headers.", "Send one."))
        if self.transport.is_closing() or self._short_way():
            return
        super().on_headers_complete()

    def _short_way(self) -> bool:
        """Answer a plain read by key at once (`point`), unless an answer before it is still being made."""
        if self.pipeline or not (self.cycle is None or self.cycle.response_complete):
            return False
        parser = self.parser
        if parser.get_method() != b"GET" or not parser.should_keep_alive() or parser.get_http_version() != "1.1":
            return False
        date = b"".join(b"%s: %s\r\n" % header for header in self.server_state.default_headers)
        answer = self._point.answer(self.url, self.headers, date)
        if answer is None:
            return False
        self.transport.write(answer)
        self._answered = True
        return True

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if cycle.scope["method"] == "POST":
            if self._receiving and cycle.more_body:
                self._begun = (cycle, app)
                return
            if not cycle.more_body and self._puts.take(cycle, self):
                return
        super()._start_asgi_task(cycle, app)

    # -- a put in a writer's thread ------------------------------------------------------------------------------------

    def descriptor(self) -> int | None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size() or self.scheme == "https":
            return None
        if self._descriptor is None:
            try:
                self._descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
            except OSError:  # there are no more of them
                return None
        self._lent += 1
        return self._descriptor

    def answered(self, cycle: Any, rest: bytes) -> None:
        if rest:
            self.transport.write(rest)
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def let_go(self) -> None:
        self._lent -= 1
        if not self._lent and self not in self.connections:
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # -- the rest ------------------------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        """More of a body is taken before its reader is waited for than uvicorn does: large puts come in fewer steps."""
        if self.cycle is None or self._answered or self.cycle.response_complete:
            return
        self.cycle.body += body
        if len(self.cycle.body) > _BODY_AHEAD:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """A body that nobody wanted must end as well, in its time."""
        super().on_response_complete()
        if not self._in_headers and self._for_the_rest is None:
            self._for_the_rest = self.loop.call_later(self._limits.receive_seconds, self.transport.close)

    def _has_the_rest(self) -> None:
        if self._for_the_rest is not None:
            self._for_the_rest.cancel()
            self._for_the_rest = None

    def on_message_complete(self) -> None:
        self._in_headers = True
        self._has_the_rest()
        if self._answered:
            self._answered = False
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif self.cycle is not None:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refused(400, msg, ""))

    def _wait_for_headers(self) -> None:
        self._waiting = self.loop.call_later(self._limits.receive_seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _too_slow(self) -> None:
        self._waiting = None
        if self._in_headers and (self.cycle is None or self.cycle.response_complete):
            self._refuse(Refused(408, "The request did not arrive in time.", ""))

    def _refuse(self, error: Refused) -> None:
        if self.transport.is_closing():
            return
        body = orjson.dumps(errors.document(error))
        head = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        with suppress(OSError):
            self.transport.write(STATUS_LINE[error.status] + head % (errors.MEDIA.encode(), len(body)) + body)
        self.transport.close()
