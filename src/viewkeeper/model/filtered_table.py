"""A table with pushed-down comparisons: conditions that every view that reads the table applies.

The comparisons are a hint. A store may pass a part of them to its scanner and leave out rows that fail them; it must
return all rows that pass, and may return rows that fail.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from viewkeeper.model.schema import Table
from viewkeeper.model.types import Type


class Comparison(NamedTuple):
    """`column op constant`, which is never true for NULL. Constants are stored as in plans: dates as days, timestamps
    as microseconds since 1970. `in` has several values; other operators have one."""

    column: str
    type: Type
    op: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        texts = [repr(v) if isinstance(v, str) else str(v) for v in self.values]
        return f"{self.column} {self.op} {texts[0] if self.op != 'in' else '(' + ', '.join(texts) + ')'}"


@dataclass(frozen=True)
class FilteredTable(Table):
    """`base` with the comparisons that a row must pass to be relevant."""

    base: Table | None = None
    where: tuple[Comparison, ...] = ()


def filter_table(table: Table, where: tuple[Comparison, ...]) -> Table:
    if not where:
        return table
    return FilteredTable(**{f.name: getattr(table, f.name) for f in fields(Table)}, base=table, where=where)


def unfiltered_table(table: Table) -> Table:
    """Return the table without its comparisons."""
    return table.base if isinstance(table, FilteredTable) and table.base is not None else table


def pushed_comparisons(table: Table) -> tuple[Comparison, ...]:
    return table.where if isinstance(table, FilteredTable) else ()
