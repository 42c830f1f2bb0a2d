"""What a request wants its rows in, and rows written so, piece by piece.

application/json                       {"rows": […], …}
application/x-ndjson                   an object a line
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
from viewkeeper.server.errors import Refused
from viewkeeper.server.http.json_values import distinct, dumps, rows_of

JSON, LINES, CSV, ARROW = "application/json", "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream"
EVENTS = "text/event-stream"
ROWS = (JSON, LINES, CSV, ARROW)
_SAME = {"application/jsonl": LINES, "application/json-lines": LINES, "application/ndjson": LINES}


def chosen(accept: str | None, offered: tuple[str, ...] = ROWS) -> str:
    """The best of the offered media types for an Accept header; the first where it does not care."""
    if not accept or accept == "*/*":
        return offered[0]
    wanted: list[tuple[float, int, str]] = []
    for place, part in enumerate(accept.split(",")):
        name, *parameters = (p.strip().lower() for p in part.split(";"))
        quality = next((_quality(p[2:]) for p in parameters if p.startswith("q=")), 1.0)
        if quality > 0:
            wanted.append((-quality, place, _SAME.get(name, name)))
    for _, _, name in sorted(wanted):
        for media in offered:
            if name in (media, "*/*") or (name.endswith("/*") and media.startswith(name[:-1])):
                return media
    raise Refused(406, f"There is no {accept[:80]!r} of this.", f"Accept one of: {', '.join(offered)}.")


def _quality(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 0.0


class Writer(ABC):
    """Rows of one schema, written piece by piece: `first`, `more` for each piece, `last`."""

    def __init__(self, schema: pa.Schema, native: bool) -> None:
        self.schema, self.native = schema, native

    def first(self) -> bytes:
        return b""

    @abstractmethod
    def more(self, rows: pa.Table) -> bytes: ...

    def last(self, about: Mapping[str, Any]) -> bytes:
        """The end. `about`: what is said beside the rows, where the format has room for it."""
        return b""

    def whole(self, rows: pa.Table, about: Mapping[str, Any]) -> bytes:
        return self.first() + self.more(rows) + self.last(about)


class _Json(Writer):
    _begun = False

    def first(self) -> bytes:
        return b'{"rows":['

    def more(self, rows: pa.Table) -> bytes:
        inner = dumps(rows_of(rows, self.native))[1:-1]
        if not inner:
            return b""
        before, self._begun = b"," if self._begun else b"", True
        return before + inner

    def last(self, about: Mapping[str, Any]) -> bytes:
        rest = dumps(dict(about))[1:]
        return b"]" + (b"," if about else b"") + rest


class _Lines(Writer):
    def more(self, rows: pa.Table) -> bytes:
        return b"".join(dumps(row) + b"\n" for row in rows_of(rows, self.native))


class _Csv(Writer):
    def first(self) -> bytes:
        return (",".join(_csv_cell(name) for name in distinct(self.schema.names)) + "\r\n").encode()

    def more(self, rows: pa.Table) -> bytes:
        found = rows_of(rows, native=False)
        return "".join(",".join(_csv_cell(v) for v in row.values()) + "\r\n" for row in found).encode()


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return csv_field(dumps(value).decode() if isinstance(value, (list, dict)) else str(value))


class Parts(io.RawIOBase):
    """Takes what is written to it, until it is taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def taken(self) -> bytes:
        found, self._parts = b"".join(self._parts), []
        return found


class _Arrow(Writer):
    def __init__(self, schema: pa.Schema, native: bool) -> None:
        super().__init__(schema, native)
        self._parts = Parts()
        self._stream = pa.ipc.new_stream(self._parts, schema)

    def more(self, rows: pa.Table) -> bytes:
        self._stream.write_table(rows)
        return self._parts.taken()

    def last(self, about: Mapping[str, Any]) -> bytes:
        self._stream.close()
        return self._parts.taken()


_WRITERS: Mapping[str, type[Writer]] = {JSON: _Json, LINES: _Lines, CSV: _Csv, ARROW: _Arrow}


def writer(media: str, schema: pa.Schema, native: bool = False) -> Writer:
    return _WRITERS[media](schema, native)
