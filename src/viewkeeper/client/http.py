"""Kept-alive HTTP/1.1 connections to one server.

    idle connections ──▶ take one ──▶ send head and body ──▶ read the whole answer ──▶ return it to the idle ones
                            │                                          │
                            └─ none, or it was closed: open one        └─ on any error: close it

A server or a proxy may close a connection at the moment when the client takes it. The client then cannot know whether
the server received the request, so it repeats a read on a new connection, and reports a write as lost.

A call has a connection to itself, so calls of several threads run concurrently. A small body is sent in one piece with
its head, a large one without a copy. Redirects, cookies, proxies and compression, which a general HTTP library
supports, are not wanted in a database client, and would cost time in every put and get.
"""

from __future__ import annotations

import io
import os
import select
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, IncompleteRead
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from viewkeeper.errors import BadValue, StoreError
from viewkeeper.resources.fork_guard import owned

# Reading an answer.
#
# Viewkeeper's servers answer a call with a head in one piece, followed by as many bytes as the head states. This module
# parses that form itself, because a parser that creates an object for every header takes most of a short call's time.
# Any other form of HTTP/1.1 (chunks, no length, a head in parts, interim answers) is read by Python's own parser, from
# the first byte on.


_RECEIVE_BYTES = 256 << 10
"""Maximum number of bytes per receive call."""


@dataclass(frozen=True)
class Answer:
    """A complete answer, with header names in lower case. `closes_connection`: the connection cannot be used again."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    closes_connection: bool


def receive_answer(connection: socket.socket, method: str) -> Answer:
    """Receive the answer to a request that was sent."""
    data = connection.recv(_RECEIVE_BYTES)
    found = _parse_simple_head(data)
    if found is None:
        return _read_with_http_client(connection, data, method)
    status, headers, length, parts = found
    missing = length - len(parts[0])
    while missing > 0:
        if not (part := connection.recv(min(missing, _RECEIVE_BYTES))):
            raise IncompleteRead(b"".join(parts), missing)
        parts.append(part)
        missing -= len(part)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    closes = missing < 0 or "close" in headers.get("connection", "").lower()
    return Answer(status, headers, body[:length], closes)


def _parse_simple_head(data: bytes) -> tuple[int, dict[str, str], int, list[bytes]] | None:
    """Status, headers, the body's length and its first bytes; None if the answer does not have the simple form."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or not data.startswith(b"HTTP/1.1 "):
        return None
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    length, status = headers.get("content-length", ""), first[9:12]
    if len(headers) < len(lines) or "transfer-encoding" in headers or not (length.isdecimal() and status.isdecimal()):
        return None
    if status < "200" or status in ("204", "304"):
        return None
    return int(status), headers, int(length), [data[end + 4 :]]


def begin_answer(connection: Any, method: str) -> HTTPResponse:
    """Read an answer's head with Python's parser; the caller reads the body as it arrives."""
    answer = HTTPResponse(connection, method=method)
    try:
        answer.begin()
    except BaseException:
        answer.close()
        raise
    return answer


def _read_with_http_client(connection: socket.socket, data: bytes, method: str) -> Answer:
    answer = begin_answer(_PrefixedConnection(connection, data), method)
    body = answer.read()
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Answer(answer.status, headers, body, answer.will_close)


class _PrefixedConnection(io.RawIOBase):
    """A connection as a file that begins with the bytes which were already received from it."""

    def __init__(self, connection: socket.socket, prefix: bytes) -> None:
        self._connection, self._prefix = connection, prefix
        self._ended = not prefix

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._ended:
            return 0
        if not self._prefix:
            return self._connection.recv_into(buffer)
        size = min(len(buffer), len(self._prefix))
        buffer[:size], self._prefix = self._prefix[:size], self._prefix[size:]
        return size


T = TypeVar("T")
CONNECTION_ERRORS = (OSError, HTTPException, UnicodeError)
"""Errors that mean that a server was not reached, or not to the end. UnicodeError: an invalid host name."""

_MAX_IDLE_SECONDS = 20.0
"""Seconds after which an idle connection is not used again: a server closes it after 30 s, which must not happen while
the next call is on its way."""
_MAX_IDLE_CONNECTIONS = 16
_MAX_JOINED_BODY = 64 << 10
"""Maximum size of a body that is copied, so that it is sent together with its head."""
_STREAM_PIECE_BYTES = 256 << 10
"""Maximum number of bytes that are read from a stream at once."""


class ConnectionPool:
    """The connections of one client. Its methods may be called from any thread."""

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
        self._tls_context = tls_context(verify) if secure else None
        authorization = _bearer_header(token) if token is not None else _basic_header(parts.username, parts.password)
        host = parts.netloc.rpartition("@")[2].encode("idna" if not parts.netloc.isascii() else "ascii")
        self._fixed_headers = b"host: %s\r\n%s" % (host, authorization)
        self._lock = Lock()
        self._idle: list[tuple[socket.socket, float]] | None = []
        """None: closed."""
        owned(self, f"The connections to {url} were made")

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle or [], None
        for connection, _ in idle:
            connection.close()

    def request(self, method: str, path: str, body: Any, headers: Mapping[str, str], seconds: float) -> Answer:
        """The answer to one request. `body`: bytes, or a buffer of them. `seconds`: the timeout of each step."""
        if (idle := self._take_idle(seconds)) is not None:
            try:
                return self._exchange(idle, method, path, body, headers)
            except ConnectionError:
                if method != "GET":
                    raise
        return self._exchange(self._open_connection(seconds), method, path, body, headers)

    def stream(self, path: str, headers: Mapping[str, str], connect: float, read: float) -> Stream:
        """An answer that is read as it arrives, on a connection of its own."""
        connection = self._open_connection(connect)
        try:
            connection.settimeout(read)
            return Stream(connection, self._send_and_read(connection, begin_answer, "GET", path, None, headers))
        except BaseException:
            connection.close()
            raise

    # -- one request ---------------------------------------------------------------------------------------------------

    def _exchange(
        self, connection: socket.socket, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> Answer:
        try:
            answer = self._send_and_read(connection, receive_answer, method, path, body, headers)
        except BaseException:
            connection.close()
            raise
        if answer.closes_connection:
            connection.close()
        else:
            self._return_connection(connection)
        return answer

    def _send_and_read(
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
            # A server that refuses a body sends the reason, and does not read the rest of the body.
            try:
                return read(connection, method)
            except CONNECTION_ERRORS:
                raise error from None
        return read(connection, method)

    def _send(self, connection: socket.socket, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if body is not None:
            lines += f"content-length: {len(body)}\r\n"
        head = b"%s %s HTTP/1.1\r\n%s%s\r\n" % (
            method.encode(),
            (self._path + path).encode("ascii"),
            self._fixed_headers,
            lines.encode("latin-1"),
        )
        together = body is not None and len(body) <= _MAX_JOINED_BODY
        connection.sendall(b"%s%s" % (head, body) if together else head)
        if body is not None and not together:
            connection.sendall(body)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _take_idle(self, seconds: float) -> socket.socket | None:
        """An idle connection that is still open, or None."""
        while True:
            with self._lock:
                if self._idle is None:
                    raise StoreError(f"The client of {self._url} is closed.", hint="Connect again.")
                connection, since = self._idle.pop() if self._idle else (None, 0.0)
            if connection is None:
                return None
            if time.monotonic() - since < _MAX_IDLE_SECONDS and not _is_readable(connection):
                connection.settimeout(seconds)
                return connection
            connection.close()

    def _open_connection(self, seconds: float) -> socket.socket:
        connection = socket.create_connection((self._host, self._port), seconds)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls_context is not None:
                return self._tls_context.wrap_socket(connection, server_hostname=self._host)
        except BaseException:
            connection.close()
            raise
        return connection

    def _return_connection(self, connection: socket.socket) -> None:
        with self._lock:
            if self._idle is not None and len(self._idle) < _MAX_IDLE_CONNECTIONS:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()


class Stream:
    """An answer that is being received. Another thread than the reader may call `end`, which wakes the reader."""

    def __init__(self, connection: socket.socket, answer: HTTPResponse) -> None:
        self.status = answer.status
        self._connection, self._answer = connection, answer

    def pieces(self) -> Iterator[bytes]:
        while piece := self._answer.read1(_STREAM_PIECE_BYTES):
            yield piece

    def read(self) -> bytes:
        return self._answer.read()

    def end(self) -> None:
        with suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def tls_context(verify: Any) -> ssl.SSLContext:
    """The TLS context: trusts known authorities, or those in the file `verify` or in SSL_CERT_FILE."""
    if isinstance(verify, ssl.SSLContext):
        return verify
    file = (
        verify
        if isinstance(verify, str)
        else (os.environ.get("SSL_CERT_FILE") or _authorities_file())
        if verify
        else None
    )
    try:
        context = ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise BadValue(f"The certificates in {file} cannot be used: {error}.", hint="It is a PEM file.") from None
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _authorities_file() -> str | None:
    """The file of known authorities that an HTTP library installed; None: use the system's own."""
    try:
        import certifi
    except ImportError:
        return None
    return certifi.where()


def _is_readable(connection: socket.socket) -> bool:
    """Whether data arrived on an idle connection. No request is open, so that is its end."""
    poller = select.poll() if hasattr(select, "poll") else None
    if poller is None:
        return bool(select.select([connection], [], [], 0)[0])
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(0))


def _bearer_header(token: str) -> bytes:
    if not token.isascii() or not token.isprintable():
        raise BadValue("The token has characters that no token has.", hint="`vk token create` prints one.")
    return f"authorization: Bearer {token}\r\n".encode()


def _basic_header(user: str | None, password: str | None) -> bytes:
    """The header for a proxy that requires a name and a password, if the address contains them."""
    if user is None:
        return b""
    return b"authorization: Basic %s\r\n" % b64encode(f"{unquote(user)}:{unquote(password or '')}".encode())
