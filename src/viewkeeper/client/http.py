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

# An answer off a connection.
#
# What our servers say to a call is a head in one piece, and after it as many bytes as the head says: that is read here,
# since a parser that makes an object of every header is most of a short call's time. Whatever else HTTP/1.1 allows
# (pieces, no length, a head in parts, an answer before the answer) is read by Python's own, from the first byte on.


_RECEIVE_BYTES = 256 << 10
"""Bytes that are taken off a connection at once."""


@dataclass(frozen=True)
class Answer:
    """A whole answer. Names of headers are in lower case. `ends`: nothing can be asked after it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    closes_connection: bool


def receive_answer(connection: socket.socket, method: str) -> Answer:
    """The answer to a request that was sent."""
    begun = connection.recv(_RECEIVE_BYTES)
    found = _parse_simple_head(begun)
    if found is None:
        return _read_with_http_client(connection, begun, method)
    status, headers, length, parts = found
    missing = length - len(parts[0])
    while missing > 0:
        if not (part := connection.recv(min(missing, _RECEIVE_BYTES))):
            raise IncompleteRead(b"".join(parts), missing)
        parts.append(part)
        missing -= len(part)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    ends = missing < 0 or "close" in headers.get("connection", "").lower()
    return Answer(status, headers, body[:length], ends)


def _parse_simple_head(data: bytes) -> tuple[int, dict[str, str], int, list[bytes]] | None:
    """Status, headers, the body's length and its beginning; None if it is not so plain."""
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
    """An answer's head, read by Python's own parser, and its body to be read as it comes."""
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
    """A connection of which some bytes were taken already, as a file that begins with them."""

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
"""What says that a server was not reached, or not to the end. A host's name that is none cannot be written down."""

_MAX_IDLE_SECONDS = 20.0
"""Seconds after which an idle connection is not used again: a server closes it after 30, and must not do so while the
next call is on its way."""
_MAX_IDLE_CONNECTIONS = 16
_MAX_JOINED_BODY = 64 << 10
"""Bytes of a body that are copied, to leave with its head."""
_STREAM_PIECE_BYTES = 256 << 10
"""Bytes of a stream that are taken at once."""


class ConnectionPool:
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
        self._tls_context = tls_context(verify) if secure else None
        who = _bearer_header(token) if token is not None else _basic_header(parts.username, parts.password)
        host = parts.netloc.rpartition("@")[2].encode("idna" if not parts.netloc.isascii() else "ascii")
        self._fixed_headers = b"host: %s\r\n%s" % (host, who)
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
        """The answer to one request. `body`: bytes, or what shows some. `seconds`: for each step on the way."""
        if (kept := self._take_idle(seconds)) is not None:
            try:
                return self._exchange(kept, method, path, body, headers)
            except ConnectionError:
                if method != "GET":
                    raise
        return self._exchange(self._open_connection(seconds), method, path, body, headers)

    def stream(self, path: str, headers: Mapping[str, str], connect: float, read: float) -> Stream:
        """An answer that is read as it comes, on a connection of its own."""
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
            # A server that refuses a body says why, and does not read the rest of it.
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
        """An idle connection that is still open, if there is one."""
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
    """An answer on its way. `end` may be called by another thread than the one that reads, which it wakes."""

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
    """Whose certificates are believed: those of known authorities, or of the file that is given or in SSL_CERT_FILE."""
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
    """The file of known authorities that came with an HTTP library, else the system's own."""
    try:
        import certifi
    except ImportError:
        return None
    return certifi.where()


def _is_readable(connection: socket.socket) -> bool:
    """Whether something came on a connection on which nothing was asked: its end."""
    look = select.poll() if hasattr(select, "poll") else None
    if look is None:
        return bool(select.select([connection], [], [], 0)[0])
    look.register(connection, select.POLLIN)
    return bool(look.poll(0))


def _bearer_header(token: str) -> bytes:
    if not token.isascii() or not token.isprintable():
        raise BadValue("The token has characters that no token has.", hint="`vk token create` prints one.")
    return f"authorization: Bearer {token}\r\n".encode()


def _basic_header(user: str | None, password: str | None) -> bytes:
    """What a proxy that asks for a name and a password is told, where the address has them."""
    if user is None:
        return b""
    return b"authorization: Basic %s\r\n" % b64encode(f"{unquote(user)}:{unquote(password or '')}".encode())
