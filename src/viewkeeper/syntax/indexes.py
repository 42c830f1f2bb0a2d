"""Statements about indexes and clustered views.

    CREATE INDEX [IF NOT EXISTS] name ON table_or_view ( column [ASC | DESC], … ) [INCLUDE ( columns )] [options]
    DROP INDEX [IF EXISTS] name
    ALTER INDEX name RENAME TO name
    SHOW INDEXES [ON table_or_view]
    CREATE MATERIALIZED VIEW [IF NOT EXISTS] name CLUSTER BY ( columns ) [options] OF table_or_view, …

Indexes share the namespace of tables and views. Every table of a clustered view must have the columns of CLUSTER BY,
with these names and the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from viewkeeper.errors import BadStatement, Unsupported
from viewkeeper.syntax.cursor import TokenCursor


@dataclass(frozen=True)
class CreateIndex:
    name: str
    on: str
    columns: tuple[tuple[str, bool], ...]
    """(name, is descending) of each column."""
    include: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropIndex:
    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class RenameIndex:
    name: str
    to: str


@dataclass(frozen=True)
class ShowIndexes:
    on: str | None = None


IndexStatement = CreateIndex | DropIndex | RenameIndex | ShowIndexes


def parse_create_index(cursor: TokenCursor, read_options: Callable[[TokenCursor], dict[str, str]]) -> CreateIndex:
    """Parse the rest of a statement after CREATE INDEX."""
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    if cursor.is_at("ON"):
        raise BadStatement("The index has no name.", hint="Write CREATE INDEX name ON ….")
    name = cursor.read_new_name("index")
    cursor.expect("ON")
    indexed = cursor.read_name("table or view")
    cursor.expect("(")
    columns = [_parse_index_column(cursor)]
    while cursor.accept(","):
        columns.append(_parse_index_column(cursor))
    cursor.expect(")")
    include = cursor.read_names("column") if cursor.accept("INCLUDE") else ()
    seen: set[str] = set()
    for column in (*(c for c, _ in columns), *include):
        if column.lower() in seen:
            raise BadStatement(f"Index {name}: column {column} is there twice.", hint="Name each column once.")
        seen.add(column.lower())
    return CreateIndex(name, indexed, tuple(columns), include, read_options(cursor), if_not_exists)


def _parse_index_column(cursor: TokenCursor) -> tuple[str, bool]:
    name = cursor.read_name("column")
    if cursor.is_at("("):
        raise BadStatement(
            f"An index is by columns; {name}(…) is an expression.",
            hint="Make a view that has it as a column, and index the view.",
        )
    descends = cursor.accept("DESC")
    if not descends:
        cursor.accept("ASC")
    if cursor.is_at("NULLS"):
        raise BadStatement(
            "In an index NULLs are first where it ascends and last where it descends.", hint="Leave NULLS … out."
        )
    return name, descends


def refuse_unique_index(cursor: TokenCursor) -> IndexStatement:
    """Reject CREATE UNIQUE INDEX, which does not exist."""
    raise Unsupported(
        "A UNIQUE INDEX cannot be kept: an index follows its table in batches, so a second row with the same values is"
        " written before the index could refuse it, and two writers would not see each other's.",
        hint="Make the columns the PRIMARY KEY of a table, or CREATE INDEX and look before you write.",
    )


def parse_drop_index(cursor: TokenCursor) -> DropIndex:
    if_exists = cursor.accept("IF", "EXISTS")
    return DropIndex(cursor.read_name("index"), if_exists)


def parse_alter_index(cursor: TokenCursor) -> RenameIndex:
    name = cursor.read_name("index")
    if not cursor.accept("RENAME", "TO"):
        raise BadStatement(
            f"An index is altered by RENAME TO, not by {cursor.describe_token(begins=False)}.",
            hint="Write RENAME TO name.",
        )
    return RenameIndex(name, cursor.read_new_name("index"))


def parse_show_indexes(cursor: TokenCursor) -> ShowIndexes:
    if cursor.is_at_end():
        return ShowIndexes()
    if not (cursor.accept("ON") or cursor.accept("FROM") or cursor.accept("IN")):
        cursor.expect("ON")
    return ShowIndexes(cursor.read_name("table or view"))


# -- clustered views ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CreateCluster:
    name: str
    by: tuple[str, ...]
    of: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


def parse_cluster_by(
    cursor: TokenCursor,
    name: str,
    if_not_exists: bool,
    or_replace: bool,
    read_options: Callable[[TokenCursor], dict[str, str]],
) -> CreateCluster:
    """Parse the rest of a statement after CLUSTER BY."""
    if or_replace:
        raise BadStatement(f"View {name}: a clustered view is not replaced.", hint="Drop it and create it again.")
    key_columns = cursor.read_names("column")
    options = read_options(cursor)
    cursor.expect("OF")
    tables = [cursor.read_name("table or view")]
    while cursor.accept(","):
        tables.append(cursor.read_name("table or view"))
    for names, what in ((key_columns, "column"), (tables, "table")):
        lower = [n.lower() for n in names]
        if duplicates := [n for i, n in enumerate(names) if lower[i] in lower[:i]]:
            raise BadStatement(f"View {name}: {what} {duplicates[0]} is there twice.", hint="Name each once.")
    return CreateCluster(name, key_columns, tuple(tables), options, if_not_exists)
