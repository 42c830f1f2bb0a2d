"""Text functions. Spark counts positions in code points, and so does DuckDB."""

from __future__ import annotations

from viewkeeper.plan.expressions.rule import Texts
from viewkeeper.plan.nodes import Expr


def substring(expr: Expr, args: Texts) -> str:
    """Spark's rules: positions start at 1, 0 is 1, a negative one counts from the end; what falls off is lost.

    Start and end are computed first and then cut to the text: substring('abc', -5, 3) is 'a'.
    """
    s, position, length = args
    n = f"length({s})"
    here = f"CAST({position} AS BIGINT)"
    start = f"(CASE WHEN {position} > 0 THEN {here} - 1 WHEN {position} < 0 THEN {n} + {here} ELSE 0 END)"
    end = f"({start} + {length})"
    return f"substring({s}, greatest({start}, 0) + 1, greatest({end} - greatest({start}, 0), 0))"


def concat(expr: Expr, args: Texts) -> str:
    return f"({' || '.join(args)})" if args else "''"
