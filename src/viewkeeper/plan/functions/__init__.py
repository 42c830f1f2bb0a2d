"""Aggregate and window functions that are recomputed from the rows of a key, as DuckDB SQL.

    table.py              the list: Spark SQL's name, Catalyst's class, example forms, the writer
    duckdb_aggregates.py  writers of DuckDB text for aggregates, ranks, shifts and frames

Each call becomes DuckDB text over rendered arguments; the result is cast to Spark's type.
"""

from __future__ import annotations

from collections.abc import Sequence

from viewkeeper.errors import Unsupported
from viewkeeper.expressions import render
from viewkeeper.model import types
from viewkeeper.plan.functions.duckdb_aggregates import PEER_FUNCTIONS, frame_sql, parameter, with_order
from viewkeeper.plan.functions.table import AGGREGATES, ARGUMENT_TYPES, REFUSAL_REASONS, WINDOW_FUNCTIONS, Function
from viewkeeper.plan.logical.nodes import Call, Expr

__all__ = [
    "AGGREGATES",
    "ARGUMENT_TYPES",
    "PEER_FUNCTIONS",
    "WINDOW_FUNCTIONS",
    "Function",
    "aggregate_sql",
    "frame_sql",
    "function_name",
    "is_known_function",
    "is_ordered_sum",
    "parameter",
    "summand",
    "unsupported_function",
    "window_sql",
    "with_order",
]

_AGGREGATES_BY_OP = {f.op: f for f in reversed(AGGREGATES)}
_FUNCTIONS_BY_OP = {f.op: f for f in reversed((*AGGREGATES, *WINDOW_FUNCTIONS))}


def function_name(call: Call) -> str:
    """Return the function's name in SQL."""
    function = _FUNCTIONS_BY_OP.get(call.function)
    return function.name if function else call.function


def unsupported_function(name: str) -> Unsupported:
    """Return the error that refuses a function which is in neither list, by Spark SQL's name."""
    reason = REFUSAL_REASONS.get(name, "")
    names = dict.fromkeys(f.name for f in (*AGGREGATES, *WINDOW_FUNCTIONS))
    return Unsupported(
        f"The function {name} is not supported in a materialized view{reason and ': ' + reason}.",
        hint=f"Supported: {', '.join(sorted(names))}.",
    )


def is_known_function(op: str) -> bool:
    """Whether a Catalyst class is one of the functions in the lists."""
    return op in _FUNCTIONS_BY_OP


def aggregate_sql(call: Call) -> str:
    """Return the aggregate as DuckDB text of the call's type."""
    return _call_sql(call, _AGGREGATES_BY_OP.get(call.function), "")


def window_sql(call: Call, over: str) -> str:
    """Return the call over a window, as DuckDB text of the call's type; `over` is the OVER clause."""
    function = _FUNCTIONS_BY_OP.get(call.function)
    if function is not None and not function.allows_over:
        raise Unsupported(
            f"{function.name} over a window is not supported: its digits depend on the order of additions.",
            hint=f"{function.name} with GROUP BY is.",
        )
    if function is not None and function.needs_over and call.filter is not None:
        raise Unsupported(f"{function.name} with FILTER is not supported.", hint="Write a CASE, and IGNORE NULLS.")
    return _call_sql(call, function, over)


def is_ordered_sum(call: Call) -> bool:
    """Whether the result over a window depends on the order in which rows are added: a sum or average that is a
    DOUBLE."""
    if call.function not in ("Sum", "Average") or call.type != types.DOUBLE:
        return False
    return types.is_float(call.args[0].type) or call.args[0].type == types.BIGINT  # sums of smaller integers are exact


def summand(call: Call) -> str:
    """Return the text of the value that an ordered sum adds for one row."""
    (argument,) = _render_arguments(call)
    return f"CAST({argument} AS DOUBLE)"


def _call_sql(call: Call, function: Function | None, clause: str) -> str:
    if function is None:
        raise unsupported_function(function_name(call).lower())
    return f"CAST({function.write(call, _render_arguments(call), clause)} AS {types.duckdb(call.type)})"


def _render_arguments(call: Call) -> Sequence[str]:
    """Return the rendered arguments, NULL where the FILTER does not hold: no aggregate counts such a row.

    Constants (a percentage, a delimiter) stay constants.
    """
    if call.filter is None:
        return [render(a) for a in call.args]
    args = call.args or (Expr("literal", types.INT, value=1, nullable=False),)
    condition = render(call.filter)
    constant = [i > 0 and a.op == "literal" for i, a in enumerate(args)]
    return [
        render(a) if is_constant else f"CASE WHEN {condition} THEN {render(a)} END"
        for a, is_constant in zip(args, constant, strict=True)
    ]
