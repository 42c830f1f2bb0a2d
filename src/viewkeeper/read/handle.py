"""A handle of a table or view: its shape and its rows; a notebook shows both."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.display import MAX_DISPLAY_ROWS, align_rows, html_table, value_text
from viewkeeper.model.schema import Table
from viewkeeper.syntax.show_create import show_create


class Handle:
    """One table or view of an open database. Rows and shape are read from the database on every access."""

    def __init__(self, db: Any, name: str) -> None:
        self._db = db
        self.name: str = db._catalog().table(name).name

    @property
    def schema(self) -> pa.Schema:
        """Names and types of its columns, as its rows have them."""
        return self._current_table().external_schema

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of its key, in their order; empty for a view without a unique key."""
        table = self._current_table()
        return () if table.is_bag else tuple(part.column for part in table.key)

    @property
    def is_view(self) -> bool:
        return self._current_table().is_view

    @property
    def definition(self) -> str:
        """The statement that creates it."""
        catalog = self._db._catalog()
        return show_create(catalog, catalog.find(self.name) or self._current_table())

    def get(self, key: Any, **options: Any) -> dict[str, Any] | None:
        """`Database.get` of this table or view."""
        found: dict[str, Any] | None = self._db.get(self.name, key, **options)
        return found

    def scan(self, prefix: Any = None, start: Any = None, stop: Any = None, **options: Any) -> Iterator[dict[str, Any]]:
        """`Database.scan` of this table or view."""
        found: Iterator[dict[str, Any]] = self._db.scan(self.name, prefix, start, stop, **options)
        return found

    def read(self, **options: Any) -> pa.Table:
        """`Database.read` of this table or view."""
        return self._db.read(self.name, **options)

    def _current_table(self) -> Table:
        found: Table = self._db._catalog().table(self.name)
        return found

    def __repr__(self) -> str:
        kind = self._kind()
        return "\n".join([f"{kind} {self.name}", *(f"  {line}" for line in align_rows(self._columns()))])

    def _repr_html_(self) -> str:
        shape = html_table(
            ["column", "type", "nullable", "key"], self._columns(), f"{self._kind().capitalize()} {self.name}"
        )
        if not self._current_table().is_stored:  # a notebook cell must not compute all rows of a virtual view
            return shape
        rows = [
            [value_text(v) for v in row.values()] for row in islice(self.scan(limit=MAX_DISPLAY_ROWS), MAX_DISPLAY_ROWS)
        ]
        return shape + html_table(self.schema.names, rows, "First rows")

    def _kind(self) -> str:
        found = self._db._catalog().find(self.name)
        if isinstance(found, View):
            return "materialized view" if found.index is None else "index"
        return "table"

    def _columns(self) -> list[list[str]]:
        table = self._current_table()
        key_places = {name.lower(): str(i + 1) for i, name in enumerate(self.key)}
        return [
            [c.name, c.type.sql, "" if c.nullable else "NOT NULL", key_places.get(c.name.lower(), "")]
            for c in table.columns
        ]
