"""Window functions of their own, and frames, as DuckDB SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.model.types import Kind
from viewkeeper.plan.functions.writing import Write, parameter
from viewkeeper.plan.nodes import Call, Order

PEERS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
"""Functions that treat rows with equal order as one; for all others over a ROWS frame ties must fall one way."""

_FRAMELESS = frozenset({*PEERS, "RowNumber", "NTile", "Lag", "Lead"})


_WITHIN = "order within the frame"


def with_order(call: Call, total: str) -> Call:
    """A call that takes its row from the frame in a total order of its own.

    A RANGE frame needs the window's own order, which leaves open how rows with equal values follow each other. Then
    the first, last or nth row would be whichever the state happens to hold first.
    """
    if call.function not in ("First", "Last", "NthValue"):
        return call
    return replace(call, value=(*(call.value or ()), (_WITHIN, total)))


def ranking(function: str) -> Write:
    return lambda call, args, clause: f"{function}({', '.join(args)}){clause}"


def shift(function: str) -> Write:
    def write(call: Call, args: Sequence[str], clause: str) -> str:
        order = f" ORDER BY {within}" if (within := parameter(call, _WITHIN)) else ""
        ignore = " IGNORE NULLS" if parameter(call, "ignoreNulls") else ""
        return f"{function}({', '.join(args)}{order}{ignore}){clause}"

    return write


def frame_sql(call: Call, order: Sequence[Order]) -> str:
    """The frame clause of a window call.

    Spark takes every frame whose bounds are not the wrong way round by their numbers. DuckDB's parser refuses
    `1 FOLLOWING AND CURRENT ROW` and `CURRENT ROW AND 1 PRECEDING`, in which there are no rows, and takes a distance of
    zero for what its word says: such a current row is written as a distance of zero on the other bound's side.
    """
    kind, lower, upper = parameter(call, "frame")
    if call.function in _FRAMELESS:
        return ""
    dated = kind == "range" and bool(order) and order[0].expr.type == types.DATE
    first, last = _bound(lower, dated), _bound(upper, dated)
    if first == _CURRENT and last.endswith(f" {_BEFORE}"):
        first = f"{_zero(last)} {_BEFORE}"
    if last == _CURRENT and first.endswith(f" {_AFTER}"):
        last = f"{_zero(first)} {_AFTER}"
    return f" {kind.upper()} BETWEEN {first} AND {last}"


_CURRENT, _BEFORE, _AFTER = "CURRENT ROW", "PRECEDING", "FOLLOWING"


def _zero(bound: str) -> str:
    """The distance zero, of the kind that another bound has."""
    return "INTERVAL 0 DAY" if bound.startswith("INTERVAL") else "0"


def _bound(bound: Any, dated: bool) -> str:
    """A frame's bound; a number is one of days where the order is by a date, and at a distance of zero is the row."""
    if isinstance(bound, str):
        return bound.upper()
    negative = bound.op == "UnaryMinus"
    distance = bound.args[0] if negative else bound
    if distance.op != "literal" or distance.value is None:
        raise Unsupported("A window frame's bound must be a constant.")
    text = str(distance.value)
    side = _BEFORE if negative != text.startswith("-") else _AFTER
    text = text.lstrip("-")
    if float(text) == 0:
        return _CURRENT
    if types.is_interval(distance.type):
        return f"INTERVAL {text} {'MONTH' if distance.type.kind is Kind.MONTHS else 'MICROSECOND'} {side}"
    return f"INTERVAL {text} DAY {side}" if dated else f"{text} {side}"
