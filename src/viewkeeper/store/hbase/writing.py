"""Writes to base tables: whole rows, deletes, and some columns of one row.

Cells get HBase's own times. Done again after a lost answer, the same rows with a later time are the same rows.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, RowAbsent, Unsupported
from viewkeeper.model.schema import Table
from viewkeeper.store.arrow import column_names, typed
from viewkeeper.store.hbase.client import Client
from viewkeeper.store.hbase.failures import OutcomeUnknown
from viewkeeper.store.hbase.layout import Layout
from viewkeeper.store.hbase.layouts import Layouts, if_there


def write_rows(client: Client, layouts: Layouts, layout: Layout, puts: pa.Table, deletes: pa.Table) -> int:
    """Put whole rows and delete keys; how many."""
    table = layout.table
    keys, cells = layout.encode(typed(table, puts, table.arrow.names))
    dead = layout.row_keys(typed(table, deletes, [c.name for c in table.key_columns]))
    _refuse_twice(table, keys, dead)

    def write() -> None:
        if len(keys) and layout.mark is not None:
            client.put_many(layout.name, keys, cells, again=True)
        elif len(keys):
            _replace(client, layout, keys, cells)
        if len(dead):
            client.delete_many(layout.name, dead, again=True)

    if len(keys) or len(dead):
        layouts.making(layout, write)
    return len(keys) + len(dead)


def _replace(client: Client, layout: Layout, keys: pa.Array, cells: dict[bytes, pa.Array]) -> None:
    """Whole rows of a table without marks: where a column is NULL its cell must go, in the same step."""
    nulls = np.zeros(len(keys), np.int64)
    for values in cells.values():
        nulls += np.asarray(values.is_null())
    if (nulls == len(cells)).any():
        raise BadValue(
            f"A row for {layout.table.name} has no value outside its key, so {layout.name} cannot hold it.",
            hint="Give at least one column a value.",
        )
    whole = pa.array(nulls == 0)
    client.put_many(layout.name, keys.filter(whole), {c: v.filter(whole) for c, v in cells.items()}, again=True)
    for at in np.flatnonzero(nulls):  # a call for each row: HBase has no other that puts and deletes at once
        row = {column: values[int(at)].as_py() for column, values in cells.items()}
        puts = {column: value for column, value in row.items() if value is not None}
        client.change(layout.name, keys[int(at)].as_py(), puts, [c for c in row if c not in puts])


def update_row(client: Client, layout: Layout, key: pa.Table, columns: pa.Table) -> bool:
    """Change some columns of one row, in one step; False if they have these values already."""
    table = layout.table
    if key.num_rows != 1:
        raise Unsupported("HBase changes columns of one row at a time.", hint="Update the rows one by one.")
    names = column_names(table, columns.column_names)
    keyed = {column.name for column in table.key_columns}
    if fixed := [name for name in names if name in keyed]:
        raise BadValue(
            f"Column {fixed[0]} is in the key of {table.name} and cannot be updated.",
            hint="Delete the row and put a new one.",
        )
    new = layout.encode_columns(typed(table, columns.rename_columns(names), names))
    cells = {cell: values[0].as_py() for cell, values in new.items()}
    row_key = layout.row_keys(typed(table, key, [c.name for c in table.key_columns]))[0].as_py()
    puts = {cell: value for cell, value in cells.items() if value is not None}
    nulls = [cell for cell, value in cells.items() if value is None]
    while True:
        there = if_there(layout, lambda: client.get(layout.name, row_key, layout.families))
        if there is None:
            raise RowAbsent(
                f"{table.name} has no row with key {key.to_pylist()[0]}.", hint="Put the whole row instead."
            )
        since = there[layout.mark].time if layout.mark is not None and layout.mark in there else -1
        now = {column: cell.value for column, cell in there.items() if cell.time >= since}
        if all(now.get(cell) == value for cell, value in cells.items()):
            return False
        # The row is still there if one of its cells still has its value: checked in the same step.
        witness = min(now)
        with suppress(OutcomeUnknown):  # the next look tells
            if client.change_if(layout.name, row_key, witness, now[witness], puts, nulls):
                return True


def _refuse_twice(table: Table, keys: pa.Array, dead: pa.Array) -> None:
    both = pa.concat_arrays([keys.cast(pa.binary()), dead.cast(pa.binary())])
    if len(both) > 1 and pc.count_distinct(both).as_py() < len(both):
        raise BadValue(f"A write to {table.name} has the same key twice.", hint="Keep the last row of each key.")
