"""Queries that need no Spark: what they give is in the store as it stands.

    SELECT * | column, … FROM name [ORDER BY column [ASC | DESC] [NULLS FIRST | NULLS LAST], …] [LIMIT number]

No expression is worked out, so there is nothing that Spark could mean otherwise; DuckDB sorts as Spark does (texts by
their bytes, NaN last, NULL first where the order ascends).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from viewkeeper.errors import BadStatement
from viewkeeper.model.catalog import Catalog
from viewkeeper.operators.duck import Duck
from viewkeeper.plan.words import Words, statements

T = TypeVar("T")

_LITERALS = ("TRUE", "FALSE", "NULL")
_MOST_ROWS = 2**31 - 1
"""Spark's largest limit; what it says of a larger one is for it to say."""


@dataclass(frozen=True)
class Simple:
    """One such query. `columns`: those of the table, each with the name that the answer has for it; none: all."""

    table: str
    columns: tuple[tuple[str, str], ...]
    order: tuple[tuple[str, str], ...]
    """Columns of the table, and how each is sorted."""
    limit: int | None

    def run(self, rows: pa.Table) -> pa.Table:
        """The answer, from all rows of the table or view."""
        if self.order:
            sorts = {f"c{i}": rows[name] for i, (name, _) in enumerate(self.order)}  # names of ours: no user's clashes
            directions = ", ".join(f"c{i} {how}" for i, (_, how) in enumerate(self.order))
            with Duck(threads=1) as duck:
                places = duck.run(
                    f"SELECT place FROM input ORDER BY {directions}",
                    input=pa.table({**sorts, "place": pa.array(np.arange(rows.num_rows))}),
                )
            rows = rows.take(places["place"])
        if self.columns:
            rows = rows.select([name for name, _ in self.columns]).rename_columns([name for _, name in self.columns])
        return rows.slice(0, self.limit)


def simple(catalog: Catalog, query: str) -> Simple | None:
    """The query, if it is one of these. A table that does not exist is an error without Spark too."""
    try:
        return _read(catalog, Words(query, next(statements(query), ())))
    except BadStatement:  # Spark knows what it means, or says what is wrong with it
        return None


def _read(catalog: Catalog, words: Words) -> Simple | None:
    words.need("SELECT")
    written = [] if words.take("*") else _listed(words, lambda: _column(words))
    words.need("FROM")
    name = words.name("table")
    order = _listed(words, lambda: (_column(words), _direction(words))) if words.take("ORDER", "BY") else []
    limit = words.number() if words.take("LIMIT") else None
    words.end()
    if limit is not None and limit > _MOST_ROWS:
        return None
    table = catalog.table(name)
    known = {c.name.lower(): c.name for c in table.columns}
    named = [n.lower() for n in written]
    if len(set(named)) < len(named) or not known.keys() >= {*named, *(n.lower() for n, _ in order)}:
        return None
    columns = tuple((known[n.lower()], n) for n in written)
    return Simple(table.name, columns, tuple((known[n.lower()], how) for n, how in order), limit)


def _column(words: Words) -> str:
    if words.written().upper() in _LITERALS:
        raise BadStatement(f"{words.shown()} is a value.", hint="Put a column's name in backticks.")
    return words.name("column")


def _listed(words: Words, read: Callable[[], T]) -> list[T]:
    found = [read()]
    while words.take(","):
        found.append(read())
    return found


def _direction(words: Words) -> str:
    ascends = words.take("ASC") or not words.take("DESC")
    for nulls in ("FIRST", "LAST"):
        if words.take("NULLS", nulls):
            break
    else:
        nulls = "FIRST" if ascends else "LAST"
    return f"{'ASC' if ascends else 'DESC'} NULLS {nulls}"
