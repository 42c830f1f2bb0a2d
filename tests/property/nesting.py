"""Draws queries from `shapes` so that every pair of shapes is drawn, and counts the pairs.

A query is a tree. For the input of a shape that shape is drawn which has stood there least often; `Coverage` counts
(outer shape, which input, inner shape) over all the queries drawn one after the other. A join of a join's result may
stand in the same FROM or be a derived table; the count is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from .query import Nested, Query, Relation, Select, View
from .scenario import Scenario, scheduled
from .shapes import BY_KEY, CONDITIONS, JOINS, KEYS, NAMES, ON, SHAPES, VALUES, condition, items, met, tables
from .typed import Typed

MOST_ROWS = 400
LEAVES = ("table", "view", "values")
COLUMNS = tuple(Typed(n, t, portable=False) for n, t in zip(NAMES, ("int", "int", "string"), strict=True))
WITH_CONDITION = (*(j for j in JOINS if j != "CROSS JOIN"), "exists", "not exists", "exists or", "exists value")
HIDING = ("LEFT SEMI JOIN", "LEFT ANTI JOIN")
"""Joins after which the right side's columns are not there."""


class Coverage:
    """How often each shape has stood in each input of each other; and each kind of join had each kind of ON."""

    def __init__(self, shapes: Sequence[str] = (*SHAPES, *JOINS)) -> None:
        self.shapes = tuple(shapes)
        self.pairs: Counter[tuple[str, int, str]] = Counter()
        self.conditions: Counter[tuple[str, str]] = Counter()

    def least_used_first(self, rng: Random, outer: str, place: int, among: Sequence[str]) -> list[str]:
        """These shapes, the one that stood there least often first."""
        shuffled = rng.sample(list(among), len(among))
        return sorted(shuffled, key=lambda inner: self.pairs[outer, place, inner])

    def kinds(self, rng: Random, join: str) -> list[str]:
        """The kinds of ON, the one that this join had least often first."""
        shuffled = rng.sample(list(CONDITIONS), len(CONDITIONS))
        return sorted(shuffled, key=lambda kind: self.conditions[join, kind])

    def missing(self) -> list[tuple[str, int, str]]:
        return [
            (outer, place, inner)
            for outer in self.shapes
            for place in range(inputs_of(outer))
            for inner in (*self.shapes, *LEAVES)
            if not self.pairs[outer, place, inner]
        ]

    def missing_conditions(self) -> list[tuple[str, str]]:
        joins = [s for s in self.shapes if s in WITH_CONDITION]
        return [(join, kind) for join in joins for kind in CONDITIONS if not self.conditions[join, kind]]

    def table(self) -> str:
        """A line for each place: how many shapes stood there, how often, and which did not."""
        inner = (*self.shapes, *LEAVES)
        lines = [f"{'outer shape':<22} input  shapes  draws  least"]
        for outer in self.shapes:
            for place in range(inputs_of(outer)):
                counts = [self.pairs[outer, place, name] for name in inner]
                drawn = sum(1 for n in counts if n)
                lines.append(f"{outer:<22} {place:>5}  {drawn:>3}/{len(inner)} {sum(counts):>6} {min(counts):>6}")
        return "\n".join(lines)


def inputs_of(shape: str) -> int:
    return 0 if shape in LEAVES else 2 if shape in JOINS else SHAPES[shape].inputs


@dataclass(frozen=True)
class Built:
    query: Query | str
    """A name, if it is a table or a view."""
    shape: str
    rows: int
    joins: int = 0


class Nesting:
    """Queries over tables and views of the three columns."""

    def __init__(self, rng: Random, names: Sequence[str], coverage: Coverage, max_joins: int = 6) -> None:
        self.rng, self.coverage, self.max_joins = rng, coverage, max_joins
        self.tables = list(names)
        self.views: list[tuple[str, int]] = []

    def view(self, name: str, depth: int) -> View:
        """One more view, in which shapes are nested so deep; later ones may read it."""
        while True:
            root = self.build("", 0, depth)
            assert not isinstance(root.query, str)
            if "tab_" in root.query.sql or "view_" in root.query.sql:  # a view needs a table
                break
        return self._add_view(name, root)

    def chain(self, name: str, joins: int) -> View:
        """A view of so many joins in one FROM: of tables by their key, or of anything while that gives few rows."""
        built = self._leaf("table")
        for _ in range(joins):
            among = HIDING if self.rng.random() < 0.12 else ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
            hows = self.coverage.least_used_first(self.rng, built.shape, 0, among)
            joined = None
            if self.rng.random() < 0.3:
                joined = self._join(hows[0], [built, self.build(hows[0], 1, self.rng.choice((0, 0, 1)))], True)
            built = joined or self._join_by_key(hows[0], built)
        assert isinstance(built.query, Select)
        if self.rng.random() < 0.7:
            built = replace(built, query=_showing_all(built.query))
        return self._add_view(name, built)

    def using_chain(self, name: str, joins: int) -> View:
        """A view of so many joins USING one key."""
        rng, key = self.rng, self.rng.choice(("k0", "k0", "c1"))
        hows = rng.choice((["FULL JOIN"], ["LEFT JOIN"], ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]))
        relations = [Relation(rng.choice(self.tables), "r1")]
        for number in range(joins):
            source = rng.choice(self.tables) if number < 2 else rng.choice(self._unique(key))
            relations.append(Relation(source, f"r{number + 2}", rng.choice(hows), using=key))
        drawn = {column: text for text, column in items(rng, *self._sample_aliases([r.alias for r in relations]))} | {
            key: key
        }
        query = Select(tuple((drawn[column], column) for column in NAMES), tuple(relations))
        return self._add_view(name, Built(query, "using", 60, joins))

    def _add_view(self, name: str, built: Built) -> View:
        assert not isinstance(built.query, str)
        self.views.append((name, built.rows))
        return View(name, built.query, COLUMNS, rows=built.rows)

    def _unique(self, key: str) -> list[str]:
        return [table for table, by in zip(self.tables, KEYS, strict=True) if by == (key,)]

    def build(self, outer: str, place: int, depth: int) -> Built:
        """A query for this place. Shapes that would give too many rows, or joins, give way to the next one."""
        among = self.coverage.shapes if depth else [leaf for leaf in LEAVES if leaf != "view" or self.views]
        if outer and depth and self.rng.random() < 0.15:
            among = [leaf for leaf in LEAVES if leaf != "view" or self.views]
        for shape in self.coverage.least_used_first(self.rng, outer, place, among):
            built = self._leaf(shape) if shape in LEAVES else self._shape(shape, depth)
            if built is not None:
                if outer:
                    self.coverage.pairs[outer, place, shape] += 1
                return built
        return self._leaf("table")

    def _leaf(self, shape: str) -> Built:
        if shape == "values":
            text = self.rng.choice(VALUES)
            return Built(Nested("values", text, ()), "values", 3)
        if shape == "view":
            name, rows = self.rng.choice(self.views)
            return Built(name, "view", rows)
        return Built(self.rng.choice(self.tables), "table", 8)

    def _shape(self, shape: str, depth: int) -> Built | None:
        before = self.coverage.pairs.copy()
        parts = [self.build(shape, place, depth - 1) for place in range(inputs_of(shape))]
        joins = sum(p.joins for p in parts) + (len(parts) > 1)
        built: Built | None = None
        if joins <= self.max_joins:
            built = self._join(shape, parts) if shape in JOINS else self._nested(shape, parts)
        if built is None or built.rows > MOST_ROWS:
            self.coverage.pairs = before
            return None
        return replace(built, joins=joins)

    def _nested(self, shape: str, parts: Sequence[Built]) -> Built:
        rows, template = SHAPES[shape].rows(parts[0].rows, parts[-1].rows), SHAPES[shape].draw(self.rng)
        if ON in template:
            kind = self.coverage.kinds(self.rng, shape)[0]
            self.coverage.conditions[shape, kind] += 1
            template = template.replace(ON, condition(self.rng, kind, "r1", "r2"))
        queries = tuple(p.query if not isinstance(p.query, str) else Nested("table", p.query, ()) for p in parts)
        return Built(Nested(shape, template, queries), shape, rows)

    # Joins: one FROM as long as the left input is itself a join, else derived tables.

    def _join(self, how: str, parts: Sequence[Built], flat: bool = False) -> Built | None:
        left, right = parts
        for kind in self.coverage.kinds(self.rng, how):
            rows = met(kind, left.rows, right.rows) if how != "CROSS JOIN" else left.rows * right.rows
            rows = min(rows, left.rows) if how in HIDING else rows
            rows += left.rows * (how in ("LEFT JOIN", "FULL JOIN")) + right.rows * (how in ("RIGHT JOIN", "FULL JOIN"))
            if rows <= MOST_ROWS:
                self.coverage.conditions[how, kind] += 1
                on = () if how == "CROSS JOIN" else CONDITIONS[kind]
                return self._build_join(how, left, right, on, rows, flat)
        return None

    def _join_by_key(self, how: str, left: Built) -> Built:
        right = Built(self.rng.choice(self._unique("k0")), "table", 8)
        self.coverage.pairs[how, 1, "table"] += 1
        rows = left.rows + right.rows * (how in ("RIGHT JOIN", "FULL JOIN"))
        return self._build_join(how, left, right, BY_KEY, rows, True)

    def _build_join(self, how: str, left: Built, right: Built, on: Sequence[str], rows: int, flat: bool) -> Built:
        relations = self._relations(left, flat)
        visible = [r.alias for r in relations if r.how not in HIDING]
        alias = f"r{len(relations) + 1}"
        text = self.rng.choice(on).replace("$l", self.rng.choice(visible)).replace("$r", alias) if on else ""
        joined = Relation(right.query, alias, how, (text,) if text else ())
        shown = [*visible, alias] if how not in HIDING else visible
        query = Select(items(self.rng, *self._sample_aliases(shown)), (*relations, joined))
        if left.shape in JOINS or left.shape in LEAVES:
            self.coverage.pairs[how, 0, left.shape] += flat
        return Built(query, how, rows, left.joins + right.joins + 1)

    def _relations(self, left: Built, flat: bool) -> tuple[Relation, ...]:
        """Those of the left input's own FROM, if it is a join, now and then; else the input as one relation."""
        if left.shape in JOINS and isinstance(left.query, Select) and (flat or self.rng.random() < 0.6):
            return left.query.relations
        return (Relation(left.query, "r1"),)

    def _sample_aliases(self, aliases: Sequence[str]) -> list[str]:
        return self.rng.sample(list(aliases), min(len(aliases), self.rng.choice((1, 2, 3))))


def _showing_all(query: Select) -> Select:
    """With a value of every relation that can be seen in the third column: which rows met which."""
    aliases = [r.alias for r in query.relations if r.how not in HIDING]
    met_rows = ", ".join(f"coalesce(CAST({alias}.{NAMES[i % 2]} AS STRING), '-')" for i, alias in enumerate(aliases))
    return replace(query, items=(*query.items[:2], (f"substr(concat({met_rows}), 1, 20)", "c2")))


class Series:
    """Scenarios of such views, one after the other: which pairs one draws depends on those before it.

    Views nest so deep as `depths` says; if there are `chains`, every other view is one of so many joins.
    """

    def __init__(
        self, name: str, shapes: Sequence[str], depths: Sequence[int], chains: Sequence[int] = (), views: int = 6
    ) -> None:
        self.name, self.depths, self.chains, self.views = name, depths, chains, views
        self.coverage = Coverage(shapes)
        self._drawn: list[Scenario] = []

    def scenario(self, number: int) -> Scenario:
        while len(self._drawn) <= number:
            self._drawn.append(self._draw(len(self._drawn)))
        return self._drawn[number]

    def _draw(self, number: int) -> Scenario:
        rng = Random(f"{self.name} {number}")
        over = tables(rng)
        nesting = Nesting(rng, [t.name for t in over], self.coverage)
        views = [self._view(rng, nesting, f"view_{i}", i % 2 == 1) for i in range(self.views)]
        return scheduled(rng, number, over, views, 4)

    def _view(self, rng: Random, nesting: Nesting, name: str, chained: bool) -> View:
        if not self.chains or not chained:
            return nesting.view(name, rng.choice(self.depths))
        make = nesting.using_chain if rng.random() < 0.3 else nesting.chain
        return make(name, rng.choice(self.chains))
