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
from viewkeeper.operators.delta_join.operator import Leaf, Routes
from viewkeeper.operators.delta_join.plan import (
    DELTA,
    MET,
    Check,
    Exit,
    Optional,
    PathStep,
    Ref,
    Stretch,
    ref_of,
    referred,
    refs_of,
)
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment
from viewkeeper.plan.compile.branch import substitute
from viewkeeper.plan.dataflow.dataflow import Flow, Way
from viewkeeper.plan.dataflow.sharing_hints import Wishes

_KEYS = frozenset({Kind.INT, Kind.BIGINT, Kind.DATE, Kind.STRING})
"""Types of keys whose values are equal where their bytes are."""

_APART = (Family.NESTED, Family.OTHER)
"""Types whose values are not compared column by column."""


OWN = -1
"""As a place: that of the row which a lookup finds, while it has none yet."""

_NO_WISHES = Wishes()
_FORMS = "forms of the flow"
_KEPT = 8
"""Forms that are kept: batches tend to change the same few sets of tables."""


def shared(flow: Flow, changed: frozenset[int], wishes: Wishes = _NO_WISHES) -> Flow:
    """The flow as a batch runs it in which these base tables changed."""
    forms: dict[tuple[frozenset[int], Wishes], Flow] = flow.orders.setdefault(_FORMS, {})
    known = forms.get((changed, wishes))
    if known is None:
        known = forms[changed, wishes] = _folded(flow, changed, wishes)
        for oldest in list(forms)[:-_KEPT]:
            forms.pop(oldest, None)
    return known


def _folded(flow: Flow, changed: frozenset[int], wishes: Wishes) -> Flow:
    made: list[Routes] = []
    alone = wishes.alone(flow)
    folded: set[str] = set()
    consumers = dict(flow.consumers)
    for name, operator in flow.operators.items():
        if operator.changes_of not in changed:
            continue
        paths = _Paths(flow, operator, changed, alone)
        if not paths.worthwhile:
            continue
        routes = paths.routes(wishes)
        made.append(routes)
        folded.update(paths.folded)
        taken = {id(way) for way in paths.taken}
        consumers[name] = [*(w for w in consumers[name] if id(w) not in taken), (routes.id, 0, routes.delta)]
        consumers[routes.id] = paths.ways
        consumers |= dict.fromkeys(paths.folded, ())
    if not made:
        return flow
    first = [o for o in flow.operators.values() if o.is_source or o.arranges is not None]
    known = {o.id for o in first}
    ordered = [*first, *made, *(o for o in flow.operators.values() if o.id not in known)]
    places = {o.id: i for i, o in enumerate(ordered)}
    return replace(
        flow,
        operators={o.id: o for o in ordered},
        consumers=consumers,
        is_form=True,
        folded=frozenset(folded),
        counted=replace(flow.counted, places=places),
    )


_What = tuple[str, bool, tuple[Ref, ...], str, tuple[Expr, ...]]
"""What a lookup is: arrangement, state, key, and of an optional relation how and on what it is joined."""


@dataclass(eq=False)
class _Step:
    """A lookup, while it is not known yet who makes it."""

    place: int
    arrangement: Operator
    fresh: bool
    key: tuple[Ref, ...]
    optional: str = ""
    match: tuple[Expr, ...] = ()
    """Of an optional relation: what decides on a match beside the key."""
    types: dict[str, Type] = field(default_factory=dict)
    """Of an optional relation: the types of the columns that are taken."""
    exits: int = 0
    tests: dict[int, list[Expr]] = field(default_factory=lambda: defaultdict(list))
    """The conditions to judge after it, by exit."""
    lookups: dict[str, None] = field(default_factory=dict)


@dataclass(eq=False)
class _Rows:
    """A set of rows: the changes themselves, or what a lookup made of other rows."""

    made: _Step
    above: _Rows | None = None
    steps: dict[_What, _Step] = field(default_factory=dict)
    onward: dict[_What, _Rows] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)

    def lineage(self) -> list[_Rows]:
        return [self] if self.above is None else [*self.above.lineage(), self]


@dataclass(frozen=True)
class _At:
    """Where a path has come to: its rows, what its columns are, its conditions so far and the lookups it made."""

    source: Operator
    rows: _Rows
    columns: Mapping[str, Expr] | None
    """None: those of the changes."""
    conditions: tuple[Expr, ...] = ()
    steps: tuple[_Step, ...] = ()
    implied: frozenset[frozenset[str]] = frozenset()
    """Pairs of columns that are equal because one was looked up by the other."""

    def see(self, expr: Expr) -> Expr:
        if expr.op == "column":
            if self.columns is not None:
                return self.columns[expr.value]
            return referred(DELTA, expr.value, expr.type, expr.nullable)
        return replace(expr, args=tuple(self.see(a) for a in expr.args)) if expr.args else expr

    def open(self, where: Sequence[Expr]) -> list[Expr]:
        """The conditions that no lookup implies."""
        return [c for c in where if c.op != "EqualTo" or _pair(c) not in self.implied]


class _Paths:
    """All paths from one table's changes."""

    def __init__(self, flow: Flow, source: Operator, changed: frozenset[int], alone: frozenset[str]) -> None:
        self.flow, self.source, self.changed = flow, source, changed
        self.root = _Rows(_Step(DELTA, source, False, ()))
        self.ways: list[Way] = []
        self.taken: list[Way] = []
        self.folded: dict[str, None] = {}
        self._places = 0
        self._rows_of = {DELTA: self.root}
        self._step_of = {DELTA: self.root.made}
        self._alike: dict[tuple[str, ...], int] = defaultdict(int)
        self._conditions: list[tuple[Expr, ...]] = []
        self._judged: list[frozenset[int]] = []
        """For each exit the places that it has conditions on alone."""
        start = _At(source, self.root, None)
        for way in flow.consumers.get(source.id, ()):
            if not flow.operators[way[0]].only_loads and way[0] not in alone:
                self.taken.append(way)
                self._follow(start, way)

    @property
    def worthwhile(self) -> bool:
        """One statement for one view needs no company."""
        return len(self.ways) > 1 or bool(self.folded)

    # -- following ----------------------------------------------------------------------------------------------------

    def _follow(self, at: _At, way: Way) -> None:
        name, _, segment = way
        operator = self.flow.operators[name]
        after = self._looked_up(at, operator, segment)
        if after is None:
            self._leave(at, way)
            return
        self.folded[name] = None
        for onward in self.flow.consumers.get(name, ()):
            if not self.flow.operators[onward[0]].only_loads:
                self._follow(after, onward)

    def _looked_up(self, at: _At, operator: Operator, segment: Segment) -> _At | None:
        """Where the path is after an operator that is a lookup in a base table, by keys that are compared as they are;
        None if it is anything else."""
        seek = operator.seeks
        if seek is None or len(list(operator.segments())) != 1 or not segment.key:
            return None
        plain = segment.sign > 0 and not (segment.times or segment.gather or segment.ordered)
        if not plain or any(n.expr.op != "column" for n in segment.exprs) or any(map(can_raise, segment.where)):
            return None
        arranged = self.flow.operators[seek.arrangement]
        if arranged.arranges is None or (seek.optional and not self._is_unique(arranged)):
            return None
        taken = dict(seek.take)
        probes = {n.name: n.expr for n in segment.exprs}
        pairs = []
        for mine, theirs in zip(segment.key, arranged.arranged_by, strict=True):
            kinds = {probes[mine].type, taken[theirs].type} if theirs in taken else set()
            if len(kinds) != 1 or next(iter(kinds)).kind not in _KEYS:
                return None
            pairs.append(frozenset({mine, taken[theirs].name}))
        asked = [w.where for _, _, w in self._onward(operator.id)] if not seek.optional else [seek.match]
        if not all(set(pairs) <= {_pair(c) for c in where if c.op == "EqualTo"} for where in asked):
            return None
        columns = {name: at.see(expr) for name, expr in probes.items()}
        key = tuple(ref_of(columns[k]) for k in segment.key)
        fresh = seek.fresh and arranged.arranges in self.changed
        conditions = (*at.conditions, *(at.see(c) for c in at.open(segment.where)))
        if seek.optional:
            return self._optional(at, operator, arranged, fresh, key, columns, conditions)
        rows, step = self._step(at.rows, arranged, (arranged.id, fresh, key, "", ()))
        step.lookups[operator.id] = None
        columns |= {c.name: referred(step.place, name, c.type, c.nullable) for name, c in seek.take}
        return _At(operator, rows, columns, conditions, (*at.steps, step), frozenset(pairs))

    def _optional(
        self,
        at: _At,
        operator: Operator,
        arranged: Operator,
        fresh: bool,
        key: tuple[Ref, ...],
        columns: dict[str, Expr],
        conditions: tuple[Expr, ...],
    ) -> _At | None:
        """The same of an optional relation by its unique key: what decides on a match is judged there and then."""
        seek = operator.seeks
        if seek is None or any(map(can_raise, seek.match)):
            return None
        by = dict(zip(arranged.arranged_by, key, strict=True))
        taken = {c.name: name for name, c in seek.take}
        met = {c.name: referred(OWN, name, c.type, c.nullable) for name, c in seek.take}
        match = []
        for condition in seek.match:
            is_key = condition.op == "EqualTo" and all(a.op == "column" for a in condition.args) and any(
                mine.value in columns and theirs.value in taken
                and by.get(taken[theirs.value]) == ref_of(columns[mine.value])
                for mine, theirs in (condition.args, condition.args[::-1])
            )  # fmt: skip
            if not is_key:
                match.append(substitute(condition, {**columns, **met}))
        rows, step = self._step(at.rows, arranged, (arranged.id, fresh, key, seek.optional, tuple(match)))
        step.lookups[operator.id] = None
        step.types |= {name: c.type for name, c in seek.take}
        if seek.optional == "left":
            columns |= {c.name: referred(step.place, name, c.type, True) for name, c in seek.take}
            columns[MET] = referred(step.place, MET, types.BOOLEAN, False)
        return _At(operator, rows, columns, conditions, (*at.steps, step))

    def _onward(self, name: str) -> Iterator[Way]:
        return (w for w in self.flow.consumers.get(name, ()) if not self.flow.operators[w[0]].only_loads)

    def _step(self, rows: _Rows, arranged: Operator, what: _What) -> tuple[_Rows, _Step]:
        """The lookup, and the rows after it. By a unique key it belongs to the first rows that have its key."""
        _, _, key, _, match = what
        if self._is_unique(arranged):
            places = {place for place, _ in (*key, *refs_of(match)) if place != OWN}
            lineage = rows.lineage()
            owner = max((self._rows_of[p] for p in places), key=lineage.index)
            if what not in owner.steps:
                owner.steps[what] = self._new(arranged, what)
                self._rows_of[owner.steps[what].place] = owner
            return rows, owner.steps[what]
        if what not in rows.onward:
            step = self._new(arranged, what)
            rows.onward[what] = self._rows_of[step.place] = _Rows(step, rows)
        found = rows.onward[what]
        return found, found.made

    def _is_unique(self, arranged: Operator) -> bool:
        table = arranged.arranges
        return table is not None and {k.column for k in self.flow.tables[table].key} <= set(arranged.arranged_by)

    def _new(self, arranged: Operator, what: _What) -> _Step:
        self._places += 1
        _, fresh, key, optional, match = what
        here = tuple(_at_place(c, self._places) for c in match)
        step = self._step_of[self._places] = _Step(self._places, arranged, fresh, key, optional, here)
        return step

    def _leave(self, at: _At, way: Way) -> None:
        """An exit. Conditions are judged on the way up to the first that can raise."""
        name, port, segment = way
        number, where = len(self.ways), at.open(segment.where)
        early = next((i for i, c in enumerate(where) if can_raise(c)), len(where))
        late = tuple(where[early:])
        conditions = _open([*at.conditions, *(at.see(c) for c in where[:early])], at.steps)
        exprs = [*late, *segment.times, *(n.expr for n in segment.exprs)]
        used = {e.value: ref_of(at.see(e)) for expr in exprs for e in expr.walk() if e.op == "column"}
        if any(map(can_raise, exprs)):  # an error names its row
            used |= self._naming(at)
        exit_ = Exit(number, at.source.id, tuple(sorted(used.items())))
        leaf = Leaf(
            at.source.id, late, segment.exprs, segment.key, segment.gather, segment.sign, segment.times,
            segment.ordered, exit_,
        )  # fmt: skip
        self.ways.append((name, port, leaf))
        at.rows.exits.append(exit_)
        for step in (*at.steps, *(rows.made for rows in at.rows.lineage())):
            step.exits |= 1 << number
        self._conditions.append(conditions)
        places = [{place for place, _ in refs_of([c])} for c in conditions]
        self._judged.append(frozenset(p.pop() for p in places if len(p) == 1))
        self._note_alike(at, exit_, conditions, [at.see(e) for e in exprs])

    def _naming(self, at: _At) -> dict[str, Ref]:
        """The columns by which a person knows a row."""
        if at.columns is not None:
            return {name: ref_of(e) for name, e in at.columns.items()}
        table = self.source.changes_of
        return {} if table is None else {k.column: (DELTA, k.column) for k in self.flow.tables[table].key}

    def _note_alike(self, at: _At, exit_: Exit, conditions: Sequence[Expr], used: Sequence[Expr]) -> None:
        """Which columns of the changes an exit uses, beside the conditions on those alone."""
        crossing = [c for c in conditions if {p for p, _ in refs_of([c])} - {DELTA}]
        exprs = [e for expr in [*crossing, *used] for e in expr.walk() if e.op == "column"]
        if any(e.type.family in _APART for e in exprs):
            return
        refs = {*(ref_of(e) for e in exprs), *(r for step in at.steps for r in (*step.key, *refs_of(step.match)))}
        self._alike[tuple(sorted(name for place, name in refs if place == DELTA))] |= 1 << exit_.number

    # -- the operator -------------------------------------------------------------------------------------------------

    def routes(self, wishes: Wishes) -> Routes:
        table = self.source.changes_of
        if table is None:
            raise TypeError("Only a table's changes have routes.")
        order: dict[int, tuple[int, int]] = {DELTA: (0, 0)}
        self._order(self.root, order)
        for number, conditions in enumerate(self._conditions):
            for condition in conditions:
                places = {place for place, _ in refs_of([condition])} or {DELTA}
                self._step_of[max(places, key=order.__getitem__)].tests[number].append(condition)
        stretch = self._stretch(self.root, order)
        key = tuple(k.column for k in self.flow.tables[table].key)
        used = set(key) | {name for name, _ in self._refs_of_changes()}
        columns = [c for c in self.flow.used[table] if c.name in used]
        delta = Segment(
            self.source.id, (), tuple(Named(c.name, column(c.name, c.type, c.nullable)) for c in columns), None
        )
        steps = [s for s in self._step_of.values() if s.place != DELTA]
        reads: dict[str, set[str]] = defaultdict(set)
        for step in steps:
            reads[step.arrangement.id].update(step.arrangement.arranged_by)
        return Routes(
            delta,
            key,
            stretch,
            tuple(self._alike.items()),
            (1 << len(self.ways)) - 1,
            tuple((name, frozenset(found)) for name, found in reads.items()),
            tuple(dict.fromkeys(s.arrangement.id for s in steps if s.fresh)),
            tuple(self.folded),
            wishes.modes(self.flow, [name for name, _, _ in self.ways]),
        )

    def _refs_of_changes(self) -> Iterator[tuple[str, int]]:
        for step in self._step_of.values():
            yield from ((name, place) for place, name in (*step.key, *refs_of(step.match)) if place == DELTA)
        for conditions in self._conditions:
            yield from ((name, place) for place, name in refs_of(conditions) if place == DELTA)
        for rows in set_of(self.root):
            yield from ((name, place) for e in rows.exits for _, (place, name) in e.taken if place == DELTA)
        for columns in self._alike:
            yield from ((name, DELTA) for name in columns)

    def _order(self, rows: _Rows, order: dict[int, tuple[int, int]]) -> None:
        """The order of the lookups: what lets few rows through comes first, as far as its key is known."""
        depth = len(rows.lineage())
        left = list(rows.steps.values())
        selective = {s.place: self._selectivity(s) for s in left}
        while left:
            ready = [s for s in left if all(p in order for p, _ in (*s.key, *refs_of(s.match)) if p != s.place)]
            chosen = min(ready, key=lambda s: (selective[s.place], s.place))
            order[chosen.place] = (depth, len(order))
            left.remove(chosen)
        for after in rows.onward.values():
            order[after.made.place] = (depth + 1, 0)
            self._order(after, order)

    def _selectivity(self, step: _Step) -> float:
        """The part of the exits for which a lookup brings no condition of its own. An outer one keeps all rows."""
        if step.optional:
            return 0.0 if step.optional == "anti" else 1.0
        mine = [judged for i, judged in enumerate(self._judged) if step.exits >> i & 1]
        return sum(step.place not in judged for judged in mine) / max(1, len(mine))

    def _stretch(self, rows: _Rows, order: Mapping[int, tuple[int, int]]) -> Stretch:
        steps = sorted(rows.steps.values(), key=lambda s: order[s.place])
        onward = [(_finished(after.made), self._stretch(after, order)) for after in rows.onward.values()]
        begun = _checks(rows.made) if rows.above is None else ()
        return Stretch(begun, tuple(map(_finished, steps)), tuple(rows.exits), tuple(onward))


def set_of(rows: _Rows) -> Iterator[_Rows]:
    yield rows
    for after in rows.onward.values():
        yield from set_of(after)


def _finished(step: _Step) -> PathStep:
    by = step.arrangement.arranged_by
    optional = None
    if step.optional:
        met = Check((((step.match), 1),)) if step.match else None
        optional = Optional(step.optional, met, tuple(sorted(step.types.items())))
    return PathStep(
        step.place, step.arrangement.id, step.fresh, step.key, by, step.exits, _checks(step), tuple(step.lookups),
        optional,
    )  # fmt: skip


def _checks(step: _Step) -> tuple[Check, ...]:
    """Conditions on the found row alone first: what a run's rows say to those is remembered."""
    found = []
    for alone in (True, False):
        exits: dict[tuple[Expr, ...], int] = defaultdict(int)
        for number, conditions in step.tests.items():
            mine = [c for c in conditions if ({place for place, _ in refs_of([c])} == {step.place}) is alone]
            if mine:
                exits[tuple(dict.fromkeys(mine))] |= 1 << number
        if exits:
            found.append(Check(tuple(exits.items())))
    return tuple(found)


def _open(conditions: Sequence[Expr], steps: Sequence[_Step]) -> tuple[Expr, ...]:
    """The conditions, each once, but for tests for NULL of what cannot be NULL, or was found by being equal."""
    inner = [step for step in steps if not step.optional]
    keys = {ref for step in inner for ref in step.key}
    keys |= {(step.place, name) for step in inner for name in step.arrangement.arranged_by}

    def holds(condition: Expr) -> bool:
        if condition.op != "IsNotNull" or condition.args[0].op != "column":
            return False
        return not condition.args[0].nullable or ref_of(condition.args[0]) in keys

    return tuple(dict.fromkeys(c for c in conditions if not holds(c)))


def _at_place(expr: Expr, place: int) -> Expr:
    """The condition with the row's own columns, of which the place was not known, at that place."""
    if expr.op == "column":
        return referred(place, ref_of(expr)[1], expr.type, expr.nullable) if ref_of(expr)[0] == OWN else expr
    return replace(expr, args=tuple(_at_place(a, place) for a in expr.args)) if expr.args else expr


def _pair(condition: Expr) -> frozenset[str]:
    """The two columns that an equality compares; nothing if it compares anything else."""
    return frozenset(a.value for a in condition.args) if all(a.op == "column" for a in condition.args) else frozenset()
