"""Rows in order, without a statement: Arrow sorts a thousand rows in a quarter of the time that one takes.

It puts integers, dates, times, decimals and strings (by their bytes) in the order in which DuckDB has them. Floats
(NaN, the two zeros), other types, and orders by more than columns are left to a statement.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.finding import Places

_MOST_ROWS = 1 << 15
_TERM = r'"(\w+)" (ASC|DESC) NULLS (FIRST|LAST)'
_ORDER = re.compile(f"{_TERM}(?:, {_TERM})*")
_WAYS = {"ASC": "ascending", "DESC": "descending"}
_NULLS = {"FIRST": "at_start", "LAST": "at_end"}

Key = tuple[str, str, str]


def places_in_order(rows: pa.Table, order: str) -> Places | None:
    """Where the rows lie that an ORDER BY clause names first, second, …; of equal ones those that are first now. None
    where that takes a statement."""
    if not can_be_ordered(rows, order):
        return None
    keys = _keys(order)
    found: Places = pc.sort_indices(rows, sort_keys=list(keys)).to_numpy().astype(np.int64)
    return found


def can_be_ordered(rows: pa.Table, order: str) -> bool:
    """Whether that takes no statement, of these rows and of fewer."""
    keys = _keys(order)
    if not keys or rows.num_rows > _MOST_ROWS:
        return False
    columns = [name for name in rows.column_names if name not in (HASH, WEIGHT)]
    return {name for name, _, _ in keys} <= {*columns} and all(_is_sorted(rows.schema.field(n).type) for n in columns)


@lru_cache(maxsize=1024)
def _keys(order: str) -> tuple[Key, ...]:
    """Each column once, with the way it goes; none if there is anything but columns."""
    if _ORDER.fullmatch(order) is None:
        return ()
    found: dict[str, Key] = {}
    for name, way, nulls in re.findall(_TERM, order):
        found.setdefault(name, (name, _WAYS[way], _NULLS[nulls]))
    return tuple(found.values())


def _is_sorted(kind: pa.DataType) -> bool:
    known = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal128, pa.types.is_string)
    return any(is_known(kind) for is_known in known)
