"""Shared paths: merge the lookups of several views over the delta of one table into one `DeltaJoin` operator.

    Input ─▶ Lookup ─▶ Lookup ─▶ Aggregate of q3                                   ┌─▶ Aggregate of q3
      ├───▶ Lookup ─▶ Lookup ─▶ Lookup ─▶ Aggregate of q10     Input ─▶ DeltaJoin ─┼─▶ Aggregate of q10
      └───▶ Aggregate of q6                                                        └─▶ Aggregate of q6

The shared variant of a dataflow is a function of the views' plans and of the set of changed tables: the old and new
state of an unchanged table are equal, and so are lookups in them. The lookup operators remain the dataflow's
definition: EXPLAIN shows them, state is named after them, and backfills run them.

A path ends at the first operator that is not a lookup in a base table, and before an expression that can raise. Such an
expression runs at the exit, over the same rows as in an unshared plan, so an evaluation error belongs to one view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from viewkeeper.expressions import can_raise
from viewkeeper.expressions.tree import Expr, Named, column
from viewkeeper.model import types
from viewkeeper.model.types import Family, Kind, Type
from viewkeeper.operators.delta_join.operator import DeltaJoin, ExitSegment
from viewkeeper.operators.delta_join.plan import (
    DELTA,
    MATCH_FLAG,
    ColumnRef,
    Exit,
    JoinPath,
    OptionalMatch,
    PathFilter,
    PathStep,
    column_refs,
    parse_column_ref,
    path_column,
)
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment
from viewkeeper.plan.compile.branch import substitute
from viewkeeper.plan.dataflow.dataflow import Dataflow, Edge
from viewkeeper.plan.dataflow.sharing_hints import SharingHints

_KEY_KINDS = frozenset({Kind.INT, Kind.BIGINT, Kind.DATE, Kind.STRING})
"""Key types for which equality of values is equality of bytes."""

_INCOMPARABLE = (Family.NESTED, Family.OTHER)
"""Type families whose values are not compared column by column."""


OWN_ROW = -1
"""Placeholder in a column reference for the relation of the row that a lookup finds, before the step has a number."""

_NO_HINTS = SharingHints()
_VARIANTS = "forms of the flow"
_MAX_VARIANTS = 8
"""Number of cached variants: batches tend to change the same few sets of tables."""


def shared_variant(dataflow: Dataflow, changed: frozenset[int], hints: SharingHints = _NO_HINTS) -> Dataflow:
    """Return the variant of the dataflow that a batch runs if exactly these base tables changed."""
    variants: dict[tuple[frozenset[int], SharingHints], Dataflow] = dataflow.derived_cache.setdefault(_VARIANTS, {})
    variant = variants.get((changed, hints))
    if variant is None:
        variant = variants[changed, hints] = _build_variant(dataflow, changed, hints)
        for oldest in list(variants)[:-_MAX_VARIANTS]:
            variants.pop(oldest, None)
    return variant


def _build_variant(dataflow: Dataflow, changed: frozenset[int], hints: SharingHints) -> Dataflow:
    delta_joins: list[DeltaJoin] = []
    unshared = hints.unshared_operators(dataflow)
    retired: set[str] = set()
    consumers = dict(dataflow.edges)
    for name, operator in dataflow.operators.items():
        if operator.input_table not in changed:
            continue
        builder = _SharedPathBuilder(dataflow, operator, changed, unshared)
        if not builder.is_worthwhile:
            continue
        delta_join = builder.build_operator(hints)
        delta_joins.append(delta_join)
        retired.update(builder.retired)
        replaced = {id(edge) for edge in builder.replaced_edges}
        consumers[name] = [*(e for e in consumers[name] if id(e) not in replaced), (delta_join.id, 0, delta_join.delta)]
        consumers[delta_join.id] = builder.edges
        consumers |= dict.fromkeys(builder.retired, ())
    if not delta_joins:
        return dataflow
    first = [o for o in dataflow.operators.values() if o.is_source or o.arranged_table is not None]
    first_ids = {o.id for o in first}
    ordered = [*first, *delta_joins, *(o for o in dataflow.operators.values() if o.id not in first_ids)]
    order_numbers = {o.id: i for i, o in enumerate(ordered)}
    return replace(
        dataflow,
        operators={o.id: o for o in ordered},
        edges=consumers,
        is_variant=True,
        retired=frozenset(retired),
        usage=replace(dataflow.usage, order_numbers=order_numbers),
    )


_StepKey = tuple[str, bool, tuple[ColumnRef, ...], str, tuple[Expr, ...]]
"""Identity of a lookup: arrangement, new or old state, key, and for an optional relation its join type and match."""


@dataclass(eq=False)
class _DraftStep:
    """A lookup step under construction, before its owner in the path is known."""

    relation: int
    arrangement: Operator
    new_state: bool
    key: tuple[ColumnRef, ...]
    optional: str = ""
    match: tuple[Expr, ...] = ()
    """Of an optional relation: the match conditions beside the key."""
    column_types: dict[str, Type] = field(default_factory=dict)
    """Of an optional relation: the types of the fetched columns."""
    exit_mask: int = 0
    conditions_by_exit: dict[int, list[Expr]] = field(default_factory=lambda: defaultdict(list))
    """By exit number: the conditions that are evaluated after this step."""
    lookup_ids: dict[str, None] = field(default_factory=dict)


@dataclass(eq=False)
class _RowSet:
    """A set of partial rows: the delta itself, or the result of a lookup from another row set."""

    step: _DraftStep
    parent: _RowSet | None = None
    steps: dict[_StepKey, _DraftStep] = field(default_factory=dict)
    branches: dict[_StepKey, _RowSet] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)

    def lineage(self) -> list[_RowSet]:
        return [self] if self.parent is None else [*self.parent.lineage(), self]


@dataclass(frozen=True)
class _PathState:
    """State of a path: its row set, its columns, the conditions so far and the lookup steps that it made."""

    source: Operator
    rows: _RowSet
    columns: Mapping[str, Expr] | None
    """Expressions over relation columns; None: the path is at the delta, whose columns keep their names."""
    conditions: tuple[Expr, ...] = ()
    steps: tuple[_DraftStep, ...] = ()
    implied: frozenset[frozenset[str]] = frozenset()
    """Pairs of columns that are equal because one was looked up by the other."""

    def resolve(self, expr: Expr) -> Expr:
        if expr.op == "column":
            if self.columns is not None:
                return self.columns[expr.value]
            return path_column(DELTA, expr.value, expr.type, expr.nullable)
        return replace(expr, args=tuple(self.resolve(a) for a in expr.args)) if expr.args else expr

    def unimplied_conditions(self, where: Sequence[Expr]) -> list[Expr]:
        """Return the conditions that no lookup implies."""
        return [c for c in where if c.op != "EqualTo" or _compared_columns(c) not in self.implied]


class _SharedPathBuilder:
    """Builds all shared paths from one table's delta."""

    def __init__(self, dataflow: Dataflow, source: Operator, changed: frozenset[int], unshared: frozenset[str]) -> None:
        self.dataflow, self.source, self.changed = dataflow, source, changed
        self.root_rows = _RowSet(_DraftStep(DELTA, source, False, ()))
        self.edges: list[Edge] = []
        self.replaced_edges: list[Edge] = []
        self.retired: dict[str, None] = {}
        self._step_count = 0
        self._row_set_of = {DELTA: self.root_rows}
        self._step_of = {DELTA: self.root_rows.step}
        self._exits_by_columns: dict[tuple[str, ...], int] = defaultdict(int)
        self._exit_conditions: list[tuple[Expr, ...]] = []
        self._filtering_steps: list[frozenset[int]] = []
        """By exit number: the relations that have a condition of the exit on their columns alone."""
        start = _PathState(source, self.root_rows, None)
        for edge in dataflow.edges.get(source.id, ()):
            if not dataflow.operators[edge[0]].is_load_only and edge[0] not in unshared:
                self.replaced_edges.append(edge)
                self._follow(start, edge)

    @property
    def is_worthwhile(self) -> bool:
        """Whether there is more than one exit or at least one lookup; one exit without a lookup gains nothing."""
        return len(self.edges) > 1 or bool(self.retired)

    # -- following ----------------------------------------------------------------------------------------------------

    def _follow(self, state: _PathState, edge: Edge) -> None:
        name, _, segment = edge
        operator = self.dataflow.operators[name]
        next_state = self._follow_lookup(state, operator, segment)
        if next_state is None:
            self._add_exit(state, edge)
            return
        self.retired[name] = None
        for onward in self.dataflow.edges.get(name, ()):
            if not self.dataflow.operators[onward[0]].is_load_only:
                self._follow(next_state, onward)

    def _follow_lookup(self, state: _PathState, operator: Operator, segment: Segment) -> _PathState | None:
        """Return the path's state after `operator` if it is a lookup in a base table by keys that compare bytewise.

        Return None for any other operator, and for a lookup that shared paths do not support.
        """
        lookup = operator.lookup
        if lookup is None or len(list(operator.segments())) != 1 or not segment.key:
            return None
        plain = segment.sign > 0 and not (segment.times or segment.gather or segment.ordered)
        if not plain or any(n.expr.op != "column" for n in segment.exprs) or any(map(can_raise, segment.where)):
            return None
        arrangement = self.dataflow.operators[lookup.arrangement]
        if arrangement.arranged_table is None or (lookup.optional and not self._is_unique(arrangement)):
            return None
        fetched = dict(lookup.fetched_columns)
        probes = {n.name: n.expr for n in segment.exprs}
        pairs = []
        for probe_column, key_column in zip(segment.key, arrangement.arrangement_key, strict=True):
            key_types = {probes[probe_column].type, fetched[key_column].type} if key_column in fetched else set()
            if len(key_types) != 1 or next(iter(key_types)).kind not in _KEY_KINDS:
                return None
            pairs.append(frozenset({probe_column, fetched[key_column].name}))
        condition_lists = (
            [exit_segment.where for _, _, exit_segment in self._edges_from(operator.id)]
            if not lookup.optional
            else [lookup.match]
        )
        if not all(
            set(pairs) <= {_compared_columns(c) for c in where if c.op == "EqualTo"} for where in condition_lists
        ):
            return None
        columns = {name: state.resolve(expr) for name, expr in probes.items()}
        key = tuple(parse_column_ref(columns[k]) for k in segment.key)
        new_state = lookup.new_state and arrangement.arranged_table in self.changed
        conditions = (*state.conditions, *(state.resolve(c) for c in state.unimplied_conditions(segment.where)))
        if lookup.optional:
            return self._follow_optional(state, operator, arrangement, new_state, key, columns, conditions)
        rows, step = self._find_step(state.rows, arrangement, (arrangement.id, new_state, key, "", ()))
        step.lookup_ids[operator.id] = None
        columns |= {c.name: path_column(step.relation, name, c.type, c.nullable) for name, c in lookup.fetched_columns}
        return _PathState(operator, rows, columns, conditions, (*state.steps, step), frozenset(pairs))

    def _follow_optional(
        self,
        state: _PathState,
        operator: Operator,
        arranged: Operator,
        new_state: bool,
        key: tuple[ColumnRef, ...],
        columns: dict[str, Expr],
        conditions: tuple[Expr, ...],
    ) -> _PathState | None:
        """Continue with an optional relation that is looked up by its unique key; its match is evaluated at the
        lookup."""
        lookup = operator.lookup
        if lookup is None or any(map(can_raise, lookup.match)):
            return None
        key_refs = dict(zip(arranged.arrangement_key, key, strict=True))
        stored_names = {c.name: name for name, c in lookup.fetched_columns}
        found_columns = {c.name: path_column(OWN_ROW, name, c.type, c.nullable) for name, c in lookup.fetched_columns}
        match = []
        for condition in lookup.match:
            is_key = condition.op == "EqualTo" and all(a.op == "column" for a in condition.args) and any(
                probe_side.value in columns and found_side.value in stored_names
                and key_refs.get(stored_names[found_side.value]) == parse_column_ref(columns[probe_side.value])
                for probe_side, found_side in (condition.args, condition.args[::-1])
            )  # fmt: skip
            if not is_key:
                match.append(substitute(condition, {**columns, **found_columns}))
        rows, step = self._find_step(state.rows, arranged, (arranged.id, new_state, key, lookup.optional, tuple(match)))
        step.lookup_ids[operator.id] = None
        step.column_types |= {name: c.type for name, c in lookup.fetched_columns}
        if lookup.optional == "left":
            columns |= {c.name: path_column(step.relation, name, c.type, True) for name, c in lookup.fetched_columns}
            columns[MATCH_FLAG] = path_column(step.relation, MATCH_FLAG, types.BOOLEAN, False)
        return _PathState(operator, rows, columns, conditions, (*state.steps, step))

    def _edges_from(self, name: str) -> Iterator[Edge]:
        return (w for w in self.dataflow.edges.get(name, ()) if not self.dataflow.operators[w[0]].is_load_only)

    def _find_step(self, rows: _RowSet, arranged: Operator, step_key: _StepKey) -> tuple[_RowSet, _DraftStep]:
        """Return the row set after the lookup, and its step.

        A lookup by a unique key keeps the row set and is owned by the first row set that has the columns of its key.
        """
        _, _, key, _, match = step_key
        if self._is_unique(arranged):
            relations = {relation for relation, _ in (*key, *column_refs(match)) if relation != OWN_ROW}
            lineage = rows.lineage()
            owner = max((self._row_set_of[p] for p in relations), key=lineage.index)
            if step_key not in owner.steps:
                owner.steps[step_key] = self._new_step(arranged, step_key)
                self._row_set_of[owner.steps[step_key].relation] = owner
            return rows, owner.steps[step_key]
        if step_key not in rows.branches:
            step = self._new_step(arranged, step_key)
            rows.branches[step_key] = self._row_set_of[step.relation] = _RowSet(step, rows)
        branch = rows.branches[step_key]
        return branch, branch.step

    def _is_unique(self, arranged: Operator) -> bool:
        table = arranged.arranged_table
        return table is not None and {k.column for k in self.dataflow.tables[table].key} <= set(
            arranged.arrangement_key
        )

    def _new_step(self, arranged: Operator, step_key: _StepKey) -> _DraftStep:
        self._step_count += 1
        _, new_state, key, optional, match = step_key
        resolved_match = tuple(_resolve_own_row(c, self._step_count) for c in match)
        step = self._step_of[self._step_count] = _DraftStep(
            self._step_count, arranged, new_state, key, optional, resolved_match
        )
        return step

    def _add_exit(self, state: _PathState, edge: Edge) -> None:
        """Add an exit. The path evaluates the conditions before the first that can raise; the exit evaluates
        the rest."""
        name, port, segment = edge
        number, where = len(self.edges), state.unimplied_conditions(segment.where)
        first_raising = next((i for i, c in enumerate(where) if can_raise(c)), len(where))
        deferred = tuple(where[first_raising:])
        conditions = _needed_conditions(
            [*state.conditions, *(state.resolve(c) for c in where[:first_raising])], state.steps
        )
        exprs = [*deferred, *segment.times, *(n.expr for n in segment.exprs)]
        used = {e.value: parse_column_ref(state.resolve(e)) for expr in exprs for e in expr.walk() if e.op == "column"}
        if any(map(can_raise, exprs)):  # an evaluation error identifies its row
            used |= self._identifying_columns(state)
        exit_ = Exit(number, state.source.id, tuple(sorted(used.items())))
        exit_segment = ExitSegment(
            state.source.id, deferred, segment.exprs, segment.key, segment.gather, segment.sign, segment.times,
            segment.ordered, exit_,
        )  # fmt: skip
        self.edges.append((name, port, exit_segment))
        state.rows.exits.append(exit_)
        for step in (*state.steps, *(rows.step for rows in state.rows.lineage())):
            step.exit_mask |= 1 << number
        self._exit_conditions.append(conditions)
        relations = [{relation for relation, _ in column_refs([c])} for c in conditions]
        self._filtering_steps.append(frozenset(p.pop() for p in relations if len(p) == 1))
        self._record_used_columns(state, exit_, conditions, [state.resolve(e) for e in exprs])

    def _identifying_columns(self, state: _PathState) -> dict[str, ColumnRef]:
        """Return the columns that identify a row in an error message."""
        if state.columns is not None:
            return {name: parse_column_ref(e) for name, e in state.columns.items()}
        table = self.source.input_table
        return {} if table is None else {k.column: (DELTA, k.column) for k in self.dataflow.tables[table].key}

    def _record_used_columns(
        self, state: _PathState, exit_: Exit, conditions: Sequence[Expr], used: Sequence[Expr]
    ) -> None:
        """Record which delta columns an exit uses, apart from the exit's conditions on the delta alone."""
        crossing = [c for c in conditions if {p for p, _ in column_refs([c])} - {DELTA}]
        exprs = [e for expr in [*crossing, *used] for e in expr.walk() if e.op == "column"]
        if any(e.type.family in _INCOMPARABLE for e in exprs):
            return
        refs = {
            *(parse_column_ref(e) for e in exprs),
            *(r for step in state.steps for r in (*step.key, *column_refs(step.match))),
        }
        self._exits_by_columns[tuple(sorted(name for relation, name in refs if relation == DELTA))] |= 1 << exit_.number

    # -- the operator -------------------------------------------------------------------------------------------------

    def build_operator(self, hints: SharingHints) -> DeltaJoin:
        table = self.source.input_table
        if table is None:
            raise TypeError("Only a table's changes have routes.")
        order: dict[int, tuple[int, int]] = {DELTA: (0, 0)}
        self._order_steps(self.root_rows, order)
        for number, conditions in enumerate(self._exit_conditions):
            for condition in conditions:
                relations = {relation for relation, _ in column_refs([condition])} or {DELTA}
                self._step_of[max(relations, key=order.__getitem__)].conditions_by_exit[number].append(condition)
        path = self._build_path(self.root_rows, order)
        key = tuple(k.column for k in self.dataflow.tables[table].key)
        used = set(key) | {name for name, _ in self._delta_columns()}
        columns = [c for c in self.dataflow.used_columns[table] if c.name in used]
        delta = Segment(
            self.source.id, (), tuple(Named(c.name, column(c.name, c.type, c.nullable)) for c in columns), None
        )
        steps = [s for s in self._step_of.values() if s.relation != DELTA]
        reads: dict[str, set[str]] = defaultdict(set)
        for step in steps:
            reads[step.arrangement.id].update(step.arrangement.arrangement_key)
        return DeltaJoin(
            delta,
            key,
            path,
            tuple(self._exits_by_columns.items()),
            (1 << len(self.edges)) - 1,
            tuple((name, frozenset(names)) for name, names in reads.items()),
            tuple(dict.fromkeys(s.arrangement.id for s in steps if s.new_state)),
            tuple(self.retired),
            hints.lookahead_modes(self.dataflow, [name for name, _, _ in self.edges]),
        )

    def _delta_columns(self) -> Iterator[tuple[str, int]]:
        for step in self._step_of.values():
            yield from (
                (name, relation) for relation, name in (*step.key, *column_refs(step.match)) if relation == DELTA
            )
        for conditions in self._exit_conditions:
            yield from ((name, relation) for relation, name in column_refs(conditions) if relation == DELTA)
        for rows in walk_row_sets(self.root_rows):
            yield from ((name, relation) for e in rows.exits for _, (relation, name) in e.columns if relation == DELTA)
        for columns in self._exits_by_columns:
            yield from ((name, DELTA) for name in columns)

    def _order_steps(self, rows: _RowSet, order: dict[int, tuple[int, int]]) -> None:
        """Order the lookup steps: selective steps come first, as far as the columns of their keys are bound."""
        depth = len(rows.lineage())
        remaining = list(rows.steps.values())
        selective = {s.relation: self._selectivity(s) for s in remaining}
        while remaining:
            ready = [
                s for s in remaining if all(p in order for p, _ in (*s.key, *column_refs(s.match)) if p != s.relation)
            ]
            chosen = min(ready, key=lambda s: (selective[s.relation], s.relation))
            order[chosen.relation] = (depth, len(order))
            remaining.remove(chosen)
        for branch in rows.branches.values():
            order[branch.step.relation] = (depth + 1, 0)
            self._order_steps(branch, order)

    def _selectivity(self, step: _DraftStep) -> float:
        """Return the share of the step's exits that have no condition on its relation alone.

        An optional left lookup keeps all rows (1.0); an anti lookup is the most selective (0.0).
        """
        if step.optional:
            return 0.0 if step.optional == "anti" else 1.0
        filtering = [relations for i, relations in enumerate(self._filtering_steps) if step.exit_mask >> i & 1]
        return sum(step.relation not in relations for relations in filtering) / max(1, len(filtering))

    def _build_path(self, rows: _RowSet, order: Mapping[int, tuple[int, int]]) -> JoinPath:
        steps = sorted(rows.steps.values(), key=lambda s: order[s.relation])
        branches = [(_finish_step(branch.step), self._build_path(branch, order)) for branch in rows.branches.values()]
        delta_filters = _build_filters(rows.step) if rows.parent is None else ()
        return JoinPath(delta_filters, tuple(map(_finish_step, steps)), tuple(rows.exits), tuple(branches))


def walk_row_sets(rows: _RowSet) -> Iterator[_RowSet]:
    """Return the row set and all row sets that are looked up from it."""
    yield rows
    for branch in rows.branches.values():
        yield from walk_row_sets(branch)


def _finish_step(step: _DraftStep) -> PathStep:
    by = step.arrangement.arrangement_key
    optional = None
    if step.optional:
        match_filter = PathFilter((((step.match), 1),)) if step.match else None
        optional = OptionalMatch(step.optional, match_filter, tuple(sorted(step.column_types.items())))
    return PathStep(
        step.relation,
        step.arrangement.id,
        step.new_state,
        step.key,
        by,
        step.exit_mask,
        _build_filters(step),
        tuple(step.lookup_ids),
        optional,
    )


def _build_filters(step: _DraftStep) -> tuple[PathFilter, ...]:
    """Return the filters of a step.

    Conditions on the found row alone come first, because the predicate cache keeps their results.
    """
    filters = []
    for own_only in (True, False):
        exits: dict[tuple[Expr, ...], int] = defaultdict(int)
        for number, conditions in step.conditions_by_exit.items():
            selected = [
                c for c in conditions if ({relation for relation, _ in column_refs([c])} == {step.relation}) is own_only
            ]
            if selected:
                exits[tuple(dict.fromkeys(selected))] |= 1 << number
        if exits:
            filters.append(PathFilter(tuple(exits.items())))
    return tuple(filters)


def _needed_conditions(conditions: Sequence[Expr], steps: Sequence[_DraftStep]) -> tuple[Expr, ...]:
    """Return the distinct conditions, without IS NOT NULL tests that always hold.

    They hold for columns that are not nullable or that an inner lookup equated.
    """
    inner = [step for step in steps if not step.optional]
    keys = {ref for step in inner for ref in step.key}
    keys |= {(step.relation, name) for step in inner for name in step.arrangement.arrangement_key}

    def holds(condition: Expr) -> bool:
        if condition.op != "IsNotNull" or condition.args[0].op != "column":
            return False
        return not condition.args[0].nullable or parse_column_ref(condition.args[0]) in keys

    return tuple(dict.fromkeys(c for c in conditions if not holds(c)))


def _resolve_own_row(expr: Expr, relation: int) -> Expr:
    """Replace references to `OWN_ROW` by references to `relation`."""
    if expr.op == "column":
        return (
            path_column(relation, parse_column_ref(expr)[1], expr.type, expr.nullable)
            if parse_column_ref(expr)[0] == OWN_ROW
            else expr
        )
    return replace(expr, args=tuple(_resolve_own_row(a, relation) for a in expr.args)) if expr.args else expr


def _compared_columns(condition: Expr) -> frozenset[str]:
    """Return the two columns that an equality compares; an empty set if it compares anything else."""
    return frozenset(a.value for a in condition.args) if all(a.op == "column" for a in condition.args) else frozenset()
