"""A table's shape: columns, key, and what kind of table it is.

A key column may be descending (its bytes are inverted) and may put NULLs last; base tables use neither. A *bag* is a
view without a unique key: its key is the whole row, and a hidden column `_count` holds how often the row occurs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from viewkeeper.model import types

COUNT = "_count"
"""The hidden column of a bag view."""

WEIGHT = "_w"
"""The weight column of a delta."""


@dataclass(frozen=True)
class Column:
    """One column: its name as the user wrote it, its Spark type, and whether NULL may occur."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True)
class KeyPart:
    """One key column and the direction in which it is ordered."""

    column: str
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True)
class Table:
    """A base table or a view's table. `id` is what files and keys refer to; names are for people."""

    id: int
    name: str
    columns: tuple[Column, ...]
    key: tuple[KeyPart, ...]
    is_view: bool = False
    is_bag: bool = False
    options: tuple[tuple[str, str], ...] = field(default=())

    @cached_property
    def is_stored(self) -> bool:
        """Whether its rows are kept in the store; a view WITH (store = 'none') only streams its changes."""
        return dict(self.options).get("store") != "none"

    @cached_property
    def stored(self) -> tuple[Column, ...]:
        """The columns as stored: the visible ones and a bag's hidden count."""
        return (*self.columns, Column(COUNT, "bigint", nullable=False)) if self.is_bag else self.columns

    @cached_property
    def arrow(self) -> pa.Schema:
        """The schema of stored rows, inside."""
        return pa.schema([pa.field(c.name, types.arrow(c.type)) for c in self.stored])

    @cached_property
    def outside(self) -> pa.Schema:
        """The schema of visible rows as a user reads them."""
        return pa.schema([pa.field(c.name, types.outside(c.type), c.nullable) for c in self.columns])

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Columns by lower-case name: identifiers are case-insensitive."""
        return {c.name.lower(): c for c in self.stored}

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(self.by_name[part.column.lower()] for part in self.key)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "columns": [[c.name, c.type, c.nullable] for c in self.columns],
            "key": [[k.column, k.descending, k.nulls_last] for k in self.key],
            "is_view": self.is_view,
            "is_bag": self.is_bag,
            "options": [list(o) for o in self.options],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Table:
        return Table(
            id=data["id"],
            name=data["name"],
            columns=tuple(Column(*c) for c in data["columns"]),
            key=tuple(KeyPart(*k) for k in data["key"]),
            is_view=data["is_view"],
            is_bag=data["is_bag"],
            options=tuple((k, v) for k, v in data["options"]),
        )
