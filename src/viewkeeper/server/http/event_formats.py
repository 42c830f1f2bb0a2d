"""Changes as bytes: Server-Sent Events, or messages of an Arrow stream.

    event: rows        the rows that are there, in pieces; the last one has the id
    event: changes     one batch: [{"kind": "update", "before": {…}, "after": {…}}, …]
    event: progress    nothing came up to here; keeps the connection alive and the id new
    event: suspended   the view is not maintained from here on: {"since", "epoch", "position", "reason"}
    event: reset       the view was made anew: rows follow that replace all before them
    event: end         the server ends the stream, and says why: {"code", "detail", "hint", "resume"}

`id:` is the token of the position behind the event: what `since=` and Last-Event-ID take. In an Arrow stream each
record batch has `kind`, `token` and `time` as its metadata, and the weights in its last column, `_w`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from viewkeeper.errors import ViewkeeperError
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.subscribe import Delta, paired
from viewkeeper.read.suspension import told
from viewkeeper.server.errors import document
from viewkeeper.server.http.formats import Parts
from viewkeeper.server.http.json_values import dumps, rows_of

PIECE_ROWS = 5_000
"""Rows of one event of the rows that are there at first."""

STOPPING = "The server is stopping; resume from here."
Form = str
SSE, SSE_NATIVE, ARROW_FORM = "sse", "sse-native", "arrow"


def event(name: str, data: Any, token: str | None = None) -> bytes:
    """One event. `data` goes on one line, as JSON has no line breaks of its own."""
    identity = b"" if token is None else b"id: %s\n" % token.encode()
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), identity, dumps(data))


def delta_schema(table: Table) -> pa.Schema:
    return table.outside.append(pa.field(table.weight, pa.int64()))


def encode(form: Form, table: Table, delta: Delta, *, last: bool = True) -> bytes:
    """A delta in one form. `last`: a reader that has it may resume after it."""
    if form == ARROW_FORM:
        texts = {"kind": delta.kind, "time": repr(delta.time), **({"token": str(delta.token)} if last else {})}
        if delta.suspended is not None:
            texts["about"] = dumps(asdict(delta.suspended)).decode()
        return _message(delta_schema(table), delta.rows, texts)
    token = str(delta.token) if last else None
    if delta.kind in ("progress", "reset", "suspended"):
        about = {} if delta.suspended is None else told(delta.suspended)
        return event(delta.kind, {"token": str(delta.token), "time": delta.time, **about}, token)
    shown = rows_of(delta.rows.drop_columns([table.weight]), native=form == SSE_NATIVE)
    about = {"token": token, "time": delta.time}
    if delta.kind == "rows":
        return event("rows", {**about, "rows": shown}, token)
    changes = [{"kind": c.kind, "before": c.before, "after": c.after} for c in paired(table, delta.rows, shown)]
    return event("changes", {**about, "changes": changes}, token)


def opening(form: Form, table: Table) -> bytes:
    """What comes before the first event."""
    return delta_schema(table).serialize().to_pybytes() if form == ARROW_FORM else b"retry: 1000\n\n"


def ending(form: Form, table: Table, error: ViewkeeperError | None, resume: Token, reason: str = "") -> bytes:
    """Why the stream ends here, and where to resume. In an Arrow stream that is an empty batch."""
    about: Mapping[str, Any] = {"detail": reason} if error is None else document(error)
    if form == ARROW_FORM:
        nothing = delta_schema(table).empty_table()
        texts = {"kind": "end", "token": str(resume), "about": dumps(about).decode()}
        return _message(delta_schema(table), nothing, texts) + b"\xff\xff\xff\xff\x00\x00\x00\x00"
    return event("end", {**about, "resume": str(resume)}, str(resume))


def _message(schema: pa.Schema, rows: pa.Table, about: Mapping[str, str]) -> bytes:
    """The record batches of an Arrow stream without the schema before them: it is the same for every reader."""
    parts = Parts()
    stream = pa.ipc.new_stream(parts, schema)
    found = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=schema)]
    for batch in found[:-1]:
        stream.write_batch(batch.cast(schema), custom_metadata={k: v for k, v in about.items() if k != "token"})
    stream.write_batch(found[-1].cast(schema), custom_metadata=dict(about))
    return parts.taken()[len(schema.serialize()) :]
