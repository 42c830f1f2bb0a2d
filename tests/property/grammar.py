"""Random views: valid, deterministic, with unique output names.

    view    := [WITH ctes] query [ORDER BY columns [LIMIT n]]      KEY (columns) now and then
    query   := select | query UNION ALL query | …
    select  := SELECT [DISTINCT] items FROM relations [WHERE …]
             | SELECT keys, aggregates FROM relations [WHERE …] [GROUP BY keys] [HAVING …]
    relations := source [JOIN source ON equality AND residual …]*  up to five
    source  := table | earlier view | CTE | (query)

`features` switches productions on: CORE is what the first version maintains, BREADTH what comes after it (see
`breadth`). Sizes are estimated while a query grows, so that no view has more than a few thousand rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from . import breadth
from .query import Query, Relation, Select, SetOperation, View
from .scalars import Scalars
from .schemas import Table, decimal_digits
from .typed import ROWS, Typed, derived, fits, from_column

CORE = frozenset({"distinct", "union all", "cte", "subquery", "views", "filter clause", "null-safe join"})
BREADTH = frozenset(
    {
        *("outer join", "semi join", "not in", "scalar subquery", "top-k", "distinct aggregate", "set operation"),
        *("grouping sets", "window", "variance", "cross join", "more aggregates"),
    }
)
MOST_ROWS = 1500

_T = TypeVar("_T")


@dataclass(frozen=True)
class Source:
    """Something to stand in FROM: what it is called or the query, its columns, how many rows about."""

    what: str | Query
    columns: tuple[Typed, ...]
    rows: int


@dataclass(frozen=True)
class Scope:
    """The relations of a SELECT and all their columns, qualified."""

    relations: tuple[Relation, ...]
    columns: tuple[Typed, ...]
    rows: int


class Grammar:
    """Views over `tables` and over the views made before."""

    def __init__(self, rng: Random, tables: Sequence[Table], features: frozenset[str] = CORE) -> None:
        self.rng = rng
        self.features = features
        self.named = [
            Source(t.name, tuple(replace(from_column(c, "x"), sql=c.name) for c in t.columns), t.rows + 8)
            for t in tables
        ]
        self.tables = len(tables)
        self._aliases = 0
        self._next: list[Source] = []  # CTEs that have not been read yet

    def has(self, feature: str, chance: float = 1.0) -> bool:
        return feature in self.features and self.rng.random() < chance

    def view(self, name: str) -> View:
        """One more view; later ones may read it."""
        self._aliases = 0
        outer = self.named
        if not self.has("views", 0.25):
            self.named = self.named[: self.tables]
        ctes: list[tuple[str, Query]] = []
        if self.has("cte", 0.15):
            for i in range(self.rng.choice((1, 1, 2))):
                query, columns, rows = self.query(2)
                ctes.append((f"cte_{i}", query))
                self.named = [*self.named, Source(f"cte_{i}", columns, rows)]
                self._next.append(self.named[-1])
        query, columns, rows = self.query(0)
        self.named = outer
        self._next.clear()
        view = View(name, query, columns, tuple(ctes), rows=rows)
        names = [c.sql for c in columns]
        roll = self.rng.random()
        if roll < 0.2:
            view = replace(view, order=tuple((n, self._direction()) for n in self._sample(names)))
        elif roll < 0.35:
            view = replace(view, key=tuple(self._sample(names)))
        elif self.has("top-k", 0.4) and all(not (c.family == "float" and c.special) and not c.loose for c in columns):
            view = breadth.top_k(self.rng, view, names)
        self.named.append(Source(name, columns, rows))
        return view

    def query(self, depth: int) -> tuple[Query, tuple[Typed, ...], int]:
        """A query, its output columns (their `sql` is the name), and about how many rows it gives."""
        if self.has("set operation", 0.12):
            return breadth.set_operation(self, depth)
        if self.has("union all", 0.12):
            return self.union(depth, "UNION ALL")
        return self.select(depth)

    def union(self, depth: int, operator: str) -> tuple[Query, tuple[Typed, ...], int]:
        first, columns, rows = self.select(depth + 1)
        parts: list[Query] = [first]
        for _ in range(self.rng.choice((1, 1, 2))):
            scope = self.scope(depth + 1)
            scalars = Scalars(self.rng, scope.columns, self.features)
            items = [scalars.same(c, 1) for c in columns]
            where = self._conjuncts(scalars, 0.35)
            pairs = tuple((e.sql, c.sql) for e, c in zip(items, columns, strict=True))
            parts.append(Select(pairs, scope.relations, where))
            columns = tuple(_either(c, e) for c, e in zip(columns, items, strict=True))
            rows += scope.rows
        return SetOperation(operator, tuple(parts)), columns, rows

    def select(self, depth: int) -> tuple[Query, tuple[Typed, ...], int]:
        scope = self.scope(depth)
        if self.rng.random() < (0.45 if depth < 2 else 0.25):
            return self.aggregate(scope)
        if self.has("window", 0.25):
            return breadth.window(self, scope)
        return self.projection(scope)

    # SELECT without GROUP BY.

    def projection(self, scope: Scope) -> tuple[Select, tuple[Typed, ...], int]:
        scalars = Scalars(self.rng, scope.columns, self.features)
        items = [scalars.any(self.rng.choice((0, 0, 1, 2, 3))) for _ in range(self.rng.randint(1, 5))]
        if self.has("scalar subquery", 0.15):
            items.append(breadth.scalar_subquery(self, scope))
        where = self._conjuncts(scalars, 0.4) + breadth.conditions(self, scope)
        distinct = self.has("distinct", 0.15)
        if distinct:  # groups by value: zero has one sign afterwards
            items = [replace(e, loose="") if e.loose == "zero" else e for e in items]
        named, columns = self._named(items)
        query = Select(named, scope.relations, where, distinct=distinct, comma=self.rng.random() < 0.3)
        return query, columns, scope.rows

    # SELECT with GROUP BY.

    def aggregate(self, scope: Scope) -> tuple[Select, tuple[Typed, ...], int]:
        scalars = Scalars(self.rng, scope.columns, self.features)
        keys: list[Typed] = []
        for _ in range(self.rng.choice((0, 1, 1, 1, 2, 2, 3))):
            key = scalars.any(self.rng.choice((0, 0, 0, 1, 2)))
            if key.sql not in {k.sql for k in keys} and key.loose != "near":
                keys.append(replace(key, loose=""))
        grouping, sets = breadth.grouping(self, keys) if len(keys) > 1 and self.has("grouping sets", 0.3) else ("", ())
        calls = [self.call(scalars) for _ in range(self.rng.randint(0 if keys else 1, 4))]
        if calls and self.rng.random() < 0.4:
            over = Scalars(self.rng, [*calls, *keys] if not grouping else calls, self.features)
            calls.append(over.any(2))
        having: tuple[str, ...] = ()
        if self.rng.random() < (0.2 if keys else 0.4):  # without keys the one row comes and goes
            steady = [c for c in [*calls, self.count(scalars)] if not c.loose]
            having = (self._condition(Scalars(self.rng, steady, self.features)),)
            if self.has("scalar subquery", 0.4):
                having += breadth.threshold(self, Scalars(self.rng, steady, self.features), Scope((), (), 1))
        where = self._conjuncts(scalars, 0.35) + breadth.conditions(self, scope)
        shown = keys if self.rng.random() < 0.85 else self._sample(keys) if keys else []
        if self.has("scalar subquery", 0.1) and not keys:
            calls.append(breadth.scalar_subquery(self, Scope((), (), 1)))
        if keys and not grouping and self.has("window", 0.15) and (over := breadth.over_groups(self, keys, calls)):
            calls.append(over)
        named, columns = self._named([*shown, *sets, *calls] or [self.count(scalars)])
        query = Select(
            named,
            scope.relations,
            where,
            group=tuple(k.sql for k in keys),
            grouping=grouping,
            having=having,
            comma=self.rng.random() < 0.3,
        )
        return query, columns, max(1, scope.rows // 2) if keys else 1

    def call(self, scalars: Scalars) -> Typed:
        """One aggregate function call."""
        further = self.has("variance", 0.1) or self.has("more aggregates", 0.1)
        if further and (found := breadth.further_call(self, scalars)):
            return found
        for _ in range(5):
            argument = scalars.any(self.rng.choice((0, 0, 0, 1, 2)))
            if argument.loose:
                continue
            function = self.rng.choice(("count", "sum", "sum", "sum", "avg", "avg", "min", "max", "count(*)"))
            if function == "count(*)":
                break
            if found := aggregate_call(function, argument):
                if self.has("distinct aggregate", 0.2) and function not in ("min", "max"):
                    return replace(found, sql=f"{function}(DISTINCT {argument.sql})")
                if self.has("filter clause", 0.1):
                    condition = scalars.predicate(1)
                    return derived(
                        f"{found.sql} FILTER (WHERE {condition.sql})",
                        found.type,
                        found,
                        condition,
                        bound=found.bound,
                        grain=found.grain,
                        special=found.special,
                        loose=found.loose,
                    )
                return found
        return self.count(scalars)

    def count(self, scalars: Scalars) -> Typed:
        del scalars
        return Typed("count(*)", "bigint", bound=ROWS, values=(1, 2, 3, 4, 5))

    # FROM.

    def scope(self, depth: int) -> Scope:
        """Up to five relations, each joined to those before by at least one equality."""
        first = self._relation(self._source(depth), "")
        scope = Scope((first[0],), first[1], first[2])
        for _ in range(self.rng.choice((0, 0, 0, 1, 1, 1, 2, 2, 3, 4)) if depth < 2 else self.rng.choice((0, 0, 1))):
            if joined := self._join(scope, depth):
                scope = joined
        return scope

    def _join(self, scope: Scope, depth: int) -> Scope | None:
        how, odd = "JOIN", False
        if self.has("outer join", 0.35):
            how = self.rng.choice(("LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        elif self.has("cross join", 0.12):
            how, odd = self.rng.choice(("JOIN", "CROSS JOIN")), True
        relation, columns, rows = self._relation(self._source(depth + 1), how)
        both = (*scope.columns, *columns)
        if odd:
            if scope.rows * rows > MOST_ROWS:
                return None
            on = () if how == "CROSS JOIN" else breadth.inequality(self.rng, scope.columns, columns)
            if how == "JOIN" and not on:
                return None
            return Scope((*scope.relations, replace(relation, on=on)), both, scope.rows * rows)
        conditions, selectivity = self._equalities(scope.columns, columns)
        total = int(scope.rows * rows / selectivity) + 1
        if "LEFT" in how or "FULL" in how:
            total += scope.rows
        if not conditions or total > MOST_ROWS:
            return None
        if self.rng.random() < 0.2:
            conditions += (self._condition(Scalars(self.rng, both, self.features)),)
        return Scope((*scope.relations, replace(relation, on=conditions)), both, total)

    def _equalities(self, left: Sequence[Typed], right: Sequence[Typed]) -> tuple[tuple[str, ...], float]:
        pairs = [
            (a, b)
            for a in left
            for b in right
            if a.family == b.family and not a.loose and not b.loose and a.type != "boolean"
        ]
        pairs += [(a, b) for a in left for b in right if {a.family, b.family} == {"int", "decimal"}][:1]
        meeting = [(a, b) for a, b in pairs if len({*a.values} & {*b.values}) > 1]
        if meeting and self.rng.random() < 0.95:
            pairs = meeting
        if not pairs:
            return (), 1.0
        conditions: list[str] = []
        selectivity = 1.0
        for a, b in self.rng.sample(pairs, min(len(pairs), self.rng.choice((1, 1, 1, 1, 2)))):
            operator = "<=>" if self.has("null-safe join", 0.05) else "="
            text = a.sql
            if self.rng.random() < 0.05:
                text = Scalars(self.rng, [a], self.features).of(a.family, 1).sql
            sides = [text, b.sql]
            self.rng.shuffle(sides)
            conditions.append(f"{sides[0]} {operator} {sides[1]}")
            selectivity *= max(1.0, max(a.spread, b.spread) * 0.7) if text == a.sql else 1.0
        return tuple(conditions), selectivity

    def _source(self, depth: int) -> Source:
        if self._next:
            return self._next.pop()
        if depth < 3 and self.has("subquery", 0.15):
            query, columns, rows = self.query(depth + 2)
            return Source(query, columns, rows)
        return self.rng.choice(self.named)

    def source(self, query: Query, columns: tuple[Typed, ...], rows: int) -> Source:
        return Source(query, columns, rows)

    def _relation(self, source: Source, how: str) -> tuple[Relation, tuple[Typed, ...], int]:
        self._aliases += 1
        alias = f"r{self._aliases}"
        columns = tuple(replace(c, sql=f"{alias}.{c.sql}") for c in source.columns)
        return Relation(source.what, alias, how or "JOIN"), columns, source.rows

    # Small choices.

    def _conjuncts(self, scalars: Scalars, chance: float) -> tuple[str, ...]:
        if self.rng.random() > chance:
            return ()
        return tuple(self._condition(scalars) for _ in range(self.rng.choice((1, 1, 1, 2))))

    def _condition(self, scalars: Scalars) -> str:
        """A predicate that lets some rows through, more often than not."""
        texts = [scalars.predicate(self.rng.choice((0, 0, 1, 1, 2))).sql for _ in range(self.rng.choice((1, 2, 2, 3)))]
        return f"({' OR '.join(texts)})" if len(texts) > 1 else texts[0]

    def _named(self, items: Sequence[Typed]) -> tuple[tuple[tuple[str, str], ...], tuple[Typed, ...]]:
        """Gives each item a name that is unique: its own if it is a column, else o0, o1, …"""
        named: list[tuple[str, str]] = []
        for i, e in enumerate(items):
            own = (
                e.sql.split(".")[1]
                if e.sql.startswith("r") and e.sql.replace(".", "").replace("_", "").isalnum()
                else ""
            )
            taken = {n for _, n in named}
            named.append((e.sql, own if own and own not in taken and not own.startswith("o") else f"o{i}"))
        return tuple(named), tuple(replace(e, sql=n) for e, (_, n) in zip(items, named, strict=True))

    def _sample(self, values: Sequence[_T]) -> list[_T]:
        return self.rng.sample(list(values), self.rng.randint(1, min(3, len(values))))

    def _direction(self) -> str:
        return self.rng.choice(("", "", "DESC", "ASC NULLS LAST", "DESC NULLS FIRST", "DESC NULLS LAST"))


def aggregate_call(function: str, argument: Typed) -> Typed | None:
    """`function(argument)` with Spark's type, or None where it is not defined, might overflow or is not exact."""
    sql, kind, bound = f"{function}({argument.sql})", argument.family, argument.bound
    if function == "count":
        return derived(sql, "bigint", argument, bound=ROWS, values=(0, 1, 2, 3, 5))
    if function in ("min", "max"):
        if kind in ("boolean", "binary"):
            return None if kind == "binary" else derived(sql, kind, argument)
        loose = "zero" if kind == "float" else ""
        return derived(
            sql,
            argument.type,
            argument,
            bound=bound,
            grain=argument.grain,
            special=argument.special,
            values=argument.values,
            loose=loose,
            portable=argument.portable,
        )
    if bound is None:
        return None
    total = bound * ROWS
    if kind == "int":
        if function == "sum":
            return derived(sql, "bigint", argument, bound=total) if fits("bigint", total) else None
        return derived(sql, "double", argument, bound=bound, portable=False) if total < 2**53 else None
    if kind == "decimal":
        precision, scale = decimal_digits(argument.type)
        sum_type = f"decimal({min(38, precision + 10)},{scale})"
        type_ = sum_type if function == "sum" else f"decimal({min(38, precision + 4)},{min(38, scale + 4)})"
        result = total if function == "sum" else bound
        if not fits(sum_type, total) or not fits(type_, result + 1):
            return None
        return derived(sql, type_, argument, bound=result + 1, portable=function == "sum")
    if kind == "float" and argument.grain is not None and (total << argument.grain) < 2**53:
        grain = argument.grain if function == "sum" else None
        return derived(sql, "double", argument, bound=total, grain=grain, special=argument.special, portable=False)
    return None


def _either(a: Typed, b: Typed) -> Typed:
    """What is known of a column that comes from `a` or from `b`."""
    bound = None if a.bound is None or b.bound is None else max(a.bound, b.bound)
    grain = None if a.grain is None or b.grain is None else max(a.grain, b.grain)
    return replace(
        a,
        bound=bound,
        grain=grain,
        special=a.special or b.special,
        portable=a.portable and b.portable,
        loose=a.loose or b.loose,
    )
