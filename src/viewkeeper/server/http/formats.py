"""Content negotiation, and writers of rows that encode them piece by piece.

application/json                       {"rows": […], …}
application/x-ndjson                   one object per line
text/csv                               a header line; an empty field is NULL, "" an empty text, BINARY in base64
application/vnd.apache.arrow.stream    an Arrow IPC stream
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from viewkeeper.model.display import csv_field
from viewkeeper.server.errors import HttpStatusError
from viewkeeper.server.http.json_values import encode_json, json_rows, number_duplicate_names

JSON, LINES, CSV, ARROW = "application/json", "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream"
EVENTS = "text/event-stream"
ROWS = (JSON, LINES, CSV, ARROW)
_MEDIA_ALIASES = {"application/jsonl": LINES, "application/json-lines": LINES, "application/ndjson": LINES}


def choose_media_type(accept: str | None, offered: tuple[str, ...] = ROWS) -> str:
    """The best of the offered media types for an Accept header; the first one if the header has no preference."""
    if not accept or accept == "*/*":
        return offered[0]
    accepted: list[tuple[float, int, str]] = []
    for position, part in enumerate(accept.split(",")):
        name, *parameters = (p.strip().lower() for p in part.split(";"))
        quality = next((_parse_quality(p[2:]) for p in parameters if p.startswith("q=")), 1.0)
        if quality > 0:
            accepted.append((-quality, position, _MEDIA_ALIASES.get(name, name)))
    for _, _, name in sorted(accepted):
        for media in offered:
            if name in (media, "*/*") or (name.endswith("/*") and media.startswith(name[:-1])):
                return media
    raise HttpStatusError(406, f"There is no {accept[:80]!r} of this.", f"Accept one of: {', '.join(offered)}.")


def _parse_quality(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 0.0


class RowWriter(ABC):
    """Writes rows of one schema: `begin`, `write` for each piece, `finish`."""

    def __init__(self, schema: pa.Schema, native: bool) -> None:
        self.schema, self.native = schema, native

    def begin(self) -> bytes:
        return b""

    @abstractmethod
    def write(self, rows: pa.Table) -> bytes: ...

    def finish(self, metadata: Mapping[str, Any]) -> bytes:
        """The end of the output. `metadata`: values beside the rows, if the format has a place for them."""
        return b""

    def write_all(self, rows: pa.Table, metadata: Mapping[str, Any]) -> bytes:
        return self.begin() + self.write(rows) + self.finish(metadata)


class _JsonWriter(RowWriter):
    _has_rows = False

    def begin(self) -> bytes:
        return b'{"rows":['

    def write(self, rows: pa.Table) -> bytes:
        inner = encode_json(json_rows(rows, self.native))[1:-1]
        if not inner:
            return b""
        before, self._has_rows = b"," if self._has_rows else b"", True
        return before + inner

    def finish(self, metadata: Mapping[str, Any]) -> bytes:
        rest = encode_json(dict(metadata))[1:]
        return b"]" + (b"," if metadata else b"") + rest


class _JsonLinesWriter(RowWriter):
    def write(self, rows: pa.Table) -> bytes:
        return b"".join(encode_json(row) + b"\n" for row in json_rows(rows, self.native))


class _CsvWriter(RowWriter):
    def begin(self) -> bytes:
        return (",".join(_csv_cell(name) for name in number_duplicate_names(self.schema.names)) + "\r\n").encode()

    def write(self, rows: pa.Table) -> bytes:
        found = json_rows(rows, native=False)
        return "".join(",".join(_csv_cell(v) for v in row.values()) + "\r\n" for row in found).encode()


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return csv_field(encode_json(value).decode() if isinstance(value, (list, dict)) else str(value))


class ChunkBuffer(io.RawIOBase):
    """Collects what is written to it, until `drain` returns it."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._chunks.append(bytes(data))
        return len(self._chunks[-1])

    def drain(self) -> bytes:
        found, self._chunks = b"".join(self._chunks), []
        return found


class _ArrowWriter(RowWriter):
    def __init__(self, schema: pa.Schema, native: bool) -> None:
        super().__init__(schema, native)
        self._buffer = ChunkBuffer()
        self._stream = pa.ipc.new_stream(self._buffer, schema)

    def write(self, rows: pa.Table) -> bytes:
        self._stream.write_table(rows)
        return self._buffer.drain()

    def finish(self, metadata: Mapping[str, Any]) -> bytes:
        self._stream.close()
        return self._buffer.drain()


_WRITERS: Mapping[str, type[RowWriter]] = {
    JSON: _JsonWriter,
    LINES: _JsonLinesWriter,
    CSV: _CsvWriter,
    ARROW: _ArrowWriter,
}


def create_writer(media: str, schema: pa.Schema, native: bool = False) -> RowWriter:
    return _WRITERS[media](schema, native)
