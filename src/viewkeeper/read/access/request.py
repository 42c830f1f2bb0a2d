"""Checks a user's request to a table or view: columns, order, limit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from viewkeeper.errors import BadValue, UnknownName
from viewkeeper.model.intake import arguments
from viewkeeper.model.names import COUNT
from viewkeeper.model.schema import KeyPart, Table
from viewkeeper.read.access.key_ranges import KeyBounds
from viewkeeper.read.access.path import RowRequest
from viewkeeper.read.access.predicates import RequestPredicate

_ORDER_PATTERN = re.compile(r"(.*?)(?:\s+(asc|desc))?\s*", re.IGNORECASE | re.DOTALL)


def build_request(
    table: Table,
    where: RequestPredicate,
    columns: Sequence[str] | str | None,
    order_by: Sequence[str] | str | None,
    limit: int | None,
    key_bounds: KeyBounds = (None, None),
) -> RowRequest:
    """Build a checked request. `columns`: names, or None for all. `order_by`: names, each optionally with DESC."""
    if not table.has_rows:
        raise BadValue(f"{table.name} is not stored, so it has no rows by key.", hint=f"Use read({table.name!r}).")
    if limit is not None:
        arguments.check_whole_number(limit, "scan's limit", 0)
    named = tuple(_find_column(table, name, "columns") for name in _column_list(columns, "columns"))
    if len(set(named)) < len(named) or (columns is not None and not named):
        raise BadValue("columns names a column twice, or none.", hint="Name each once.")
    selected = named if columns is not None else tuple(c.name for c in table.columns)
    order: dict[str, KeyPart] = {}
    for text in _column_list(order_by, "order_by"):
        found = _ORDER_PATTERN.fullmatch(text)
        name, direction = (found[1], found[2]) if found and text.lower() not in table.by_name else (text, None)
        column = _find_column(table, name, "order_by")
        descends = direction is not None and direction.lower() == "desc"
        order.setdefault(column, KeyPart(column, descends, nulls_last=descends))
    return RowRequest(table, where, selected, tuple(order.values()), limit, key_bounds)


def _column_list(columns: Any, argument: str) -> list[str]:
    if columns is None:
        return []
    names = [columns] if isinstance(columns, str) else list(columns) if isinstance(columns, (list, tuple)) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise BadValue(f"{argument} is {arguments.shorten(columns)}.", hint="Give a list of column names.")
    return names


def _find_column(table: Table, name: str, argument: str) -> str:
    column = table.by_name.get(name.strip().lower())
    if column is None or column.name == COUNT:
        raise UnknownName(
            f"{table.name} has no column {name!r}, which {argument} names.",
            hint=f"It has: {', '.join(c.name for c in table.columns)}.",
        )
    return column.name
