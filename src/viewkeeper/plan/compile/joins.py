"""Joins as lookup paths, with no intermediate result.

    Δ(R₁⋈…⋈Rₙ) = Σᵢ R₁ⁿᵉʷ⋈…⋈Rᵢ₋₁ⁿᵉʷ ⋈ ΔRᵢ ⋈ Rᵢ₊₁ᵒˡᵈ⋈…⋈Rₙᵒˡᵈ

A tree of joins is flattened (`flatten`) into relations, equalities between two relations (edges) and other conditions.
For each relation there is one path: its delta is looked up in the other relations, one after the other, each by the
edges that the bound ones give. A base table is looked up in an image shared by (table, key); the view's own filter on
it runs after the lookup. A first load in the driver runs the whole join as one statement instead.

The sum telescopes over one total order of the relations for any function of them, so it holds with outer joins, too:

    forwards     L ⟕ R is linear in L: a row of ΔL is looked up in R, and stays with NULLs where it meets no row
    backwards    at fixed L:  Δ(L ⟕ R) = L ⋈ ΔR − pad(L ⋈ Δpresence(R.key)),  and  Δ(L ▷ R) = −(L ⋈ Δpresence(R.key))

`presence` is the set of keys of R that are there: a key matters when its last row goes or its first one comes. With a
condition over both sides the match depends on the row of L, not on its key alone. Then, for the rows of L that have a
key in ΔR:  + pad(l) where l meets no row of Rⁿᵉʷ,  − pad(l) where it meets none of Rᵒˡᵈ.

Backwards along the edges of an ON a lookup is inner, also where it leads into another optional relation: an equality
rejects NULL, so the row has a match there (`flatten` sees to it). All other lookups of optional relations are outer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from viewkeeper.model.schema import Column
from viewkeeper.operators.kinds import Arrange, BulkJoin, Consolidate, Lookup
from viewkeeper.operators.kinds.bulk_join import OptionalInput
from viewkeeper.operators.kinds.lookup import MET
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment
from viewkeeper.plan.compile import outer_joins, thresholds
from viewkeeper.plan.compile.branch import Branch, Given, conjunction, positional, raises, reference, substitute
from viewkeeper.plan.compile.join_relations import Edge, Relation, classify, fan_out, lookup_edges, relation_of
from viewkeeper.plan.compile.join_tree import Flat, flatten
from viewkeeper.plan.logical.nodes import Aggregate, Expr, Join, Named
from viewkeeper.plan.rules.join_keys import keyed

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler


def join(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    flat = flatten(node, compiler.tables)
    return flat_join(compiler, flat, needed) if flat.is_join else outer_joins.join(compiler, keyed(node), needed)


def flat_join(compiler: Compiler, flat: Flat, needed: frozenset[str]) -> list[Branch]:
    """Joins that touch, with the filters and projections on them."""
    owner = {c.name: i for i, source in enumerate(flat.sources) for c in source.node.columns}
    wanted = {name: expr for name, expr in flat.columns.items() if name in needed}
    edges, local, across, on = classify(flat, owner)
    compared = frozenset().union(*(c.columns() for c in [*flat.conditions, *(c for s in flat.sources for c in s.on)]))
    used = compared.union(*(e.columns() for e in wanted.values()))
    relations = [relation_of(compiler, s, local[i], used, compared) for i, s in enumerate(flat.sources)]
    late = [c for c in across if raises([c])]
    early = [c for c in across if not raises([c])]
    keep = frozenset().union(*(e.columns() for e in [*wanted.values(), *late]))
    needs = [frozenset(owner[c] for e in s.on for c in e.columns()) - {i} for i, s in enumerate(flat.sources)]
    joined = _Joined(compiler, relations, edges, early, on, needs, keep)
    branches = [b for start in range(len(relations)) for b in joined.paths(start)]
    branches.append(joined.bulk())
    if late:
        columns = [c for r in relations for c in r.columns if c.name in keep]
        branches = [b.filtered(conjunction(late)) for b in compiler.consolidated(branches, columns)]
    exprs = [Named(name, expr) for name, expr in wanted.items()]
    branches = compiler.settled(branches, [b.see(n.expr) for b in branches for n in exprs])
    return [b.projected(exprs) for b in branches]


@dataclass(frozen=True)
class _Joined:
    """The relations of a join with what links them, from which its paths are made."""

    compiler: Compiler
    relations: list[Relation]
    edges: list[Edge]
    conditions: list[Expr]
    """Over several relations, or over an optional one."""
    on: list[list[Expr]]
    """What the ON of each optional relation asks for beside its edges."""
    needs: list[frozenset[int]]
    """The relations that the ON of each optional relation compares it with."""
    keep: frozenset[str]
    """Columns that are used after the join."""

    @cached_property
    def order(self) -> list[int]:
        """The total order: relations before the changed one are looked up in their new state, those after it in their
        old state. By size, but the last is an inner relation: its path alone serves a first load on Spark."""
        by_size = sorted(range(len(self.relations)), key=lambda i: (self.relations[i].rows, i))
        last = [i for i in by_size if not self.relations[i].is_optional][-1]
        return [*(i for i in by_size if i != last), last]

    def paths(self, start: int) -> list[Branch]:
        """What turns the delta of a relation into its share of the join's delta."""
        relation = self.relations[start]
        result = [] if relation.how == "anti" else _Walk(self, start, self.on[start]).to_the_end()
        if relation.is_optional:
            mine = {c.name for c in relation.columns}
            depends_on_row = any(c.columns() & mine for c in self.on[start])
            result += self._by_row(start) if depends_on_row else self._by_presence(start)
        return result

    def _by_presence(self, start: int) -> list[Branch]:
        """Rows that lose or regain their NULLs, or go or return: those of a key that came to be or ceased to be."""
        relation, keys = self.relations[start], self._keys(start)
        nulls = [Named(c.name, Expr("literal", c.type)) for c in relation.columns]
        named = [Named(k.name, reference(k.column)) for k in keys]
        branches = [b.negated().projected([*nulls, *named]) for b in self._presence(relation, keys)]
        columns = (*(Column(c.name, c.type) for c in relation.columns), *(k.column for k in keys))
        return _Walk(self._begun(start, branches, columns, keys), start, self.on[start]).to_the_end()

    def _by_row(self, start: int) -> list[Branch]:
        """The same where the match depends on the row: rows with a key of the delta are looked up in both states."""
        relation, keys = self.relations[start], self._keys(start)
        names = {k.name: Column(f"x{i}", k.expr.type, k.expr.nullable) for i, k in enumerate(keys)}
        exprs = [Named(names[k.name].name, k.expr) for k in keys]
        # With all columns that the match depends on: a row that changes in none of them does not get here.
        others = [Named(f"y{i}", reference(c)) for i, c in enumerate(relation.columns)]
        source = tuple(b.segment([*exprs, *others], tuple(n.name for n in exprs)) for b in relation.branches)
        touched = Branch(
            self.compiler.add(Consolidate(source, once=True)), {name: reference(c) for name, c in names.items()}
        )
        walk = _Walk(self._begun(start, [touched], tuple(k.column for k in keys), keys), start, [])
        mine = [e for e in self.edges if e.owner == start]
        walk.partial = True
        walk.later = frozenset().union(*(e.columns() for e in [*self.on[start], *(e.equality for e in mine)]))
        while not self.needs[start] <= set(walk.bound):
            walk.step()
        by = lookup_edges(self.compiler, self.relations, start, mine, self.edges)
        walk.bound.remove(start)  # what was bound of it is its key: now it is looked up itself
        walk.joined, walk.later, walk.partial = self, frozenset(), False
        nulls = [Named(c.name, Expr("literal", c.type)) for c in relation.columns]
        absent = []
        for fresh in (True, False):
            found = walk.optional(start, mine, by, self.on[start], fresh, load=False, how="anti")
            known = [Named(name, Expr("column", e.type, value=name)) for name, e in found.columns.items()]
            absent.append((found if fresh else found.negated()).projected([*known, *nulls]))
        walk.bind(start, absent)
        return walk.to_the_end()

    def _keys(self, relation: int) -> list[Named]:
        mine = [e for e in self.edges if e.owner == relation]
        return [Named(f"!{relation}.{i}", e.side(relation)) for i, e in enumerate(mine)]

    def _begun(self, start: int, branches: list[Branch], columns: tuple[Column, ...], keys: Sequence[Named]) -> _Joined:
        """The join with other rows in the place of a relation, whose ON compares them by the columns of its `keys`."""
        begun = replace(self.relations[start], branches=branches, columns=columns)
        of_key = iter(keys)
        edges = [e.named(start, reference(next(of_key).column)) if e.owner == start else e for e in self.edges]
        relations = [begun if i == start else r for i, r in enumerate(self.relations)]
        return replace(self, relations=relations, edges=edges)

    def _presence(self, relation: Relation, keys: Sequence[Named]) -> list[Branch]:
        """The change of the set of keys that are there. A unique key is there as often as its row is."""
        plain = {k.expr.value for k in keys if k.expr.op == "column"}
        if any(key <= plain for key in relation.unique):
            branches = [b.projected(keys) for b in relation.branches]
            return self.compiler.consolidated(branches, [k.column for k in keys])
        given = Given(relation.node, tuple(relation.branches))
        return self.compiler.compile(Aggregate(given, tuple(keys), ()), frozenset(k.name for k in keys))

    def bulk(self) -> Branch:
        """The whole join at once, for a first load in the driver."""
        names: dict[str, Column] = {}
        ports = []
        for i, relation in enumerate(self.relations):
            own = positional(relation.columns, f"r{i}_")
            names |= own
            exprs = [Named(own[c.name].name, reference(c)) for c in relation.columns]
            ports.append(tuple(b.segment(exprs, None) for b in relation.branches))
        columns = {name: reference(c) for name, c in names.items()}
        optional = []
        for i, relation in enumerate(self.relations):
            if relation.is_optional:
                on = [*(e.equality for e in self.edges if e.owner == i), *self.on[i]]
                match = tuple(substitute(c, columns) for c in on)
                optional.append(OptionalInput(i, relation.how, match, summed=relation.table is None))
        where = [*(e.equality for e in self.edges if e.owner is None), *self.conditions]
        operator = BulkJoin(tuple(ports), tuple(substitute(c, columns) for c in where), tuple(optional))
        return Branch(self.compiler.add(operator), {n: e for n, e in columns.items() if n in self.keep})


class _Walk:
    """A path while it is made: the relations that are bound, and where their rows come from."""

    def __init__(self, joined: _Joined, start: int, asked: Sequence[Expr]) -> None:
        """`asked`: conditions that the rows of the first relation must meet with the others."""
        self.joined, self.start = joined, start
        self.bound, self.current = [start], joined.relations[start].branches
        self.met = self._met()
        self.open_edges = list(joined.edges)
        self.waiting = [*joined.conditions, *asked, *(c for i in sorted(self.met - {start}) for c in joined.on[i])]
        self.later = frozenset[str]()
        """Columns that are kept beside those which the join itself needs."""
        self.partial = False
        """Whether of the first relation only the key is bound."""
        linked = frozenset(x for e in joined.edges for x in (e.a, e.b))
        self.moved = thresholds.threshold(joined.relations, start, linked, joined.conditions, joined.keep)

    def _met(self) -> set[int]:
        """The relations that surely have a row: the first, and those that an ON which is met compares with."""
        found, waiting = set[int](), [self.start]
        while waiting:
            i = waiting.pop()
            if i not in found:
                found.add(i)
                waiting += [x for e in self.joined.edges if e.owner == i for x in (e.a, e.b)]
        return found

    def to_the_end(self) -> list[Branch]:
        while len(self.bound) < len(self.joined.relations):
            self.step()
        return self.current

    def step(self) -> None:
        """Bind one more relation."""
        joined = self.joined
        relations, order = joined.relations, joined.order
        is_threshold = self.moved is not None and len(self.bound) == 1
        step = self.moved.step if self.moved is not None and is_threshold else self._next()
        used = self._links(step)
        by = lookup_edges(joined.compiler, relations, step, used, joined.edges)
        self.open_edges = [e for e in self.open_edges if e not in used]
        fresh, load = order.index(step) < order.index(self.start), self.start == order[-1]
        if self._is_outer(step):
            branch = self.optional(step, used, by, joined.on[step], fresh, load, relations[step].how)
        else:
            later = self._later(used)
            if self.moved is not None and is_threshold:
                first = relations[self.start]
                branch = thresholds.lookup(joined.compiler, first, relations[step], self.moved, later, fresh, load)
            else:
                branch = self._inner(step, by, later, fresh, load)
            for edge in used:
                branch = branch.filtered(edge.equality)
        self.bind(step, [branch])

    def bind(self, relation: int, current: list[Branch]) -> None:
        """These rows are those of the path with one more relation; what can be asked of them now is asked."""
        self.bound.append(relation)
        covered = {c.name for i in self.bound for c in self.joined.relations[i].columns}
        ready = conjunction([c for c in self.waiting if c.columns() <= covered])
        self.waiting = [c for c in self.waiting if not c.columns() <= covered]
        self.current = [b.filtered(ready) for b in current]

    def _is_outer(self, relation: int) -> bool:
        return self.joined.relations[relation].is_optional and relation not in self.met

    def _links(self, relation: int) -> list[Edge]:
        """The edges by which a relation can be looked up now."""
        return [
            e
            for e in self.open_edges
            if relation in (e.a, e.b) and e.other(relation) in self.bound
            and (e.owner is None or e.owner == relation or e.owner in self.met)
        ]  # fmt: skip

    def _next(self) -> int:
        """The relation to look up next: the one after which the fewest rows are expected; crosses last."""
        joined, bound = self.joined, set(self.bound)
        known = bound - {self.start} if self.partial else bound

        def cost(i: int) -> tuple[bool, float, int]:
            mine = self._links(i)
            rows = fan_out(joined.relations, i, mine, joined.edges) * joined.relations[i].share
            if self._is_outer(i):
                rows = max(1.0, rows) if joined.relations[i].how == "left" else 0.5
            return not mine, rows, joined.order.index(i)

        ready = (i for i in range(len(joined.relations)) if not self._is_outer(i) or joined.needs[i] <= known)
        return min((i for i in ready if i not in bound), key=cost)

    def _later(self, used: Sequence[Edge]) -> frozenset[str]:
        """Columns that are used after the next lookup, or to check it."""
        joined = self.joined
        unbound = [i for i in range(len(joined.relations)) if i not in self.bound and self._is_outer(i)]
        conditions = [*self.waiting, *(c for i in unbound for c in joined.on[i])]
        conditions += [e.equality for e in [*used, *self.open_edges]]
        return joined.keep.union(self.later, *(c.columns() for c in conditions))

    def _probe(
        self, columns: Sequence[Column], names: Mapping[str, Column], sides: Iterable[Expr]
    ) -> tuple[Segment, ...]:
        exprs = [Named(names[c.name].name, reference(c)) for c in columns]
        key, worked_out = _keyed(sides, names, "q")
        return tuple(b.segment([*exprs, *worked_out], key) for b in self.current)

    def _kept(self, later: frozenset[str]) -> tuple[list[Column], dict[str, Column]]:
        columns = [c for i in self.bound for c in self.joined.relations[i].columns if c.name in later]
        made = [b.columns for b in self.current]
        columns = [Column(c.name, c.type, c.nullable or any(m[c.name].nullable for m in made)) for c in columns]
        return columns, positional(columns, "p")

    def _inner(self, step: int, by: list[Edge], later: frozenset[str], fresh: bool, load: bool) -> Branch:
        compiler, relation = self.joined.compiler, self.joined.relations[step]
        arranged, key_edges, take, inner, where = _arranged(compiler, relation, step, by)
        columns, names = self._kept(later)
        probe = self._probe(columns, names, (e.side(e.other(step)) for e in key_edges))
        operator = compiler.add(Lookup(probe, arranged.id, fresh, take, load))
        return Branch(operator, {c.name: reference(names[c.name]) for c in columns} | inner, where)

    def optional(
        self, step: int, used: Sequence[Edge], by: list[Edge], on: Sequence[Expr], fresh: bool, load: bool, how: str
    ) -> Branch:
        """A lookup of an optional relation: what a row meets is decided there, with its whole ON."""
        compiler, relation = self.joined.compiler, self.joined.relations[step]
        arranged, key_edges, take, inner, where = _arranged(compiler, relation, step, by)
        columns, names = self._kept(self._later(used) | frozenset().union(*(c.columns() for c in on)))
        probe = self._probe(columns, names, (e.side(e.other(step)) for e in key_edges))
        mine = {c.name: reference(names[c.name]) for c in columns}
        both = mine | inner
        match = (*(substitute(e.equality, both) for e in used), *where, *(substitute(c, both) for c in on))
        take = tuple((name, Column(c.name, c.type)) for name, c in take)
        is_plain = how == "anti" or all(e.op == "column" for e in inner.values())
        lookup = Lookup(probe, arranged.id, fresh, take, load, optional=how, match=match, flag=not is_plain)
        theirs = {} if how == "anti" else {name: _or_null(e) for name, e in inner.items()}
        return Branch(compiler.add(lookup), mine | theirs)


def _or_null(expr: Expr) -> Expr:
    """What an optional relation's column is: NULL where no row was met."""
    if expr.op == "column":
        return replace(expr, nullable=True)
    return Expr("If", expr.type, (reference(MET), expr, Expr("literal", expr.type)))


def _arranged(
    compiler: Compiler, relation: Relation, index: int, edges: list[Edge]
) -> tuple[Operator, list[Edge], tuple[tuple[str, Column], ...], dict[str, Expr], tuple[Expr, ...]]:
    """Where the relation is looked up by these edges: operator, edges in key order, columns taken, how they give the
    relation's plan columns, and the relation's own conditions that are still to be checked."""
    stored = [relation.stored(e.side(index)) for e in edges]
    table = relation.table
    if table is not None and all(name is not None for name in stored) and len(set(stored)) == len(stored):
        branch = relation.branches[0]
        by_name = {name.lower(): (name, e) for name, e in zip(stored, edges, strict=True) if name is not None}
        primary = [k.column.lower() for k in compiler.tables[table].key]
        names = primary if set(primary) == set(by_name) else sorted(by_name)
        image = compiler.image(table, tuple(by_name[n][0] for n in names))
        seen = {e.value: e for c in relation.columns for e in branch.columns[c.name].walk() if e.op == "column"}
        seen |= {e.value: e for w in branch.where for e in w.walk() if e.op == "column"}
        take = tuple((name, Column(f"a{i}", e.type, e.nullable)) for i, (name, e) in enumerate(sorted(seen.items())))
        renamed = {name: reference(c) for name, c in take}
        inner = {c.name: substitute(branch.columns[c.name], renamed) for c in relation.columns}
        return image, [by_name[n][1] for n in names], take, inner, tuple(substitute(w, renamed) for w in branch.where)
    ordered = sorted(edges, key=lambda e: str(e.side(index).to_json()))
    names_of = positional(relation.columns, "x")
    exprs = [Named(names_of[c.name].name, reference(c)) for c in relation.columns]
    key, worked_out = _keyed([edge.side(index) for edge in ordered], names_of, "y")
    arrange = compiler.add(Arrange(tuple(b.segment([*exprs, *worked_out], key) for b in relation.branches)))
    take = tuple((names_of[c.name].name, Column(f"a{i}", c.type, c.nullable)) for i, c in enumerate(relation.columns))
    inner = {c.name: reference(taken) for c, (_, taken) in zip(relation.columns, take, strict=True)}
    return arrange, ordered, take, inner, ()


def _keyed(sides: Iterable[Expr], names: Mapping[str, Column], prefix: str) -> tuple[tuple[str, ...], list[Named]]:
    """The names by which rows are arranged or sought, and what has to be worked out for that: no column says it."""
    key, worked_out = [], []
    for number, side in enumerate(sides):
        if side.op == "column":
            key.append(names[side.value].name)
        else:
            worked_out.append(Named(f"{prefix}{number}", side))
            key.append(worked_out[-1].name)
    return tuple(key), worked_out
