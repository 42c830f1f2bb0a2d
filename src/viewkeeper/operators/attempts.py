"""What an operator could not run is refused before there is a view: expressions that have no rule, types that it cannot
keep, and SQL that DuckDB cannot bind, which is tried over no rows."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from viewkeeper import expressions
from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.operator import Operator


def attempt(operators: Iterable[Operator]) -> None:
    """Look at the columns of all operators, and run those whose SQL is not proven, each over no rows."""
    operators = list(operators)
    for operator in operators:
        _refuse_unkept(operator)
    segments = [segment for operator in operators for segment in operator.segments()]
    used = (e for s in segments for e in (*s.where, *s.times, *(n.expr for n in s.exprs)) if e.args)
    for expr in dict.fromkeys(used):
        expressions.check(expr)
    found = [o for o in operators if o.unproven is not None]
    if not found:
        return
    with Duck(expressions.setup, threads=1) as duck:
        for operator in found:
            try:
                operator.attempt(duck)
            except duckdb.Error as error:
                if expressions.error_code(error) is None:  # a constant may raise, and is then an error of the rows
                    said = str(error).split("\n")[0].split(": ", 1)[-1].rstrip(".")
                    raise Unsupported(
                        f"The query has a part that cannot be computed ({operator.unproven}): {said}."
                    ) from None


def _refuse_unkept(operator: Operator) -> None:
    """Rows between operators, and rows that are kept, have columns of the types that a table has."""
    for column in (c for segment in operator.segments() for c in segment.columns):
        try:
            types.arrow(column.type)
        except Unsupported as refused:
            what = {"aggregate": "groups rows, or takes distinct ones, by", "sink": "returns"}
            raise Unsupported(
                f"The query {what.get(operator.kind, 'keeps')} a value of type {column.type.sql}.", hint=refused.hint
            ) from None
