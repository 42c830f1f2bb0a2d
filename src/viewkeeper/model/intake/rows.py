"""Intake of rows and keys: any common shape of data becomes one Arrow table with the table's own types.

    a dict · a list of dicts · pyarrow Table, RecordBatch, RecordBatchReader · a pandas or polars frame
        │  columns by name, in any case and order; a missing column has its default or NULL, an unknown one is an error
        ▼
    columns ─ columns.column_values: exact types, NOT NULL ─▶ pa.Table in `Table.arrow`
        │
        ▼
    last_by_key: within one call, the last row of a key wins

An object with the Arrow stream interface (`__arrow_c_stream__`) is read through it, so neither pandas nor polars is
imported. All checks run before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from viewkeeper.errors import BadValue
from viewkeeper.model.encoding.key_order import last_occurrences
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.intake.columns import Values, column_values
from viewkeeper.model.intake.text import parse_value
from viewkeeper.model.schema import Column, Table
from viewkeeper.model.threads import ThreadPool

_PARALLEL_ROWS = 200_000
"""From this many rows on, columns are converted in parallel."""

ACCEPTED_ROWS_HINT = "Give a dict, a list of dicts, a pyarrow Table or RecordBatch, or a pandas or polars frame."


def rows_table(table: Table, rows: Any) -> pa.Table:
    """Return a user's rows as a table in `table.arrow`, in their order."""
    inputs, count = _columns_of(table, rows)
    matched = _match_columns_with_key(table, inputs, count)
    for column in table.columns:
        if column.default is not None and column.name not in matched:
            matched[column.name] = [_default_value(table, column.name)] * count
    return _build_table(table, table.columns, matched, count)


def unchecked_table(table: Table, rows: Any) -> pa.Table:
    """Return a user's rows for a later check: Arrow data unchanged, other data with the columns that it names."""
    if isinstance(rows, pa.Table):
        return rows
    if _is_table(rows) and not _is_pandas(rows):
        return pa.table(rows)
    inputs, count = _columns_of(table, rows)
    matched = _match_columns_with_key(table, inputs, count)
    columns = [c for c in table.columns if c.name in matched]
    return _build_table(table, columns, matched, count).cast(
        pa.schema([table.external_schema.field(c.name) for c in columns])
    )


def keys_table(table: Table, keys: Any) -> pa.Table:
    """Return keys as a table of the key columns: one key (a scalar, or a tuple for a composite key), a list, or a
    table."""
    columns = table.key_columns
    if isinstance(keys, Mapping) or _is_table(keys):
        inputs, count = _columns_of(table, keys)
        matched = _match_columns(table, columns, inputs)
        if missing := [c for c in columns if c.name not in matched]:
            raise BadValue(
                f"{table.name}: the keys have no column {missing[0].name}.",
                hint=f"The key is {_column_list_text(columns)}.",
            )
        return _build_table(table, columns, matched, count)
    if _is_array(keys) and len(columns) == 1:
        return _build_table(table, columns, {columns[0].name: _to_chunked(keys)}, len(keys))
    if isinstance(keys, tuple) or not _is_collection(keys):
        keys = [keys]
    tuples = [k if isinstance(k, tuple) else (k,) for k in keys]
    for number, key in enumerate(tuples, start=1):
        if len(key) != len(columns):
            raise BadValue(
                f"{table.name}, key {number}: {_shorten(keys[number - 1] if isinstance(keys, list) else key)} has "
                f"{len(key)} value(s), the key has {len(columns)} column(s).",
                hint=f"Give {'a value of' if len(columns) == 1 else 'a tuple of'} {_column_list_text(columns)}.",
            )
    pivoted: dict[str, Values] = {c.name: [key[i] for key in tuples] for i, c in enumerate(columns)}
    return _build_table(table, columns, pivoted, len(tuples))


def updates_table(table: Table, key: Any, columns: Mapping[str, Any]) -> tuple[pa.Table, pa.Table]:
    """Return the key of one row, and one row of the columns that `update` changes."""
    key_row = keys_table(table, key)
    if key_row.num_rows != 1:
        raise BadValue(f"{table.name}: update takes one key, not {key_row.num_rows}.", hint="Call update for each key.")
    if not isinstance(columns, Mapping) or not columns:
        raise BadValue(
            f"{table.name}: update needs the columns to change.", hint="Give a dict of column and new value."
        )
    matched = _match_columns(table, table.columns, {name: [value] for name, value in columns.items()})
    if fixed := [c for c in table.key_columns if c.name in matched]:
        raise BadValue(
            f"{table.name}.{fixed[0].name} is part of the key and cannot be changed by update.",
            hint="Delete the row and put it under the new key.",
        )
    changed = tuple(c for c in table.columns if c.name in matched)
    return key_row, _build_table(table, changed, matched, 1)


def last_by_key(table: Table, rows: pa.Table) -> pa.Table:
    """Return the last row of each key, in the input's order. `rows` has all columns, or only the key's."""
    last = last_occurrences(encode_keys(table, rows)) if rows.num_rows > 1 else None
    return rows if last is None else rows.take(pa.array(last))


# -- shapes of input ---------------------------------------------------------------------------------------------------


def _is_pandas(rows: Any) -> bool:
    return type(rows).__module__.partition(".")[0] == "pandas"


def _is_array(keys: Any) -> bool:
    return isinstance(keys, (pa.Array, pa.ChunkedArray)) or (_is_pandas(keys) and hasattr(keys, "to_frame"))


def _is_table(rows: Any) -> bool:
    if isinstance(rows, (pa.Array, pa.ChunkedArray)):
        return False
    if _is_pandas(rows):
        return hasattr(rows, "columns")
    return hasattr(rows, "__arrow_c_stream__")


def _is_collection(keys: Any) -> bool:
    return isinstance(keys, Iterable) and not isinstance(keys, (str, bytes, bytearray, memoryview))


def _to_chunked(values: Any) -> Values:
    """Return one column of Arrow or pandas data. pandas' missing values NaN, NaT and NA become NULL."""
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    if values.dtype == object:
        return values.astype(object).where(values.notna(), None).tolist()
    array = pa.Array.from_pandas(values)
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _columns_of(table: Table, rows: Any) -> tuple[dict[str, Values], int]:
    """Return the columns under the user's names, and the number of rows."""
    if isinstance(rows, Mapping):
        return _pivot(table, [rows])
    if _is_table(rows):
        if _is_pandas(rows):
            names, columns = list(rows.columns), [_to_chunked(rows.iloc[:, i]) for i in range(rows.shape[1])]
            count = len(rows)
        else:
            arrow = pa.table(rows)
            names, columns, count = arrow.column_names, arrow.columns, arrow.num_rows
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise BadValue(f"{table.name}: column {twice!r} is there twice.", hint="Give each column once.")
        return dict(zip(names, columns, strict=True)), count
    if not isinstance(rows, Iterable) or isinstance(rows, (str, bytes)):
        raise BadValue(f"{table.name}: {_shorten(rows)} is no row.", hint=ACCEPTED_ROWS_HINT)
    return _pivot(table, list(rows))


def _pivot(table: Table, rows: Sequence[Any]) -> tuple[dict[str, Values], int]:
    """Convert dicts to columns, one list for each name that occurs."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise BadValue(f"{table.name}, row {number}: {_shorten(row)} is no dict.", hint=ACCEPTED_ROWS_HINT)
        names.update(dict.fromkeys(row))
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(name.lower() if isinstance(name, str) else name, []).append(name)
    columns: dict[str, Values] = {}
    for variants in spellings.values():
        default = _default_value(table, variants[0])
        if len(variants) == 1:
            columns[variants[0]] = [row.get(variants[0], default) for row in rows]
        else:
            columns[variants[0]] = [
                _select_spelling(table, row, variants, number, default) for number, row in enumerate(rows, start=1)
            ]
    return columns, len(rows)


def _default_value(table: Table, name: Any) -> Any:
    """Return the value of a row that does not name this column."""
    column = table.by_name.get(name.lower()) if isinstance(name, str) else None
    if column is None or column.default is None:
        return None
    return parse_value(table.name, column.name, column.type, column.default)


def _select_spelling(table: Table, row: Mapping[str, Any], names: Sequence[str], number: int, default: Any) -> Any:
    present = [n for n in names if n in row]
    if len(present) > 1:
        raise BadValue(
            f"{table.name}, row {number}: {present[0]!r} and {present[1]!r} are the same column.",
            hint="Names do not differ by case; give each column once.",
        )
    return row[present[0]] if present else default


def _match_columns_with_key(table: Table, inputs: Mapping[Any, Values], count: int) -> dict[str, Values]:
    """Return the columns under the table's own names; raise if a key column is missing."""
    matched = _match_columns(table, table.columns, inputs)
    for column in table.key_columns:
        if column.name not in matched and count:
            raise BadValue(
                f"{table.name}: the rows have no column {column.name}, which is part of the key.",
                hint=f"Every row needs its whole key: {_column_list_text(table.key_columns)}.",
            )
    return matched


def _match_columns(table: Table, columns: Sequence[Column], inputs: Mapping[Any, Values]) -> dict[str, Values]:
    """Return the columns under the table's own names."""
    names = {c.name.lower(): c.name for c in columns}
    matched: dict[str, Values] = {}
    for name, values in inputs.items():
        column_name = names.get(name.lower()) if isinstance(name, str) else None
        if column_name is None:
            what = "key column" if len(columns) < len(table.columns) else "column"
            renamed = [
                c.name for c in columns if table.first_internal_name(c.internal_name).lower() == str(name).lower()
            ]
            now = f"It is called {renamed[0]} now. " if renamed else ""
            raise BadValue(f"{table.name} has no {what} {name!r}.", hint=f"{now}It has {_column_list_text(columns)}.")
        if column_name in matched:
            raise BadValue(
                f"{table.name}: column {column_name} is there twice.",
                hint="Names do not differ by case; give each column once.",
            )
        matched[column_name] = values
    return matched


def _build_table(table: Table, columns: Sequence[Column], inputs: Mapping[str, Values], count: int) -> pa.Table:
    keys = {c.name for c in table.key_columns}

    def build_column(column: Column) -> pa.Array:
        strict = Column(column.name, column.type, column.nullable and column.name not in keys)
        return column_values(table.name, strict, inputs.get(column.name, _null_column(count)))

    if count < _PARALLEL_ROWS:
        arrays = [build_column(column) for column in columns]
    else:  # Arrow checks values without the GIL
        with ThreadPool(2, thread_name_prefix="viewkeeper-rows") as threads:
            arrays = list(threads.map(build_column, columns))
    return pa.table(arrays, schema=pa.schema([table.arrow.field(c.name) for c in columns]))


def _null_column(count: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(count)])


def _column_list_text(columns: Sequence[Column]) -> str:
    return ", ".join(f"{c.name} {c.type.sql}" for c in columns)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
