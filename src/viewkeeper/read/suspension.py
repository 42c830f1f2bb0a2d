"""Reads of a suspended view: an error (VK605) with the reason and the time, or its old rows, marked as such.

A suspended view keeps the rows of the last batch that maintained it. By default no read returns them: a reader would
take them for rows of the current batch. A reader that wants them says so (the level STALE, `stale=True`), and gets
them with the position that they stand for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from viewkeeper.errors import Suspended
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.catalog.view import Suspension
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import Batch

SUSPENDED_METADATA = b"viewkeeper.suspended"
"""The schema metadata of a result with rows of suspended views: JSON, {view: {since, epoch, position, reason}}."""


_STALE_HINT = "Its old rows are read with the level STALE (level=stale, --stale)."


def refuse_suspended(object_: Table | View | None, *, stale: bool = False) -> None:
    """Raise Suspended if this is a suspended view, unless the caller reads old rows."""
    if isinstance(object_, View) and object_.suspended is not None and not stale:
        raise suspension_error(object_.table.name, object_.suspended)


def refuse_suspended_before(object_: Table | View | None, position: int) -> None:
    """Raise Suspended if a view was suspended before the required position, because it will not reach it."""
    if isinstance(object_, View) and object_.suspended is not None and object_.suspended.cut < position:
        raise suspension_error(object_.table.name, object_.suspended)


def suspension_error(name: str, suspended: Suspension, old_rows: str = _STALE_HINT) -> Suspended:
    """The error of a read. `old_rows`: the hint how to read its old rows."""
    reason = suspended.reason.rstrip().removeprefix(f"{name}: ")
    stop = "" if reason.endswith((".", "!", "?")) else "."
    return Suspended(
        f"{name} is suspended since {suspension_time(suspended)}, at batch {suspended.epoch} "
        f"(position {suspended.cut}): {reason}{stop}",
        hint=f"Correct the rows, then ALTER MATERIALIZED VIEW {name} RESUME. {old_rows}",
    )


def virtual_view_error(name: str, suspended: Suspension) -> Suspended:
    """The error of a read of a suspended view that is not stored."""
    return suspension_error(name, suspended, "It is not stored, so it has no old rows.")


def suspension_time(suspended: Suspension) -> str:
    """The time of a suspension in UTC, in ISO 8601."""
    return datetime.fromtimestamp(suspended.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def suspension_summary(suspended: Suspension) -> dict[str, Any]:
    """A suspension as JSON values."""
    return {
        "since": suspension_time(suspended),
        "epoch": suspended.epoch,
        "position": suspended.cut,
        "reason": suspended.reason,
    }


def shown_epoch_and_position(object_: Table | View | None, batch: Batch | None, head: int) -> tuple[int, int]:
    """The batch and the log position that the rows of a table or view stand for."""
    epoch = 0 if batch is None else batch.number
    if isinstance(object_, View):
        if object_.suspended is not None:
            return object_.suspended.epoch, object_.suspended.cut
        if object_.own_cut is not None:
            return object_.own_cut.epoch, object_.own_cut.low
        if not object_.table.is_changed_by_writes:
            return epoch, head if batch is None else batch.cut
    return epoch, head


def mark_suspended_rows(rows: pa.Table, objects: Iterable[Table | View | None]) -> pa.Table:
    """The rows with the suspended views among `objects` in the metadata of their schema."""
    summaries = {
        v.table.name: suspension_summary(v.suspended)
        for v in objects
        if isinstance(v, View) and v.suspended is not None
    }
    if not summaries:
        return rows
    return rows.replace_schema_metadata(
        {**(rows.schema.metadata or {}), SUSPENDED_METADATA: json.dumps(summaries).encode()}
    )
