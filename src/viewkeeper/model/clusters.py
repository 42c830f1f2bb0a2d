"""A clustered view: the rows of several tables that share a key, next to each other.

key of the view    the shared columns | PART: whose row it is | the rest of each table's own key
columns            the shared ones, PART, then every other column of each table, NULL in the rows of the others
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PART = "part"
"""The column that says of which table a row is: its place in the list, from 0."""


@dataclass(frozen=True)
class Cluster:
    """`of`: the tables, by name as they were named; `columns`: for each its columns, by name, and what each is called
    in the view."""

    by: tuple[str, ...]
    of: tuple[str, ...]
    columns: tuple[tuple[tuple[str, str], ...], ...]

    def to_json(self) -> list[Any]:
        return [list(self.by), list(self.of), [[list(pair) for pair in pairs] for pairs in self.columns]]

    @staticmethod
    def from_json(data: list[Any]) -> Cluster:
        by, of, columns = data
        return Cluster(tuple(by), tuple(of), tuple(tuple((a, b) for a, b in pairs) for pairs in columns))

    def owned(self, table: int) -> Mapping[str, str]:
        """What a table's columns are called in the view."""
        return dict(self.columns[table])
