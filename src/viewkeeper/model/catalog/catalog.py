"""The catalog: every table and view, as one immutable value with a version.

It is stored as a record for each table and view, and a short one that says what changed last (`store.catalogs`). A
change makes a new catalog with the next version, which shares what is unchanged with the one before; the store writes
what differs, atomically, and every process notices by the version. Ids are never used twice, and are given in order:
what is listed is listed by id.
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
    """Read when one is asked for, which is seldom."""

    def __init__(self, views: Mapping[int, View]) -> None:
        self._views = views

    def __getitem__(self, view: int) -> str:
        return self._views[view].table.name

    def __iter__(self) -> Iterator[int]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class Catalog:
    """All tables and views by id. Members of families are apart: nothing maintains them, and there may be many."""

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
        mine, theirs = (self.version, self.next_id), (other.version, other.next_id)
        mine_are = (self._tables, self._views, self._members)
        return mine == theirs and mine_are == (other._tables, other._views, other._members)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        views = len(self._views) + len(self._members)
        return f"Catalog(version={self.version}, tables={len(self._tables)}, views={views})"

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        return tuple(self._tables.values())

    @cached_property
    def views(self) -> tuple[View, ...]:
        """All that is maintained: without the members of families, which their families are."""
        return tuple(self._views.values())

    @cached_property
    def members(self) -> Mapping[int, tuple[View, ...]]:
        """For each family of views that were made by name, these."""
        found: dict[int, list[View]] = {}
        for view in self._members.values():
            found.setdefault(view.table.family, []).append(view)
        return {number: tuple(views) for number, views in found.items()}

    def has_members(self, family: int, prefix: bytes | None = None) -> bool:
        """Whether a family has any, or one with this part of its rows."""
        mine = (v.table for v in self._members.values() if v.table.family == family)
        return any(prefix is None or t.key_prefix == prefix for t in mine)

    @cached_property
    def templates(self) -> Mapping[str, tuple[View, ...]]:
        """For each template the views of it that are maintained: a family is the last one."""
        found: dict[str, list[View]] = {}
        for view in self._views.values():
            if view.template:
                found.setdefault(view.template, []).append(view)
        return {name: tuple(sorted(views, key=lambda v: v.is_hidden_family)) for name, views in found.items()}

    @cached_property
    def nonstandard_views(self) -> tuple[View, ...]:
        """The views with options, a cut of their own, or suspended: among thousands, those to look at twice."""
        return tuple(v for v in self._views.values() if v.options or v.own_cut is not None or v.suspended is not None)

    @property
    def names(self) -> Mapping[int, str]:
        """The names of views, by id."""
        return _ViewNames(self._views)

    def display_name(self, number: int) -> str:
        """What a user calls a view that is maintained. Those that are kept together are called by the first of them."""
        view = self._views[number]
        if not view.is_hidden_family:
            return view.table.name
        first, *others = self.members.get(number, ()) or (view,)
        return f"{first.table.name} and {len(others):,} like it" if others else first.table.name

    @property
    def views_by_id(self) -> Mapping[int, View]:
        return self._views

    @property
    def tables_by_id(self) -> Mapping[int, Table]:
        """Base tables."""
        return self._tables

    def find_by_id(self, number: int) -> Table | View | None:
        """What has this id, if it is there."""
        return self._tables.get(number) or self._views.get(number) or self._effective_member(number)

    def _effective_member(self, number: int) -> View | None:
        """A member, which stands where its family stands."""
        found = self._members.get(number)
        family = None if found is None else self._views.get(found.table.family)
        if (
            found is None
            or family is None
            or (family.suspended is None and family.complete_since <= found.complete_since)
        ):
            return found
        return replace(
            found, suspended=family.suspended, complete_since=max(family.complete_since, found.complete_since)
        )

    def maintained_view(self, view: View) -> View:
        """The view that is maintained for this one: itself, or the family that it is a member of."""
        return self._views[view.table.family] if view.is_member else view

    def find_table_by_id(self, number: int) -> Table | None:
        """The table behind an id, a base table's or a view's, if it is there."""
        found = self.find_by_id(number)
        return found.table if isinstance(found, View) else found

    @cached_property
    def readers(self) -> Mapping[int, frozenset[int]]:
        """For each table and view the views whose queries name it, if any do."""
        found: dict[int, set[int]] = {}
        for number, view in self._views.items():
            for read in view.reads:
                found.setdefault(read, set()).add(number)
        return {number: frozenset(views) for number, views in found.items()}

    @cached_property
    def indexes(self) -> Mapping[int, tuple[View, ...]]:
        """For each table and view its indexes, if it has any."""
        found: dict[int, list[View]] = {}
        for view in self._views.values():
            if view.index is not None:
                found.setdefault(view.index.table_id, []).append(view)
        return {number: tuple(views) for number, views in found.items()}

    @cached_property
    def synchronous_views(self) -> Mapping[int, tuple[View, ...]]:
        """For each base table the views that are kept in its writes, if there are any."""
        found: dict[int, list[View]] = {}
        for view in self.nonstandard_views:
            for table in (
                view.synchronous_state.table_ids
                if view.synchronous_state is not None and view.suspended is None
                else ()
            ):
                found.setdefault(table, []).append(view)
        return {number: tuple(views) for number, views in found.items()}

    @property
    def stored_table_ids(self) -> frozenset[int]:
        """Of all that has rows in the store: tables, views, and the state of those that are synchronous."""
        state = (
            number
            for view in self.nonstandard_views
            if view.synchronous_state is not None
            for number in view.synchronous_state.state_table_ids
        )
        return frozenset([*self._tables, *self._views, *state])

    @cached_property
    def user_views(self) -> tuple[View, ...]:
        """The views that are no indexes, as users know them."""
        return tuple(v for v in self.user_views_and_indexes if v.index is None)

    @cached_property
    def user_views_and_indexes(self) -> tuple[View, ...]:
        """Views and indexes as users know them: members in place of the families that keep them."""
        own = (v for v in self._views.values() if not v.is_hidden_family)
        if not self._members:
            return tuple(own)
        members = (v for v in map(self._effective_member, self._members) if v is not None)
        return tuple(sorted((*own, *members), key=lambda v: v.table.id))

    @cached_property
    def user_tables(self) -> tuple[Table, ...]:
        """The base tables as users know them: without the parameters of families that users do not see."""
        return tuple(t for t in self._tables.values() if not t.is_hidden)

    @property
    def entries(self) -> Iterator[Table | View]:
        """Every entry, as it is stored."""
        return chain(self._tables.values(), self._views.values(), self._members.values())

    def dependents(self, ids: Iterable[int]) -> list[int]:
        """The views that read these tables or views, directly or through others, by id."""
        start = set(ids)
        reached, waiting = set(start), list(start)
        while waiting:
            found = self.readers.get(waiting.pop(), frozenset()) - reached
            reached |= found
            waiting.extend(found)
        return sorted(reached - start)

    def find(self, name: str) -> Table | View | None:
        wanted = arguments.check_text(
            name, "The name of a table or view", "SHOW TABLES and SHOW VIEWS list them."
        ).lower()
        number = self._ids.get(wanted)
        return None if number is None else self.find_by_id(number)

    def table(self, name: str) -> Table:
        """The table behind a name, a base table's or a view's."""
        found = self.find(name)
        if found is None:
            known = (*self.tables, *(v.table for v in self.views))
            renamed = [t.name for t in known if t.first_name.lower() == name.lower()]
            hint = f"It is called {renamed[0]} now." if renamed else None
            hint = "Backticks belong into SQL: here a name is what they hold." if "`" in name else hint
            raise UnknownName(f"There is no table or view {name!r}.", hint=hint)
        return found.table if isinstance(found, View) else found

    def view(self, name: str) -> View:
        found = self.find(name)
        if found is not None and not isinstance(found, View):
            raise UnknownName(f"{found.name!r} is a table, not a materialized view.", hint="SHOW VIEWS lists views.")
        if found is None:
            raise UnknownName(f"There is no materialized view {name!r}.")
        return found

    def index(self, name: str) -> View:
        found = self.find(name)
        if isinstance(found, View) and found.index is not None:
            return found
        if found is None:
            raise UnknownName(f"There is no index {name!r}.", hint="SHOW INDEXES lists them.")
        kind = "materialized view" if isinstance(found, View) else "table"
        raise UnknownName(f"{name!r} is a {kind}, not an index.", hint="SHOW INDEXES lists indexes.")

    def refuse_index(self, name: str, alternative: str) -> None:
        """BadValue if a statement that is not about indexes names one."""
        found = self.find(name)
        if isinstance(found, View) and found.index is not None:
            raise BadValue(f"{found.table.name} is an index.", hint=f"Write {alternative}.")

    def readable_version(self, table: Table) -> Table:
        """A table as it was looked up some time, able to read the rows of this time."""
        now = self._tables.get(table.id, table)
        return table if len(now.physical_columns) <= len(table.physical_columns) else table.with_later_version(now)

    # -- changes ------------------------------------------------------------------------------------------------------

    def with_table(self, table: Table) -> Catalog:
        self._check_name_is_free(table.name)
        return self.derive(self.version + 1, max(self.next_id, table.id + 1), [table])

    def with_view(self, view: View) -> Catalog:
        self._check_name_is_free(view.table.name)
        return self.derive(self.version + 1, max(self.next_id, view.table.id + 1), [view])

    def with_views(self, views: Sequence[View]) -> Catalog:
        """With several new views, as one change."""
        for view in views:
            self._check_name_is_free(view.table.name)
        highest = max((view.table.id for view in views), default=0)
        return self.derive(self.version + 1, max(self.next_id, highest + 1), views)

    def with_reserved_ids(self, count: int) -> Catalog:
        """The next ids are given away, to what will be listed later."""
        return self.derive(self.version + 1, self.next_id + count)

    def with_replaced_view(self, view: View) -> Catalog:
        """With another definition or state of a view that is there, known by its id."""
        known = view.table.id in self._views or view.table.id in self._members
        return self.derive(self.version + 1, self.next_id, [view] if known else [])

    def with_columns(self, table: Table) -> Catalog:
        """With other columns of a base table that is there, known by its id."""
        return self.derive(self.version + 1, self.next_id, [table] if table.id in self._tables else [])

    def with_renamed_entry(self, table: Table, name: str) -> Catalog:
        """With another name for a table or view that is there; where its rows are does not change."""
        if name.lower() != table.name.lower():
            self._check_name_is_free(name)
        renamed, found = table.with_name(name), self._members.get(table.id) or self.find_by_id(table.id)
        entries = [] if found is None else [replace(found, table=renamed) if isinstance(found, View) else renamed]
        return self.derive(self.version + 1, self.next_id, entries)

    def without(self, *ids: int) -> Catalog:
        return self.derive(self.version + 1, self.next_id, removed=ids)

    def derive(
        self, version: int, next_id: int, entries: Iterable[Table | View] = (), removed: Iterable[int] = ()
    ) -> Catalog:
        """Another version, in which some entries are new or others than before, and some are gone."""
        made = Catalog.__new__(Catalog)
        made.version, made.next_id = version, next_id
        made._tables, made._views, made._ids = dict(self._tables), dict(self._views), dict(self._ids)
        entries, removed = list(entries), list(removed)
        ids = chain(removed, (e.table.id for e in entries if isinstance(e, View)))
        members = any(isinstance(e, View) and e.is_member for e in entries) or any(i in self._members for i in ids)
        made._members = dict(self._members) if members else self._members
        for number in removed:
            made._remove_entry(number)
        for entry in entries:
            made._add_entry(entry)
        return made

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
        before = self.find_table_by_id(table.id)
        if before is not None and before.name.lower() != table.name.lower():
            self._ids.pop(before.name.lower(), None)
        self._ids[table.name.lower()] = table.id
        if isinstance(entry, View) and entry.is_member:
            self._members[table.id] = entry
        elif isinstance(entry, View):
            self._members.pop(table.id, None)
            late = table.id not in self._views and self._views and table.id < next(reversed(self._views))
            self._views[table.id] = entry
            if late:
                self._views = dict(sorted(self._views.items()))
        else:
            self._tables[table.id] = entry

    def changed_since(self, before: Catalog) -> list[int]:
        """The ids whose entries are others than in that catalog, or gone."""
        found = self._maintained_changed_since(before)
        if (mine := self._members) is not (theirs := before._members):
            found += compress(mine, map(is_not, map(theirs.get, mine), mine.values()))
            found += [i for i in theirs.keys() - mine.keys() if i not in self._views]
        return [i for i in found if self.find_by_id(i) != before.find_by_id(i)]

    def _maintained_changed_since(self, before: Catalog) -> list[int]:
        """Tables, and views that are no members, which are others, new or gone."""
        views, tables = before._views, before._tables
        found = [i for i, v in self._views.items() if views.get(i) is not v]
        found += [i for i, t in self._tables.items() if tables.get(i) is not t]
        return [*found, *(views.keys() - self._views.keys()), *(tables.keys() - self._tables.keys())]

    def redefined_since(self, before: Catalog) -> list[int]:
        """The ids of what is another table or view than in that catalog, or gone: where views stand does not count."""

        def defined(number: int, catalog: Catalog) -> Table | View | None:
            found = catalog.find_by_id(number)
            return replace(found, own_cut=None, complete_since=0) if isinstance(found, View) else found

        return [i for i in self._maintained_changed_since(before) if defined(i, self) != defined(i, before)]

    def _check_name_is_free(self, name: str) -> None:
        if self.find(name) is not None:
            raise NameTaken(f"The name {name!r} is in use.")

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Catalog:
        """A whole catalog in one record, as version 0.1 wrote it."""
        return Catalog(
            version=data["version"],
            next_id=data["next_id"],
            tables=(Table.from_json(t) for t in data["tables"]),
            views=(View.from_json(v) for v in data["views"]),
        )
