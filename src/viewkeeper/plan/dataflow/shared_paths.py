"""Shared paths: lookups of different views over the changes of one table become one operator (`operators.routes`).

    Input ─▶ Lookup ─▶ Lookup ─▶ Aggregate of q3                     ┌─▶ Aggregate of q3
      ├───▶ Lookup ─▶ Lookup ─▶ Lookup ─▶ Aggregate of q10     Input ─▶ Routes ─┼─▶ Aggregate of q10
      └───▶ Aggregate of q6                                          └─▶ Aggregate of q6

What is shared is a function of the views' plans and of which tables changed: where a table did not, its old and its new
state are the same, and so are lookups in them. The lookups stay the logical plan: EXPLAIN shows them, state is named
after them, and loads run them.

A path ends at the first operator that is no lookup in a base table, and before an expression that can raise: that one
runs at the exit, over the rows that it would have seen alone, so an error is still one view's.
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
"""Types of keys whose values are equal where their bytes are."""

_INCOMPARABLE = (Family.NESTED, Family.OTHER)
"""Types whose values are not compared column by column."""


OWN_ROW = -1
"""As a place: that of the row which a lookup finds, while it has none yet."""

_NO_HINTS = SharingHints()
_VARIANTS = "forms of the flow"
_MAX_VARIANTS = 8
"""Forms that are kept: batches tend to change the same few sets of tables."""


def shared_variant(dataflow: Dataflow, changed: frozenset[int], hints: SharingHints = _NO_HINTS) -> Dataflow:
    """The flow as a batch runs it in which these base tables changed."""
    forms: dict[tuple[frozenset[int], SharingHints], Dataflow] = dataflow.derived_cache.setdefault(_VARIANTS, {})
    known = forms.get((changed, hints))
    if known is None:
        known = forms[changed, hints] = _build_variant(dataflow, changed, hints)
        for oldest in list(forms)[:-_MAX_VARIANTS]:
            forms.pop(oldest, None)
    return known


def _build_variant(dataflow: Dataflow, changed: frozenset[int], hints: SharingHints) -> Dataflow:
    made: list[DeltaJoin] = []
    alone = hints.unshared_operators(dataflow)
    folded: set[str] = set()
    consumers = dict(dataflow.edges)
    for name, operator in dataflow.operators.items():
        if operator.input_table not in changed:
            continue
        paths = _SharedPathBuilder(dataflow, operator, changed, alone)
        if not paths.is_worthwhile:
            continue
        routes = paths.build_operator(hints)
        made.append(routes)
        folded.update(paths.retired)
        taken = {id(way) for way in paths.replaced_edges}
        consumers[name] = [*(w for w in consumers[name] if id(w) not in taken), (routes.id, 0, routes.delta)]
        consumers[routes.id] = paths.edges
        consumers |= dict.fromkeys(paths.retired, ())
    if not made:
        return dataflow
    first = [o for o in dataflow.operators.values() if o.is_source or o.arranged_table is not None]
    known = {o.id for o in first}
    ordered = [*first, *made, *(o for o in dataflow.operators.values() if o.id not in known)]
    places = {o.id: i for i, o in enumerate(ordered)}
    return replace(
        dataflow,
        operators={o.id: o for o in ordered},
        edges=consumers,
        is_variant=True,
        retired=frozenset(folded),
        usage=replace(dataflow.usage, order_numbers=places),
    )


_StepKey = tuple[str, bool, tuple[ColumnRef, ...], str, tuple[Expr, ...]]
"""What a lookup is: arrangement, state, key, and of an optional relation how and on what it is joined."""


@dataclass(eq=False)
class _DraftStep:
    """A lookup, while it is not known yet who makes it."""

    relation: int
    arrangement: Operator
    new_state: bool
    key: tuple[ColumnRef, ...]
    optional: str = ""
    match: tuple[Expr, ...] = ()
    """Of an optional relation: what decides on a match beside the key."""
    column_types: dict[str, Type] = field(default_factory=dict)
    """Of an optional relation: the types of the columns that are taken."""
    exit_mask: int = 0
    conditions_by_exit: dict[int, list[Expr]] = field(default_factory=lambda: defaultdict(list))
    """The conditions to judge after it, by exit."""
    lookup_ids: dict[str, None] = field(default_factory=dict)


@dataclass(eq=False)
class _RowSet:
    """A set of rows: the changes themselves, or what a lookup made of other rows."""

    step: _DraftStep
    parent: _RowSet | None = None
    steps: dict[_StepKey, _DraftStep] = field(default_factory=dict)
    branches: dict[_StepKey, _RowSet] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)

    def lineage(self) -> list[_RowSet]:
        return [self] if self.parent is None else [*self.parent.lineage(), self]


@dataclass(frozen=True)
class _PathState:
    """Where a path has come to: its rows, what its columns are, its conditions so far and the lookups it made."""

    source: Operator
    rows: _RowSet
    columns: Mapping[str, Expr] | None
    """None: those of the changes."""
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
        """The conditions that no lookup implies."""
        return [c for c in where if c.op != "EqualTo" or _compared_columns(c) not in self.implied]


class _SharedPathBuilder:
    """All paths from one table's changes."""

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
        """For each exit the places that it has conditions on alone."""
        start = _PathState(source, self.root_rows, None)
        for way in dataflow.edges.get(source.id, ()):
            if not dataflow.operators[way[0]].is_load_only and way[0] not in unshared:
                self.replaced_edges.append(way)
                self._follow(start, way)

    @property
    def is_worthwhile(self) -> bool:
        """One statement for one view needs no company."""
        return len(self.edges) > 1 or bool(self.retired)

    # -- following ----------------------------------------------------------------------------------------------------

    def _follow(self, state: _PathState, edge: Edge) -> None:
        name, _, segment = edge
        operator = self.dataflow.operators[name]
        after = self._follow_lookup(state, operator, segment)
        if after is None:
            self._add_exit(state, edge)
            return
        self.retired[name] = None
        for onward in self.dataflow.edges.get(name, ()):
            if not self.dataflow.operators[onward[0]].is_load_only:
                self._follow(after, onward)

    def _follow_lookup(self, state: _PathState, operator: Operator, segment: Segment) -> _PathState | None:
        """Where the path is after an operator that is a lookup in a base table, by keys that are compared as they are;
        None if it is anything else."""
        seek = operator.lookup
        if seek is None or len(list(operator.segments())) != 1 or not segment.key:
            return None
        plain = segment.sign > 0 and not (segment.times or segment.gather or segment.ordered)
        if not plain or any(n.expr.op != "column" for n in segment.exprs) or any(map(can_raise, segment.where)):
            return None
        arranged = self.dataflow.operators[seek.arrangement]
        if arranged.arranged_table is None or (seek.optional and not self._is_unique(arranged)):
            return None
        taken = dict(seek.fetched_columns)
        probes = {n.name: n.expr for n in segment.exprs}
        pairs = []
        for mine, theirs in zip(segment.key, arranged.arrangement_key, strict=True):
            kinds = {probes[mine].type, taken[theirs].type} if theirs in taken else set()
            if len(kinds) != 1 or next(iter(kinds)).kind not in _KEY_KINDS:
                return None
            pairs.append(frozenset({mine, taken[theirs].name}))
        asked = [w.where for _, _, w in self._edges_from(operator.id)] if not seek.optional else [seek.match]
        if not all(set(pairs) <= {_compared_columns(c) for c in where if c.op == "EqualTo"} for where in asked):
            return None
        columns = {name: state.resolve(expr) for name, expr in probes.items()}
        key = tuple(parse_column_ref(columns[k]) for k in segment.key)
        fresh = seek.new_state and arranged.arranged_table in self.changed
        conditions = (*state.conditions, *(state.resolve(c) for c in state.unimplied_conditions(segment.where)))
        if seek.optional:
            return self._follow_optional(state, operator, arranged, fresh, key, columns, conditions)
        rows, step = self._find_step(state.rows, arranged, (arranged.id, fresh, key, "", ()))
        step.lookup_ids[operator.id] = None
        columns |= {c.name: path_column(step.relation, name, c.type, c.nullable) for name, c in seek.fetched_columns}
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
        """The same of an optional relation by its unique key: what decides on a match is judged there and then."""
        seek = operator.lookup
        if seek is None or any(map(can_raise, seek.match)):
            return None
        by = dict(zip(arranged.arrangement_key, key, strict=True))
        taken = {c.name: name for name, c in seek.fetched_columns}
        met = {c.name: path_column(OWN_ROW, name, c.type, c.nullable) for name, c in seek.fetched_columns}
        match = []
        for condition in seek.match:
            is_key = condition.op == "EqualTo" and all(a.op == "column" for a in condition.args) and any(
                mine.value in columns and theirs.value in taken
                and by.get(taken[theirs.value]) == parse_column_ref(columns[mine.value])
                for mine, theirs in (condition.args, condition.args[::-1])
            )  # fmt: skip
            if not is_key:
                match.append(substitute(condition, {**columns, **met}))
        rows, step = self._find_step(state.rows, arranged, (arranged.id, new_state, key, seek.optional, tuple(match)))
        step.lookup_ids[operator.id] = None
        step.column_types |= {name: c.type for name, c in seek.fetched_columns}
        if seek.optional == "left":
            columns |= {c.name: path_column(step.relation, name, c.type, True) for name, c in seek.fetched_columns}
            columns[MATCH_FLAG] = path_column(step.relation, MATCH_FLAG, types.BOOLEAN, False)
        return _PathState(operator, rows, columns, conditions, (*state.steps, step))

    def _edges_from(self, name: str) -> Iterator[Edge]:
        return (w for w in self.dataflow.edges.get(name, ()) if not self.dataflow.operators[w[0]].is_load_only)

    def _find_step(self, rows: _RowSet, arranged: Operator, step_key: _StepKey) -> tuple[_RowSet, _DraftStep]:
        """The lookup, and the rows after it. By a unique key it belongs to the first rows that have its key."""
        _, _, key, _, match = step_key
        if self._is_unique(arranged):
            places = {place for place, _ in (*key, *column_refs(match)) if place != OWN_ROW}
            lineage = rows.lineage()
            owner = max((self._row_set_of[p] for p in places), key=lineage.index)
            if step_key not in owner.steps:
                owner.steps[step_key] = self._new_step(arranged, step_key)
                self._row_set_of[owner.steps[step_key].relation] = owner
            return rows, owner.steps[step_key]
        if step_key not in rows.branches:
            step = self._new_step(arranged, step_key)
            rows.branches[step_key] = self._row_set_of[step.relation] = _RowSet(step, rows)
        found = rows.branches[step_key]
        return found, found.step

    def _is_unique(self, arranged: Operator) -> bool:
        table = arranged.arranged_table
        return table is not None and {k.column for k in self.dataflow.tables[table].key} <= set(
            arranged.arrangement_key
        )

    def _new_step(self, arranged: Operator, step_key: _StepKey) -> _DraftStep:
        self._step_count += 1
        _, fresh, key, optional, match = step_key
        here = tuple(_resolve_own_row(c, self._step_count) for c in match)
        step = self._step_of[self._step_count] = _DraftStep(self._step_count, arranged, fresh, key, optional, here)
        return step

    def _add_exit(self, state: _PathState, edge: Edge) -> None:
        """An exit. Conditions are judged on the way up to the first that can raise."""
        name, port, segment = edge
        number, where = len(self.edges), state.unimplied_conditions(segment.where)
        early = next((i for i, c in enumerate(where) if can_raise(c)), len(where))
        late = tuple(where[early:])
        conditions = _needed_conditions([*state.conditions, *(state.resolve(c) for c in where[:early])], state.steps)
        exprs = [*late, *segment.times, *(n.expr for n in segment.exprs)]
        used = {e.value: parse_column_ref(state.resolve(e)) for expr in exprs for e in expr.walk() if e.op == "column"}
        if any(map(can_raise, exprs)):  # an error names its row
            used |= self._identifying_columns(state)
        exit_ = Exit(number, state.source.id, tuple(sorted(used.items())))
        leaf = ExitSegment(
            state.source.id, late, segment.exprs, segment.key, segment.gather, segment.sign, segment.times,
            segment.ordered, exit_,
        )  # fmt: skip
        self.edges.append((name, port, leaf))
        state.rows.exits.append(exit_)
        for step in (*state.steps, *(rows.step for rows in state.rows.lineage())):
            step.exit_mask |= 1 << number
        self._exit_conditions.append(conditions)
        places = [{place for place, _ in column_refs([c])} for c in conditions]
        self._filtering_steps.append(frozenset(p.pop() for p in places if len(p) == 1))
        self._record_used_columns(state, exit_, conditions, [state.resolve(e) for e in exprs])

    def _identifying_columns(self, state: _PathState) -> dict[str, ColumnRef]:
        """The columns by which a person knows a row."""
        if state.columns is not None:
            return {name: parse_column_ref(e) for name, e in state.columns.items()}
        table = self.source.input_table
        return {} if table is None else {k.column: (DELTA, k.column) for k in self.dataflow.tables[table].key}

    def _record_used_columns(
        self, state: _PathState, exit_: Exit, conditions: Sequence[Expr], used: Sequence[Expr]
    ) -> None:
        """Which columns of the changes an exit uses, beside the conditions on those alone."""
        crossing = [c for c in conditions if {p for p, _ in column_refs([c])} - {DELTA}]
        exprs = [e for expr in [*crossing, *used] for e in expr.walk() if e.op == "column"]
        if any(e.type.family in _INCOMPARABLE for e in exprs):
            return
        refs = {
            *(parse_column_ref(e) for e in exprs),
            *(r for step in state.steps for r in (*step.key, *column_refs(step.match))),
        }
        self._exits_by_columns[tuple(sorted(name for place, name in refs if place == DELTA))] |= 1 << exit_.number

    # -- the operator -------------------------------------------------------------------------------------------------

    def build_operator(self, hints: SharingHints) -> DeltaJoin:
        table = self.source.input_table
        if table is None:
            raise TypeError("Only a table's changes have routes.")
        order: dict[int, tuple[int, int]] = {DELTA: (0, 0)}
        self._order_steps(self.root_rows, order)
        for number, conditions in enumerate(self._exit_conditions):
            for condition in conditions:
                places = {place for place, _ in column_refs([condition])} or {DELTA}
                self._step_of[max(places, key=order.__getitem__)].conditions_by_exit[number].append(condition)
        stretch = self._build_path(self.root_rows, order)
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
            stretch,
            tuple(self._exits_by_columns.items()),
            (1 << len(self.edges)) - 1,
            tuple((name, frozenset(found)) for name, found in reads.items()),
            tuple(dict.fromkeys(s.arrangement.id for s in steps if s.new_state)),
            tuple(self.retired),
            hints.lookahead_modes(self.dataflow, [name for name, _, _ in self.edges]),
        )

    def _delta_columns(self) -> Iterator[tuple[str, int]]:
        for step in self._step_of.values():
            yield from ((name, place) for place, name in (*step.key, *column_refs(step.match)) if place == DELTA)
        for conditions in self._exit_conditions:
            yield from ((name, place) for place, name in column_refs(conditions) if place == DELTA)
        for rows in walk_row_sets(self.root_rows):
            yield from ((name, place) for e in rows.exits for _, (place, name) in e.columns if place == DELTA)
        for columns in self._exits_by_columns:
            yield from ((name, DELTA) for name in columns)

    def _order_steps(self, rows: _RowSet, order: dict[int, tuple[int, int]]) -> None:
        """The order of the lookups: what lets few rows through comes first, as far as its key is known."""
        depth = len(rows.lineage())
        left = list(rows.steps.values())
        selective = {s.relation: self._selectivity(s) for s in left}
        while left:
            ready = [s for s in left if all(p in order for p, _ in (*s.key, *column_refs(s.match)) if p != s.relation)]
            chosen = min(ready, key=lambda s: (selective[s.relation], s.relation))
            order[chosen.relation] = (depth, len(order))
            left.remove(chosen)
        for after in rows.branches.values():
            order[after.step.relation] = (depth + 1, 0)
            self._order_steps(after, order)

    def _selectivity(self, step: _DraftStep) -> float:
        """The part of the exits for which a lookup brings no condition of its own. An outer one keeps all rows."""
        if step.optional:
            return 0.0 if step.optional == "anti" else 1.0
        mine = [judged for i, judged in enumerate(self._filtering_steps) if step.exit_mask >> i & 1]
        return sum(step.relation not in judged for judged in mine) / max(1, len(mine))

    def _build_path(self, rows: _RowSet, order: Mapping[int, tuple[int, int]]) -> JoinPath:
        steps = sorted(rows.steps.values(), key=lambda s: order[s.relation])
        onward = [(_finish_step(after.step), self._build_path(after, order)) for after in rows.branches.values()]
        begun = _build_filters(rows.step) if rows.parent is None else ()
        return JoinPath(begun, tuple(map(_finish_step, steps)), tuple(rows.exits), tuple(onward))


def walk_row_sets(rows: _RowSet) -> Iterator[_RowSet]:
    yield rows
    for after in rows.branches.values():
        yield from walk_row_sets(after)


def _finish_step(step: _DraftStep) -> PathStep:
    by = step.arrangement.arrangement_key
    optional = None
    if step.optional:
        met = PathFilter((((step.match), 1),)) if step.match else None
        optional = OptionalMatch(step.optional, met, tuple(sorted(step.column_types.items())))
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
    """Conditions on the found row alone first: what a run's rows say to those is remembered."""
    found = []
    for alone in (True, False):
        exits: dict[tuple[Expr, ...], int] = defaultdict(int)
        for number, conditions in step.conditions_by_exit.items():
            mine = [c for c in conditions if ({place for place, _ in column_refs([c])} == {step.relation}) is alone]
            if mine:
                exits[tuple(dict.fromkeys(mine))] |= 1 << number
        if exits:
            found.append(PathFilter(tuple(exits.items())))
    return tuple(found)


def _needed_conditions(conditions: Sequence[Expr], steps: Sequence[_DraftStep]) -> tuple[Expr, ...]:
    """The conditions, each once, but for tests for NULL of what cannot be NULL, or was found by being equal."""
    inner = [step for step in steps if not step.optional]
    keys = {ref for step in inner for ref in step.key}
    keys |= {(step.relation, name) for step in inner for name in step.arrangement.arrangement_key}

    def holds(condition: Expr) -> bool:
        if condition.op != "IsNotNull" or condition.args[0].op != "column":
            return False
        return not condition.args[0].nullable or parse_column_ref(condition.args[0]) in keys

    return tuple(dict.fromkeys(c for c in conditions if not holds(c)))


def _resolve_own_row(expr: Expr, relation: int) -> Expr:
    """The condition with the row's own columns, of which the place was not known, at that place."""
    if expr.op == "column":
        return (
            path_column(relation, parse_column_ref(expr)[1], expr.type, expr.nullable)
            if parse_column_ref(expr)[0] == OWN_ROW
            else expr
        )
    return replace(expr, args=tuple(_resolve_own_row(a, relation) for a in expr.args)) if expr.args else expr


def _compared_columns(condition: Expr) -> frozenset[str]:
    """The two columns that an equality compares; nothing if it compares anything else."""
    return frozenset(a.value for a in condition.args) if all(a.op == "column" for a in condition.args) else frozenset()
