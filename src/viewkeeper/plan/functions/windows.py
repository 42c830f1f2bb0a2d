"""Window functions of their own, and frames, as DuckDB SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.model.types import Kind
from viewkeeper.plan.functions.writing import Write, parameter
from viewkeeper.plan.nodes import Call, Order

PEERS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
"""Functions that treat rows with equal order as one; for all others over a ROWS frame ties must fall one way."""

_FRAMELESS = frozenset({*PEERS, "RowNumber", "NTile", "Lag", "Lead"})


def ranking(function: str) -> Write:
    return lambda call, args, clause: f"{function}({', '.join(args)}){clause}"


def shift(function: str) -> Write:
    def write(call: Call, args: Sequence[str], clause: str) -> str:
        ignore = " IGNORE NULLS" if parameter(call, "ignoreNulls") else ""
        return f"{function}({', '.join(args)}{ignore}){clause}"

    return write


def frame_sql(call: Call, order: Sequence[Order]) -> str:
    """The frame clause of a window call."""
    kind, lower, upper = parameter(call, "frame")
    if call.function in _FRAMELESS:
        return ""
    dated = kind == "range" and bool(order) and order[0].expr.type == types.DATE
    return f" {kind.upper()} BETWEEN {_bound(lower, dated)} AND {_bound(upper, dated)}"


def _bound(bound: Any, dated: bool) -> str:
    """A frame's bound; a number is one of days where the order is by a date."""
    if isinstance(bound, str):
        return bound.upper()
    negative = bound.op == "UnaryMinus"
    distance = bound.args[0] if negative else bound
    if distance.op != "literal" or distance.value is None:
        raise Unsupported("A window frame's bound must be a constant.")
    text = str(distance.value)
    side = "PRECEDING" if negative != text.startswith("-") else "FOLLOWING"
    text = text.lstrip("-")
    if types.is_interval(distance.type):
        return f"INTERVAL {text} {'MONTH' if distance.type.kind is Kind.MONTHS else 'MICROSECOND'} {side}"
    return f"INTERVAL {text} DAY {side}" if dated else f"{text} {side}"
