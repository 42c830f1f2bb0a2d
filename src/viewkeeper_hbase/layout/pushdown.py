"""Predicate pushdown into HBase's scanner: a range of row keys, and filters on the bytes of values.

    first key column, ordered keys       a range: `=`, `<`, `<=`, `>`, `>=`
    strings, binary (both encodings)     UTF-8 sorts as the strings do
    integers, dates, timestamps (bytes)  big-endian two's complement: negative numbers sort after the others, so a
                                         range is one or two ranges of bytes

Every other comparison is evaluated after the scan. A row may pass although its cell does not count, because the
mark is newer. A row that satisfies the predicate is never dropped: a missing cell is NULL, and NULL satisfies no
comparison. If a missing cell stands for another value (`ColumnCells.initial`), or cells have several widths,
nothing is pushed down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_key, successor
from viewkeeper.model.filtered_table import Comparison
from viewkeeper_hbase.layout.layout import ColumnCells, Layout, OrderedKeys

_WIDTHS = {
    types.TINYINT: 1,
    types.SMALLINT: 2,
    types.INT: 4,
    types.BIGINT: 8,
    types.DATE: 4,
    types.TIMESTAMP: 8,
    types.TIMESTAMP_NTZ: 8,
}
_IN_KEYS = (types.TINYINT, types.SMALLINT, types.INT, types.BIGINT, types.DATE, types.STRING)
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class PredicatePushdown:
    """What a scanner can evaluate: a range of row keys (empty: no bound) and a filter, with the comparisons that
    they stand for."""

    start: bytes = b""
    stop: bytes = b""
    filter: bytes | None = None
    by_key: tuple[Comparison, ...] = ()
    by_value: tuple[Comparison, ...] = ()
    residual: tuple[Comparison, ...] = ()
    """The comparisons that are evaluated after the scan."""


def push_down(layout: Layout, where: Sequence[Comparison]) -> PredicatePushdown:
    """Split a predicate into the part that HBase evaluates and the residual one."""
    pushed = PredicatePushdown()
    filters: list[bytes] = []
    for comparison in where:
        column_cells = layout.column_cells.get(comparison.column)
        bounds = _key_bounds(layout, comparison)
        is_filterable = column_cells is not None and column_cells.initial is None and not column_cells.narrower_types
        value_filter = _value_filter(column_cells, comparison) if column_cells is not None and is_filterable else None
        if bounds is not None:
            start, stop = bounds
            stops = [s for s in (pushed.stop, stop) if s]
            pushed = replace(
                pushed,
                start=max(pushed.start, start),
                stop=min(stops) if stops else b"",
                by_key=(*pushed.by_key, comparison),
            )
        elif value_filter is not None:
            filters.append(value_filter)
            pushed = replace(pushed, by_value=(*pushed.by_value, comparison))
        else:
            pushed = replace(pushed, residual=(*pushed.residual, comparison))
    return replace(pushed, filter=b" AND ".join(filters) or None)


def combine_filters(first: bytes | None, second: bytes | None) -> bytes | None:
    """Combine two filters. The first one, which decides on whole rows, must see each cell before the second drops
    it."""
    if first is None or second is None:
        return first or second
    return b"(" + first + b") AND (" + second + b")"


def describe_scan(layout: Layout, columns: Sequence[str], where: Sequence[Comparison]) -> str:
    """Describe what a first load or a rescan requests from HBase."""
    pushed = push_down(layout, where)
    cells = [layout.column_cells[c].cell.decode(errors="replace") for c in columns if c in layout.column_cells]
    has_filter = layout.scan_filter(columns) is not None
    request = f"cells {', '.join(cells)}" if has_filter and cells else "row keys" if has_filter else "all cells"
    parts = [f"scans of {layout.table.name} ask HBase for {request} of {layout.name}"]
    parts += [f"row keys with {_comparisons_text(pushed.by_key)}"] if pushed.by_key else []
    parts += [f"rows with {_comparisons_text(pushed.by_value)}"] if pushed.by_value else []
    parts += [f"{_comparisons_text(pushed.residual)} is looked at afterwards"] if pushed.residual else []
    return "; ".join(parts)


def _comparisons_text(comparisons: Sequence[Comparison]) -> str:
    return " and ".join(map(str, comparisons))


def _key_bounds(layout: Layout, comparison: Comparison) -> tuple[bytes, bytes] | None:
    table = layout.table
    if (
        not isinstance(layout.row_key_encoding, OrderedKeys)
        or not table.key
        or comparison.op == "in"
        or comparison.type not in _IN_KEYS
    ):
        return None
    part = table.key[0]
    if part.column != comparison.column or part.descending:
        return None
    value = _EPOCH + timedelta(days=comparison.values[0]) if comparison.type == types.DATE else comparison.values[0]
    prefix = encode_key(table, (value,))
    after = successor(prefix) or b""
    return {
        "=": (prefix, after),
        "<": (b"", prefix),
        "<=": (b"", after),
        ">": (after, b""),
        ">=": (prefix, b""),
    }[comparison.op]


def _value_filter(cells: ColumnCells, comparison: Comparison) -> bytes | None:
    if comparison.type in (types.STRING, types.BINARY):
        values = [v.encode() if comparison.type == types.STRING else bytes.fromhex(v) for v in comparison.values]
        tests = [_cell_filter(cells, "=" if comparison.op == "in" else comparison.op, value) for value in values]
    elif comparison.type in _WIDTHS and cells.encoding == "bytes":
        tests = [
            _number_filter(cells, "=" if comparison.op == "in" else comparison.op, v, _WIDTHS[comparison.type])
            for v in comparison.values
        ]
    else:
        return None
    return tests[0] if len(tests) == 1 else b"(" + b" OR ".join(tests) + b")"


def _number_filter(cells: ColumnCells, op: str, value: int, width: int) -> bytes:
    min_value, max_value = -(1 << (8 * width - 1)), (1 << (8 * width - 1)) - 1

    def test(sign: str, number: int) -> bytes:
        return _cell_filter(cells, sign, number.to_bytes(width, "big", signed=True))

    if op == "=":
        return test("=", value)
    upward = op in (">", ">=")
    if value >= 0:  # upward: from the value to the greatest number; downward: below the value, or negative
        tests = (test(op, value), test("<=", max_value)) if upward else (test(op, value), test(">=", min_value))
        return _combine(tests, b" AND " if upward else b" OR ")
    tests = (test(op, value), test("<=", max_value)) if upward else (test(op, value), test(">=", min_value))
    return _combine(tests, b" OR " if upward else b" AND ")


def _combine(tests: tuple[bytes, bytes], word: bytes) -> bytes:
    return b"(" + word.join(tests) + b")"


def _cell_filter(cells: ColumnCells, op: str, value: bytes) -> bytes:
    family, _, qualifier = cells.cell.partition(b":")
    names = b"'" + _escape(family) + b"', '" + _escape(qualifier) + b"', "
    return b"SingleColumnValueFilter(" + names + op.encode() + b", 'binary:" + _escape(value) + b"', true, true)"


def _escape(text: bytes) -> bytes:
    return text.replace(b"'", b"''")
