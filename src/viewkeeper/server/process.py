"""The process of `vk serve`: sockets, the limits of a connection, and how it ends.

SIGTERM and Ctrl-C:

    1  no new connection; subscribers are told where to resume
    2  what has not begun (half a body, a wait for a batch or a turn) and queries end at once: 503; what is being
       written or sent ends within a time
    3  the batch in work finishes, or never happened; the lease is released
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from viewkeeper.errors import BadValue, StoreError
from viewkeeper.server import events, problems
from viewkeeper.server.app import App
from viewkeeper.server.changes import keep_alive
from viewkeeper.server.hosts import is_loopback
from viewkeeper.server.point import Point
from viewkeeper.server.problems import Refused
from viewkeeper.server.serving import Limits, Serving, Settings

GRACE_SECONDS = 10
KEEP_ALIVE_SECONDS = 30
_BODY_AHEAD = 1 << 20
_SWITCH_SECONDS = 0.0005
"""How long a thread may keep Python's lock while others want it: a batch must not hold up reads by key."""
Ready = Callable[[str, Callable[[], None]], None]
_log = logging.getLogger("viewkeeper.server")


def serve(
    db: Any,
    settings: Settings,
    *,
    certificate: tuple[str, str] | None = None,
    ready: Ready | None = None,
    maintenance: dict[str, Any] | None = None,
) -> None:
    """Serve a database until the process is told to stop. `ready` is given the server's address, and what stops it."""
    if settings.tokens is None and not is_loopback(settings.host):
        raise BadValue(
            f"Without tokens the server listens on this machine only, not on {settings.host}.",
            hint="Give --tokens FILE; `vk token create` makes one.",
        )
    sys.setswitchinterval(_SWITCH_SECONDS)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what goes wrong here is logged by us
    listening = _listen(settings.host, settings.port)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(db, settings, listening, certificate, ready, maintenance or {}))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(1024)
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(f"Cannot listen on {host}:{port}: {reason}.", hint="Choose another --listen.") from None
    return found


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # a system that it is not made for
        return None
    return uvloop.new_event_loop


async def _serve(
    db: Any,
    settings: Settings,
    listening: socket.socket,
    certificate: tuple[str, str] | None,
    ready: Ready | None,
    maintenance: dict[str, Any],
) -> None:
    serving = Serving(db, settings)
    app = App(serving)
    server = _Server(_config(app, settings.limits, certificate), app, listening, certificate is not None, ready)
    serving.hub.start()
    beside = [asyncio.create_task(keep_alive(serving)), asyncio.create_task(app.pulse.run())]
    try:
        if settings.maintain:
            db.maintain(on_batch=lambda _: serving.hub.wake(), **maintenance)
        await server.serve(sockets=[listening])
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, serving.close)


def _config(app: App, limits: Limits, certificate: tuple[str, str] | None) -> uvicorn.Config:
    def protocol(*args: Any, **named: Any) -> Guarded:
        return Guarded(*args, limits=limits, point=app.point, **named)

    config = uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    if certificate is not None:
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(*certificate)
        except (OSError, ssl.SSLError) as error:
            raise BadValue(f"The certificate or its key cannot be used: {error}.", hint="Both are PEM files.") from None
        config.load()
        config.ssl = context
    return config


class _Server(uvicorn.Server):
    """Says goodbye to subscribers before it waits for them."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: App,
        listening: socket.socket,
        secure: bool,
        ready: Ready | None,
    ) -> None:
        super().__init__(config)
        self._app, self._ready = app, ready
        host, port = listening.getsockname()[:2]
        self._address = f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self._ready is not None:
            self._ready(self._address, self.stop)

    def stop(self) -> None:
        """End as after SIGTERM; from any thread."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.serving.stop()
        self._app.serving.hub.say_goodbye(events.STOPPING)
        self._app.pulse.say_goodbye("The server is stopping.")
        await super().shutdown(sockets=sockets)


class Guarded(HttpToolsProtocol):
    """A connection with limits: on their number, and on the size and the time of a request's headers."""

    def __init__(self, *args: Any, limits: Limits, point: Point, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits, self._point = limits, point
        self._answered = False
        self._waiting: asyncio.TimerHandle | None = None
        self._size = 0
        self._in_headers = True
        self._for_the_rest: asyncio.TimerHandle | None = None

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

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            if self._waiting is None:
                self._wait_for_headers()
            self._size += len(data)
            if self._size > self._limits.headers + self._limits.url and not self._ends(data):
                self._refuse(Refused(431, f"The headers have more than {self._limits.headers} bytes.", ""))
                return
        super().data_received(data)

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
        body = orjson.dumps(problems.document(error))
        head = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        with suppress(OSError):
            self.transport.write(STATUS_LINE[error.status] + head % (problems.MEDIA.encode(), len(body)) + body)
        self.transport.close()
