"""Selections for HBase's scanner: a range of row keys, and filters on values whose bytes tell.

    first key column, ordered keys       a range: `=`, `<`, `<=`, `>`, `>=`
    strings, binary (both encodings)     UTF-8 sorts as the strings do
    integers, dates, timestamps (bytes)  big-endian two's complement: negative numbers sort behind the others, so a
                                         range is one or two ranges of bytes

Anything else is compared here, after the scan. A row whose cell does not count because its mark is newer may come
through; a row that satisfies the selection is never left out: a missing cell is NULL, and NULL passes no comparison.
Where a missing cell stands for another value (`Place.initial`), or cells have several widths, nothing is left to HBase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_key, successor
from viewkeeper.model.filtered_table import Comparison
from viewkeeper_hbase.layout.layout import Layout, OrderedKeys, Place

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
class Pushed:
    """What a scanner is given: a range of row keys (empty: no bound), a filter, and in words what they stand for."""

    start: bytes = b""
    stop: bytes = b""
    filter: bytes | None = None
    by_key: tuple[Comparison, ...] = ()
    by_value: tuple[Comparison, ...] = ()
    left: tuple[Comparison, ...] = ()
    """What is compared after the scan."""


def push(layout: Layout, where: Sequence[Comparison]) -> Pushed:
    """The part of a selection that HBase can do."""
    pushed = Pushed()
    filters: list[bytes] = []
    for one in where:
        place = layout.places.get(one.column)
        bounds = _range(layout, one)
        plain = place is not None and place.initial is None and not place.narrower
        text = _filter(place, one) if place is not None and plain else None
        if bounds is not None:
            start, stop = bounds
            stops = [s for s in (pushed.stop, stop) if s]
            pushed = replace(
                pushed,
                start=max(pushed.start, start),
                stop=min(stops) if stops else b"",
                by_key=(*pushed.by_key, one),
            )
        elif text is not None:
            filters.append(text)
            pushed = replace(pushed, by_value=(*pushed.by_value, one))
        else:
            pushed = replace(pushed, left=(*pushed.left, one))
    return replace(pushed, filter=b" AND ".join(filters) or None)


def joined(first: bytes | None, second: bytes | None) -> bytes | None:
    """Both filters: the first one, which looks at whole rows, must see each cell before the second leaves it out."""
    if first is None or second is None:
        return first or second
    return b"(" + first + b") AND (" + second + b")"


def scan_text(layout: Layout, columns: Sequence[str], where: Sequence[Comparison]) -> str:
    """What a first load or a rescan asks of HBase."""
    pushed = push(layout, where)
    cells = [layout.places[c].cell.decode(errors="replace") for c in columns if c in layout.places]
    some = layout.filter(columns) is not None
    asked = f"cells {', '.join(cells)}" if some and cells else "row keys" if some else "all cells"
    parts = [f"scans of {layout.table.name} ask HBase for {asked} of {layout.name}"]
    parts += [f"row keys with {_said(pushed.by_key)}"] if pushed.by_key else []
    parts += [f"rows with {_said(pushed.by_value)}"] if pushed.by_value else []
    parts += [f"{_said(pushed.left)} is looked at afterwards"] if pushed.left else []
    return "; ".join(parts)


def _said(comparisons: Sequence[Comparison]) -> str:
    return " and ".join(map(str, comparisons))


def _range(layout: Layout, one: Comparison) -> tuple[bytes, bytes] | None:
    table = layout.table
    if not isinstance(layout.keys, OrderedKeys) or not table.key or one.op == "in" or one.type not in _IN_KEYS:
        return None
    part = table.key[0]
    if part.column != one.column or part.descending:
        return None
    value = _EPOCH + timedelta(days=one.values[0]) if one.type == types.DATE else one.values[0]
    at = encode_key(table, (value,))
    after = successor(at) or b""
    return {
        "=": (at, after),
        "<": (b"", at),
        "<=": (b"", after),
        ">": (after, b""),
        ">=": (at, b""),
    }[one.op]


def _filter(place: Place, one: Comparison) -> bytes | None:
    if one.type in (types.STRING, types.BINARY):
        values = [v.encode() if one.type == types.STRING else bytes.fromhex(v) for v in one.values]
        tests = [_test(place, "=" if one.op == "in" else one.op, value) for value in values]
    elif one.type in _WIDTHS and place.encoding == "bytes":
        tests = [_number(place, "=" if one.op == "in" else one.op, v, _WIDTHS[one.type]) for v in one.values]
    else:
        return None
    return tests[0] if len(tests) == 1 else b"(" + b" OR ".join(tests) + b")"


def _number(place: Place, op: str, value: int, width: int) -> bytes:
    least, most = -(1 << (8 * width - 1)), (1 << (8 * width - 1)) - 1

    def test(sign: str, number: int) -> bytes:
        return _test(place, sign, number.to_bytes(width, "big", signed=True))

    if op == "=":
        return test("=", value)
    upward = op in (">", ">=")
    if value >= 0:  # up: between it and the greatest; down: below it, or negative
        both = (test(op, value), test("<=", most)) if upward else (test(op, value), test(">=", least))
        return _both(both, b" AND " if upward else b" OR ")
    both = (test(op, value), test("<=", most)) if upward else (test(op, value), test(">=", least))
    return _both(both, b" OR " if upward else b" AND ")


def _both(tests: tuple[bytes, bytes], word: bytes) -> bytes:
    return b"(" + word.join(tests) + b")"


def _test(place: Place, op: str, value: bytes) -> bytes:
    family, _, qualifier = place.cell.partition(b":")
    names = b"'" + _escaped(family) + b"', '" + _escaped(qualifier) + b"', "
    return b"SingleColumnValueFilter(" + names + op.encode() + b", 'binary:" + _escaped(value) + b"', true, true)"


def _escaped(text: bytes) -> bytes:
    return text.replace(b"'", b"''")
