"""The catalog: every table and view, as one immutable value with a version.

It is stored as one JSON record. A change makes a new catalog with the next version; the store replaces the record
atomically, and every process notices by the version. Ids are never used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from viewkeeper.errors import NameTaken, UnknownName
from viewkeeper.model import arguments
from viewkeeper.model.schema import Table


@dataclass(frozen=True)
class Suspension:
    """Why a view is not maintained, and the batch whose state it shows."""

    reason: str
    epoch: int
    cut: int
    time: float


@dataclass(frozen=True)
class OwnCut:
    """Where a view stands that is made anew at intervals: its rows were read at positions `low` to `cut`."""

    epoch: int
    low: int
    cut: int
    time: float


@dataclass(frozen=True)
class View:
    """A materialized view: the table it lives in, the query as written, and its compiled plan as JSON."""

    table: Table
    query: str
    plan: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)
    suspended: Suspension | None = None
    since: int = 0
    """The log position from which on its deltas are complete: where it was loaded."""
    at: OwnCut | None = None
    """None: it stands where the published batch stands."""

    def to_json(self) -> dict[str, Any]:
        data = {"table": self.table.to_json(), "query": self.query, "plan": self.plan, "options": dict(self.options)}
        suspended = None if self.suspended is None else asdict(self.suspended)
        at = None if self.at is None else asdict(self.at)
        return {**data, "suspended": suspended, "since": self.since, "at": at}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> View:
        suspended = Suspension(**data["suspended"]) if data.get("suspended") else None
        at = OwnCut(**data["at"]) if data.get("at") else None
        table = Table.from_json(data["table"])
        return View(table, data["query"], data["plan"], data["options"], suspended, data.get("since", 0), at)


@dataclass(frozen=True)
class Catalog:
    """All tables and views by id."""

    version: int = 0
    next_id: int = 1
    tables: tuple[Table, ...] = ()
    views: tuple[View, ...] = ()

    @property
    def defined(self) -> tuple[Any, ...]:
        """What tables and views are, without where views stand."""
        return self.tables, tuple(replace(v, at=None, since=0) for v in self.views)

    def find(self, name: str) -> Table | View | None:
        wanted = arguments.text(name, "The name of a table or view", "SHOW TABLES and SHOW VIEWS list them.").lower()
        for table in self.tables:
            if table.name.lower() == wanted:
                return table
        for view in self.views:
            if view.table.name.lower() == wanted:
                return view
        return None

    def table(self, name: str) -> Table:
        """The table behind a name, a base table's or a view's."""
        found = self.find(name)
        if found is None:
            raise UnknownName(f"There is no table or view {name!r}.")
        return found.table if isinstance(found, View) else found

    def view(self, name: str) -> View:
        found = self.find(name)
        if found is not None and not isinstance(found, View):
            raise UnknownName(f"{found.name!r} is a table, not a materialized view.", hint="SHOW VIEWS lists views.")
        if found is None:
            raise UnknownName(f"There is no materialized view {name!r}.")
        return found

    def reading(self, table: Table) -> Table:
        """A table as it was looked up some time, able to read the rows of this time."""
        now = next((t for t in self.tables if t.id == table.id), table)
        return table if len(now.places) <= len(table.places) else table.reaching(now)

    def with_table(self, table: Table) -> Catalog:
        self._check_free(table.name)
        return replace(
            self, version=self.version + 1, next_id=max(self.next_id, table.id + 1), tables=(*self.tables, table)
        )

    def with_view(self, view: View) -> Catalog:
        self._check_free(view.table.name)
        return replace(
            self, version=self.version + 1, next_id=max(self.next_id, view.table.id + 1), views=(*self.views, view)
        )

    def with_id_taken(self) -> Catalog:
        """The next id is given away, to something that will be listed later."""
        return replace(self, version=self.version + 1, next_id=self.next_id + 1)

    def replacing(self, view: View) -> Catalog:
        """With another definition or state of a view that is there, known by its id."""
        views = tuple(view if v.table.id == view.table.id else v for v in self.views)
        return replace(self, version=self.version + 1, views=views)

    def with_columns(self, table: Table) -> Catalog:
        """With other columns of a base table that is there, known by its id."""
        tables = tuple(table if t.id == table.id else t for t in self.tables)
        return replace(self, version=self.version + 1, tables=tables)

    def renaming(self, table: Table, name: str) -> Catalog:
        """With another name for a table or view that is there; where its rows are does not change."""
        if name.lower() != table.name.lower():
            self._check_free(name)
        renamed = table.named(name)
        tables = tuple(renamed if t.id == table.id else t for t in self.tables)
        views = tuple(replace(v, table=renamed) if v.table.id == table.id else v for v in self.views)
        return replace(self, version=self.version + 1, tables=tables, views=views)

    def without(self, table_id: int) -> Catalog:
        return replace(
            self,
            version=self.version + 1,
            tables=tuple(t for t in self.tables if t.id != table_id),
            views=tuple(v for v in self.views if v.table.id != table_id),
        )

    def _check_free(self, name: str) -> None:
        if self.find(name) is not None:
            raise NameTaken(f"The name {name!r} is in use.")

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "next_id": self.next_id,
            "tables": [t.to_json() for t in self.tables],
            "views": [v.to_json() for v in self.views],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Catalog:
        return Catalog(
            version=data["version"],
            next_id=data["next_id"],
            tables=tuple(Table.from_json(t) for t in data["tables"]),
            views=tuple(View.from_json(v) for v in data["views"]),
        )
