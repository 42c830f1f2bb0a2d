"""Viewkeeper's own statements. A view's query is not parsed here; Catalyst gets it as written.

    statement ::= CREATE TABLE [IF NOT EXISTS] name ( column, …, PRIMARY KEY ( names ) ) [options]
                | DROP TABLE [IF EXISTS] name
                | CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name [PARAMETERS ( column, … )] [KEY ( names )]
                  [options] AS query
                | CREATE MATERIALIZED VIEW … CLUSTER BY …                                     (`indexes`)
                | DROP MATERIALIZED VIEW [IF EXISTS] name
                | ALTER TABLE … | ALTER MATERIALIZED VIEW …                                   (`alter`)
                | CREATE INDEX … | DROP INDEX … | ALTER INDEX … | SHOW INDEXES                 (`indexes`)
                | SHOW TABLES [LIKE 'pattern'] | SHOW [MATERIALIZED] VIEWS [LIKE 'pattern']
                | SHOW CREATE TABLE | VIEW | INDEX name
                | DESCRIBE name | EXPLAIN name
    column    ::= name type [NOT NULL] [PRIMARY KEY] [DEFAULT value]                          (`alter`)
    options   ::= WITH ( name = value, … )
    name      ::= word | `anything`                                   new names have at most 200 bytes
    pattern   ::= names separated by |; * or % matches anything, _ and ? match themselves

`cursor` splits the text into tokens and statements (comments, quoting); each statement has one parsing function below.
Keywords and names are case-insensitive; a name in backticks may contain any character.
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
from viewkeeper.syntax.alter import AlterTable, AlterView, parse_alter_table, parse_alter_view, read_column
from viewkeeper.syntax.cursor import SUPPORTED, TokenCursor, quote_excerpt, split_statements
from viewkeeper.syntax.indexes import (
    CreateCluster,
    IndexStatement,
    parse_alter_index,
    parse_cluster_by,
    parse_create_index,
    parse_drop_index,
    parse_show_indexes,
    refuse_unique_index,
)
from viewkeeper.syntax.lexer import lex, refuse_surrogates
from viewkeeper.syntax.parameter_tables import quote_parameter_tables


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
    """The query as written, from its first to its last token."""
    key: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    or_replace: bool = False
    parameters: tuple[Column, ...] = ()
    """For a family: the parameters that `:name` in its query refers to."""


@dataclass(frozen=True)
class DropView:
    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class Show:
    object_kind: str
    """tables or views"""
    like: str | None = None
    """A pattern of names: `*` or `%` matches anything, `|` separates patterns. None: all names."""


@dataclass(frozen=True)
class ShowCreate:
    """SHOW CREATE of the object with this name."""

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
    """Parse the only statement in `text`."""
    statements = list(split_statements(text))
    if not statements:
        raise BadStatement("There is no statement in the text.", hint=f"Statements are: {SUPPORTED}.")
    if len(statements) > 1:
        raise BadStatement(f"The text has {len(statements)} statements where one should be.", hint="Write one of them.")
    return _parse_statement(TokenCursor(text, statements[0]))


def split(text: str) -> list[str]:
    """Return the statements of a script, each as written, without its semicolon."""
    return [text[tokens[0].start : tokens[-1].end] for tokens in split_statements(text)]


def create_view_text(name: str, query: str) -> str:
    """Return the statement that creates a view with this name. A text that would be another statement is an error."""
    text = f"CREATE MATERIALIZED VIEW {backticked(name)} AS {query}"
    if not isinstance(parse(text), CreateView):
        raise BadStatement(f"View {name}: {quote_excerpt(query)} is no query.", hint="Write SELECT …")
    return text


def group_view_statements(script: Sequence[str]) -> Iterator[list[str]]:
    """Yield the statements of a script in groups: consecutive new views form one group and are created together."""
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
    """Return whether the statement creates a new view with a default backfill. Syntax errors are reported when the
    statement runs."""
    if [t.value.upper() for t in islice(lex(text), 3)] != ["CREATE", "MATERIALIZED", "VIEW"]:
        return False
    try:
        statement = parse(text)
    except BadStatement:
        return False
    if not isinstance(statement, CreateView):
        return False
    return not statement.parameters and not {"strategy", "load_rate", "sync"} & set(statement.options)


# -- statements --------------------------------------------------------------------------------------------------------


def _parse_statement(cursor: TokenCursor) -> Statement:
    for start, read in _STATEMENT_PARSERS:
        if cursor.accept(*start):
            statement = read(cursor)
            cursor.expect_end()
            return statement
    first = cursor.describe_token()
    if cursor.accept("CREATE", "OR", "REPLACE"):
        raise BadStatement("Only a materialized view can be replaced.", hint="DROP TABLE, then CREATE TABLE.")
    raise BadStatement(f"{first} starts no statement known here.", hint=f"Statements are: {SUPPORTED}.")


def _parse_create_table(cursor: TokenCursor) -> CreateTable:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.read_new_name("table")
    cursor.expect("(")
    columns: list[Column] = []
    key: tuple[str, ...] = ()
    while True:
        if cursor.accept("PRIMARY", "KEY"):
            key = _check_single_key(name, key, cursor.read_names("key column"))
        else:
            column, is_key = read_column(cursor)
            columns.append(column)
            if is_key:
                key = _check_single_key(name, key, (column.name,))
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return _check_table(CreateTable(name, tuple(columns), key, _parse_options(cursor), if_not_exists))


def _parse_drop_table(cursor: TokenCursor) -> DropTable:
    if_exists = cursor.accept("IF", "EXISTS")
    return DropTable(cursor.read_name("table"), if_exists)


def _parse_create_view(cursor: TokenCursor, or_replace: bool) -> CreateView | CreateCluster:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.read_new_name("view")
    if if_not_exists and or_replace:
        raise BadStatement(f"View {name}: OR REPLACE and IF NOT EXISTS exclude each other.", hint="Write one of them.")
    if cursor.is_at("("):
        raise BadStatement(
            f"View {name}: a list of columns is not taken here.",
            hint="Name columns in the query (expression AS name); the view's key goes into KEY (…).",
        )
    if cursor.accept("CLUSTER", "BY"):
        return parse_cluster_by(cursor, name, if_not_exists, or_replace, _parse_options)
    parameters = _parse_parameters(cursor, name) if cursor.accept("PARAMETERS") else ()
    key = cursor.read_names("key column") if cursor.accept("KEY") else ()
    _refuse_duplicates(f"View {name}: key column", key)
    options = _parse_options(cursor)
    cursor.expect("AS")
    query = quote_parameter_tables(cursor.read_rest())
    if re.match(r"(select|with|from|values|table)\b|\(", query, re.IGNORECASE) is None:
        raise BadStatement(
            f"View {name}: {quote_excerpt(query)} is no query." if query else f"View {name} has no query.",
            hint="After AS write SELECT … or WITH … SELECT ….",
        )
    refuse_surrogates(query)
    return CreateView(name, query, key, options, if_not_exists, or_replace, parameters)


def _parse_parameters(cursor: TokenCursor, view: str) -> tuple[Column, ...]:
    """Parse `( name type, … )`."""
    cursor.expect("(")
    if cursor.is_at(")"):
        raise BadStatement(
            f"View {view} declares no parameter.",
            hint="Write PARAMETERS (name type, …), or leave PARAMETERS out for a view that is no family.",
        )
    parameters: list[Column] = []
    while True:
        column, is_key = read_column(cursor)
        if is_key or column.default is not None:
            raise BadStatement(
                f"View {view}: the parameter {column.name} has a name and a type, and nothing else.",
                hint="All parameters together are the key of a member.",
            )
        parameters.append(replace(column, nullable=False))
        if not cursor.accept(","):
            break
    cursor.expect(")")
    _refuse_duplicates(f"View {view}: parameter", tuple(c.name for c in parameters))
    return tuple(parameters)


def _parse_drop_view(cursor: TokenCursor) -> DropView:
    if_exists = cursor.accept("IF", "EXISTS")
    return DropView(cursor.read_name("view"), if_exists)


def _refuse_plain_view(cursor: TokenCursor) -> Statement:
    raise BadStatement("Plain views are not kept here.", hint="Write MATERIALIZED VIEW.")


def _parse_show(object_kind: str, cursor: TokenCursor) -> Statement:
    return Show(object_kind, _parse_pattern(cursor) if cursor.accept("LIKE") else None)


def _parse_pattern(cursor: TokenCursor) -> str:
    if cursor.is_at_end() or cursor.tokens[cursor.index].kind not in ("text", "word"):
        raise BadStatement(
            f"{cursor.describe_token()} is where a pattern should be.",
            hint="Write LIKE 'pattern': * or % stands for anything, | is between patterns.",
        )
    return cursor.read_value()


_STATEMENT_PARSERS: tuple[tuple[tuple[str, ...], Callable[[TokenCursor], Statement]], ...] = (
    (("CREATE", "TABLE"), _parse_create_table),
    (("DROP", "TABLE"), _parse_drop_table),
    (("CREATE", "MATERIALIZED", "VIEW"), lambda words: _parse_create_view(words, or_replace=False)),
    (("CREATE", "OR", "REPLACE", "MATERIALIZED", "VIEW"), lambda words: _parse_create_view(words, or_replace=True)),
    (("DROP", "MATERIALIZED", "VIEW"), _parse_drop_view),
    (("ALTER", "TABLE"), parse_alter_table),
    (("ALTER", "MATERIALIZED", "VIEW"), parse_alter_view),
    (("CREATE", "INDEX"), lambda words: parse_create_index(words, _parse_options)),
    (("CREATE", "UNIQUE", "INDEX"), refuse_unique_index),
    (("DROP", "INDEX"), parse_drop_index),
    (("ALTER", "INDEX"), parse_alter_index),
    (("SHOW", "INDEXES"), parse_show_indexes),
    (("SHOW", "INDEX"), parse_show_indexes),
    (("SHOW", "CREATE", "INDEX"), lambda words: ShowCreate(words.read_name("index"), "index")),
    (("SHOW", "TABLES"), lambda words: _parse_show("tables", words)),
    (("SHOW", "VIEWS"), lambda words: _parse_show("views", words)),
    (("SHOW", "MATERIALIZED", "VIEWS"), lambda words: _parse_show("views", words)),
    (("SHOW", "CREATE", "TABLE"), lambda words: ShowCreate(words.read_name("table"), "table")),
    (("SHOW", "CREATE", "VIEW"), lambda words: ShowCreate(words.read_name("view"), "view")),
    (("SHOW", "CREATE", "MATERIALIZED", "VIEW"), lambda words: ShowCreate(words.read_name("view"), "view")),
    (("DESCRIBE",), lambda words: Describe(words.read_name("table or view"))),
    (("EXPLAIN",), lambda words: Explain(words.read_name("view"))),
    (("CREATE", "VIEW"), _refuse_plain_view),
    (("CREATE", "OR", "REPLACE", "VIEW"), _refuse_plain_view),
    (("DROP", "VIEW"), _refuse_plain_view),
)


# -- parts -------------------------------------------------------------------------------------------------------------


def _parse_options(cursor: TokenCursor) -> dict[str, str]:
    if not cursor.accept("WITH"):
        return {}
    cursor.expect("(")
    options: dict[str, str] = {}
    while True:
        name = cursor.read_dotted_name("option").lower()
        cursor.expect("=")
        if name in options:
            raise BadStatement(f"Option {name} is there twice.", hint="Give each option once.")
        options[name] = cursor.read_value()
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return options


def _check_single_key(table: str, existing_key: tuple[str, ...], key: tuple[str, ...]) -> tuple[str, ...]:
    if existing_key:
        raise BadStatement(
            f"Table {table} has more than one PRIMARY KEY.",
            hint="Write one: PRIMARY KEY (column, …), last in the list.",
        )
    return key


def _check_table(table: CreateTable) -> CreateTable:
    """Check that the table can be stored; return it with its key spelled as in its columns."""
    label = f"Table {table.name}"
    _refuse_duplicates(f"{label}: column", [c.name for c in table.columns])
    _refuse_duplicates(f"{label}: key column", table.key)
    if not table.key:
        raise BadStatement(f"{label} has no PRIMARY KEY.", hint="Add PRIMARY KEY (column, …): rows are stored by it.")
    columns = {c.name.lower(): c for c in table.columns}
    for name in table.key:
        if name.lower() not in columns:
            raise BadStatement(
                f"{label}: key column {name} is not one of its columns.",
                hint=f"They are: {', '.join(c.name for c in table.columns)}." if table.columns else "It has none yet.",
            )
        if types.is_float(columns[name.lower()].type):
            raise BadStatement(
                f"{label}: {name} is a {columns[name.lower()].type.sql} and cannot be in the key.",
                hint="Equality of floats is no identity (NaN, −0.0, rounding): use DECIMAL, BIGINT or STRING.",
            )
    key = tuple(columns[name.lower()].name for name in table.key)
    return CreateTable(
        table.name,
        tuple(replace(c, nullable=c.nullable and c.name not in key) for c in table.columns),
        key,
        table.options,
        table.if_not_exists,
    )


def _refuse_duplicates(label: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise BadStatement(f"{label} {name} is there twice.", hint="Names do not differ by case.")
        seen.add(name.lower())
