"""A table's schema: columns, key, and kind of table.

A key column may be descending (its bytes are inverted) and may put NULLs last; base tables use neither. A *bag* is a
view without a unique key: its key is the whole row, and a hidden column `¤count` holds the row's multiplicity.

    ALTER TABLE     columns              dropped             a stored row
                    a b                                      a b
    DROP COLUMN b   a                    b at position 1     a ·
    ADD COLUMN b    a b (internal: b#2)  b at position 1     a · b#2

The rows of a member of a view family are stored in the family's table: those whose keys begin with the member's
`key_prefix`. The first columns there, the parameters, are treated like dropped columns.

Column positions are only ever added, so rows and log entries of any age can be read. A dropped column keeps its
position, where new rows hold NULL. A new column with the name of an earlier column gets another *internal name*, by
which stored state (table images, cells in HBase) identifies it, so that no old value reappears. A column added with a
DEFAULT has an *initial value*, which older rows show; the older rows are not rewritten, and a later change of the
DEFAULT does not change the initial value.

A column whose type is widened keeps its position and gets another internal name. An unused position is added, so that
the number of columns in a row identifies the type with which it was written (`narrower_types`).
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
"""The option of a renamed table that keeps its original name."""


LAZY = "lazy"
"""Value of the option `store` of a view that is computed when it is read."""
HIDDEN_PARAMETERS = "_gathered"
"""The option of a parameter table that users do not see: that of a family of views created by name."""


@dataclass(frozen=True)
class Column:
    """A column: its name as the user wrote it, its Spark type, and whether NULL may occur."""

    name: str
    type: Type
    nullable: bool = True
    internal_alias: str = ""
    """The internal name, if it differs from `name`."""
    display_name: str = ""
    """In a table with internal names, the name for users, if it differs from `name`."""
    default: str | None = None
    """The value of a row that does not name this column, as text for `parse_value`."""

    @property
    def internal_name(self) -> str:
        return self.internal_alias or self.name

    @property
    def external_name(self) -> str:
        return self.display_name or self.name


@dataclass(frozen=True)
class KeyPart:
    """A key column and its sort order."""

    column: str
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True)
class NarrowerType:
    """A column before its type was widened: its internal name and type, in rows written with at most `column_count`
    columns."""

    internal_name: str
    """The internal name of the wider column."""
    previous_name: str
    type: Type
    column_count: int


@dataclass(frozen=True)
class Table:
    """A base table or a view's table. Files and keys refer to `id`; the name is for users."""

    id: int
    name: str
    columns: tuple[Column, ...]
    key: tuple[KeyPart, ...]
    is_view: bool = False
    is_bag: bool = False
    options: tuple[tuple[str, str], ...] = field(default=())
    dropped_columns: tuple[tuple[int, Column], ...] = ()
    """Dropped columns with their positions in stored rows."""
    family: int = 0
    """For a member of a family: the id of the table that has its rows."""
    key_prefix: bytes = b""
    """For a member of a family: the prefix of the keys of its rows there."""
    initial_values: tuple[tuple[str, str], ...] = ()
    """(internal name, value) of each column that was added with a DEFAULT: the value of older rows, as text for
    `parse_value`."""
    narrower_types: tuple[NarrowerType, ...] = ()
    """Earlier types of columns, the oldest first."""
    later_version: Table | None = None
    """A later version of the table, whose rows this one can read too."""

    @property
    def storage_id(self) -> int:
        """The id of the table that stores the rows."""
        return self.family or self.id

    @cached_property
    def is_hidden(self) -> bool:
        return HIDDEN_PARAMETERS in dict(self.options)

    @cached_property
    def is_stored(self) -> bool:
        """Whether the rows are in the store. A view WITH (store = 'none') only streams its changes, and one WITH
        (store = 'lazy') is computed when it is read."""
        return dict(self.options).get("store") not in ("none", LAZY)

    @cached_property
    def is_lazy(self) -> bool:
        return dict(self.options).get("store") == LAZY

    @property
    def has_rows(self) -> bool:
        """Whether rows can be read by key: stored rows, and rows that a lazy view computes on read."""
        return self.is_stored or self.is_lazy

    @cached_property
    def is_changed_by_writes(self) -> bool:
        """Whether the rows change in write calls, as those of base tables and synchronous views do."""
        return not self.is_view or SYNCHRONOUS_OPTION in dict(self.options)

    @cached_property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns of a row: the visible ones and a bag's hidden count."""
        return (*self.columns, Column(COUNT, types.BIGINT, nullable=False)) if self.is_bag else self.columns

    @cached_property
    def physical_columns(self) -> tuple[Column, ...]:
        """The columns of an encoded row, including dropped ones, in order of position."""
        dropped, others = dict(self.dropped_columns), iter(self.stored_columns)
        return tuple(
            dropped[at] if at in dropped else next(others) for at in range(len(self.stored_columns) + len(dropped))
        )

    @cached_property
    def internal(self) -> Table:
        """The same table with internal column names, as stored state uses them."""
        if not any(c.internal_alias for c in self.columns):
            return self
        return replace(
            self,
            columns=tuple(
                replace(c, name=c.internal_name, internal_alias="", display_name=c.name) for c in self.columns
            ),
        )

    def _unused_alias(self, name: str) -> str:
        """Return an internal name that no column has or had; "" if that is `name` itself."""
        used = {c.internal_name.lower() for c in self.physical_columns} | {
            n.previous_name.lower() for n in self.narrower_types
        }
        names = (f"{name}#{n}" for n in count(2))
        return next(n for n in names if n.lower() not in used) if name.lower() in used else ""

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
        dropped = (*self.dropped_columns, (self.physical_columns.index(column), column))
        return replace(self, columns=tuple(c for c in self.columns if c is not column), dropped_columns=dropped)

    def with_name(self, name: str) -> Table:
        """Return the table with another name. The first name is kept, by which a store may identify the rows."""
        options = (
            self.options if FIRST_NAME_OPTION in dict(self.options) else (*self.options, (FIRST_NAME_OPTION, self.name))
        )
        return replace(self, name=name, options=options)

    @property
    def first_name(self) -> str:
        """The name with which the table was created."""
        return dict(self.options).get(FIRST_NAME_OPTION, self.name)

    def with_renamed_column(self, name: str, to: str) -> Table:
        """Return the table with a renamed column, whose internal name does not change."""
        old = self.by_name[name.lower()]
        new = replace(old, name=to, internal_alias="" if old.internal_name == to else old.internal_name)
        key = tuple(replace(k, column=to) if k.column.lower() == name.lower() else k for k in self.key)
        return replace(self, columns=tuple(new if c is old else c for c in self.columns), key=key)

    def with_default(self, name: str, default: str | None) -> Table:
        old = self.by_name[name.lower()]
        return replace(self, columns=tuple(replace(c, default=default) if c is old else c for c in self.columns))

    def with_later_version(self, later: Table) -> Table:
        """Return this table, able to read rows of a later version: columns added since are skipped."""
        added = enumerate(later.physical_columns[len(self.physical_columns) :], len(self.physical_columns))
        return replace(self, dropped_columns=(*self.dropped_columns, *added), later_version=later)

    def with_wider_column(self, name: str, type_: Type) -> Table:
        """Return the table with a wider type for a column; stored rows keep their bytes."""
        old = self.by_name[name.lower()]
        alias = self._unused_alias(self.first_internal_name(old.internal_name))
        new = replace(old, type=type_, internal_alias=alias)
        positions = len(self.physical_columns)
        unused = Column(f"{alias}#", types.BOOLEAN)
        return replace(
            self,
            columns=tuple(new if c is old else c for c in self.columns),
            dropped_columns=(*self.dropped_columns, (positions, unused)),
            initial_values=tuple(
                (alias if internal == old.internal_name else internal, value) for internal, value in self.initial_values
            ),
            narrower_types=(*self.narrower_types, NarrowerType(alias, old.internal_name, old.type, positions)),
        )

    def earlier_types(self, internal_name: str) -> tuple[NarrowerType, ...]:
        """Return the earlier types of a column, the latest first."""
        by_name, result = {n.internal_name: n for n in self.narrower_types}, []
        while (narrower := by_name.get(internal_name)) is not None:
            result.append(narrower)
            internal_name = narrower.previous_name
        return tuple(result)

    def first_internal_name(self, internal_name: str) -> str:
        """Return the internal name of a column before its type was changed."""
        earlier = self.earlier_types(internal_name)
        return earlier[-1].previous_name if earlier else internal_name

    def column_types_at(self, column_count: int) -> tuple[Type, ...]:
        """Return the types of the first columns, in rows written with `column_count` columns."""
        table = self.later_version or self
        result = []
        for column in table.physical_columns[:column_count]:
            earlier = [n.type for n in table.earlier_types(column.internal_name) if column_count <= n.column_count]
            result.append(earlier[-1] if earlier else column.type)
        return tuple(result)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of stored rows, with internal types."""
        return pa.schema([pa.field(c.name, types.arrow(c.type)) for c in self.stored_columns])

    @cached_property
    def external_schema(self) -> pa.Schema:
        """The Arrow schema of visible rows, with external types."""
        return pa.schema([pa.field(c.name, types.external_type(c.type), c.nullable) for c in self.columns])

    @cached_property
    def weight_column(self) -> str:
        """The name of the weight in changes of this table for users: `_w`, unless a column has that name."""
        return unused_name("_w", (c.name for c in self.columns))

    @cached_property
    def initial_by_column(self) -> Mapping[str, str]:
        """By column name: the value of rows written before the column was added, where it is not NULL."""
        values = dict(self.initial_values)
        return {c.name: values[c.internal_name] for c in self.columns if c.internal_name in values}

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Columns by lower-case name; identifiers are case-insensitive."""
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
                NarrowerType(a, b, types.parse_type(t), column_count)
                for a, b, t, column_count in data.get("narrower", ())
            ),
            family=data.get("family", 0),
            key_prefix=bytes.fromhex(data.get("prefix", "")),
        )


def column_from_json(data: Sequence[Any]) -> Column:
    """Return a column from its stored form, in which the type is a text."""
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
