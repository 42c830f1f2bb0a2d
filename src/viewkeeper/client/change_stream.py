"""A decoder for an Arrow stream of changes: it yields deltas as their bytes arrive.

    message ::= ff ff ff ff  length of the metadata (i32)  metadata  body

The metadata is a flatbuffer that contains the body's length. A stream begins with its schema. Each record batch has
the kind, token and time of a delta as custom metadata; a batch without a token is a part of the next one's delta.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from viewkeeper.client.protocol import problem_error
from viewkeeper.errors import Unreachable
from viewkeeper.model.catalog.view import Suspension
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.subscribe import Delta, empty_changes

_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BODY_LENGTH_FIELD = 3
"""Index of `bodyLength` among the fields of a message."""


class StreamEnded(Exception):
    """The server ended the stream in order: `resume` is the token to continue from."""

    def __init__(self, resume: Token, reason: str) -> None:
        super().__init__(reason)
        self.resume = resume


class ChangeStreamDecoder:
    """Decodes the bytes of a stream into deltas."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._data = bytearray()
        self._schema: bytes | None = None
        self._parts: list[pa.RecordBatch] = []

    def feed(self, data: bytes) -> Iterator[Delta]:
        """The deltas that are complete by now. Raises StreamEnded, or the error with which the server ended the
        stream."""
        self._data += data
        while (message := self._next_message()) is not None:
            if self._schema is None:
                self._schema = message
                continue
            batch, metadata = pa.ipc.open_stream(
                self._schema + message + _STREAM_END
            ).read_next_batch_with_custom_metadata()
            delta = self._decode_delta(batch, {k.decode(): v.decode() for k, v in dict(metadata or {}).items()})
            if delta is not None:
                yield delta

    def _next_message(self) -> bytes | None:
        """The next complete message, or None."""
        if len(self._data) < 8:
            return None
        mark, length = struct.unpack_from("<Ii", self._data)
        if mark != 0xFFFFFFFF or not 0 <= length < 1 << 30:
            raise Unreachable("The stream of changes is damaged.", hint="Subscribe again from the last token.")
        if length == 0:
            del self._data[:8]
            return None
        if len(self._data) < 8 + length:
            return None
        size = 8 + length + _body_length(self._data, 8)
        if len(self._data) < size:
            return None
        found = bytes(self._data[:size])
        del self._data[:size]
        return found

    def _decode_delta(self, batch: pa.RecordBatch, metadata: dict[str, str]) -> Delta | None:
        if metadata.get("kind") == "end":
            details: dict[str, Any] = json.loads(metadata.get("about", "{}"))
            if "code" in details:
                raise problem_error(json.dumps(details).encode())
            raise StreamEnded(Token.parse(metadata["token"]), str(details.get("detail", "")))
        self._parts.append(batch)
        if "token" not in metadata:
            return None
        rows, self._parts = pa.Table.from_batches(self._parts), []
        delta_time = float(metadata.get("time", time.time()))
        suspended = Suspension(**json.loads(metadata["about"])) if metadata["kind"] == "suspended" else None
        token = Token.parse(metadata["token"])
        return Delta(metadata["kind"], self._table.name, rows, token, delta_time, self._table, suspended)


def _body_length(data: bytearray, offset: int) -> int:
    """The body length in the flatbuffer that begins at `offset`: its root table points back to its vtable."""
    (root,) = struct.unpack_from("<I", data, offset)
    table = offset + root
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    if size < 4 + 2 * (_BODY_LENGTH_FIELD + 1):
        return 0
    (field_offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * _BODY_LENGTH_FIELD)
    if field_offset == 0:
        return 0
    (length,) = struct.unpack_from("<q", data, table + field_offset)
    return int(length)


# Timing of a subscription: end after `timeout` seconds without a change, with a mark every `progress` seconds.


class SubscriptionTimer:
    """The timer of one subscription, in seconds. `has_expired`: no change arrived within the timeout."""

    def __init__(self, table: Table, timeout: float | None, progress: float | None) -> None:
        self._table, self._timeout, self._progress = table, timeout, progress
        self._last_change_time = self._last_mark_time = time.monotonic()
        self._last_delta: Delta | None = None
        self.has_expired = False

    def remaining_seconds(self) -> float | None:
        """Seconds until a mark or the timeout is due; None: neither is."""
        now = time.monotonic()
        delays = [] if self._timeout is None else [self._last_change_time + self._timeout - now]
        if self._progress is not None and self._last_delta is not None:
            delays.append(self._last_mark_time + self._progress - now)
        return max(0.0, min(delays)) if delays else None

    def record(self, delta: Delta) -> bool:
        """Record a delta; return whether it is a change. The server's own progress marks are none."""
        self._last_delta = delta
        if delta.kind == "progress":
            return False
        self._last_change_time = self._last_mark_time = time.monotonic()
        return True

    def due_mark(self) -> Delta | None:
        """The progress mark that is due after a wait without a delta, or None."""
        now = time.monotonic()
        self.has_expired = self._timeout is not None and now - self._last_change_time >= self._timeout
        if self._progress is None or self._last_delta is None or now - self._last_mark_time < self._progress:
            return None
        self._last_mark_time = now
        empty = empty_changes(self._table)
        return Delta("progress", self._table.name, empty, self._last_delta.token, time.time(), self._table)
