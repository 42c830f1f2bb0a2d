"""Reads of a suspended view: an error (VK605) with the reason and the time, or its old rows, marked as such.

A suspended view keeps the rows of the last batch that it was maintained in. By default no read returns them: a reader
would take them for rows of the current batch. A reader that wants them says so (the level STALE, `stale=True`), and
gets them with the position that they stand for.
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

MARK = b"viewkeeper.suspended"
"""The schema metadata of an answer with rows of suspended views: JSON, {view: {since, epoch, position, reason}}."""


_BY_LEVEL = "Its old rows are read with the level STALE (level=stale, --stale)."


def refuse(found: Table | View | None, *, stale: bool = False) -> None:
    """Raise Suspended if this is a suspended view, unless its old rows are asked for."""
    if isinstance(found, View) and found.suspended is not None and not stale:
        raise refusal(found.table.name, found.suspended)


def refuse_behind(found: Table | View | None, wanted: int) -> None:
    """Raise Suspended if a view was suspended before the position that a read asks for: it will not reach it."""
    if isinstance(found, View) and found.suspended is not None and found.suspended.cut < wanted:
        raise refusal(found.table.name, found.suspended)


def refusal(name: str, suspended: Suspension, old_rows: str = _BY_LEVEL) -> Suspended:
    """The error of a read. `old_rows`: how its old rows are read."""
    reason = suspended.reason.rstrip().removeprefix(f"{name}: ")
    stop = "" if reason.endswith((".", "!", "?")) else "."
    return Suspended(
        f"{name} is suspended since {when(suspended)}, at batch {suspended.epoch} (position {suspended.cut}):"
        f" {reason}{stop}",
        hint=f"Correct the rows, then ALTER MATERIALIZED VIEW {name} RESUME. {old_rows}",
    )


def without_rows(name: str, suspended: Suspension) -> Suspended:
    """The refusal of a view that is not stored."""
    return refusal(name, suspended, "It is not stored, so it has no old rows.")


def when(suspended: Suspension) -> str:
    """The time of a suspension in UTC, as people and programs read it."""
    return datetime.fromtimestamp(suspended.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def told(suspended: Suspension) -> dict[str, Any]:
    """A suspension for programs."""
    return {
        "since": when(suspended),
        "epoch": suspended.epoch,
        "position": suspended.cut,
        "reason": suspended.reason,
    }


def shown_state(found: Table | View | None, batch: Batch | None, head: int) -> tuple[int, int]:
    """The batch and the log position that the rows of a table or view stand for."""
    epoch = 0 if batch is None else batch.number
    if isinstance(found, View):
        if found.suspended is not None:
            return found.suspended.epoch, found.suspended.cut
        if found.at is not None:
            return found.at.epoch, found.at.low
        if not found.table.with_writes:
            return epoch, head if batch is None else batch.cut
    return epoch, head


def marked(rows: pa.Table, found: Iterable[Table | View | None]) -> pa.Table:
    """The rows with the suspended views among `found` in the metadata of their schema."""
    listed = {v.table.name: told(v.suspended) for v in found if isinstance(v, View) and v.suspended is not None}
    if not listed:
        return rows
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), MARK: json.dumps(listed).encode()})
