"""The visible rows of a key range at a log position, also when they are read later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from viewkeeper.model.delta import normalize_chunks
from viewkeeper.model.names import COUNT, WEIGHT
from viewkeeper.model.schema import Table
from viewkeeper.resources.memory import one_off_budget
from viewkeeper.store.contract.store import Store

KeyBounds = tuple[bytes | None, bytes | None]
"""Encoded keys: from the first (included) to the second (excluded)."""


def rows_at(store: Store, table: Table, columns: Sequence[str], position: int, bounds: KeyBounds) -> pa.Table:
    """The visible rows of a key range at a position, in external types."""
    keys = [c.name for c in table.key_columns]
    stored = list(dict.fromkeys([*columns, *keys, *([COUNT] if table.is_bag else [])]))
    schema = pa.schema([*(table.arrow.field(c) for c in stored), pa.field(WEIGHT, pa.int64())])
    batches = list(store.scan_at(table, stored, position, start=bounds[0], stop=bounds[1]))
    rows = normalize_chunks(pa.Table.from_batches([b.select(schema.names) for b in batches], schema))
    weights = rows[WEIGHT].to_numpy()
    if (weights != 1).any():
        rows = consolidate_rows(store, rows)
    counts = rows[COUNT].to_numpy() if table.is_bag else np.ones(rows.num_rows, np.int64)
    if (counts != 1).any():
        rows = rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return to_external_types(table, rows.select(list(columns)))


def consolidate_rows(store: Store, delta: pa.Table) -> pa.Table:
    """Consolidate a delta: the same multiset, with equal rows added up."""
    from viewkeeper import expressions
    from viewkeeper.resources.prepared_statements import PreparedStatements
    from viewkeeper.state.consolidate import consolidate

    with PreparedStatements(
        expressions.register_functions, threads=1, memory=one_off_budget(store.state_path)
    ) as statements:
        return consolidate(statements, delta)


def to_external_types(table: Table, rows: pa.Table) -> pa.Table:
    """Cast stored columns to external types."""
    fields = [
        table.external_schema.field(n) if n in table.external_schema.names else rows.schema.field(n)
        for n in rows.column_names
    ]
    return rows.cast(pa.schema(fields))
