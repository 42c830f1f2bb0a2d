"""The process of `vk serve`: its listener, and its shutdown.

SIGTERM and Ctrl-C:

    1  refuse new connections; tell subscribers where to resume
    2  end at once, with 503, what has not begun (half a body, a wait for a batch or a slot) and queries; what is being
       written or sent gets a limited time
    3  finish or discard the batch in progress; release the lease
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any

import uvicorn

from viewkeeper.errors import BadValue, StoreError
from viewkeeper.server.app import App
from viewkeeper.server.auth import is_loopback
from viewkeeper.server.context import Limits, ServerContext, Settings
from viewkeeper.server.endpoints.changes import send_heartbeats
from viewkeeper.server.fast_path.connection import Connection
from viewkeeper.server.http import event_formats

GRACE_SECONDS = 10
KEEP_ALIVE_SECONDS = 30
_GIL_SWITCH_INTERVAL = 0.0005
"""Seconds for which a thread may hold the GIL while others want it: a batch must not hold up reads by key."""
OnReady = Callable[[str, Callable[[], None]], None]
_log = logging.getLogger("viewkeeper.server")


def serve(
    db: Any,
    settings: Settings,
    *,
    certificate: tuple[str, str] | None = None,
    on_ready: OnReady | None = None,
    maintenance: dict[str, Any] | None = None,
) -> None:
    """Serve a database until the process is stopped. `on_ready` gets the server's address, and a function to stop
    it."""
    if settings.tokens is None and not is_loopback(settings.host):
        raise BadValue(
            f"Without tokens the server listens on this machine only, not on {settings.host}.",
            hint="Give --tokens FILE; `vk token create` makes one.",
        )
    sys.setswitchinterval(_GIL_SWITCH_INTERVAL)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # this package logs the errors itself
    listening = _open_listener(settings.host, settings.port)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(db, settings, listening, certificate, on_ready, maintenance or {}))


def _open_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(f"Cannot listen on {host}:{port}: {reason}.", hint="Choose another --listen.") from None
    return listener


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # uvloop does not support this system
        return None
    return uvloop.new_event_loop


async def _serve(
    db: Any,
    settings: Settings,
    listener: socket.socket,
    certificate: tuple[str, str] | None,
    on_ready: OnReady | None,
    maintenance: dict[str, Any],
) -> None:
    context = ServerContext(db, settings)
    app = App(context)
    server = _Server(_config(app, settings.limits, certificate), app, listener, certificate is not None, on_ready)
    context.hub.start()
    background_tasks = [asyncio.create_task(send_heartbeats(context)), asyncio.create_task(app.status_feed.run())]
    try:
        if settings.maintain:
            db.maintain(on_batch=lambda _: context.hub.wake(), **maintenance)
        await server.serve(sockets=[listener])
    finally:
        for task in background_tasks:
            task.cancel()
        await asyncio.gather(*background_tasks, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, app.fast_puts.close)
        await asyncio.get_running_loop().run_in_executor(None, context.close)


def _config(app: App, limits: Limits, certificate: tuple[str, str] | None) -> uvicorn.Config:
    def protocol(*args: Any, **named: Any) -> Connection:
        return Connection(*args, limits=limits, point_reads=app.point_reads, fast_puts=app.fast_puts, **named)

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
    """A server that ends its subscriptions before it waits for open connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: App,
        listener: socket.socket,
        is_secure: bool,
        on_ready: OnReady | None,
    ) -> None:
        super().__init__(config)
        self._app, self._on_ready = app, on_ready
        host, port = listener.getsockname()[:2]
        self._address = f"{'https' if is_secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self._on_ready is not None:
            self._on_ready(self._address, self.stop)

    def stop(self) -> None:
        """Stop as after SIGTERM. Any thread may call it."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.context.stop()
        self._app.context.hub.end_subscriptions(event_formats.STOPPING_REASON)
        self._app.status_feed.end_streams("The server is stopping.")
        await super().shutdown(sockets=sockets)
        await self._app.fast_puts.abort_active()
