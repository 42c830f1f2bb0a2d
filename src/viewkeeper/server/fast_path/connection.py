"""One client connection: its limits, and the fast paths of the most frequent requests.

The number of connections is limited, and the size and time of a request's headers. A plain read by key is answered as
soon as its headers have arrived (`point_read`), a put that arrived in one piece by a writer thread (`put`); every other
request is a task of the application (`app`).
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
from viewkeeper.server.errors import HttpStatusError
from viewkeeper.server.fast_path.point_read import FastPointReads
from viewkeeper.server.fast_path.put import FastPuts

_MAX_BUFFERED_BODY = 1 << 20


class Connection(HttpToolsProtocol):
    """A client's connection, in the event loop."""

    def __init__(
        self, *args: Any, limits: Limits, point_reads: FastPointReads, fast_puts: FastPuts, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits, self._point_reads, self._fast_puts = limits, point_reads, fast_puts
        self._answered_directly = False
        self._header_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True
        self._body_timer: asyncio.TimerHandle | None = None
        self._receiving = False
        self._pending_start: tuple[Any, Any] | None = None
        """A request whose body may be in the bytes being parsed, and the application that would answer it."""
        self._descriptor: int | None = None
        self._descriptor_users = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.close()
            return
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timer()
        self._cancel_body_timer()
        super().connection_lost(exc)
        if not self._descriptor_users:
            self._close_descriptor()

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            if self._header_timer is None:
                self._start_header_timer()
            self._header_bytes += len(data)
            if self._header_bytes > self._limits.headers + self._limits.url and not self._has_header_end(data):
                self._send_error(HttpStatusError(431, f"The headers have more than {self._limits.headers} bytes.", ""))
                return
        self._receiving = True
        try:
            super().data_received(data)
        finally:
            self._receiving = False
        if self._pending_start is not None:
            pending, self._pending_start = self._pending_start, None
            self._start_asgi_task(*pending)

    def _has_header_end(self, data: bytes) -> bool:
        """Whether the headers end in this piece; what follows is the body."""
        return b"\r\n\r\n" in data[: self._limits.headers + self._limits.url]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.url:
            self._send_error(
                HttpStatusError(414, f"The URL has more than {self._limits.url} bytes.", "POST /v1/sql takes more.")
            )

    def on_headers_complete(self) -> None:
        self._cancel_header_timer()
        self._in_headers, self._header_bytes = False, 0
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._send_error(HttpStatusError(400, f"The request has {hosts} Host headers.", "Send one."))
        if self.transport.is_closing() or self._answer_point_read():
            return
        super().on_headers_complete()

    def _answer_point_read(self) -> bool:
        """Answer a plain read by key at once (`point_read`), unless an earlier reply is still in progress."""
        if self.pipeline or not (self.cycle is None or self.cycle.response_complete):
            return False
        parser = self.parser
        if parser.get_method() != b"GET" or not parser.should_keep_alive() or parser.get_http_version() != "1.1":
            return False
        date = b"".join(b"%s: %s\r\n" % header for header in self.server_state.default_headers)
        answer = self._point_reads.answer(self.url, self.headers, date)
        if answer is None:
            return False
        self.transport.write(answer)
        self._answered_directly = True
        return True

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if cycle.scope["method"] == "POST":
            if self._receiving and cycle.more_body:
                self._pending_start = (cycle, app)
                return
            if not cycle.more_body and self._fast_puts.try_start(cycle, self):
                return
        super()._start_asgi_task(cycle, app)

    # -- a put in a writer thread --------------------------------------------------------------------------------------

    def borrow_descriptor(self) -> int | None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size() or self.scheme == "https":
            return None
        if self._descriptor is None:
            try:
                self._descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
            except OSError:  # the process has no more descriptors
                return None
        self._descriptor_users += 1
        return self._descriptor

    def finish_response(self, cycle: Any, unsent: bytes) -> None:
        if unsent:
            self.transport.write(unsent)
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def release_descriptor(self) -> None:
        self._descriptor_users -= 1
        if not self._descriptor_users and self not in self.connections:
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # -- bodies and timeouts -------------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        """Buffer more of a body than uvicorn does before it pauses reading: large puts then take fewer steps."""
        if self.cycle is None or self._answered_directly or self.cycle.response_complete:
            return
        self.cycle.body += body
        if len(self.cycle.body) > _MAX_BUFFERED_BODY:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Limit the time of a body that the reply did not wait for."""
        super().on_response_complete()
        if not self._in_headers and self._body_timer is None:
            self._body_timer = self.loop.call_later(self._limits.receive_seconds, self.transport.close)

    def _cancel_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def on_message_complete(self) -> None:
        self._in_headers = True
        self._cancel_body_timer()
        if self._answered_directly:
            self._answered_directly = False
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif self.cycle is not None:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._send_error(HttpStatusError(400, msg, ""))

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._limits.receive_seconds, self._on_header_timeout)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self._in_headers and (self.cycle is None or self.cycle.response_complete):
            self._send_error(HttpStatusError(408, "The request did not arrive in time.", ""))

    def _send_error(self, error: HttpStatusError) -> None:
        if self.transport.is_closing():
            return
        body = orjson.dumps(errors.problem_document(error))
        head = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        with suppress(OSError):
            self.transport.write(STATUS_LINE[error.status] + head % (errors.MEDIA.encode(), len(body)) + body)
        self.transport.close()
