"""Row descriptions in messages: some columns, with long values shortened. Also the name patterns of SHOW … LIKE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.schema import Table

_MAX_VALUE_LENGTH = 60
"""Maximum number of characters of a value in a message."""


def row_text(rows: pa.Table, names: Mapping[str, str]) -> str:
    """Describe the first row as `name = value, …`; `names` maps each column to its shown name."""
    return ", ".join(f"{shown} = {_value_text(rows[column])}" for column, shown in names.items())


def key_text(table: Table, rows: pa.Table, row: int) -> str:
    """Describe the key of one row."""
    return row_text(rows.slice(row, 1), {c.name: c.name for c in table.key_columns})


def _value_text(column: pa.ChunkedArray) -> str:
    first = column.slice(0, 1)
    if pa.types.is_string(first.type) or pa.types.is_binary(first.type):
        size = pc.binary_length(first)[0].as_py()
        if size is not None and size > _MAX_VALUE_LENGTH:
            slice_function = pc.utf8_slice_codeunits if pa.types.is_string(first.type) else pc.binary_slice
            return f"{slice_function(first, 0, _MAX_VALUE_LENGTH)[0].as_py()!r}… ({size:,} bytes)"
    try:
        return repr(first[0].as_py()) if pa.types.is_string(first.type) else str(first[0].as_py())
    except (ValueError, OverflowError):  # a date outside Python's range
        return str(first.cast(pa.string())[0].as_py())


def match_names(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that match a pattern of SHOW … LIKE: `*` matches anything, `|` separates patterns, case is
    ignored.

    These are the rules of Spark's SHOW. `%` also means `*`, for users who know LIKE from queries; `_` is an ordinary
    character, because many names contain it.
    """
    parts = ("".join(".*" if c in "*%" else re.escape(c) for c in part.strip()) for part in pattern.split("|"))
    expression = re.compile("|".join(parts), re.IGNORECASE | re.DOTALL)
    return [name for name in names if expression.fullmatch(name)]
