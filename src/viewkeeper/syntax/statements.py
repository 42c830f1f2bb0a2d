"""The few statements of our own; a view's query is not read here, it goes to Catalyst as it was written.

    statement ::= CREATE TABLE [IF NOT EXISTS] name ( column, …, PRIMARY KEY ( names ) ) [options]
                | DROP TABLE [IF EXISTS] name
                | CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name [PARAMETERS ( column, … )] [KEY ( names )]
                  [options] AS query
                | CREATE MATERIALIZED VIEW … CLUSTER BY …                                     (`clustering`)
                | DROP MATERIALIZED VIEW [IF EXISTS] name
                | ALTER TABLE … | ALTER MATERIALIZED VIEW …                                   (`alterations`)
                | CREATE INDEX … | DROP INDEX … | ALTER INDEX … | SHOW INDEXES                 (`indexing`)
                | SHOW TABLES [LIKE 'pattern'] | SHOW [MATERIALIZED] VIEWS [LIKE 'pattern']
                | SHOW CREATE TABLE | VIEW | INDEX name
                | DESCRIBE name | EXPLAIN name
    column    ::= name type [NOT NULL] [PRIMARY KEY] [DEFAULT value]                          (`columns`)
    options   ::= WITH ( name = value, … )
    name      ::= word | `anything`                                   of up to 200 bytes where something is made
    pattern   ::= names with | between them; * or % stands for anything, _ and ? for themselves

`words` cuts the text (comments, quoting, where a statement ends); the grammar is small enough to be read off below, one
function for each statement. Keywords and names are case-insensitive; a name in
backticks may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from viewkeeper.errors import BadStatement
from viewkeeper.model import types
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column
from viewkeeper.syntax.alter import AlterTable, AlterView, alter_table, alter_view, read_column
from viewkeeper.syntax.cursor import SUPPORTED, Words, quoted, statements
from viewkeeper.syntax.indexes import (
    CreateCluster,
    IndexStatement,
    alter_index,
    clustered,
    create_index,
    drop_index,
    no_unique_index,
    show_indexes,
)
from viewkeeper.syntax.lexer import refuse_surrogates, tokens
from viewkeeper.syntax.parameter_tables import with_backticks


@dataclass(frozen=True)
class CreateTable:
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Names of the key columns, spelled as in `columns`, in key order."""
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropTable:
    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class CreateView:
    name: str
    query: str
    """As written, from its first word to its last."""
    key: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    or_replace: bool = False
    parameters: tuple[Column, ...] = ()
    """Of a family: what `:name` in its query stands for."""


@dataclass(frozen=True)
class DropView:
    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class Show:
    what: str
    """tables or views"""
    like: str | None = None
    """Only names that match: `*` or `%` stands for anything, `|` is between patterns."""


@dataclass(frozen=True)
class ShowCreate:
    """The statement that makes what has this name."""

    name: str
    kind: str
    """table, view or index"""


@dataclass(frozen=True)
class Describe:
    name: str


@dataclass(frozen=True)
class Explain:
    name: str


Statement = (
    CreateTable
    | DropTable
    | CreateView
    | CreateCluster
    | DropView
    | AlterTable
    | AlterView
    | IndexStatement
    | Show
    | ShowCreate
    | Describe
    | Explain
)


def parse(text: str) -> Statement:
    """The one statement in `text`."""
    found = list(statements(text))
    if not found:
        raise BadStatement("There is no statement in the text.", hint=f"Statements are: {SUPPORTED}.")
    if len(found) > 1:
        raise BadStatement(f"The text has {len(found)} statements where one should be.", hint="Write one of them.")
    return _statement(Words(text, found[0]))


def split(text: str) -> list[str]:
    """The statements of a script, each as it was written, without its semicolon."""
    return [text[tokens[0].start : tokens[-1].end] for tokens in statements(text)]


def create_view_text(name: str, query: str) -> str:
    """The statement that makes a view of this name. What would be another statement is refused."""
    text = f"CREATE MATERIALIZED VIEW {backticked(name)} AS {query}"
    if not isinstance(parse(text), CreateView):
        raise BadStatement(f"View {name}: {quoted(query)} is no query.", hint="Write SELECT …")
    return text


def together(script: Sequence[str]) -> Iterator[list[str]]:
    """The statements of a script; new views that follow each other are made together."""
    group: list[str] = []
    for text in script:
        if _is_plain_view(text):
            group.append(text)
            continue
        if group:
            yield group
        group = []
        yield [text]
    if group:
        yield group


def _is_plain_view(text: str) -> bool:
    """Whether it makes a new view that is loaded as most are; what is wrong with it is said when it is run."""
    if [t.value.upper() for t in islice(tokens(text), 3)] != ["CREATE", "MATERIALIZED", "VIEW"]:
        return False
    try:
        found = parse(text)
    except BadStatement:
        return False
    if not isinstance(found, CreateView):
        return False
    return not found.parameters and not {"strategy", "load_rate", "sync"} & set(found.options)


# -- statements --------------------------------------------------------------------------------------------------------


def _statement(words: Words) -> Statement:
    for start, read in _STATEMENTS:
        if words.take(*start):
            statement = read(words)
            words.end()
            return statement
    first = words.shown()
    if words.take("CREATE", "OR", "REPLACE"):
        raise BadStatement("Only a materialized view can be replaced.", hint="DROP TABLE, then CREATE TABLE.")
    raise BadStatement(f"{first} starts no statement known here.", hint=f"Statements are: {SUPPORTED}.")


def _create_table(words: Words) -> CreateTable:
    missing_ok = words.take("IF", "NOT", "EXISTS")
    name = words.new_name("table")
    words.need("(")
    columns: list[Column] = []
    key: tuple[str, ...] = ()
    while True:
        if words.take("PRIMARY", "KEY"):
            key = _one_key(name, key, words.names("key column"))
        else:
            column, is_key = read_column(words)
            columns.append(column)
            if is_key:
                key = _one_key(name, key, (column.name,))
        if not words.take(","):
            break
    words.need(")")
    return _checked_table(CreateTable(name, tuple(columns), key, _options(words), missing_ok))


def _drop_table(words: Words) -> DropTable:
    absent_ok = words.take("IF", "EXISTS")
    return DropTable(words.name("table"), absent_ok)


def _create_view(words: Words, or_replace: bool) -> CreateView | CreateCluster:
    exists_ok = words.take("IF", "NOT", "EXISTS")
    name = words.new_name("view")
    if exists_ok and or_replace:
        raise BadStatement(f"View {name}: OR REPLACE and IF NOT EXISTS exclude each other.", hint="Write one of them.")
    if words.at("("):
        raise BadStatement(
            f"View {name}: a list of columns is not taken here.",
            hint="Name columns in the query (expression AS name); the view's key goes into KEY (…).",
        )
    if words.take("CLUSTER", "BY"):
        return clustered(words, name, exists_ok, or_replace, _options)
    parameters = _parameters(words, name) if words.take("PARAMETERS") else ()
    key = words.names("key column") if words.take("KEY") else ()
    _refuse_twice(f"View {name}: key column", key)
    options = _options(words)
    words.need("AS")
    query = with_backticks(words.rest())
    if re.match(r"(select|with|from|values|table)\b|\(", query, re.IGNORECASE) is None:
        raise BadStatement(
            f"View {name}: {quoted(query)} is no query." if query else f"View {name} has no query.",
            hint="After AS write SELECT … or WITH … SELECT ….",
        )
    refuse_surrogates(query)
    return CreateView(name, query, key, options, exists_ok, or_replace, parameters)


def _parameters(words: Words, view: str) -> tuple[Column, ...]:
    """( name type, … )"""
    words.need("(")
    if words.at(")"):
        raise BadStatement(
            f"View {view} declares no parameter.",
            hint="Write PARAMETERS (name type, …), or leave PARAMETERS out for a view that is no family.",
        )
    found: list[Column] = []
    while True:
        column, is_key = read_column(words)
        if is_key or column.default is not None:
            raise BadStatement(
                f"View {view}: the parameter {column.name} has a name and a type, and nothing else.",
                hint="All parameters together are the key of a member.",
            )
        found.append(replace(column, nullable=False))
        if not words.take(","):
            break
    words.need(")")
    _refuse_twice(f"View {view}: parameter", tuple(c.name for c in found))
    return tuple(found)


def _drop_view(words: Words) -> DropView:
    absent_ok = words.take("IF", "EXISTS")
    return DropView(words.name("view"), absent_ok)


def _no_plain_view(words: Words) -> Statement:
    raise BadStatement("Plain views are not kept here.", hint="Write MATERIALIZED VIEW.")


def _show(what: str, words: Words) -> Statement:
    return Show(what, _pattern(words) if words.take("LIKE") else None)


def _pattern(words: Words) -> str:
    if words.done() or words.tokens[words.next].kind not in ("text", "word"):
        raise BadStatement(
            f"{words.shown()} is where a pattern should be.",
            hint="Write LIKE 'pattern': * or % stands for anything, | is between patterns.",
        )
    return words.value()


_STATEMENTS: tuple[tuple[tuple[str, ...], Callable[[Words], Statement]], ...] = (
    (("CREATE", "TABLE"), _create_table),
    (("DROP", "TABLE"), _drop_table),
    (("CREATE", "MATERIALIZED", "VIEW"), lambda words: _create_view(words, or_replace=False)),
    (("CREATE", "OR", "REPLACE", "MATERIALIZED", "VIEW"), lambda words: _create_view(words, or_replace=True)),
    (("DROP", "MATERIALIZED", "VIEW"), _drop_view),
    (("ALTER", "TABLE"), alter_table),
    (("ALTER", "MATERIALIZED", "VIEW"), alter_view),
    (("CREATE", "INDEX"), lambda words: create_index(words, _options)),
    (("CREATE", "UNIQUE", "INDEX"), no_unique_index),
    (("DROP", "INDEX"), drop_index),
    (("ALTER", "INDEX"), alter_index),
    (("SHOW", "INDEXES"), show_indexes),
    (("SHOW", "INDEX"), show_indexes),
    (("SHOW", "CREATE", "INDEX"), lambda words: ShowCreate(words.name("index"), "index")),
    (("SHOW", "TABLES"), lambda words: _show("tables", words)),
    (("SHOW", "VIEWS"), lambda words: _show("views", words)),
    (("SHOW", "MATERIALIZED", "VIEWS"), lambda words: _show("views", words)),
    (("SHOW", "CREATE", "TABLE"), lambda words: ShowCreate(words.name("table"), "table")),
    (("SHOW", "CREATE", "VIEW"), lambda words: ShowCreate(words.name("view"), "view")),
    (("SHOW", "CREATE", "MATERIALIZED", "VIEW"), lambda words: ShowCreate(words.name("view"), "view")),
    (("DESCRIBE",), lambda words: Describe(words.name("table or view"))),
    (("EXPLAIN",), lambda words: Explain(words.name("view"))),
    (("CREATE", "VIEW"), _no_plain_view),
    (("CREATE", "OR", "REPLACE", "VIEW"), _no_plain_view),
    (("DROP", "VIEW"), _no_plain_view),
)


# -- parts -------------------------------------------------------------------------------------------------------------


def _options(words: Words) -> dict[str, str]:
    if not words.take("WITH"):
        return {}
    words.need("(")
    found: dict[str, str] = {}
    while True:
        name = words.dotted("option").lower()
        words.need("=")
        if name in found:
            raise BadStatement(f"Option {name} is there twice.", hint="Give each option once.")
        found[name] = words.value()
        if not words.take(","):
            break
    words.need(")")
    return found


def _one_key(table: str, before: tuple[str, ...], key: tuple[str, ...]) -> tuple[str, ...]:
    if before:
        raise BadStatement(
            f"Table {table} has more than one PRIMARY KEY.",
            hint="Write one: PRIMARY KEY (column, …), last in the list.",
        )
    return key


def _checked_table(made: CreateTable) -> CreateTable:
    """The table with its key spelled as its columns are, if it is one that can be stored."""
    where = f"Table {made.name}"
    _refuse_twice(f"{where}: column", [c.name for c in made.columns])
    _refuse_twice(f"{where}: key column", made.key)
    if not made.key:
        raise BadStatement(f"{where} has no PRIMARY KEY.", hint="Add PRIMARY KEY (column, …): rows are stored by it.")
    columns = {c.name.lower(): c for c in made.columns}
    for name in made.key:
        if name.lower() not in columns:
            raise BadStatement(
                f"{where}: key column {name} is not one of its columns.",
                hint=f"They are: {', '.join(c.name for c in made.columns)}." if made.columns else "It has none yet.",
            )
        if types.is_float(columns[name.lower()].type):
            raise BadStatement(
                f"{where}: {name} is a {columns[name.lower()].type.sql} and cannot be in the key.",
                hint="Equality of floats is no identity (NaN, −0.0, rounding): use DECIMAL, BIGINT or STRING.",
            )
    key = tuple(columns[name.lower()].name for name in made.key)
    return CreateTable(
        made.name,
        tuple(replace(c, nullable=c.nullable and c.name not in key) for c in made.columns),
        key,
        made.options,
        made.if_not_exists,
    )


def _refuse_twice(what: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise BadStatement(f"{what} {name} is there twice.", hint="Names do not differ by case.")
        seen.add(name.lower())
