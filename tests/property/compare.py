"""Two results are equal when they hold the same rows equally often, of the same types, bit for bit.

NaN is one value; 0.0 and −0.0 are two, except where Spark itself leaves open which one comes out (`Typed.loose`) and in
the columns by which a view is kept: keys know one zero, and rows that differ in nothing else are one row.
Order is compared where the view declares one: ORDER BY, or KEY.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from .query import View
from .typed import Typed

Values = tuple[Any, ...]


def difference(view: View, expected: pa.Table, got: pa.Table, key: Sequence[str] = ()) -> str | None:
    """What is wrong with `got`, None if nothing. `key` names the columns by which it is kept."""
    if got.column_names != expected.column_names:
        return f"columns: expected {expected.column_names}, got {got.column_names}"
    if got.schema.types != expected.schema.types:
        pairs = zip(expected.schema, got.schema.types, strict=True)
        return "types: " + ", ".join(f"{f.name} expected {f.type}, got {t}" for f, t in pairs if f.type != t)
    columns = [
        replace(c, loose=c.loose or "zero") if n in key else c
        for c, n in zip(view.columns, got.column_names, strict=True)
    ]
    want, have = canonical(columns, expected), canonical(columns, got)
    if any(c.loose == "near" for c in view.columns):
        return _near_difference(want, have)
    return rows_difference(want, have) or order_difference(view, got)


def rows_difference(want: Sequence[Values], have: Sequence[Values]) -> str | None:
    missing, surplus = Counter(want), Counter(have)
    missing, surplus = missing - surplus, surplus - missing
    if not missing and not surplus:
        return None
    lines = [f"{len(want)} rows expected, {len(have)} found"]
    lines += [f"  missing {count}x {row}" for row, count in sorted(missing.items(), key=repr)[:8]]
    lines += [f"  surplus {count}x {row}" for row, count in sorted(surplus.items(), key=repr)[:8]]
    return "\n".join(lines)


def canonical(columns: Sequence[Typed], table: pa.Table) -> list[Values]:
    """Rows as tuples that can be counted."""
    plain = []
    for facts, column in zip(columns, table.columns, strict=True):
        values = column.to_pylist()
        if pa.types.is_floating(column.type):
            values = [_float(v, facts.loose) for v in values]
        plain.append(values)
    return list(zip(*plain, strict=True)) if plain else [()] * table.num_rows


def _float(value: float | None, loose: str) -> Any:
    if value is None or (value and math.isfinite(value)):
        return value
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 and not loose else 0.0
    return repr(value)


def _near_difference(want: Sequence[Values], have: Sequence[Values]) -> str | None:
    """Floats equal to nine digits; rows paired in the order of everything, floats rounded."""
    if len(want) != len(have):
        return rows_difference(want, have)

    def rounded(row: Values) -> str:
        return repr([f"{v:.6g}" if isinstance(v, float) else v for v in row])

    for a, b in zip(sorted(want, key=rounded), sorted(have, key=rounded), strict=True):
        for x, y in zip(a, b, strict=True):
            both = isinstance(x, float) and isinstance(y, float)
            if not (x == y or (both and math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9))):
                return rows_difference(want, have)
    return None


def order_difference(view: View, got: pa.Table) -> str | None:
    """Whether the rows come in the order that the view declares."""
    order = view.order or tuple((column, "") for column in view.key)
    if not order or view.limit:  # under a LIMIT the order chooses rows; the key is that of the rows chosen from
        return None
    keys: list[tuple[Any, ...]] = [()] * got.num_rows
    for column, direction in order:
        descending = direction.startswith("DESC")
        nulls_last = "NULLS LAST" in direction if "NULLS" in direction else descending
        ranks = _ranks(got[column], descending, nulls_last)
        keys = [(*k, r) for k, r in zip(keys, ranks, strict=True)]
    for i in range(1, len(keys)):
        if keys[i - 1] > keys[i]:
            rows = got.slice(i - 1, 2).to_pylist()
            return f"order: row {i} comes too late\n  {rows[0]}\n  {rows[1]}"
    return None


def _ranks(column: pa.ChunkedArray, descending: bool, nulls_last: bool) -> list[tuple[int, int]]:
    """(where NULL stands, the value's place in Spark's order)."""
    values = column.to_pylist()

    def place(value: Any) -> Any:
        if isinstance(value, float):
            return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
        return value.encode() if isinstance(value, str) else value

    distinct = sorted({place(v) for v in values if v is not None})
    rank = {v: -i if descending else i for i, v in enumerate(distinct)}
    null = (1, 0) if nulls_last else (-1, 0)
    return [null if v is None else (0, rank[place(v)]) for v in values]
