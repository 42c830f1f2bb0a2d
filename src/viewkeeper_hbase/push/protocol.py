"""The push protocol: a handshake in which both sides prove that they know the secret, then authenticated frames.

    receiver     r: 16 random bytes
    caller       "VKP1", e: 16 random bytes, n: 2 bytes, n bytes of text "role server peer epoch" (one a line),
                 HMAC(secret, "E" r e text)
    receiver     HMAC(secret, "R" r e)
    frame        length: 4 bytes, body, first 16 bytes of HMAC(key, side number body)

HMAC is SHA-256, key is HMAC(secret, "S" r e), side is "E" or "R", number (8 bytes) counts each side's frames from
0. `java/viewkeeper/push/Wire.java` is the caller in a region server.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MAX_FRAME_BYTES = 16 << 20
"""Maximum length of an accepted frame, in bytes. The endpoint sends at most a quarter of it."""

_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP
_POLL_MILLISECONDS = 1000
"""Milliseconds between two checks whether this side has closed the connection."""
_MAGIC = b"VKP1"
_CODE_BYTES = 16
_MAX_GREETING_BYTES = 4096


class ProtocolError(Exception):
    """The other side violates the protocol; the connection must be closed."""


@dataclass(frozen=True)
class Caller:
    """The caller's role (`data`, `control` or `reach`), its region server, the peer, and the epoch (life) of the
    peer."""

    role: str
    server: str
    peer: str
    epoch: str


class PushConnection:
    """An open connection after the handshake. At most one thread sends and one receives at a time."""

    def __init__(self, sock: socket.socket, key: bytes, own_side: bytes, peer_side: bytes) -> None:
        self._socket, self._key, self._own_side, self._peer_side = sock, key, own_side, peer_side
        self._sent_frames = self._received_frames = 0
        self._send_lock = threading.Lock()

    def send(self, body: bytes) -> None:
        with self._send_lock:
            code = self._frame_code(self._own_side, self._sent_frames, body)
            self._sent_frames += 1
            self._socket.sendall(struct.pack(">I", len(body)) + body + code)

    def receive(self) -> bytes:
        (length,) = struct.unpack(">I", receive_exactly(self._socket, 4))
        if not 1 <= length <= MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {length} bytes")
        body = receive_exactly(self._socket, length)
        code = self._frame_code(self._peer_side, self._received_frames, body)
        if not hmac.compare_digest(code, receive_exactly(self._socket, _CODE_BYTES)):
            raise ProtocolError("a frame whose code is wrong")
        self._received_frames += 1
        return body

    def wait_for_end(self) -> None:
        """Return when either side has closed the connection."""
        poll = select.poll()
        try:
            poll.register(self._socket, _HANGUP)
            while not poll.poll(_POLL_MILLISECONDS):
                if self._socket.fileno() < 0:
                    return
        except (OSError, ValueError):  # the connection was closed just now
            return

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _frame_code(self, side: bytes, number: int, body: bytes) -> bytes:
        mac = hmac.new(self._key, side + struct.pack(">Q", number), "sha256")
        mac.update(body)
        return mac.digest()[:_CODE_BYTES]


def accept_caller(sock: socket.socket, secret: bytes) -> tuple[PushConnection, Caller]:
    """Do the receiver's side of the handshake; raise ProtocolError if the caller does not know the secret."""
    receiver_random = os.urandom(16)
    sock.sendall(receiver_random)
    if receive_exactly(sock, 4) != _MAGIC:
        raise ProtocolError("no caller of this protocol")
    caller_random = receive_exactly(sock, 16)
    (length,) = struct.unpack(">H", receive_exactly(sock, 2))
    if length > _MAX_GREETING_BYTES:
        raise ProtocolError(f"a greeting of {length} bytes")
    text = receive_exactly(sock, length)
    if not hmac.compare_digest(receive_exactly(sock, 32), _hmac(secret, b"E", receiver_random, caller_random, text)):
        raise ProtocolError("a caller that does not know the secret")
    fields = text.decode(errors="replace").split("\n")
    if len(fields) != 4:
        raise ProtocolError("a greeting that says something else")
    sock.sendall(_hmac(secret, b"R", receiver_random, caller_random))
    return PushConnection(sock, _hmac(secret, b"S", receiver_random, caller_random), b"R", b"E"), Caller(*fields)


def connect_receiver(
    address: tuple[str, int], secret: bytes, caller: Caller, *, timeout: float, tls: ssl.SSLContext | None = None
) -> PushConnection:
    """Connect and do the caller's side. Raise OSError, or ProtocolError if the receiver does not know the secret."""
    sock = socket.create_connection(address, timeout=timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=address[0])
        receiver_random, caller_random = receive_exactly(sock, 16), os.urandom(16)
        text = "\n".join((caller.role, caller.server, caller.peer, caller.epoch)).encode()
        proof = _hmac(secret, b"E", receiver_random, caller_random, text)
        sock.sendall(_MAGIC + caller_random + struct.pack(">H", len(text)) + text + proof)
        if not hmac.compare_digest(receive_exactly(sock, 32), _hmac(secret, b"R", receiver_random, caller_random)):
            raise ProtocolError("whoever listens there does not know the secret")
        return PushConnection(sock, _hmac(secret, b"S", receiver_random, caller_random), b"E", b"R")
    except BaseException:
        sock.close()
        raise


def receive_exactly(sock: socket.socket, length: int) -> bytes:
    """Receive `length` bytes; raise EOFError if the other side ends before."""
    received = bytearray(length)
    view, position = memoryview(received), 0
    while position < length:
        count = sock.recv_into(view[position:])
        if not count:
            raise EOFError
        position += count
    return bytes(received)


def _hmac(secret: bytes, what: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, what + b"".join(parts), "sha256").digest()


# The rows of a frame, by table. Numbers are little-endian:
#
#     name        n: 2 bytes, n bytes                        repeated for each table
#     kind        1 byte: 0 rows, 1 files were bulk-loaded, or a region is new
#     written     8 bytes: the newest entry's write time
#     rows        n: 4 bytes; n oldest times, n newest times (8 bytes each), n + 1 offsets (4 bytes), the row keys
#
# `java/viewkeeper/push/Touched.java` writes it. A row may occur more than once.


Times = npt.NDArray[np.int64]

_HEAD = struct.Struct("<BqI")


class MalformedFrame(ValueError):
    """The bytes are not a complete list of rows."""


@dataclass(frozen=True)
class TouchedRows:
    """Written rows of one table: their keys, and the oldest and newest time of the cells written to each."""

    keys: pa.Array
    oldest: Times
    newest: Times
    newest_write_time: int
    """Time at which the newest of these entries was written, by its region server's clock."""
    is_bulk_loaded: bool = False
    """Files were bulk-loaded, or the table was truncated or created again: any row may have changed."""

    def __len__(self) -> int:
        return len(self.keys)

    def filter(self, which: npt.NDArray[np.bool_]) -> TouchedRows:
        return TouchedRows(
            self.keys.filter(pa.array(which)),
            self.oldest[which],
            self.newest[which],
            self.newest_write_time,
            self.is_bulk_loaded,
        )


NO_ROWS = TouchedRows(pa.array([], pa.binary()), np.empty(0, np.int64), np.empty(0, np.int64), 0)


def decode_tables(data: bytes) -> dict[str, TouchedRows]:
    """Decode a frame's body into rows by table; raise MalformedFrame if it is incomplete."""
    found: dict[str, list[TouchedRows]] = {}
    position = 0
    try:
        while position < len(data):
            (length,) = struct.unpack_from("<H", data, position)
            name = data[position + 2 : position + 2 + length].decode()
            position += 2 + length
            kind, write_time, rows = _HEAD.unpack_from(data, position)
            position += _HEAD.size
            oldest = np.frombuffer(data, "<i8", rows, position)
            newest = np.frombuffer(data, "<i8", rows, position + 8 * rows)
            offsets = np.frombuffer(data, "<i4", rows + 1, position + 16 * rows)
            position += 16 * rows + 4 * (rows + 1)
            size = int(offsets[-1])
            if kind > 1 or not name or offsets[0] or bool((np.diff(offsets) < 0).any()) or position + size > len(data):
                raise MalformedFrame("a table's rows are not whole")
            keys = pa.Array.from_buffers(
                pa.binary(),
                rows,
                [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data[position : position + size])],
            )
            position += size
            found.setdefault(name, []).append(TouchedRows(keys, oldest, newest, write_time, kind == 1))
    except (struct.error, ValueError) as error:
        raise error if isinstance(error, MalformedFrame) else MalformedFrame(str(error)) from error
    return {name: concat_rows(parts) for name, parts in found.items()}


def encode_tables(tables: Mapping[str, TouchedRows]) -> bytes:
    """Encode rows for `decode_tables`."""
    out = []
    for name, rows in tables.items():
        text = name.encode()
        keys = pa.concat_arrays([rows.keys])  # copied, so that the buffers begin at offset 0
        lengths = np.asarray(pc.binary_length(keys), np.int32)
        offsets = np.zeros(len(keys) + 1, "<i4")
        np.cumsum(lengths, out=offsets[1:])
        out += [
            struct.pack("<H", len(text)),
            text,
            _HEAD.pack(int(rows.is_bulk_loaded), rows.newest_write_time, len(keys)),
        ]
        out += [rows.oldest.astype("<i8").tobytes(), rows.newest.astype("<i8").tobytes(), offsets.tobytes()]
        out.append(keys.buffers()[2].to_pybytes()[: offsets[-1]] if len(keys) and offsets[-1] else b"")
    return b"".join(out)


def concat_rows(parts: Sequence[TouchedRows]) -> TouchedRows:
    """Concatenate lists of rows."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_ROWS
    return TouchedRows(
        pa.concat_arrays([p.keys for p in parts]),
        np.concatenate([p.oldest for p in parts]),
        np.concatenate([p.newest for p in parts]),
        max(p.newest_write_time for p in parts),
        any(p.is_bulk_loaded for p in parts),
    )
