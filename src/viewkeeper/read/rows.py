"""Reads of tables and views: one row by key, a range in key order, or everything.

A view is read at the published batch, a base table at its last write. A bag view stores each row once with its count;
a read repeats the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import BadValue, SnapshotGone
from viewkeeper.model.encoding.keys import key_range, prefix_range
from viewkeeper.model.intake import arguments
from viewkeeper.model.schema import COUNT, Table
from viewkeeper.store.contract.store import Store

_ATTEMPTS = 3


def get_row(store: Store, table: Table, key: Any) -> dict[str, Any] | None:
    """The row with this key, or None."""
    return store.get(table, check_key(table, key))


def check_key(table: Table, key: Any) -> tuple[Any, ...]:
    """Check that a key is a whole key of a table with a unique key, and return it as a tuple."""
    _refuse_unstored(table)
    values = key if isinstance(key, tuple) else (key,)
    if table.is_bag:
        raise BadValue(
            f"{table.name} has no unique key, so get cannot name one row.",
            hint=f"Use scan({table.name!r}, prefix=…) or read({table.name!r}).",
        )
    if len(values) != len(table.key):
        names = ", ".join(k.column for k in table.key) or "no columns: use ()"
        raise BadValue(f"The key of {table.name} is ({names}); {len(values)} values were given.", hint="")
    return values


def scan_rows(
    store: Store, table: Table, prefix: Any = None, start: Any = None, stop: Any = None, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Rows in key order: those whose key begins with `prefix`, or from `start` (included) to `stop` (excluded)."""
    low, high = scan_range(table, prefix, start, stop, limit)
    return _scan_rows(store, table, low, high, limit)


def scan_range(
    table: Table, prefix: Any, start: Any, stop: Any, limit: int | None
) -> tuple[bytes | None, bytes | None]:
    """The range of encoded keys that a scan reads."""
    _refuse_unstored(table)
    if prefix is not None and (start is not None or stop is not None):
        raise BadValue("scan takes a prefix, or start and stop, not both.", hint="")
    if limit is not None:
        arguments.check_whole_number(limit, "scan's limit", 0)
    if prefix is not None:
        return prefix_range(table, _key_prefix(table, prefix))
    return key_range(table, _key_bound(table, start), _key_bound(table, stop))


def _scan_rows(
    store: Store, table: Table, low: bytes | None, high: bytes | None, limit: int | None
) -> Iterator[dict[str, Any]]:
    remaining = limit
    for batch in store.scan(table, start=low, stop=high, limit=limit):
        rows = to_visible_rows(table, pa.Table.from_batches([batch]))
        for row in python_rows(table, rows):
            if remaining is not None:
                if remaining == 0:
                    return
                remaining -= 1
            yield row


def python_rows(table: Table, rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python values. A view may compute dates that Python's types cannot hold."""
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
    except OverflowError as error:
        raise BadValue(
            f"{table.name} has a date or time outside the years 1 to 9999 of Python's types.", hint="Read it as Arrow."
        ) from error
    return found


def read_table(store: Store, table: Table) -> pa.Table:
    """All rows of one consistent state, in key order. If the store drops the snapshot, the read is repeated."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(SnapshotGone):
            return to_visible_rows(table, pa.Table.from_batches(list(store.scan(table)), table.arrow))
    return to_visible_rows(table, pa.Table.from_batches(list(store.scan(table)), table.arrow))


def to_visible_rows(table: Table, stored: pa.Table) -> pa.Table:
    """Convert stored rows to visible rows: repeat a bag's rows by their count, restore time zones."""
    rows = stored
    if table.is_bag:
        counts = stored[COUNT].to_numpy()
        rows = stored.drop_columns([COUNT])
        if (counts != 1).any():
            rows = rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return rows.cast(table.external_schema)


def _refuse_unstored(table: Table) -> None:
    if not table.has_rows:
        raise BadValue(f"{table.name} is not stored, so it has no rows by key.", hint=f"Use read({table.name!r}).")


def _key_prefix(table: Table, values: Any) -> tuple[Any, ...]:
    prefix = values if isinstance(values, tuple) else (values,)
    if len(prefix) > len(table.key):
        raise BadValue(
            f"The key of {table.name} has {len(table.key)} columns; {len(prefix)} values were given.", hint=""
        )
    return prefix


def _key_bound(table: Table, values: Any) -> Sequence[Any] | None:
    return None if values is None else _key_prefix(table, values)
