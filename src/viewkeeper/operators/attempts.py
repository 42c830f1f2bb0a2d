"""Trying operators over nothing: what DuckDB cannot bind is refused before there is a view."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from viewkeeper import expressions
from viewkeeper.errors import Unsupported
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.operator import Operator


def attempt(operators: Iterable[Operator]) -> None:
    """Run the operators whose SQL is not proven, each over no rows."""
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
