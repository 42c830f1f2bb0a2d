"""Compile joins to lookup paths, without intermediate results.

    Δ(R₁⋈…⋈Rₙ) = Σᵢ R₁ⁿᵉʷ⋈…⋈Rᵢ₋₁ⁿᵉʷ ⋈ ΔRᵢ ⋈ Rᵢ₊₁ᵒˡᵈ⋈…⋈Rₙᵒˡᵈ

A tree of joins is flattened (`join_tree`) into relations, equalities between two relations (edges) and other
conditions. There is one path for each relation: its delta is looked up in the other relations, one after the other,
each by edges to the relations that are already bound. A base table is looked up in a table image shared by (table,
key); the view's own filter on the table runs after the lookup. A backfill in the driver runs the whole join as one
statement instead.

The sum telescopes over one total order of the relations for any function of them, so it also holds for outer joins:

    forwards     L ⟕ R is linear in L: a row of ΔL is looked up in R, and is padded with NULLs if it has no match
    backwards    at fixed L:  Δ(L ⟕ R) = L ⋈ ΔR − pad(L ⋈ Δpresence(R.key)),  and  Δ(L ▷ R) = −(L ⋈ Δpresence(R.key))

`presence` is the set of keys that occur in R: a key is in its delta when the key's first row is inserted or its last
row is deleted. With a condition over both sides, the match depends on the row of L and not on its key alone. Then, for
the rows of L that have a key in ΔR:  + pad(l) if l has no match in Rⁿᵉʷ,  − pad(l) if it has none in Rᵒˡᵈ.

Backwards along the edges of an ON, a lookup is inner even if it leads into another optional relation: an equality
rejects NULL, so the row has a match there (`join_tree` ensures it). All other lookups of optional relations are outer.
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
    """Compile a join to lookup paths if it can be flattened, otherwise as a full outer join or per key."""
    flat = flatten(node, compiler.tables)
    return (
        compile_flat_join(compiler, flat, needed)
        if flat.is_join
        else outer_joins.compile_outer_join(compiler, add_key_columns(node), needed)
    )


def compile_flat_join(compiler: Compiler, flat: FlatJoin, needed: frozenset[str]) -> list[Branch]:
    """Compile adjacent joins, with the filters and projections on them, as one n-ary join."""
    owner = {c.name: i for i, source in enumerate(flat.inputs) for c in source.node.columns}
    output_exprs = {name: expr for name, expr in flat.columns.items() if name in needed}
    edges, local, across, on = classify_conditions(flat, owner)
    compared = frozenset().union(*(c.columns() for c in [*flat.conditions, *(c for s in flat.inputs for c in s.on)]))
    used = compared.union(*(e.columns() for e in output_exprs.values()))
    relations = [compile_relation(compiler, s, local[i], used, compared) for i, s in enumerate(flat.inputs)]
    deferred = [c for c in across if can_any_raise([c])]
    pushed = [c for c in across if not can_any_raise([c])]
    keep = frozenset().union(*(e.columns() for e in [*output_exprs.values(), *deferred]))
    needs = [frozenset(owner[c] for e in s.on for c in e.columns()) - {i} for i, s in enumerate(flat.inputs)]
    graph = _JoinGraph(compiler, relations, edges, pushed, on, needs, keep)
    branches = [b for start in range(len(relations)) for b in graph.build_paths(start)]
    branches.append(graph.build_bulk_join())
    if deferred:
        columns = [c for r in relations for c in r.columns if c.name in keep]
        branches = [b.add_filter(conjunction(deferred)) for b in compiler.consolidate(branches, columns)]
    exprs = [Named(name, expr) for name, expr in output_exprs.items()]
    branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in exprs])
    return [b.project(exprs) for b in branches]


@dataclass(frozen=True)
class _JoinGraph:
    """The relations, edges and conditions of a join, from which its paths are built."""

    compiler: Compiler
    relations: list[JoinRelation]
    edges: list[JoinEdge]
    conditions: list[Expr]
    """Conditions over several relations, or over an optional one."""
    on_conditions: list[list[Expr]]
    """By relation: the conditions of its ON, if it is optional, beside the edges."""
    on_relations: list[frozenset[int]]
    """By relation: the relations that its ON, if it is optional, compares it with."""
    output_columns: frozenset[str]
    """Columns that are used after the join."""

    @cached_property
    def relation_order(self) -> list[int]:
        """The total order of the relations, by size.

        A path looks relations before the changed one up in their new state, and those after it in their old state. The
        last relation is an inner one, because a backfill on Spark runs its path alone.
        """
        by_size = sorted(range(len(self.relations)), key=lambda i: (self.relations[i].rows, i))
        last = [i for i in by_size if not self.relations[i].is_optional][-1]
        return [*(i for i in by_size if i != last), last]

    def build_paths(self, start: int) -> list[Branch]:
        """Return the branches that turn the delta of a relation into its share of the join's delta."""
        relation = self.relations[start]
        result = [] if relation.join_type == "anti" else _PathBuilder(self, start, self.on_conditions[start]).finish()
        if relation.is_optional:
            own_columns = {c.name for c in relation.columns}
            depends_on_row = any(c.columns() & own_columns for c in self.on_conditions[start])
            result += self._paths_by_row(start) if depends_on_row else self._paths_by_presence(start)
        return result

    def _paths_by_presence(self, start: int) -> list[Branch]:
        """Paths for keys that enter or leave the relation: padded or anti-joined rows are deleted or inserted."""
        relation, keys = self.relations[start], self._edge_keys(start)
        nulls = [Named(c.name, Expr("literal", c.type)) for c in relation.columns]
        named = [Named(k.name, column_reference(k.column)) for k in keys]
        branches = [b.negate().project([*nulls, *named]) for b in self._presence_changes(relation, keys)]
        columns = (*(Column(c.name, c.type) for c in relation.columns), *(k.column for k in keys))
        return _PathBuilder(
            self._replace_relation(start, branches, columns, keys), start, self.on_conditions[start]
        ).finish()

    def _paths_by_row(self, start: int) -> list[Branch]:
        """Paths for a match that depends on the row: rows with a key in the delta are looked up in both states."""
        relation, keys = self.relations[start], self._edge_keys(start)
        names = {k.name: Column(f"x{i}", k.expr.type, k.expr.nullable) for i, k in enumerate(keys)}
        exprs = [Named(names[k.name].name, k.expr) for k in keys]
        # The segment has all columns on which the match depends, so an update that changes none of them ends here.
        row_columns = [Named(f"y{i}", column_reference(c)) for i, c in enumerate(relation.columns)]
        source = tuple(b.build_segment([*exprs, *row_columns], tuple(n.name for n in exprs)) for b in relation.branches)
        touched_branch = Branch(
            self.compiler.add_operator(Consolidate(source, is_distinct_keys=True)),
            {name: column_reference(c) for name, c in names.items()},
        )
        path = _PathBuilder(
            self._replace_relation(start, [touched_branch], tuple(k.column for k in keys), keys), start, []
        )
        own_edges = [e for e in self.edges if e.owner == start]
        path.is_key_only = True
        path.later_columns = frozenset().union(
            *(e.columns() for e in [*self.on_conditions[start], *(e.equality for e in own_edges)])
        )
        while not self.on_relations[start] <= set(path.bound_relations):
            path.add_step()
        lookup_edges = choose_lookup_edges(self.compiler, self.relations, start, own_edges, self.edges)
        path.bound_relations.remove(start)  # only its key was bound so far; now the relation itself is looked up
        path.graph, path.later_columns, path.is_key_only = self, frozenset(), False
        nulls = [Named(c.name, Expr("literal", c.type)) for c in relation.columns]
        unmatched = []
        for new_state in (True, False):
            matched = path.optional_lookup(
                start,
                own_edges,
                lookup_edges,
                self.on_conditions[start],
                new_state,
                is_load_path=False,
                join_type="anti",
            )
            known_columns = [Named(name, Expr("column", e.type, value=name)) for name, e in matched.columns.items()]
            unmatched.append((matched if new_state else matched.negate()).project([*known_columns, *nulls]))
        path.bind(start, unmatched)
        return path.finish()

    def _edge_keys(self, relation: int) -> list[Named]:
        own_edges = [e for e in self.edges if e.owner == relation]
        return [Named(f"!{relation}.{i}", e.side(relation)) for i, e in enumerate(own_edges)]

    def _replace_relation(
        self, start: int, branches: list[Branch], columns: tuple[Column, ...], keys: Sequence[Named]
    ) -> _JoinGraph:
        """Return the join with other rows as relation `start`, whose ON compares them by the columns of `keys`."""
        replaced = replace(self.relations[start], branches=branches, columns=columns)
        key_iter = iter(keys)
        edges = [
            e.replace_side(start, column_reference(next(key_iter).column)) if e.owner == start else e
            for e in self.edges
        ]
        relations = [replaced if i == start else r for i, r in enumerate(self.relations)]
        return replace(self, relations=relations, edges=edges)

    def _presence_changes(self, relation: JoinRelation, keys: Sequence[Named]) -> list[Branch]:
        """Return the delta of the set of keys of a relation. If the key is unique, this is the relation's delta
        itself."""
        plain = {k.expr.value for k in keys if k.expr.op == "column"}
        if any(key <= plain for key in relation.unique):
            branches = [b.project(keys) for b in relation.branches]
            return self.compiler.consolidate(branches, [k.column for k in keys])
        compiled = CompiledNode(relation.node, tuple(relation.branches))
        return self.compiler.compile(Aggregate(compiled, tuple(keys), ()), frozenset(k.name for k in keys))

    def build_bulk_join(self) -> Branch:
        """Return the whole join as one operator, for a backfill in the driver."""
        names: dict[str, Column] = {}
        ports = []
        for i, relation in enumerate(self.relations):
            positions = positional_columns(relation.columns, f"r{i}_")
            names |= positions
            exprs = [Named(positions[c.name].name, column_reference(c)) for c in relation.columns]
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
    """A path under construction: the bound relations, and the branches that give its rows."""

    def __init__(self, graph: _JoinGraph, start: int, conditions: Sequence[Expr]) -> None:
        """`conditions`: those that rows of the first relation must satisfy together with the other relations."""
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
        """Columns that are carried in addition to those that the join itself needs."""
        self.is_key_only = False
        """Whether only the key of the first relation is bound."""
        linked = frozenset(x for e in graph.edges for x in (e.a, e.b))
        self.threshold = thresholds.find_threshold(
            graph.relations, start, linked, graph.conditions, graph.output_columns
        )

    def _find_matched(self) -> set[int]:
        """Return the relations that certainly have a row: the first, and those that the ON of such a relation
        compares."""
        matched, pending = set[int](), [self.start]
        while pending:
            i = pending.pop()
            if i not in matched:
                matched.add(i)
                pending += [x for e in self.graph.edges if e.owner == i for x in (e.a, e.b)]
        return matched

    def finish(self) -> list[Branch]:
        while len(self.bound_relations) < len(self.graph.relations):
            self.add_step()
        return self.branches

    def add_step(self) -> None:
        """Bind one more relation."""
        graph = self.graph
        relations, order = graph.relations, graph.relation_order
        is_threshold = self.threshold is not None and len(self.bound_relations) == 1
        relation = self.threshold.relation if self.threshold is not None and is_threshold else self._choose_next()
        used = self._usable_edges(relation)
        lookup_edges = choose_lookup_edges(graph.compiler, relations, relation, used, graph.edges)
        self.open_edges = [e for e in self.open_edges if e not in used]
        new_state, is_load_path = order.index(relation) < order.index(self.start), self.start == order[-1]
        if self._is_outer(relation):
            branch = self.optional_lookup(
                relation,
                used,
                lookup_edges,
                graph.on_conditions[relation],
                new_state,
                is_load_path,
                relations[relation].join_type,
            )
        else:
            later_columns = self._columns_used_after(used)
            if self.threshold is not None and is_threshold:
                scalar = relations[self.start]
                branch = thresholds.compile_range_lookup(
                    graph.compiler, scalar, relations[relation], self.threshold, later_columns, new_state, is_load_path
                )
            else:
                branch = self._inner_lookup(relation, lookup_edges, later_columns, new_state, is_load_path)
            for edge in used:
                branch = branch.add_filter(edge.equality)
        self.bind(relation, [branch])

    def bind(self, relation: int, branches: list[Branch]) -> None:
        """Add the relation with these branches to the path, and apply the conditions whose columns are now all
        bound."""
        self.bound_relations.append(relation)
        covered = {c.name for i in self.bound_relations for c in self.graph.relations[i].columns}
        ready = conjunction([c for c in self.pending_conditions if c.columns() <= covered])
        self.pending_conditions = [c for c in self.pending_conditions if not c.columns() <= covered]
        self.branches = [b.add_filter(ready) for b in branches]

    def _is_outer(self, relation: int) -> bool:
        return self.graph.relations[relation].is_optional and relation not in self.matched_relations

    def _usable_edges(self, relation: int) -> list[JoinEdge]:
        """Return the edges by which a relation can be looked up now."""
        return [
            e
            for e in self.open_edges
            if relation in (e.a, e.b) and e.other(relation) in self.bound_relations
            and (e.owner is None or e.owner == relation or e.owner in self.matched_relations)
        ]  # fmt: skip

    def _choose_next(self) -> int:
        """Return the relation with the fewest expected rows after its lookup; relations without an edge come last."""
        graph, bound = self.graph, set(self.bound_relations)
        comparable = bound - {self.start} if self.is_key_only else bound

        def cost(i: int) -> tuple[bool, float, int]:
            edges = self._usable_edges(i)
            rows = estimate_fan_out(graph.relations, i, edges, graph.edges) * graph.relations[i].selectivity
            if self._is_outer(i):
                rows = max(1.0, rows) if graph.relations[i].join_type == "left" else 0.5
            return not edges, rows, graph.relation_order.index(i)

        ready = (i for i in range(len(graph.relations)) if not self._is_outer(i) or graph.on_relations[i] <= comparable)
        return min((i for i in ready if i not in bound), key=cost)

    def _columns_used_after(self, edges: Sequence[JoinEdge]) -> frozenset[str]:
        """Return the columns that are used after the next lookup, or to check it."""
        graph = self.graph
        unbound = [i for i in range(len(graph.relations)) if i not in self.bound_relations and self._is_outer(i)]
        conditions = [*self.pending_conditions, *(c for i in unbound for c in graph.on_conditions[i])]
        conditions += [e.equality for e in [*edges, *self.open_edges]]
        return graph.output_columns.union(self.later_columns, *(c.columns() for c in conditions))

    def _probe_segments(
        self, columns: Sequence[Column], positions: Mapping[str, Column], sides: Iterable[Expr]
    ) -> tuple[Segment, ...]:
        exprs = [Named(positions[c.name].name, column_reference(c)) for c in columns]
        key, computed = _name_keys(sides, positions, "q")
        return tuple(b.build_segment([*exprs, *computed], key) for b in self.branches)

    def _carried_columns(self, later_columns: frozenset[str]) -> tuple[list[Column], dict[str, Column]]:
        columns = [c for i in self.bound_relations for c in self.graph.relations[i].columns if c.name in later_columns]
        branch_columns = [b.columns for b in self.branches]
        columns = [
            Column(c.name, c.type, c.nullable or any(m[c.name].nullable for m in branch_columns)) for c in columns
        ]
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
        arrangement, key_edges, fetched, relation_columns, where = _find_arrangement(
            compiler, relation, index, chosen_edges
        )
        columns, names = self._carried_columns(later_columns)
        probe = self._probe_segments(columns, names, (e.side(e.other(index)) for e in key_edges))
        operator = compiler.add_operator(Lookup(probe, arrangement.id, new_state, fetched, is_load_path))
        return Branch(operator, {c.name: column_reference(names[c.name]) for c in columns} | relation_columns, where)

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
        """Look up an optional relation; the lookup operator evaluates its whole ON to decide on a match."""
        compiler, relation = self.graph.compiler, self.graph.relations[index]
        arrangement, key_edges, fetched, relation_columns, where = _find_arrangement(
            compiler, relation, index, chosen_edges
        )
        columns, names = self._carried_columns(
            self._columns_used_after(edges) | frozenset().union(*(c.columns() for c in on_conditions))
        )
        probe = self._probe_segments(columns, names, (e.side(e.other(index)) for e in key_edges))
        probe_columns = {c.name: column_reference(names[c.name]) for c in columns}
        all_columns = probe_columns | relation_columns
        match = (
            *(substitute(e.equality, all_columns) for e in edges),
            *where,
            *(substitute(c, all_columns) for c in on_conditions),
        )
        fetched = tuple((name, Column(c.name, c.type)) for name, c in fetched)
        is_plain = join_type == "anti" or all(e.op == "column" for e in relation_columns.values())
        lookup = Lookup(
            probe,
            arrangement.id,
            new_state,
            fetched,
            is_load_path,
            optional=join_type,
            match=match,
            has_match_flag=not is_plain,
        )
        found_columns = (
            {} if join_type == "anti" else {name: _null_if_unmatched(e) for name, e in relation_columns.items()}
        )
        return Branch(compiler.add_operator(lookup), probe_columns | found_columns)


def _null_if_unmatched(expr: Expr) -> Expr:
    """Return the expression of an optional relation's column: NULL if the row has no match."""
    if expr.op == "column":
        return replace(expr, nullable=True)
    return Expr("If", expr.type, (column_reference(MATCH_FLAG_COLUMN), expr, Expr("literal", expr.type)))


def _find_arrangement(
    compiler: Compiler, relation: JoinRelation, index: int, edges: list[JoinEdge]
) -> tuple[Operator, list[JoinEdge], tuple[tuple[str, Column], ...], dict[str, Expr], tuple[Expr, ...]]:
    """Find or create the arrangement in which the relation is looked up by these edges.

    Return the operator, the edges in the order of its key, the fetched columns, the relation's plan columns as
    expressions over the fetched columns, and the relation's own conditions that remain to be checked.
    """
    stored = [relation.stored_column(e.side(index)) for e in edges]
    table = relation.table
    if table is not None and all(name is not None for name in stored) and len(set(stored)) == len(stored):
        branch = relation.branches[0]
        by_name = {name.lower(): (name, e) for name, e in zip(stored, edges, strict=True) if name is not None}
        primary = [k.column.lower() for k in compiler.tables[table].key]
        names = primary if set(primary) == set(by_name) else sorted(by_name)
        image = compiler.add_image(table, tuple(by_name[n][0] for n in names))
        used = {e.value: e for c in relation.columns for e in branch.columns[c.name].walk() if e.op == "column"}
        used |= {e.value: e for w in branch.where for e in w.walk() if e.op == "column"}
        fetched = tuple((name, Column(f"a{i}", e.type, e.nullable)) for i, (name, e) in enumerate(sorted(used.items())))
        renamed = {name: column_reference(c) for name, c in fetched}
        relation_columns = {c.name: substitute(branch.columns[c.name], renamed) for c in relation.columns}
        return (
            image,
            [by_name[n][1] for n in names],
            fetched,
            relation_columns,
            tuple(substitute(w, renamed) for w in branch.where),
        )
    ordered = sorted(edges, key=lambda e: str(e.side(index).to_json()))
    names_of = positional_columns(relation.columns, "x")
    exprs = [Named(names_of[c.name].name, column_reference(c)) for c in relation.columns]
    key, computed = _name_keys([edge.side(index) for edge in ordered], names_of, "y")
    arrangement = compiler.add_operator(
        Arrange(tuple(b.build_segment([*exprs, *computed], key) for b in relation.branches))
    )
    fetched = tuple(
        (names_of[c.name].name, Column(f"a{i}", c.type, c.nullable)) for i, c in enumerate(relation.columns)
    )
    relation_columns = {
        c.name: column_reference(fetched_column)
        for c, (_, fetched_column) in zip(relation.columns, fetched, strict=True)
    }
    return arrangement, ordered, fetched, relation_columns, ()


def _name_keys(sides: Iterable[Expr], names: Mapping[str, Column], prefix: str) -> tuple[tuple[str, ...], list[Named]]:
    """Return the key column names for arranging or probing rows, and the key expressions that are not plain columns."""
    key, computed = [], []
    for number, side in enumerate(sides):
        if side.op == "column":
            key.append(names[side.value].name)
        else:
            computed.append(Named(f"{prefix}{number}", side))
            key.append(computed[-1].name)
    return tuple(key), computed
