"""A query as a small tree: text comes out of it, and a failing one is made smaller by cutting parts off.

The tree knows nothing of types; that is the grammar's business. `smaller` gives every query with one part less; which
of them still analyse is for the oracle to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .typed import Typed

_SHARED = frozenset(
    {
        *("count", "sum", "min", "max", "coalesce", "nullif", "abs", "upper", "lower", "length", "year", "month"),
        *("where", "in", "on", "from", "select", "and", "or", "not", "when", "then", "else", "as"),
    }
)
_APART = re.compile(
    r"\d[LSYD]\b|<=>|<<|>>|~|\bdiv\b|RLIKE|CAST|\bX'|TIMESTAMP|INTERVAL|/|%|(?<!count\()\*|view_|[^\x00-\x7f]|\\\\|''"
)
"""Text that DuckDB does not parse, or does not mean in the same way."""


@dataclass(frozen=True)
class Relation:
    """One entry of FROM: a table, view or CTE by name, or a query; then how it joins what stands before it."""

    source: str | Query
    alias: str
    how: str = "JOIN"
    on: tuple[str, ...] = ()
    using: str = ""

    @property
    def sql(self) -> str:
        source = self.source if isinstance(self.source, str) else f"({self.source.sql})"
        return f"{source} {self.alias}"

    @property
    def joined(self) -> str:
        """With how it joins what stands before it."""
        condition = f" USING ({self.using})" if self.using else f" ON {' AND '.join(self.on)}" if self.on else ""
        return f" {self.how} {self.sql}{condition}"


@dataclass(frozen=True)
class Select:
    items: tuple[tuple[str, str], ...]
    relations: tuple[Relation, ...]
    where: tuple[str, ...] = ()
    group: tuple[str, ...] | None = None
    grouping: str = ""  # "", ROLLUP, CUBE, or the text of GROUPING SETS
    having: tuple[str, ...] = ()
    distinct: bool = False
    comma: bool = False

    @property
    def sql(self) -> str:
        items = ", ".join(e if e.endswith(f".{name}") else f"{e} AS {name}" for e, name in self.items)
        return f"SELECT {'DISTINCT ' if self.distinct else ''}{items} {self.tail}"

    @property
    def tail(self) -> str:
        """Everything from FROM on."""
        first, *rest = self.relations
        where = list(self.where)
        if self.comma and all(r.how == "JOIN" for r in rest):
            source = ", ".join(r.sql for r in self.relations)
            where = [c for r in rest for c in r.on] + where
        else:
            source = first.sql + "".join(r.joined for r in rest)
        text = f"FROM {source}"
        if where:
            text += f" WHERE {' AND '.join(where)}"
        if self.group:
            keys = ", ".join(self.group)
            text += " GROUP BY " + (self.grouping.replace("$", keys) if self.grouping else keys)
        if self.having:
            text += f" HAVING {' AND '.join(self.having)}"
        return text


@dataclass(frozen=True)
class SetOperation:
    operator: str
    parts: tuple[Query, ...]

    @property
    def sql(self) -> str:
        return f" {self.operator} ".join(f"({p.sql})" for p in self.parts)


@dataclass(frozen=True)
class Nested:
    """A shape of `shapes` over other queries, which have the same columns as it has; `{0}` and `{1}` stand for them."""

    shape: str
    template: str
    parts: tuple[Query, ...]

    @property
    def sql(self) -> str:
        text = self.template
        for number, part in enumerate(self.parts):
            named = isinstance(part, Nested) and part.shape == "table"
            text = text.replace(f"{{{number}}}", part.sql if named else f"({part.sql})")
        return text


Query = Select | SetOperation | Nested


@dataclass(frozen=True)
class View:
    """A view: its query, what CREATE says about its key, and what the grammar knows of its columns."""

    name: str
    query: Query
    columns: tuple[Typed, ...]
    """`sql` is the column's name."""
    ctes: tuple[tuple[str, Query], ...] = ()
    key: tuple[str, ...] = ()
    order: tuple[tuple[str, str], ...] = ()
    """Column and direction, as in ORDER BY."""
    limit: str = ""
    rows: int = 10
    store: str = ""
    """What the option of this name says."""

    @property
    def sql(self) -> str:
        """The query with everything around it, as Spark would run it."""
        text = self.query.sql
        if self.ctes:
            text = "WITH " + ", ".join(f"{name} AS ({q.sql})" for name, q in self.ctes) + " " + text
        if self.order:
            text += " ORDER BY " + ", ".join(f"{column} {direction}".strip() for column, direction in self.order)
        return f"{text} {self.limit}".strip()

    @property
    def ddl(self) -> str:
        key = f" KEY ({', '.join(self.key)})" if self.key else ""
        options = f" WITH (store = '{self.store}')" if self.store else ""
        return f"CREATE MATERIALIZED VIEW {self.name}{key}{options} AS {self.sql}"

    @property
    def portable(self) -> bool:
        """DuckDB should give the same rows: plain SQL over base tables, and nothing that the two read differently."""
        if self.limit or not all(c.portable and not c.loose for c in self.columns):
            return False
        calls = {name.lower() for name in re.findall(r"(\w+)\(", self.sql)}
        return calls <= _SHARED and not _APART.search(self.sql)


def smaller(view: View) -> Iterator[View]:
    """The view with one part less, for each of its parts."""
    for name in ("key", "order", "limit", "ctes"):
        if getattr(view, name):
            yield replace(view, **{name: type(getattr(view, name))()})
    for query in _smaller_query(view.query):
        yield replace(view, query=query)
    if isinstance(view.query, Select) and len(view.query.items) > 1 and not view.order:
        for i, (_, name) in enumerate(view.query.items):
            items = view.query.items[:i] + view.query.items[i + 1 :]
            kept = tuple(c for c in view.columns if c.sql != name)
            yield replace(view, query=replace(view.query, items=items), columns=kept, key=())
    for i, (name, query) in enumerate(view.ctes):
        for less in _smaller_query(query):
            yield replace(view, ctes=(*view.ctes[:i], (name, less), *view.ctes[i + 1 :]))


def _smaller_query(query: Query) -> Iterator[Query]:
    if isinstance(query, Nested):
        yield from (part for part in query.parts if not (isinstance(part, Nested) and part.shape == "table"))
        for i, part in enumerate(query.parts):
            for less in _smaller_query(part):
                yield replace(query, parts=(*query.parts[:i], less, *query.parts[i + 1 :]))
        return
    if isinstance(query, SetOperation):
        if len(query.parts) > 2:
            yield from (replace(query, parts=query.parts[:i] + query.parts[i + 1 :]) for i in range(len(query.parts)))
        yield from query.parts
        for i, part in enumerate(query.parts):
            for less in _smaller_query(part):
                yield replace(query, parts=(*query.parts[:i], less, *query.parts[i + 1 :]))
        return
    for i in range(len(query.where)):
        yield replace(query, where=query.where[:i] + query.where[i + 1 :])
    for i in range(len(query.having)):
        yield replace(query, having=query.having[:i] + query.having[i + 1 :])
    if query.distinct:
        yield replace(query, distinct=False)
    if query.grouping:
        yield replace(query, grouping="")
    if query.group:
        for i in range(len(query.group)):
            yield replace(query, group=query.group[:i] + query.group[i + 1 :])
    for i, relation in enumerate(query.relations):
        if i and i == len(query.relations) - 1:
            yield replace(query, relations=query.relations[:i])
        for k in range(len(relation.on)):
            if len(relation.on) > 1:
                less_on = replace(relation, on=relation.on[:k] + relation.on[k + 1 :])
                yield replace(query, relations=(*query.relations[:i], less_on, *query.relations[i + 1 :]))
        if not isinstance(relation.source, str):
            inner = relation.source
            if isinstance(inner, Select) and len(inner.relations) == 1:
                yield replace(
                    query,
                    relations=(
                        *query.relations[:i],
                        replace(relation, source=inner.relations[0].source),
                        *query.relations[i + 1 :],
                    ),
                )
            for less in _smaller_query(inner):
                yield replace(
                    query, relations=(*query.relations[:i], replace(relation, source=less), *query.relations[i + 1 :])
                )
