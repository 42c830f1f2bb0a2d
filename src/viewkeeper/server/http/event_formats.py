"""Encodings of changes: Server-Sent Events, or messages of an Arrow stream.

    event: rows        the current rows, in pieces; the last piece has the id
    event: changes     one batch: [{"kind": "update", "before": {…}, "after": {…}}, …]
    event: progress    no change up to here; keeps the connection alive and the id current
    event: suspended   the view is not maintained from here on: {"since", "epoch", "position", "reason"}
    event: reset       the view was rebuilt: rows follow that replace all before them
    event: end         the server ends the stream, with the reason: {"code", "detail", "hint", "resume"}

`id:` is the token of the position after the event, for `since=` and Last-Event-ID. In an Arrow stream each record batch
has `kind`, `token` and `time` as its metadata, and the weights in its last column, `_w`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from viewkeeper.errors import ViewkeeperError
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.subscribe import Delta, pair_changes
from viewkeeper.read.suspension import suspension_summary
from viewkeeper.server.errors import problem_document
from viewkeeper.server.http.formats import ChunkBuffer
from viewkeeper.server.http.json_values import encode_json, json_rows

PIECE_ROWS = 5_000
"""Rows of one event of the initial rows."""

STOPPING_REASON = "The server is stopping; resume from here."
EventFormat = str
SSE, SSE_NATIVE, ARROW_FORMAT = "sse", "sse-native", "arrow"


def encode_event(name: str, data: Any, token: str | None = None) -> bytes:
    """One event. `data` is one line, because JSON has no line breaks outside of strings."""
    identity = b"" if token is None else b"id: %s\n" % token.encode()
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), identity, encode_json(data))


def delta_schema(table: Table) -> pa.Schema:
    return table.external_schema.append(pa.field(table.weight_column, pa.int64()))


def encode_delta(event_format: EventFormat, table: Table, delta: Delta, *, is_last: bool = True) -> bytes:
    """A delta in one format. `is_last`: a reader that has received it may resume after it."""
    if event_format == ARROW_FORMAT:
        metadata = {"kind": delta.kind, "time": repr(delta.time), **({"token": str(delta.token)} if is_last else {})}
        if delta.suspended is not None:
            metadata["about"] = encode_json(asdict(delta.suspended)).decode()
        return _encode_batches(delta_schema(table), delta.rows, metadata)
    token = str(delta.token) if is_last else None
    if delta.kind in ("progress", "reset", "suspended"):
        header = {} if delta.suspended is None else suspension_summary(delta.suspended)
        return encode_event(delta.kind, {"token": str(delta.token), "time": delta.time, **header}, token)
    display_rows = json_rows(delta.rows.drop_columns([table.weight_column]), native=event_format == SSE_NATIVE)
    header = {"token": token, "time": delta.time}
    if delta.kind == "rows":
        return encode_event("rows", {**header, "rows": display_rows}, token)
    changes = [
        {"kind": c.kind, "before": c.before, "after": c.after} for c in pair_changes(table, delta.rows, display_rows)
    ]
    return encode_event("changes", {**header, "changes": changes}, token)


def encode_stream_start(event_format: EventFormat, table: Table) -> bytes:
    """The bytes before the first event."""
    return delta_schema(table).serialize().to_pybytes() if event_format == ARROW_FORMAT else b"retry: 1000\n\n"


def encode_stream_end(
    event_format: EventFormat, table: Table, error: ViewkeeperError | None, resume: Token, reason: str = ""
) -> bytes:
    """The end of a stream: its reason, and where to resume. In an Arrow stream it is an empty batch."""
    details: Mapping[str, Any] = {"detail": reason} if error is None else problem_document(error)
    if event_format == ARROW_FORMAT:
        empty = delta_schema(table).empty_table()
        metadata = {"kind": "end", "token": str(resume), "about": encode_json(details).decode()}
        return _encode_batches(delta_schema(table), empty, metadata) + b"\xff\xff\xff\xff\x00\x00\x00\x00"
    return encode_event("end", {**details, "resume": str(resume)}, str(resume))


def _encode_batches(schema: pa.Schema, rows: pa.Table, metadata: Mapping[str, str]) -> bytes:
    """The record batches of an Arrow stream without the schema message, which is the same for every reader."""
    buffer = ChunkBuffer()
    stream = pa.ipc.new_stream(buffer, schema)
    found = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=schema)]
    for batch in found[:-1]:
        stream.write_batch(batch.cast(schema), custom_metadata={k: v for k, v in metadata.items() if k != "token"})
    stream.write_batch(found[-1].cast(schema), custom_metadata=dict(metadata))
    return buffer.drain()[len(schema.serialize()) :]
