"""How a row is named in a message: some columns, with long values cut short; and which of many names are meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.schema import Table

_MAX_VALUE_LENGTH = 60
"""Characters of a value that are shown."""


def row_text(rows: pa.Table, names: Mapping[str, str]) -> str:
    """The first row, as `name = value, …`; `names`: what its columns are called."""
    return ", ".join(f"{shown} = {_value_text(rows[column])}" for column, shown in names.items())


def key_text(table: Table, rows: pa.Table, row: int) -> str:
    """The key of one of the rows."""
    return row_text(rows.slice(row, 1), {c.name: c.name for c in table.key_columns})


def _value_text(column: pa.ChunkedArray) -> str:
    first = column.slice(0, 1)
    if pa.types.is_string(first.type) or pa.types.is_binary(first.type):
        size = pc.binary_length(first)[0].as_py()
        if size is not None and size > _MAX_VALUE_LENGTH:
            cut = pc.utf8_slice_codeunits if pa.types.is_string(first.type) else pc.binary_slice
            return f"{cut(first, 0, _MAX_VALUE_LENGTH)[0].as_py()!r}… ({size:,} bytes)"
    try:
        return repr(first[0].as_py()) if pa.types.is_string(first.type) else str(first[0].as_py())
    except (ValueError, OverflowError):  # a date that Python has none for
        return str(first.cast(pa.string())[0].as_py())


def match_names(names: Iterable[str], pattern: str) -> list[str]:
    """The names that match as SHOW … LIKE means it: `*` stands for anything, `|` is between patterns, case is none.

    So it is in Spark's SHOW. `%` is `*` too, for those who know LIKE of queries; `_`, which many names have, is itself.
    """
    parts = ("".join(".*" if c in "*%" else re.escape(c) for c in part.strip()) for part in pattern.split("|"))
    wanted = re.compile("|".join(parts), re.IGNORECASE | re.DOTALL)
    return [name for name in names if wanted.fullmatch(name)]
