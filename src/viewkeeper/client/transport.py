"""Kept-alive HTTP/1.1 connections to one server.

    idle connections ──▶ one is taken ──▶ head and body sent ──▶ the answer read whole ──▶ back to the idle ones
                            │                                          │
                            └─ none, or it was closed: a new one       └─ anything goes wrong: closed

A server or a proxy may close a connection at the moment at which it is taken. Whether what was asked then has been
heard nobody knows, so a read is asked once more, on a new connection, and a write is told as lost.

A call has a connection to itself, so that calls of many threads go side by side. A small body leaves in one piece with
its head, a large one without a copy. What a general HTTP library does beyond that (redirects, cookies, proxies,
compression) the client of a database must not do, and would pay for with every put and get.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from viewkeeper.client.answers import Answer, answer_of, received
from viewkeeper.errors import BadValue, StoreError
from viewkeeper.store.inherited import owned

T = TypeVar("T")
LOST = (OSError, HTTPException, UnicodeError)
"""What says that a server was not reached, or not to the end. A host's name that is none cannot be written down."""

_KEPT = 20.0
"""Seconds after which an idle connection is not used again: a server closes it after 30, and must not do so while the
next call is on its way."""
_IDLE = 16
_TOGETHER = 64 << 10
"""Bytes of a body that are copied, to leave with its head."""
_PIECE = 256 << 10
"""Bytes of a stream that are taken at once."""


class Connections:
    """Those of one client. Its methods may be called from any thread."""

    def __init__(self, url: str, token: str | None, verify: Any) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        try:
            self._host, self._port = parts.hostname or "", parts.port or (443 if secure else 80)
        except ValueError:
            raise BadValue(f"The port in {url!r} is none.", hint="Write http://HOST:PORT.") from None
        if not self._host:
            raise BadValue(f"{url!r} names no host.", hint="Write http://HOST:PORT.")
        self._url, self._path = url, parts.path.rstrip("/")
        self._context = trusted(verify) if secure else None
        who = _bearer(token) if token is not None else _basic(parts.username, parts.password)
        host = parts.netloc.rpartition("@")[2].encode("idna" if not parts.netloc.isascii() else "ascii")
        self._fixed = b"host: %s\r\n%s" % (host, who)
        self._lock = Lock()
        self._idle: list[tuple[socket.socket, float]] | None = []
        """None: closed."""
        owned(self, f"The connections to {url} were made")

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle or [], None
        for connection, _ in idle:
            connection.close()

    def ask(self, method: str, path: str, body: Any, headers: Mapping[str, str], seconds: float) -> Answer:
        """The answer to one request. `body`: bytes, or what shows some. `seconds`: for each step on the way."""
        if (kept := self._taken(seconds)) is not None:
            try:
                return self._answered(kept, method, path, body, headers)
            except ConnectionError:
                if method != "GET":
                    raise
        return self._answered(self._made(seconds), method, path, body, headers)

    def stream(self, path: str, headers: Mapping[str, str], connect: float, read: float) -> Stream:
        """An answer that is read as it comes, on a connection of its own."""
        connection = self._made(connect)
        try:
            connection.settimeout(read)
            return Stream(connection, self._asked(connection, answer_of, "GET", path, None, headers))
        except BaseException:
            connection.close()
            raise

    # -- one request ---------------------------------------------------------------------------------------------------

    def _answered(
        self, connection: socket.socket, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> Answer:
        try:
            answer = self._asked(connection, received, method, path, body, headers)
        except BaseException:
            connection.close()
            raise
        if answer.ends:
            connection.close()
        else:
            self._keep(connection)
        return answer

    def _asked(
        self,
        connection: socket.socket,
        read: Callable[[socket.socket, str], T],
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str],
    ) -> T:
        try:
            self._send(connection, method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError) as error:
            # A server that refuses a body says why, and does not read the rest of it.
            try:
                return read(connection, method)
            except LOST:
                raise error from None
        return read(connection, method)

    def _send(self, connection: socket.socket, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if body is not None:
            lines += f"content-length: {len(body)}\r\n"
        head = b"%s %s HTTP/1.1\r\n%s%s\r\n" % (
            method.encode(),
            (self._path + path).encode("ascii"),
            self._fixed,
            lines.encode("latin-1"),
        )
        together = body is not None and len(body) <= _TOGETHER
        connection.sendall(b"%s%s" % (head, body) if together else head)
        if body is not None and not together:
            connection.sendall(body)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _taken(self, seconds: float) -> socket.socket | None:
        """An idle connection that is still open, if there is one."""
        while True:
            with self._lock:
                if self._idle is None:
                    raise StoreError(f"The client of {self._url} is closed.", hint="Connect again.")
                connection, since = self._idle.pop() if self._idle else (None, 0.0)
            if connection is None:
                return None
            if time.monotonic() - since < _KEPT and not _readable(connection):
                connection.settimeout(seconds)
                return connection
            connection.close()

    def _made(self, seconds: float) -> socket.socket:
        connection = socket.create_connection((self._host, self._port), seconds)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                return self._context.wrap_socket(connection, server_hostname=self._host)
        except BaseException:
            connection.close()
            raise
        return connection

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            if self._idle is not None and len(self._idle) < _IDLE:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()


class Stream:
    """An answer on its way. `end` may be called by another thread than the one that reads, which it wakes."""

    def __init__(self, connection: socket.socket, answer: HTTPResponse) -> None:
        self.status = answer.status
        self._connection, self._answer = connection, answer

    def pieces(self) -> Iterator[bytes]:
        while piece := self._answer.read1(_PIECE):
            yield piece

    def read(self) -> bytes:
        return self._answer.read()

    def end(self) -> None:
        with suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def trusted(verify: Any) -> ssl.SSLContext:
    """Whose certificates are believed: those of known authorities, or of the file that is given or in SSL_CERT_FILE."""
    if isinstance(verify, ssl.SSLContext):
        return verify
    file = (
        verify if isinstance(verify, str) else (os.environ.get("SSL_CERT_FILE") or _authorities()) if verify else None
    )
    try:
        context = ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise BadValue(f"The certificates in {file} cannot be used: {error}.", hint="It is a PEM file.") from None
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _authorities() -> str | None:
    """The file of known authorities that came with an HTTP library, else the system's own."""
    try:
        import certifi
    except ImportError:
        return None
    return certifi.where()


def _readable(connection: socket.socket) -> bool:
    """Whether something came on a connection on which nothing was asked: its end."""
    look = select.poll() if hasattr(select, "poll") else None
    if look is None:
        return bool(select.select([connection], [], [], 0)[0])
    look.register(connection, select.POLLIN)
    return bool(look.poll(0))


def _bearer(token: str) -> bytes:
    if not token.isascii() or not token.isprintable():
        raise BadValue("The token has characters that no token has.", hint="`vk token create` prints one.")
    return f"authorization: Bearer {token}\r\n".encode()


def _basic(user: str | None, password: str | None) -> bytes:
    """What a proxy that asks for a name and a password is told, where the address has them."""
    if user is None:
        return b""
    return b"authorization: Basic %s\r\n" % b64encode(f"{unquote(user)}:{unquote(password or '')}".encode())
