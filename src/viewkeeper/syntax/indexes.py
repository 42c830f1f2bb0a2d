"""The statements about indexes.

    CREATE INDEX [IF NOT EXISTS] name ON table_or_view ( column [ASC | DESC], … ) [INCLUDE ( columns )] [options]
    DROP INDEX [IF EXISTS] name
    ALTER INDEX name RENAME TO name
    SHOW INDEXES [ON table_or_view]

Names of indexes are among those of tables and views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from viewkeeper.errors import BadStatement, Unsupported
from viewkeeper.syntax.cursor import Words


@dataclass(frozen=True)
class CreateIndex:
    name: str
    on: str
    columns: tuple[tuple[str, bool], ...]
    """Names, and whether each descends."""
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


def create_index(words: Words, options: Callable[[Words], dict[str, str]]) -> CreateIndex:
    """What follows CREATE INDEX."""
    exists_ok = words.take("IF", "NOT", "EXISTS")
    if words.at("ON"):
        raise BadStatement("The index has no name.", hint="Write CREATE INDEX name ON ….")
    name = words.new_name("index")
    words.need("ON")
    on = words.name("table or view")
    words.need("(")
    columns = [_column(words)]
    while words.take(","):
        columns.append(_column(words))
    words.need(")")
    include = words.names("column") if words.take("INCLUDE") else ()
    seen: set[str] = set()
    for column in (*(c for c, _ in columns), *include):
        if column.lower() in seen:
            raise BadStatement(f"Index {name}: column {column} is there twice.", hint="Name each column once.")
        seen.add(column.lower())
    return CreateIndex(name, on, tuple(columns), include, options(words), exists_ok)


def _column(words: Words) -> tuple[str, bool]:
    name = words.name("column")
    if words.at("("):
        raise BadStatement(
            f"An index is by columns; {name}(…) is an expression.",
            hint="Make a view that has it as a column, and index the view.",
        )
    descends = words.take("DESC")
    if not descends:
        words.take("ASC")
    if words.at("NULLS"):
        raise BadStatement(
            "In an index NULLs are first where it ascends and last where it descends.", hint="Leave NULLS … out."
        )
    return name, descends


def no_unique_index(words: Words) -> IndexStatement:
    """What follows CREATE UNIQUE INDEX: there is none."""
    raise Unsupported(
        "A UNIQUE INDEX cannot be kept: an index follows its table in batches, so a second row with the same values is"
        " written before the index could refuse it, and two writers would not see each other's.",
        hint="Make the columns the PRIMARY KEY of a table, or CREATE INDEX and look before you write.",
    )


def drop_index(words: Words) -> DropIndex:
    absent_ok = words.take("IF", "EXISTS")
    return DropIndex(words.name("index"), absent_ok)


def alter_index(words: Words) -> RenameIndex:
    name = words.name("index")
    if not words.take("RENAME", "TO"):
        raise BadStatement(
            f"An index is altered by RENAME TO, not by {words.shown(begins=False)}.", hint="Write RENAME TO name."
        )
    return RenameIndex(name, words.new_name("index"))


def show_indexes(words: Words) -> ShowIndexes:
    if words.done():
        return ShowIndexes()
    if not (words.take("ON") or words.take("FROM") or words.take("IN")):
        words.need("ON")
    return ShowIndexes(words.name("table or view"))


# The statement that makes a clustered view.
#
#     CREATE MATERIALIZED VIEW [IF NOT EXISTS] name CLUSTER BY ( columns ) [options] OF table_or_view, …
#
# The columns are in every table, by these names and with the same types.


@dataclass(frozen=True)
class CreateCluster:
    name: str
    by: tuple[str, ...]
    of: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


def clustered(
    words: Words, name: str, exists_ok: bool, or_replace: bool, options: Callable[[Words], dict[str, str]]
) -> CreateCluster:
    """What follows CLUSTER BY."""
    if or_replace:
        raise BadStatement(f"View {name}: a clustered view is not replaced.", hint="Drop it and create it again.")
    by = words.names("column")
    found = options(words)
    words.need("OF")
    of = [words.name("table or view")]
    while words.take(","):
        of.append(words.name("table or view"))
    for listed, what in ((by, "column"), (of, "table")):
        lower = [n.lower() for n in listed]
        if twice := [n for i, n in enumerate(listed) if lower[i] in lower[:i]]:
            raise BadStatement(f"View {name}: {what} {twice[0]} is there twice.", hint="Name each once.")
    return CreateCluster(name, by, tuple(of), found, exists_ok)
