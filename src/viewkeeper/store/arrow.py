"""What comes into a store: rows in Arrow, brought into a table's own columns and types; and one row on its way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from viewkeeper.errors import BadValue, UnknownName
from viewkeeper.model.delta import plain
from viewkeeper.model.schema import Table


def typed(table: Table, data: pa.Table, names: Sequence[str]) -> pa.Table:
    """The named columns in the table's types."""
    if data.schema.equals(table.arrow) and len(names) == len(data.schema):
        return data
    there = data.column_names
    if missing := [name for name in names if name not in there]:
        raise BadValue(f"Column {missing[0]} of {table.name} is missing.")
    schema = pa.schema([table.arrow.field(name) for name in names])
    data = data.select(list(names))
    if data.schema.equals(schema):
        return data
    try:
        return plain(data).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadValue(f"The rows do not fit the columns of {table.name}: {error}.") from error


def column_names(table: Table, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(table.arrow.names)
    try:
        return [table.by_name[name.lower()].name for name in columns]
    except KeyError as error:
        raise UnknownName(
            f"{table.name} has no column {error.args[0]!r}.", hint=f"Its columns: {', '.join(table.arrow.names)}."
        ) from None


def first_row(table: Table, rows: pa.Table) -> dict[str, Any] | None:
    """The first of stored rows as `Rows.get` gives one; None if there is none."""
    if not rows.num_rows:
        return None
    row: dict[str, Any] = rows.select(table.outside.names).slice(0, 1).cast(table.outside).to_pylist()[0]
    return row | {name: rows[name][0].as_py() for name in rows.column_names if name not in row}
