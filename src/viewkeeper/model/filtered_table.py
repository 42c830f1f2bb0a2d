"""A table of which only some rows are wanted: what every view that reads it asks of them.

It is a wish. A store may hand its part of it to whoever scans, and leave rows out that do not satisfy it; it must leave
out no others, and need not leave out any.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from viewkeeper.model.schema import Table
from viewkeeper.model.types import Type


class Comparison(NamedTuple):
    """`column op value`, true for no NULL. Values are as plans keep them: dates as days, timestamps as microseconds
    since 1970; of `in`, one of several."""

    column: str
    type: Type
    op: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        said = [repr(v) if isinstance(v, str) else str(v) for v in self.values]
        return f"{self.column} {self.op} {said[0] if self.op != 'in' else '(' + ', '.join(said) + ')'}"


@dataclass(frozen=True)
class FilteredTable(Table):
    """`base`, with the comparisons that a row must pass to matter."""

    base: Table | None = None
    where: tuple[Comparison, ...] = ()


def filter_table(table: Table, where: tuple[Comparison, ...]) -> Table:
    if not where:
        return table
    return FilteredTable(**{f.name: getattr(table, f.name) for f in fields(Table)}, base=table, where=where)


def unfiltered_table(table: Table) -> Table:
    """The table, whatever is wanted of it."""
    return table.base if isinstance(table, FilteredTable) and table.base is not None else table


def pushed_comparisons(table: Table) -> tuple[Comparison, ...]:
    return table.where if isinstance(table, FilteredTable) else ()
