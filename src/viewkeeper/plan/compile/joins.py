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
from viewkeeper.operators.kinds.lookup import MATCH_FLAG_COLUMN
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment
from viewkeeper.plan.compile import outer_joins, thresholds
from viewkeeper.plan.compile.branch import (
    Branch,
    CompiledNode,
    can_any_raise,
    column_reference,
    conjunction,
    positional_columns,
    substitute,
)
from viewkeeper.plan.compile.join_relations import (
    JoinEdge,
    JoinRelation,
    choose_lookup_edges,
    classify_conditions,
    compile_relation,
    estimate_fan_out,
)
from viewkeeper.plan.compile.join_tree import FlatJoin, flatten
from viewkeeper.plan.logical.nodes import Aggregate, Expr, Join, Named
from viewkeeper.plan.rules.join_keys import add_key_columns

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler


def compile_join(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    flat = flatten(node, compiler.tables)
    return (
        compile_flat_join(compiler, flat, needed)
        if flat.is_join
        else outer_joins.compile_outer_join(compiler, add_key_columns(node), needed)
    )


def compile_flat_join(compiler: Compiler, flat: FlatJoin, needed: frozenset[str]) -> list[Branch]:
    """Joins that touch, with the filters and projections on them."""
    owner = {c.name: i for i, source in enumerate(flat.inputs) for c in source.node.columns}
    wanted = {name: expr for name, expr in flat.columns.items() if name in needed}
    edges, local, across, on = classify_conditions(flat, owner)
    compared = frozenset().union(*(c.columns() for c in [*flat.conditions, *(c for s in flat.inputs for c in s.on)]))
    used = compared.union(*(e.columns() for e in wanted.values()))
    relations = [compile_relation(compiler, s, local[i], used, compared) for i, s in enumerate(flat.inputs)]
    late = [c for c in across if can_any_raise([c])]
    early = [c for c in across if not can_any_raise([c])]
    keep = frozenset().union(*(e.columns() for e in [*wanted.values(), *late]))
    needs = [frozenset(owner[c] for e in s.on for c in e.columns()) - {i} for i, s in enumerate(flat.inputs)]
    joined = _JoinGraph(compiler, relations, edges, early, on, needs, keep)
    branches = [b for start in range(len(relations)) for b in joined.build_paths(start)]
    branches.append(joined.build_bulk_join())
    if late:
        columns = [c for r in relations for c in r.columns if c.name in keep]
        branches = [b.add_filter(conjunction(late)) for b in compiler.consolidate(branches, columns)]
    exprs = [Named(name, expr) for name, expr in wanted.items()]
    branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in exprs])
    return [b.project(exprs) for b in branches]


@dataclass(frozen=True)
class _JoinGraph:
    """The relations of a join with what links them, from which its paths are made."""

    compiler: Compiler
    relations: list[JoinRelation]
    edges: list[JoinEdge]
    conditions: list[Expr]
    """Over several relations, or over an optional one."""
    on_conditions: list[list[Expr]]
    """What the ON of each optional relation asks for beside its edges."""
    on_relations: list[frozenset[int]]
    """The relations that the ON of each optional relation compares it with."""
    output_columns: frozenset[str]
    """Columns that are used after the join."""

    @cached_property
    def relation_order(self) -> list[int]:
        """The total order: relations before the changed one are looked up in their new state, those after it in their
        old state. By size, but the last is an inner relation: its path alone serves a first load on Spark."""
        by_size = sorted(range(len(self.relations)), key=lambda i: (self.relations[i].rows, i))
        last = [i for i in by_size if not self.relations[i].is_optional][-1]
        return [*(i for i in by_size if i != last), last]

    def build_paths(self, start: int) -> list[Branch]:
        """What turns the delta of a relation into its share of the join's delta."""
        relation = self.relations[start]
        result = [] if relation.join_type == "anti" else _PathBuilder(self, start, self.on_conditions[start]).finish()
        if relation.is_optional:
            mine = {c.name for c in relation.columns}
            depends_on_row = any(c.columns() & mine for c in self.on_conditions[start])
            result += self._paths_by_row(start) if depends_on_row else self._paths_by_presence(start)
        return result

    def _paths_by_presence(self, start: int) -> list[Branch]:
        """Rows that lose or regain their NULLs, or go or return: those of a key that came to be or ceased to be."""
        relation, keys = self.relations[start], self._edge_keys(start)
        nulls = [Named(c.name, Expr("literal", c.type)) for c in relation.columns]
        named = [Named(k.name, column_reference(k.column)) for k in keys]
        branches = [b.negate().project([*nulls, *named]) for b in self._presence_changes(relation, keys)]
        columns = (*(Column(c.name, c.type) for c in relation.columns), *(k.column for k in keys))
        return _PathBuilder(
            self._replace_relation(start, branches, columns, keys), start, self.on_conditions[start]
        ).finish()

    def _paths_by_row(self, start: int) -> list[Branch]:
        """The same where the match depends on the row: rows with a key of the delta are looked up in both states."""
        relation, keys = self.relations[start], self._edge_keys(start)
        names = {k.name: Column(f"x{i}", k.expr.type, k.expr.nullable) for i, k in enumerate(keys)}
        exprs = [Named(names[k.name].name, k.expr) for k in keys]
        # With all columns that the match depends on: a row that changes in none of them does not get here.
        others = [Named(f"y{i}", column_reference(c)) for i, c in enumerate(relation.columns)]
        source = tuple(b.build_segment([*exprs, *others], tuple(n.name for n in exprs)) for b in relation.branches)
        touched = Branch(
            self.compiler.add_operator(Consolidate(source, is_distinct_keys=True)),
            {name: column_reference(c) for name, c in names.items()},
        )
        walk = _PathBuilder(self._replace_relation(start, [touched], tuple(k.column for k in keys), keys), start, [])
        mine = [e for e in self.edges if e.owner == start]
        walk.is_key_only = True
        walk.later_columns = frozenset().union(
            *(e.columns() for e in [*self.on_conditions[start], *(e.equality for e in mine)])
        )
        while not self.on_relations[start] <= set(walk.bound_relations):
            walk.add_step()
        by = choose_lookup_edges(self.compiler, self.relations, start, mine, self.edges)
        walk.bound_relations.remove(start)  # what was bound of it is its key: now it is looked up itself
        walk.graph, walk.later_columns, walk.is_key_only = self, frozenset(), False
        nulls = [Named(c.name, Expr("literal", c.type)) for c in relation.columns]
        absent = []
        for fresh in (True, False):
            found = walk.optional_lookup(
                start, mine, by, self.on_conditions[start], fresh, is_load_path=False, join_type="anti"
            )
            known = [Named(name, Expr("column", e.type, value=name)) for name, e in found.columns.items()]
            absent.append((found if fresh else found.negate()).project([*known, *nulls]))
        walk.bind(start, absent)
        return walk.finish()

    def _edge_keys(self, relation: int) -> list[Named]:
        mine = [e for e in self.edges if e.owner == relation]
        return [Named(f"!{relation}.{i}", e.side(relation)) for i, e in enumerate(mine)]

    def _replace_relation(
        self, start: int, branches: list[Branch], columns: tuple[Column, ...], keys: Sequence[Named]
    ) -> _JoinGraph:
        """The join with other rows in the place of a relation, whose ON compares them by the columns of its `keys`."""
        begun = replace(self.relations[start], branches=branches, columns=columns)
        of_key = iter(keys)
        edges = [
            e.replace_side(start, column_reference(next(of_key).column)) if e.owner == start else e for e in self.edges
        ]
        relations = [begun if i == start else r for i, r in enumerate(self.relations)]
        return replace(self, relations=relations, edges=edges)

    def _presence_changes(self, relation: JoinRelation, keys: Sequence[Named]) -> list[Branch]:
        """The change of the set of keys that are there. A unique key is there as often as its row is."""
        plain = {k.expr.value for k in keys if k.expr.op == "column"}
        if any(key <= plain for key in relation.unique):
            branches = [b.project(keys) for b in relation.branches]
            return self.compiler.consolidate(branches, [k.column for k in keys])
        given = CompiledNode(relation.node, tuple(relation.branches))
        return self.compiler.compile(Aggregate(given, tuple(keys), ()), frozenset(k.name for k in keys))

    def build_bulk_join(self) -> Branch:
        """The whole join at once, for a first load in the driver."""
        names: dict[str, Column] = {}
        ports = []
        for i, relation in enumerate(self.relations):
            own = positional_columns(relation.columns, f"r{i}_")
            names |= own
            exprs = [Named(own[c.name].name, column_reference(c)) for c in relation.columns]
            ports.append(tuple(b.build_segment(exprs, None) for b in relation.branches))
        columns = {name: column_reference(c) for name, c in names.items()}
        optional = []
        for i, relation in enumerate(self.relations):
            if relation.is_optional:
                on = [*(e.equality for e in self.edges if e.owner == i), *self.on_conditions[i]]
                match = tuple(substitute(c, columns) for c in on)
                optional.append(OptionalInput(i, relation.join_type, match, must_consolidate=relation.table is None))
        where = [*(e.equality for e in self.edges if e.owner is None), *self.conditions]
        operator = BulkJoin(tuple(ports), tuple(substitute(c, columns) for c in where), tuple(optional))
        return Branch(
            self.compiler.add_operator(operator), {n: e for n, e in columns.items() if n in self.output_columns}
        )


class _PathBuilder:
    """A path while it is made: the relations that are bound, and where their rows come from."""

    def __init__(self, graph: _JoinGraph, start: int, conditions: Sequence[Expr]) -> None:
        """`asked`: conditions that the rows of the first relation must meet with the others."""
        self.graph, self.start = graph, start
        self.bound_relations, self.branches = [start], graph.relations[start].branches
        self.matched_relations = self._find_matched()
        self.open_edges = list(graph.edges)
        self.pending_conditions = [
            *graph.conditions,
            *conditions,
            *(c for i in sorted(self.matched_relations - {start}) for c in graph.on_conditions[i]),
        ]
        self.later_columns = frozenset[str]()
        """Columns that are kept beside those which the join itself needs."""
        self.is_key_only = False
        """Whether of the first relation only the key is bound."""
        linked = frozenset(x for e in graph.edges for x in (e.a, e.b))
        self.threshold = thresholds.find_threshold(
            graph.relations, start, linked, graph.conditions, graph.output_columns
        )

    def _find_matched(self) -> set[int]:
        """The relations that surely have a row: the first, and those that an ON which is met compares with."""
        found, waiting = set[int](), [self.start]
        while waiting:
            i = waiting.pop()
            if i not in found:
                found.add(i)
                waiting += [x for e in self.graph.edges if e.owner == i for x in (e.a, e.b)]
        return found

    def finish(self) -> list[Branch]:
        while len(self.bound_relations) < len(self.graph.relations):
            self.add_step()
        return self.branches

    def add_step(self) -> None:
        """Bind one more relation."""
        joined = self.graph
        relations, order = joined.relations, joined.relation_order
        is_threshold = self.threshold is not None and len(self.bound_relations) == 1
        step = self.threshold.relation if self.threshold is not None and is_threshold else self._choose_next()
        used = self._usable_edges(step)
        by = choose_lookup_edges(joined.compiler, relations, step, used, joined.edges)
        self.open_edges = [e for e in self.open_edges if e not in used]
        fresh, load = order.index(step) < order.index(self.start), self.start == order[-1]
        if self._is_outer(step):
            branch = self.optional_lookup(
                step, used, by, joined.on_conditions[step], fresh, load, relations[step].join_type
            )
        else:
            later = self._columns_used_after(used)
            if self.threshold is not None and is_threshold:
                first = relations[self.start]
                branch = thresholds.compile_range_lookup(
                    joined.compiler, first, relations[step], self.threshold, later, fresh, load
                )
            else:
                branch = self._inner_lookup(step, by, later, fresh, load)
            for edge in used:
                branch = branch.add_filter(edge.equality)
        self.bind(step, [branch])

    def bind(self, relation: int, branches: list[Branch]) -> None:
        """These rows are those of the path with one more relation; what can be asked of them now is asked."""
        self.bound_relations.append(relation)
        covered = {c.name for i in self.bound_relations for c in self.graph.relations[i].columns}
        ready = conjunction([c for c in self.pending_conditions if c.columns() <= covered])
        self.pending_conditions = [c for c in self.pending_conditions if not c.columns() <= covered]
        self.branches = [b.add_filter(ready) for b in branches]

    def _is_outer(self, relation: int) -> bool:
        return self.graph.relations[relation].is_optional and relation not in self.matched_relations

    def _usable_edges(self, relation: int) -> list[JoinEdge]:
        """The edges by which a relation can be looked up now."""
        return [
            e
            for e in self.open_edges
            if relation in (e.a, e.b) and e.other(relation) in self.bound_relations
            and (e.owner is None or e.owner == relation or e.owner in self.matched_relations)
        ]  # fmt: skip

    def _choose_next(self) -> int:
        """The relation to look up next: the one after which the fewest rows are expected; crosses last."""
        joined, bound = self.graph, set(self.bound_relations)
        known = bound - {self.start} if self.is_key_only else bound

        def cost(i: int) -> tuple[bool, float, int]:
            mine = self._usable_edges(i)
            rows = estimate_fan_out(joined.relations, i, mine, joined.edges) * joined.relations[i].selectivity
            if self._is_outer(i):
                rows = max(1.0, rows) if joined.relations[i].join_type == "left" else 0.5
            return not mine, rows, joined.relation_order.index(i)

        ready = (i for i in range(len(joined.relations)) if not self._is_outer(i) or joined.on_relations[i] <= known)
        return min((i for i in ready if i not in bound), key=cost)

    def _columns_used_after(self, edges: Sequence[JoinEdge]) -> frozenset[str]:
        """Columns that are used after the next lookup, or to check it."""
        joined = self.graph
        unbound = [i for i in range(len(joined.relations)) if i not in self.bound_relations and self._is_outer(i)]
        conditions = [*self.pending_conditions, *(c for i in unbound for c in joined.on_conditions[i])]
        conditions += [e.equality for e in [*edges, *self.open_edges]]
        return joined.output_columns.union(self.later_columns, *(c.columns() for c in conditions))

    def _probe_segments(
        self, columns: Sequence[Column], positions: Mapping[str, Column], sides: Iterable[Expr]
    ) -> tuple[Segment, ...]:
        exprs = [Named(positions[c.name].name, column_reference(c)) for c in columns]
        key, worked_out = _name_keys(sides, positions, "q")
        return tuple(b.build_segment([*exprs, *worked_out], key) for b in self.branches)

    def _carried_columns(self, later_columns: frozenset[str]) -> tuple[list[Column], dict[str, Column]]:
        columns = [c for i in self.bound_relations for c in self.graph.relations[i].columns if c.name in later_columns]
        made = [b.columns for b in self.branches]
        columns = [Column(c.name, c.type, c.nullable or any(m[c.name].nullable for m in made)) for c in columns]
        return columns, positional_columns(columns, "p")

    def _inner_lookup(
        self,
        index: int,
        chosen_edges: list[JoinEdge],
        later_columns: frozenset[str],
        new_state: bool,
        is_load_path: bool,
    ) -> Branch:
        compiler, relation = self.graph.compiler, self.graph.relations[index]
        arranged, key_edges, take, inner, where = _find_arrangement(compiler, relation, index, chosen_edges)
        columns, names = self._carried_columns(later_columns)
        probe = self._probe_segments(columns, names, (e.side(e.other(index)) for e in key_edges))
        operator = compiler.add_operator(Lookup(probe, arranged.id, new_state, take, is_load_path))
        return Branch(operator, {c.name: column_reference(names[c.name]) for c in columns} | inner, where)

    def optional_lookup(
        self,
        index: int,
        edges: Sequence[JoinEdge],
        chosen_edges: list[JoinEdge],
        on_conditions: Sequence[Expr],
        new_state: bool,
        is_load_path: bool,
        join_type: str,
    ) -> Branch:
        """A lookup of an optional relation: what a row meets is decided there, with its whole ON."""
        compiler, relation = self.graph.compiler, self.graph.relations[index]
        arranged, key_edges, take, inner, where = _find_arrangement(compiler, relation, index, chosen_edges)
        columns, names = self._carried_columns(
            self._columns_used_after(edges) | frozenset().union(*(c.columns() for c in on_conditions))
        )
        probe = self._probe_segments(columns, names, (e.side(e.other(index)) for e in key_edges))
        mine = {c.name: column_reference(names[c.name]) for c in columns}
        both = mine | inner
        match = (*(substitute(e.equality, both) for e in edges), *where, *(substitute(c, both) for c in on_conditions))
        take = tuple((name, Column(c.name, c.type)) for name, c in take)
        is_plain = join_type == "anti" or all(e.op == "column" for e in inner.values())
        lookup = Lookup(
            probe,
            arranged.id,
            new_state,
            take,
            is_load_path,
            optional=join_type,
            match=match,
            has_match_flag=not is_plain,
        )
        theirs = {} if join_type == "anti" else {name: _null_if_unmatched(e) for name, e in inner.items()}
        return Branch(compiler.add_operator(lookup), mine | theirs)


def _null_if_unmatched(expr: Expr) -> Expr:
    """What an optional relation's column is: NULL where no row was met."""
    if expr.op == "column":
        return replace(expr, nullable=True)
    return Expr("If", expr.type, (column_reference(MATCH_FLAG_COLUMN), expr, Expr("literal", expr.type)))


def _find_arrangement(
    compiler: Compiler, relation: JoinRelation, index: int, edges: list[JoinEdge]
) -> tuple[Operator, list[JoinEdge], tuple[tuple[str, Column], ...], dict[str, Expr], tuple[Expr, ...]]:
    """Where the relation is looked up by these edges: operator, edges in key order, columns taken, how they give the
    relation's plan columns, and the relation's own conditions that are still to be checked."""
    stored = [relation.stored_column(e.side(index)) for e in edges]
    table = relation.table
    if table is not None and all(name is not None for name in stored) and len(set(stored)) == len(stored):
        branch = relation.branches[0]
        by_name = {name.lower(): (name, e) for name, e in zip(stored, edges, strict=True) if name is not None}
        primary = [k.column.lower() for k in compiler.tables[table].key]
        names = primary if set(primary) == set(by_name) else sorted(by_name)
        image = compiler.add_image(table, tuple(by_name[n][0] for n in names))
        seen = {e.value: e for c in relation.columns for e in branch.columns[c.name].walk() if e.op == "column"}
        seen |= {e.value: e for w in branch.where for e in w.walk() if e.op == "column"}
        take = tuple((name, Column(f"a{i}", e.type, e.nullable)) for i, (name, e) in enumerate(sorted(seen.items())))
        renamed = {name: column_reference(c) for name, c in take}
        inner = {c.name: substitute(branch.columns[c.name], renamed) for c in relation.columns}
        return image, [by_name[n][1] for n in names], take, inner, tuple(substitute(w, renamed) for w in branch.where)
    ordered = sorted(edges, key=lambda e: str(e.side(index).to_json()))
    names_of = positional_columns(relation.columns, "x")
    exprs = [Named(names_of[c.name].name, column_reference(c)) for c in relation.columns]
    key, worked_out = _name_keys([edge.side(index) for edge in ordered], names_of, "y")
    arrange = compiler.add_operator(
        Arrange(tuple(b.build_segment([*exprs, *worked_out], key) for b in relation.branches))
    )
    take = tuple((names_of[c.name].name, Column(f"a{i}", c.type, c.nullable)) for i, c in enumerate(relation.columns))
    inner = {c.name: column_reference(taken) for c, (_, taken) in zip(relation.columns, take, strict=True)}
    return arrange, ordered, take, inner, ()


def _name_keys(sides: Iterable[Expr], names: Mapping[str, Column], prefix: str) -> tuple[tuple[str, ...], list[Named]]:
    """The names by which rows are arranged or sought, and what has to be worked out for that: no column says it."""
    key, worked_out = [], []
    for number, side in enumerate(sides):
        if side.op == "column":
            key.append(names[side.value].name)
        else:
            worked_out.append(Named(f"{prefix}{number}", side))
            key.append(worked_out[-1].name)
    return tuple(key), worked_out
