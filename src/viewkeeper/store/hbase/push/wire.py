"""A connection of the push protocol: both sides prove that they know the secret, then every frame carries a code.

    receiver     r: 16 random bytes
    caller       "VKP1", e: 16 random bytes, n: 2 bytes, n bytes of text "role server peer epoch" (one a line),
                 HMAC(secret, "E" r e text)
    receiver     HMAC(secret, "R" r e)
    frame        length: 4 bytes, body, first 16 bytes of HMAC(key, side number body)

HMAC is SHA-256, key is HMAC(secret, "S" r e), side is "E" or "R", number (8 bytes) counts each side's frames from 0.
`java/viewkeeper/push/Wire.java` is the caller in a region server.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import ssl
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass

LARGEST = 16 << 20
"""Bytes of a frame that is taken. The endpoint sends a quarter of it at most."""

_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP
_LOOK = 1000
"""Milliseconds between two looks whether a connection was closed here."""
_MAGIC = b"VKP1"
_CODE = 16
_HELLO = 4096


class Refused(Exception):
    """The other side does not speak as it should: the connection is of no use."""


@dataclass(frozen=True)
class Caller:
    """Who called: what for (`data`, `control`, `reach`), which region server, and for which life of which peer."""

    role: str
    server: str
    peer: str
    epoch: str


class Wire:
    """An open connection after its greeting. One thread sends and one receives at a time."""

    def __init__(self, sock: socket.socket, key: bytes, ours: bytes, theirs: bytes) -> None:
        self._socket, self._key, self._ours, self._theirs = sock, key, ours, theirs
        self._sent = self._received = 0
        self._sending = threading.Lock()

    def send(self, body: bytes) -> None:
        with self._sending:
            code = self._code(self._ours, self._sent, body)
            self._sent += 1
            self._socket.sendall(struct.pack(">I", len(body)) + body + code)

    def receive(self) -> bytes:
        (length,) = struct.unpack(">I", exactly(self._socket, 4))
        if not 1 <= length <= LARGEST:
            raise Refused(f"a frame of {length} bytes")
        body = exactly(self._socket, length)
        code = self._code(self._theirs, self._received, body)
        if not hmac.compare_digest(code, exactly(self._socket, _CODE)):
            raise Refused("a frame whose code is wrong")
        self._received += 1
        return body

    def wait_for_end(self) -> None:
        """Return when the other side has closed the connection, or this one has."""
        poll = select.poll()
        try:
            poll.register(self._socket, _HANGUP)
            while not poll.poll(_LOOK):
                if self._socket.fileno() < 0:
                    return
        except (OSError, ValueError):  # it was closed just now
            return

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _code(self, side: bytes, number: int, body: bytes) -> bytes:
        mac = hmac.new(self._key, side + struct.pack(">Q", number), "sha256")
        mac.update(body)
        return mac.digest()[:_CODE]


def answer(sock: socket.socket, secret: bytes) -> tuple[Wire, Caller]:
    """The receiver's side of a greeting; Refused if the caller does not know the secret."""
    ours = os.urandom(16)
    sock.sendall(ours)
    if exactly(sock, 4) != _MAGIC:
        raise Refused("no caller of this protocol")
    theirs = exactly(sock, 16)
    (length,) = struct.unpack(">H", exactly(sock, 2))
    if length > _HELLO:
        raise Refused(f"a greeting of {length} bytes")
    text = exactly(sock, length)
    if not hmac.compare_digest(exactly(sock, 32), _hmac(secret, b"E", ours, theirs, text)):
        raise Refused("a caller that does not know the secret")
    said = text.decode(errors="replace").split("\n")
    if len(said) != 4:
        raise Refused("a greeting that says something else")
    sock.sendall(_hmac(secret, b"R", ours, theirs))
    return Wire(sock, _hmac(secret, b"S", ours, theirs), b"R", b"E"), Caller(*said)


def call(
    address: tuple[str, int], secret: bytes, caller: Caller, *, timeout: float, tls: ssl.SSLContext | None = None
) -> Wire:
    """The caller's side. OSError or Refused if nobody is there who knows the secret."""
    sock = socket.create_connection(address, timeout=timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=address[0])
        theirs, ours = exactly(sock, 16), os.urandom(16)
        text = "\n".join((caller.role, caller.server, caller.peer, caller.epoch)).encode()
        proof = _hmac(secret, b"E", theirs, ours, text)
        sock.sendall(_MAGIC + ours + struct.pack(">H", len(text)) + text + proof)
        if not hmac.compare_digest(exactly(sock, 32), _hmac(secret, b"R", theirs, ours)):
            raise Refused("whoever listens there does not know the secret")
        return Wire(sock, _hmac(secret, b"S", theirs, ours), b"E", b"R")
    except BaseException:
        sock.close()
        raise


def exactly(sock: socket.socket, length: int) -> bytes:
    """So many bytes; EOFError if the other side ends before."""
    got = bytearray(length)
    view, at = memoryview(got), 0
    while at < length:
        count = sock.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return bytes(got)


def _hmac(secret: bytes, what: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, what + b"".join(parts), "sha256").digest()
