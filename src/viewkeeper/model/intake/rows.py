"""The way in for a user's rows and keys: any common shape of data becomes one Arrow table of the table's own types.

    a dict · a list of dicts · pyarrow Table, RecordBatch, RecordBatchReader · a pandas or polars frame
        │  columns by name, in any case and order; a missing column has its default or NULL, an unknown one is an error
        ▼
    columns ─ values.column_values: exact types, NOT NULL ─▶ pa.Table in `Table.arrow`
        │
        ▼
    last_by_key: in one call the last row of a key wins

Any object with the Arrow stream interface (`__arrow_c_stream__`) is read through it, so neither pandas nor polars is
imported. All checks are done before anything is written.
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
"""From here on columns are made side by side."""

ACCEPTED_ROWS_HINT = "Give a dict, a list of dicts, a pyarrow Table or RecordBatch, or a pandas or polars frame."


def rows_table(table: Table, rows: Any) -> pa.Table:
    """A user's rows as a table in `table.arrow`, in the order given."""
    given, count = _columns_of(table, rows)
    placed = _match_columns_with_key(table, given, count)
    for column in table.columns:
        if column.default is not None and column.name not in placed:
            placed[column.name] = [_default_value(table, column.name)] * count
    return _build_table(table, table.columns, placed, count)


def unchecked_table(table: Table, rows: Any) -> pa.Table:
    """A user's rows for somebody else to check: Arrow data as it is, others with the columns that they name."""
    if isinstance(rows, pa.Table):
        return rows
    if _is_table(rows) and not _is_pandas(rows):
        return pa.table(rows)
    given, count = _columns_of(table, rows)
    placed = _match_columns_with_key(table, given, count)
    named = [c for c in table.columns if c.name in placed]
    return _build_table(table, named, placed, count).cast(
        pa.schema([table.external_schema.field(c.name) for c in named])
    )


def keys_table(table: Table, keys: Any) -> pa.Table:
    """Keys as a table of the key columns: one key (a scalar, or a tuple for a composite key), a list, or a table."""
    columns = table.key_columns
    if isinstance(keys, Mapping) or _is_table(keys):
        given, count = _columns_of(table, keys)
        placed = _match_columns(table, columns, given)
        if missing := [c for c in columns if c.name not in placed]:
            raise BadValue(
                f"{table.name}: the keys have no column {missing[0].name}.",
                hint=f"The key is {_column_list_text(columns)}.",
            )
        return _build_table(table, columns, placed, count)
    if _is_array(keys) and len(columns) == 1:
        return _build_table(table, columns, {columns[0].name: _to_chunked(keys)}, len(keys))
    if isinstance(keys, tuple) or not _is_collection(keys):
        keys = [keys]
    listed = [k if isinstance(k, tuple) else (k,) for k in keys]
    for number, key in enumerate(listed, start=1):
        if len(key) != len(columns):
            raise BadValue(
                f"{table.name}, key {number}: {_shorten(keys[number - 1] if isinstance(keys, list) else key)} has "
                f"{len(key)} value(s), the key has {len(columns)} column(s).",
                hint=f"Give {'a value of' if len(columns) == 1 else 'a tuple of'} {_column_list_text(columns)}.",
            )
    pivoted: dict[str, Values] = {c.name: [key[i] for key in listed] for i, c in enumerate(columns)}
    return _build_table(table, columns, pivoted, len(listed))


def updates_table(table: Table, key: Any, columns: Mapping[str, Any]) -> tuple[pa.Table, pa.Table]:
    """What `update` changes: the key of one row, and one row of the columns to change."""
    where = keys_table(table, key)
    if where.num_rows != 1:
        raise BadValue(f"{table.name}: update takes one key, not {where.num_rows}.", hint="Call update for each key.")
    if not isinstance(columns, Mapping) or not columns:
        raise BadValue(
            f"{table.name}: update needs the columns to change.", hint="Give a dict of column and new value."
        )
    placed = _match_columns(table, table.columns, {name: [value] for name, value in columns.items()})
    if fixed := [c for c in table.key_columns if c.name in placed]:
        raise BadValue(
            f"{table.name}.{fixed[0].name} is part of the key and cannot be changed by update.",
            hint="Delete the row and put it under the new key.",
        )
    changed = tuple(c for c in table.columns if c.name in placed)
    return where, _build_table(table, changed, placed, 1)


def last_by_key(table: Table, rows: pa.Table) -> pa.Table:
    """The last row of each key, in the order given. Takes full rows, or key columns only."""
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
    """One column of Arrow or pandas data. pandas writes "missing" as NaN, NaT or NA: NULL here."""
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    if values.dtype == object:
        return values.astype(object).where(values.notna(), None).tolist()
    array = pa.Array.from_pandas(values)
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _columns_of(table: Table, rows: Any) -> tuple[dict[str, Values], int]:
    """The columns as the user named them, and the number of rows."""
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
    """Dicts to columns, one list for each name that occurs."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise BadValue(f"{table.name}, row {number}: {_shorten(row)} is no dict.", hint=ACCEPTED_ROWS_HINT)
        names.update(dict.fromkeys(row))
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(name.lower() if isinstance(name, str) else name, []).append(name)
    columns: dict[str, Values] = {}
    for same in spellings.values():
        absent = _default_value(table, same[0])
        if len(same) == 1:
            columns[same[0]] = [row.get(same[0], absent) for row in rows]
        else:
            columns[same[0]] = [
                _select_spelling(table, row, same, number, absent) for number, row in enumerate(rows, start=1)
            ]
    return columns, len(rows)


def _default_value(table: Table, name: Any) -> Any:
    """What a row holds that does not name this column."""
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
    """The given columns under the table's own names, those of the key among them."""
    placed = _match_columns(table, table.columns, inputs)
    for column in table.key_columns:
        if column.name not in placed and count:
            raise BadValue(
                f"{table.name}: the rows have no column {column.name}, which is part of the key.",
                hint=f"Every row needs its whole key: {_column_list_text(table.key_columns)}.",
            )
    return placed


def _match_columns(table: Table, columns: Sequence[Column], inputs: Mapping[Any, Values]) -> dict[str, Values]:
    """The given columns under the table's own names."""
    known = {c.name.lower(): c.name for c in columns}
    placed: dict[str, Values] = {}
    for name, values in inputs.items():
        own = known.get(name.lower()) if isinstance(name, str) else None
        if own is None:
            what = "key column" if len(columns) < len(table.columns) else "column"
            renamed = [
                c.name for c in columns if table.first_internal_name(c.internal_name).lower() == str(name).lower()
            ]
            now = f"It is called {renamed[0]} now. " if renamed else ""
            raise BadValue(f"{table.name} has no {what} {name!r}.", hint=f"{now}It has {_column_list_text(columns)}.")
        if own in placed:
            raise BadValue(
                f"{table.name}: column {own} is there twice.",
                hint="Names do not differ by case; give each column once.",
            )
        placed[own] = values
    return placed


def _build_table(table: Table, columns: Sequence[Column], inputs: Mapping[str, Values], count: int) -> pa.Table:
    keys = {c.name for c in table.key_columns}

    def made(column: Column) -> pa.Array:
        strict = Column(column.name, column.type, column.nullable and column.name not in keys)
        return column_values(table.name, strict, inputs.get(column.name, _null_column(count)))

    if count < _PARALLEL_ROWS:
        arrays = [made(column) for column in columns]
    else:  # Arrow looks at values outside of Python's lock
        with ThreadPool(2, thread_name_prefix="viewkeeper-rows") as threads:
            arrays = list(threads.map(made, columns))
    return pa.table(arrays, schema=pa.schema([table.arrow.field(c.name) for c in columns]))


def _null_column(count: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(count)])


def _column_list_text(columns: Sequence[Column]) -> str:
    return ", ".join(f"{c.name} {c.type.sql}" for c in columns)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
