"""A table's shape: columns, key, and what kind of table it is.

A key column may be descending (its bytes are inverted) and may put NULLs last; base tables use neither. A *bag* is a
view without a unique key: its key is the whole row, and a hidden column `¤count` holds how often the row occurs.

    ALTER TABLE     columns            gone              a row as it lies
                    a b                                  a b
    DROP COLUMN b   a                  b at place 1      a ·
    ADD COLUMN b    a b (inside: b#2)  b at place 1      a · b#2

A member of a family (`model.members`) has its rows in the family's table: those whose keys begin with its `prefix`, and
whose first columns, the parameters, are as good as dropped.

Places are only ever added, so rows and log entries of any time can be read. A dropped column keeps its place, where new
rows hold NULL. What is called as one was before gets another name *inside*, by which stored state (images of tables,
cells in HBase) knows it: no old value comes back. A column that was added with a DEFAULT has an *initial* value, which
rows show that were written before it; they are not rewritten, and another DEFAULT later does not change it.

A column whose type becomes a wider one keeps its place and gets another name inside. A place that nobody uses is added,
so that a row's number of columns says which type it was written with (`narrower`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

import pyarrow as pa

from viewkeeper.model import types
from viewkeeper.model.catalog.synchronous_state import SYNCHRONOUS_OPTION
from viewkeeper.model.names import COUNT as COUNT
from viewkeeper.model.names import WEIGHT as WEIGHT
from viewkeeper.model.names import unused_name
from viewkeeper.model.types import Type

FIRST_NAME_OPTION = "_first_name"
"""The option in which a renamed table keeps the name that it was created with."""


LAZY = "lazy"
"""What the option `store` says of a view that is worked out when it is read."""
HIDDEN_PARAMETERS = "_gathered"
"""The option of a table of parameters that users do not see: those of views that were made by name."""


@dataclass(frozen=True)
class Column:
    """One column: its name as the user wrote it, its Spark type, and whether NULL may occur."""

    name: str
    type: Type
    nullable: bool = True
    internal_alias: str = ""
    """Its name inside, where that is another one."""
    display_name: str = ""
    """Inside, the name that users know, where that is another one."""
    default: str | None = None
    """What a row holds that does not name it, as `written` reads it."""

    @property
    def internal_name(self) -> str:
        return self.internal_alias or self.name

    @property
    def external_name(self) -> str:
        return self.display_name or self.name


@dataclass(frozen=True)
class KeyPart:
    """One key column and the direction in which it is ordered."""

    column: str
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True)
class NarrowerType:
    """What a column was before its type became a wider one: its name inside and its type, in rows that were written
    with at most so many places."""

    internal_name: str
    """The name inside of the wider column."""
    previous_name: str
    type: Type
    column_count: int


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
    dropped_columns: tuple[tuple[int, Column], ...] = ()
    """Dropped columns, by the place that each keeps in stored rows."""
    family: int = 0
    """Of a member of a family, the table that has its rows."""
    key_prefix: bytes = b""
    """What the keys of its rows begin with there."""
    initial_values: tuple[tuple[str, str], ...] = ()
    """By the name inside of a column that was added with a DEFAULT: the value of rows that were written before, as
    `written` reads it."""
    narrower_types: tuple[NarrowerType, ...] = ()
    """The types that columns had before, the oldest first."""
    later_version: Table | None = None
    """A later state of the table, whose rows this one reads too."""

    @property
    def storage_id(self) -> int:
        """The id of the table in which its rows lie."""
        return self.family or self.id

    @cached_property
    def is_hidden(self) -> bool:
        return HIDDEN_PARAMETERS in dict(self.options)

    @cached_property
    def is_stored(self) -> bool:
        """Whether its rows are kept in the store; a view WITH (store = 'none') only streams its changes, and one WITH
        (store = 'lazy') is worked out when it is read."""
        return dict(self.options).get("store") not in ("none", LAZY)

    @cached_property
    def is_lazy(self) -> bool:
        return dict(self.options).get("store") == LAZY

    @property
    def has_rows(self) -> bool:
        """Whether rows can be asked for by key: those that are stored, and those that are worked out for who asks."""
        return self.is_stored or self.is_lazy

    @cached_property
    def is_changed_by_writes(self) -> bool:
        """Whether its rows are as new as the last write call: those of a base table, and of a synchronous view."""
        return not self.is_view or SYNCHRONOUS_OPTION in dict(self.options)

    @cached_property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns as stored: the visible ones and a bag's hidden count."""
        return (*self.columns, Column(COUNT, types.BIGINT, nullable=False)) if self.is_bag else self.columns

    @cached_property
    def physical_columns(self) -> tuple[Column, ...]:
        """The columns as they lie in stored rows, the dropped ones too."""
        gone, there = dict(self.dropped_columns), iter(self.stored_columns)
        return tuple(gone[at] if at in gone else next(there) for at in range(len(self.stored_columns) + len(gone)))

    @cached_property
    def internal(self) -> Table:
        """The same table, its columns called as stored state knows them."""
        if not any(c.internal_alias for c in self.columns):
            return self
        return replace(
            self,
            columns=tuple(
                replace(c, name=c.internal_name, internal_alias="", display_name=c.name) for c in self.columns
            ),
        )

    def _unused_alias(self, name: str) -> str:
        """A name inside that no column has, or had."""
        taken = {c.internal_name.lower() for c in self.physical_columns} | {
            n.previous_name.lower() for n in self.narrower_types
        }
        names = (f"{name}#{n}" for n in count(2))
        return next(n for n in names if n.lower() not in taken) if name.lower() in taken else ""

    def with_column(self, column: Column) -> Table:
        alias = self._unused_alias(column.name)
        added = replace(column, internal_alias=alias)
        initial = (
            self.initial_values
            if column.default is None
            else (*self.initial_values, (added.internal_name, column.default))
        )
        return replace(self, columns=(*self.columns, added), initial_values=initial)

    def without_column(self, name: str) -> Table:
        column = self.by_name[name.lower()]
        gone = (*self.dropped_columns, (self.physical_columns.index(column), column))
        return replace(self, columns=tuple(c for c in self.columns if c is not column), dropped_columns=gone)

    def with_name(self, name: str) -> Table:
        """With another name; a store that called its rows after the first one still finds them."""
        options = (
            self.options if FIRST_NAME_OPTION in dict(self.options) else (*self.options, (FIRST_NAME_OPTION, self.name))
        )
        return replace(self, name=name, options=options)

    @property
    def first_name(self) -> str:
        """The name that it was created with."""
        return dict(self.options).get(FIRST_NAME_OPTION, self.name)

    def with_renamed_column(self, name: str, to: str) -> Table:
        """With another name for a column, which stored state still knows by the one before."""
        old = self.by_name[name.lower()]
        new = replace(old, name=to, internal_alias="" if old.internal_name == to else old.internal_name)
        key = tuple(replace(k, column=to) if k.column.lower() == name.lower() else k for k in self.key)
        return replace(self, columns=tuple(new if c is old else c for c in self.columns), key=key)

    def with_default(self, name: str, default: str | None) -> Table:
        old = self.by_name[name.lower()]
        return replace(self, columns=tuple(replace(c, default=default) if c is old else c for c in self.columns))

    def with_later_version(self, later: Table) -> Table:
        """This table, able to read rows of a later state of it: what was added since is passed over."""
        added = enumerate(later.physical_columns[len(self.physical_columns) :], len(self.physical_columns))
        return replace(self, dropped_columns=(*self.dropped_columns, *added), later_version=later)

    def with_wider_column(self, name: str, type_: Type) -> Table:
        """With a wider type for a column; rows that are there keep their bytes."""
        old = self.by_name[name.lower()]
        alias = self._unused_alias(self.first_internal_name(old.internal_name))
        new = replace(old, type=type_, internal_alias=alias)
        places = len(self.physical_columns)
        unused = Column(f"{alias}#", types.BOOLEAN)
        return replace(
            self,
            columns=tuple(new if c is old else c for c in self.columns),
            dropped_columns=(*self.dropped_columns, (places, unused)),
            initial_values=tuple(
                (alias if inside == old.internal_name else inside, value) for inside, value in self.initial_values
            ),
            narrower_types=(*self.narrower_types, NarrowerType(alias, old.internal_name, old.type, places)),
        )

    def earlier_types(self, internal_name: str) -> tuple[NarrowerType, ...]:
        """What a column was before, the latest first."""
        known, found = {n.internal_name: n for n in self.narrower_types}, []
        while (before := known.get(internal_name)) is not None:
            found.append(before)
            internal_name = before.previous_name
        return tuple(found)

    def first_internal_name(self, internal_name: str) -> str:
        """The name inside that a column had before its type was changed."""
        before = self.earlier_types(internal_name)
        return before[-1].previous_name if before else internal_name

    def column_types_at(self, column_count: int) -> tuple[Type, ...]:
        """The types of the first places, in rows that were written with so many."""
        table = self.later_version or self
        found = []
        for column in table.physical_columns[:column_count]:
            before = [n.type for n in table.earlier_types(column.internal_name) if column_count <= n.column_count]
            found.append(before[-1] if before else column.type)
        return tuple(found)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The schema of stored rows, inside."""
        return pa.schema([pa.field(c.name, types.arrow(c.type)) for c in self.stored_columns])

    @cached_property
    def external_schema(self) -> pa.Schema:
        """The schema of visible rows as a user reads them."""
        return pa.schema([pa.field(c.name, types.external_type(c.type), c.nullable) for c in self.columns])

    @cached_property
    def weight_column(self) -> str:
        """The name of the weight in changes of this table as users see them: `_w` unless a column is called so."""
        return unused_name("_w", (c.name for c in self.columns))

    @cached_property
    def initial_by_column(self) -> Mapping[str, str]:
        """By column name: the value of rows that were written before the column was added, where it is not NULL."""
        values = dict(self.initial_values)
        return {c.name: values[c.internal_name] for c in self.columns if c.internal_name in values}

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Columns by lower-case name: identifiers are case-insensitive."""
        return {c.name.lower(): c for c in self.stored_columns}

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(self.by_name[part.column.lower()] for part in self.key)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "columns": [_column_to_json(c) for c in self.columns],
            "key": [[k.column, k.descending, k.nulls_last] for k in self.key],
            "is_view": self.is_view,
            "is_bag": self.is_bag,
            "options": [list(o) for o in self.options],
            **({"gone": [[at, *_column_to_json(c)] for at, c in self.dropped_columns]} if self.dropped_columns else {}),
            **({"initial": [list(i) for i in self.initial_values]} if self.initial_values else {}),
            **(
                {
                    "narrower": [
                        [n.internal_name, n.previous_name, str(n.type), n.column_count] for n in self.narrower_types
                    ]
                }
                if self.narrower_types
                else {}
            ),
            **({"family": self.family, "prefix": self.key_prefix.hex()} if self.family else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Table:
        return Table(
            id=data["id"],
            name=data["name"],
            columns=tuple(map(column_from_json, data["columns"])),
            key=tuple(KeyPart(*k) for k in data["key"]),
            is_view=data["is_view"],
            is_bag=data["is_bag"],
            options=tuple((k, v) for k, v in data["options"]),
            dropped_columns=tuple((at, column_from_json(c)) for at, *c in data.get("gone", ())),
            initial_values=tuple((name, value) for name, value in data.get("initial", ())),
            narrower_types=tuple(
                NarrowerType(a, b, types.parse_type(t), places) for a, b, t, places in data.get("narrower", ())
            ),
            family=data.get("family", 0),
            key_prefix=bytes.fromhex(data.get("prefix", "")),
        )


def column_from_json(data: Sequence[Any]) -> Column:
    """A column as it was stored: its type is a text there."""
    name, type_, *rest = data
    return Column(name, types.parse_type(type_), *rest)


def _column_to_json(column: Column) -> list[Any]:
    last = (
        [column.internal_alias, "", column.default]
        if column.default is not None
        else [column.internal_alias]
        if column.internal_alias
        else []
    )
    return [column.name, str(column.type), column.nullable, *last]
