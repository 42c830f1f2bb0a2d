"""An answer off a connection.

What our servers say to a call is a head in one piece, and after it as many bytes as the head says: that is read here,
since a parser that makes an object of every header is most of a short call's time. Whatever else HTTP/1.1 allows
(pieces, no length, a head in parts, an answer before the answer) is read by Python's own, from the first byte on.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse, IncompleteRead
from typing import Any

_PIECE = 256 << 10
"""Bytes that are taken off a connection at once."""


@dataclass(frozen=True)
class Answer:
    """A whole answer. Names of headers are in lower case. `ends`: nothing can be asked after it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    ends: bool


def received(connection: socket.socket, method: str) -> Answer:
    """The answer to a request that was sent."""
    begun = connection.recv(_PIECE)
    found = _plain(begun)
    if found is None:
        return _read_by_python(connection, begun, method)
    status, headers, length, parts = found
    missing = length - len(parts[0])
    while missing > 0:
        if not (part := connection.recv(min(missing, _PIECE))):
            raise IncompleteRead(b"".join(parts), missing)
        parts.append(part)
        missing -= len(part)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    ends = missing < 0 or "close" in headers.get("connection", "").lower()
    return Answer(status, headers, body[:length], ends)


def _plain(begun: bytes) -> tuple[int, dict[str, str], int, list[bytes]] | None:
    """Status, headers, the body's length and its beginning; None if it is not so plain."""
    end = begun.find(b"\r\n\r\n")
    if end < 0 or not begun.startswith(b"HTTP/1.1 "):
        return None
    first, *lines = begun[:end].decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    length, status = headers.get("content-length", ""), first[9:12]
    if len(headers) < len(lines) or "transfer-encoding" in headers or not (length.isdecimal() and status.isdecimal()):
        return None
    if status < "200" or status in ("204", "304"):
        return None
    return int(status), headers, int(length), [begun[end + 4 :]]


def answer_of(connection: Any, method: str) -> HTTPResponse:
    """An answer's head, read by Python's own parser, and its body to be read as it comes."""
    answer = HTTPResponse(connection, method=method)
    try:
        answer.begin()
    except BaseException:
        answer.close()
        raise
    return answer


def _read_by_python(connection: socket.socket, begun: bytes, method: str) -> Answer:
    answer = answer_of(_Begun(connection, begun), method)
    body = answer.read()
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Answer(answer.status, headers, body, answer.will_close)


class _Begun(io.RawIOBase):
    """A connection of which some bytes were taken already, as a file that begins with them."""

    def __init__(self, connection: socket.socket, begun: bytes) -> None:
        self._connection, self._begun = connection, begun
        self._ended = not begun

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        if self._ended:
            return 0
        if not self._begun:
            return self._connection.recv_into(into)
        size = min(len(into), len(self._begun))
        into[:size], self._begun = self._begun[:size], self._begun[size:]
        return size
