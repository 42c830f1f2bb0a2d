"""The catalog: every table and view, as one immutable value with a version.

The store keeps one record for each table and view, and a short record that says what changed last
(`store.catalog_records`). A change creates a new catalog with the next version, which shares unchanged entries with its
predecessor. The store writes the difference atomically, and other processes detect a change by the version. Ids are
never reused and increase over time; listings are in order of id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, compress
from operator import is_not
from typing import Any

from viewkeeper.errors import BadValue, NameTaken, UnknownName
from viewkeeper.model.catalog.view import View as View
from viewkeeper.model.intake import arguments
from viewkeeper.model.schema import Table


class _ViewNames(Mapping[int, str]):
    """View names by id, computed on access, because they are rarely read."""

    def __init__(self, views: Mapping[int, View]) -> None:
        self._views = views

    def __getitem__(self, view: int) -> str:
        return self._views[view].table.name

    def __iter__(self) -> Iterator[int]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class Catalog:
    """All tables and views by id. Members of families are kept separately: they are not maintained themselves, and may
    be many."""

    def __init__(
        self, version: int = 0, next_id: int = 1, tables: Iterable[Table] = (), views: Iterable[View] = ()
    ) -> None:
        self.version = version
        self.next_id = next_id
        self._tables = {t.id: t for t in tables}
        self._views: dict[int, View] = {}
        self._members: dict[int, View] = {}
        self._ids = {t.name.lower(): t.id for t in self._tables.values()}
        for view in views:
            (self._members if view.is_member else self._views)[view.table.id] = view
            self._ids[view.table.name.lower()] = view.table.id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalog):
            return NotImplemented
        own, others = (self.version, self.next_id), (other.version, other.next_id)
        own_entries = (self._tables, self._views, self._members)
        return own == others and own_entries == (other._tables, other._views, other._members)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        views = len(self._views) + len(self._members)
        return f"Catalog(version={self.version}, tables={len(self._tables)}, views={views})"

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        return tuple(self._tables.values())

    @cached_property
    def views(self) -> tuple[View, ...]:
        """All maintained views: families, but not their members."""
        return tuple(self._views.values())

    @cached_property
    def members(self) -> Mapping[int, tuple[View, ...]]:
        """The members of each family of views created by name."""
        by_family: dict[int, list[View]] = {}
        for view in self._members.values():
            by_family.setdefault(view.table.family, []).append(view)
        return {family: tuple(views) for family, views in by_family.items()}

    def has_members(self, family: int, prefix: bytes | None = None) -> bool:
        """Return whether a family has members, or a member with this key prefix."""
        tables = (v.table for v in self._members.values() if v.table.family == family)
        return any(prefix is None or t.key_prefix == prefix for t in tables)

    @cached_property
    def templates(self) -> Mapping[str, tuple[View, ...]]:
        """The maintained views of each template; a family is the last one in its list."""
        by_template: dict[str, list[View]] = {}
        for view in self._views.values():
            if view.template:
                by_template.setdefault(view.template, []).append(view)
        return {name: tuple(sorted(views, key=lambda v: v.is_hidden_family)) for name, views in by_template.items()}

    @cached_property
    def nonstandard_views(self) -> tuple[View, ...]:
        """The views with options, a cut of their own or a suspension: the few that need special treatment."""
        return tuple(v for v in self._views.values() if v.options or v.own_cut is not None or v.suspended is not None)

    @property
    def names(self) -> Mapping[int, str]:
        """The names of maintained views, by id."""
        return _ViewNames(self._views)

    def display_name(self, number: int) -> str:
        """Return the name of a maintained view for users. A family is named after its first member."""
        view = self._views[number]
        if not view.is_hidden_family:
            return view.table.name
        first, *others = self.members.get(number, ()) or (view,)
        return f"{first.table.name} and {len(others):,} like it" if others else first.table.name

    @property
    def views_by_id(self) -> Mapping[int, View]:
        """Maintained views by id."""
        return self._views

    @property
    def tables_by_id(self) -> Mapping[int, Table]:
        """Base tables by id."""
        return self._tables

    def find_by_id(self, number: int) -> Table | View | None:
        """Return the entry with this id, or None."""
        return self._tables.get(number) or self._views.get(number) or self._effective_member(number)

    def _effective_member(self, number: int) -> View | None:
        """Return a member with the suspension and completeness of its family."""
        member = self._members.get(number)
        family = None if member is None else self._views.get(member.table.family)
        if (
            member is None
            or family is None
            or (family.suspended is None and family.complete_since <= member.complete_since)
        ):
            return member
        return replace(
            member, suspended=family.suspended, complete_since=max(family.complete_since, member.complete_since)
        )

    def maintained_view(self, view: View) -> View:
        """Return the maintained view behind a view: itself, or the family of a member."""
        return self._views[view.table.family] if view.is_member else view

    def find_table_by_id(self, number: int) -> Table | None:
        """Return the base table or view table with this id, or None."""
        entry = self.find_by_id(number)
        return entry.table if isinstance(entry, View) else entry

    @cached_property
    def readers(self) -> Mapping[int, frozenset[int]]:
        """For each table and view that queries name: the ids of the views with these queries."""
        readers: dict[int, set[int]] = {}
        for number, view in self._views.items():
            for read in view.reads:
                readers.setdefault(read, set()).add(number)
        return {number: frozenset(views) for number, views in readers.items()}

    @cached_property
    def indexes(self) -> Mapping[int, tuple[View, ...]]:
        """The indexes of each table and view that has any."""
        by_table: dict[int, list[View]] = {}
        for view in self._views.values():
            if view.index is not None:
                by_table.setdefault(view.index.table_id, []).append(view)
        return {table: tuple(views) for table, views in by_table.items()}

    @cached_property
    def synchronous_views(self) -> Mapping[int, tuple[View, ...]]:
        """For each base table with synchronous views: the views that its write transactions maintain."""
        by_table: dict[int, list[View]] = {}
        for view in self.nonstandard_views:
            for table in (
                view.synchronous_state.table_ids
                if view.synchronous_state is not None and view.suspended is None
                else ()
            ):
                by_table.setdefault(table, []).append(view)
        return {number: tuple(views) for number, views in by_table.items()}

    @property
    def stored_table_ids(self) -> frozenset[int]:
        """The ids of everything with rows in the store: tables, views, and the state of synchronous views."""
        state = (
            number
            for view in self.nonstandard_views
            if view.synchronous_state is not None
            for number in view.synchronous_state.state_table_ids
        )
        return frozenset([*self._tables, *self._views, *state])

    @cached_property
    def user_views(self) -> tuple[View, ...]:
        """The views as users know them, without indexes."""
        return tuple(v for v in self.user_views_and_indexes if v.index is None)

    @cached_property
    def user_views_and_indexes(self) -> tuple[View, ...]:
        """Views and indexes as users know them: members in place of their families."""
        views = (v for v in self._views.values() if not v.is_hidden_family)
        if not self._members:
            return tuple(views)
        members = (v for v in map(self._effective_member, self._members) if v is not None)
        return tuple(sorted((*views, *members), key=lambda v: v.table.id))

    @cached_property
    def user_tables(self) -> tuple[Table, ...]:
        """The base tables as users know them, without hidden parameter tables."""
        return tuple(t for t in self._tables.values() if not t.is_hidden)

    @property
    def entries(self) -> Iterator[Table | View]:
        """Every entry, in its stored form."""
        return chain(self._tables.values(), self._views.values(), self._members.values())

    def dependents(self, ids: Iterable[int]) -> list[int]:
        """Return the ids of the views that read these tables or views, directly or through other views."""
        start = set(ids)
        reached, pending = set(start), list(start)
        while pending:
            readers = self.readers.get(pending.pop(), frozenset()) - reached
            reached |= readers
            pending.extend(readers)
        return sorted(reached - start)

    def find(self, name: str) -> Table | View | None:
        key = arguments.check_text(name, "The name of a table or view", "SHOW TABLES and SHOW VIEWS list them.").lower()
        number = self._ids.get(key)
        return None if number is None else self.find_by_id(number)

    def table(self, name: str) -> Table:
        """Return the base table or view table with this name."""
        entry = self.find(name)
        if entry is None:
            tables = (*self.tables, *(v.table for v in self.views))
            renamed = [t.name for t in tables if t.first_name.lower() == name.lower()]
            hint = f"It is called {renamed[0]} now." if renamed else None
            hint = "Backticks belong into SQL: here a name is what they hold." if "`" in name else hint
            raise UnknownName(f"There is no table or view {name!r}.", hint=hint)
        return entry.table if isinstance(entry, View) else entry

    def view(self, name: str) -> View:
        entry = self.find(name)
        if entry is not None and not isinstance(entry, View):
            raise UnknownName(f"{entry.name!r} is a table, not a materialized view.", hint="SHOW VIEWS lists views.")
        if entry is None:
            raise UnknownName(f"There is no materialized view {name!r}.")
        return entry

    def index(self, name: str) -> View:
        entry = self.find(name)
        if isinstance(entry, View) and entry.index is not None:
            return entry
        if entry is None:
            raise UnknownName(f"There is no index {name!r}.", hint="SHOW INDEXES lists them.")
        kind = "materialized view" if isinstance(entry, View) else "table"
        raise UnknownName(f"{name!r} is a {kind}, not an index.", hint="SHOW INDEXES lists indexes.")

    def refuse_index(self, name: str, alternative: str) -> None:
        """Raise BadValue if a statement that is not about indexes names an index."""
        entry = self.find(name)
        if isinstance(entry, View) and entry.index is not None:
            raise BadValue(f"{entry.table.name} is an index.", hint=f"Write {alternative}.")

    def readable_version(self, table: Table) -> Table:
        """Return an earlier version of a table, able to read the rows of the current version."""
        current = self._tables.get(table.id, table)
        return (
            table if len(current.physical_columns) <= len(table.physical_columns) else table.with_later_version(current)
        )

    # -- changes ------------------------------------------------------------------------------------------------------

    def with_table(self, table: Table) -> Catalog:
        self._check_name_is_free(table.name)
        return self.derive(self.version + 1, max(self.next_id, table.id + 1), [table])

    def with_view(self, view: View) -> Catalog:
        self._check_name_is_free(view.table.name)
        return self.derive(self.version + 1, max(self.next_id, view.table.id + 1), [view])

    def with_views(self, views: Sequence[View]) -> Catalog:
        """Return the catalog with several new views, as one change."""
        for view in views:
            self._check_name_is_free(view.table.name)
        highest = max((view.table.id for view in views), default=0)
        return self.derive(self.version + 1, max(self.next_id, highest + 1), views)

    def with_reserved_ids(self, count: int) -> Catalog:
        """Return the catalog with the next ids reserved for later entries."""
        return self.derive(self.version + 1, self.next_id + count)

    def with_replaced_view(self, view: View) -> Catalog:
        """Return the catalog with another definition or state of an existing view, identified by its id."""
        exists = view.table.id in self._views or view.table.id in self._members
        return self.derive(self.version + 1, self.next_id, [view] if exists else [])

    def with_columns(self, table: Table) -> Catalog:
        """Return the catalog with other columns of an existing base table, identified by its id."""
        return self.derive(self.version + 1, self.next_id, [table] if table.id in self._tables else [])

    def with_renamed_entry(self, table: Table, name: str) -> Catalog:
        """Return the catalog with another name for an existing table or view; the location of its rows is unchanged."""
        if name.lower() != table.name.lower():
            self._check_name_is_free(name)
        renamed, entry = table.with_name(name), self._members.get(table.id) or self.find_by_id(table.id)
        entries = [] if entry is None else [replace(entry, table=renamed) if isinstance(entry, View) else renamed]
        return self.derive(self.version + 1, self.next_id, entries)

    def without(self, *ids: int) -> Catalog:
        return self.derive(self.version + 1, self.next_id, removed=ids)

    def derive(
        self, version: int, next_id: int, entries: Iterable[Table | View] = (), removed: Iterable[int] = ()
    ) -> Catalog:
        """Return another version with some entries added or replaced, and some removed."""
        derived = Catalog.__new__(Catalog)
        derived.version, derived.next_id = version, next_id
        derived._tables, derived._views, derived._ids = dict(self._tables), dict(self._views), dict(self._ids)
        entries, removed = list(entries), list(removed)
        ids = chain(removed, (e.table.id for e in entries if isinstance(e, View)))
        members_change = any(isinstance(e, View) and e.is_member for e in entries) or any(
            i in self._members for i in ids
        )
        derived._members = dict(self._members) if members_change else self._members
        for number in removed:
            derived._remove_entry(number)
        for entry in entries:
            derived._add_entry(entry)
        return derived

    def _remove_entry(self, number: int) -> None:
        table = self.find_table_by_id(number)
        if table is not None:
            self._tables.pop(number, None)
            self._views.pop(number, None)
            self._members.pop(number, None)
            if self._ids.get(table.name.lower()) == number:
                del self._ids[table.name.lower()]

    def _add_entry(self, entry: Table | View) -> None:
        table = entry.table if isinstance(entry, View) else entry
        previous = self.find_table_by_id(table.id)
        if previous is not None and previous.name.lower() != table.name.lower():
            self._ids.pop(previous.name.lower(), None)
        self._ids[table.name.lower()] = table.id
        if isinstance(entry, View) and entry.is_member:
            self._members[table.id] = entry
        elif isinstance(entry, View):
            self._members.pop(table.id, None)
            is_out_of_order = table.id not in self._views and self._views and table.id < next(reversed(self._views))
            self._views[table.id] = entry
            if is_out_of_order:
                self._views = dict(sorted(self._views.items()))
        else:
            self._tables[table.id] = entry

    def changed_since(self, before: Catalog) -> list[int]:
        """Return the ids of entries that differ from `before`, are new or are removed."""
        changed = self._maintained_changed_since(before)
        if (members := self._members) is not (old_members := before._members):
            changed += compress(members, map(is_not, map(old_members.get, members), members.values()))
            changed += [i for i in old_members.keys() - members.keys() if i not in self._views]
        return [i for i in changed if self.find_by_id(i) != before.find_by_id(i)]

    def _maintained_changed_since(self, before: Catalog) -> list[int]:
        """Return the ids of tables and maintained views that differ from `before`, are new or are removed."""
        views, tables = before._views, before._tables
        changed = [i for i, v in self._views.items() if views.get(i) is not v]
        changed += [i for i, t in self._tables.items() if tables.get(i) is not t]
        return [*changed, *(views.keys() - self._views.keys()), *(tables.keys() - self._tables.keys())]

    def redefined_since(self, before: Catalog) -> list[int]:
        """Return the ids whose definitions differ from `before`, are new or are removed; cuts are ignored."""

        def definition(number: int, catalog: Catalog) -> Table | View | None:
            entry = catalog.find_by_id(number)
            return replace(entry, own_cut=None, complete_since=0) if isinstance(entry, View) else entry

        return [i for i in self._maintained_changed_since(before) if definition(i, self) != definition(i, before)]

    def _check_name_is_free(self, name: str) -> None:
        if self.find(name) is not None:
            raise NameTaken(f"The name {name!r} is in use.")

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Catalog:
        """Return a catalog from one record with all entries, the form of version 0.1."""
        return Catalog(
            version=data["version"],
            next_id=data["next_id"],
            tables=(Table.from_json(t) for t in data["tables"]),
            views=(View.from_json(v) for v in data["views"]),
        )
