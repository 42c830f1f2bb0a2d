"""Which rows of its base tables a view's answer for some keys needs: the rows that a lazy view looks up.

    view restricted to a key  =  (view over narrowed tables) restricted to that key

A restriction of a node's output to values of some columns becomes one of its inputs, as far as these columns are plain
columns of them: through filters and projections, to the groups of an aggregate, to the partitions of a window, to both
sides of an equality. What a side of a join is narrowed to narrows the other side in turn: only rows that meet can
matter. So an answer begins with the rows of one table that have the key, goes from table to table along the joins, each
a lookup in an arrangement, and the query then runs over what was found, which is little.

Whatever is narrowed too little costs time and nothing else: rows beside those that matter give rows beside those that
were asked for. So where a law is not known (below a LIMIT, under NULL-safe comparisons, for floats, whose −0.0 is 0.0)
all rows are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from viewkeeper.model import types
from viewkeeper.model.schema import Table
from viewkeeper.plan.compile.compiler import ViewPlan, strip_sort
from viewkeeper.plan.depth import to_any_depth
from viewkeeper.plan.logical.nodes import (
    Aggregate,
    Consolidation,
    Expand,
    Expr,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    Scan,
    Sort,
    Union,
    Window,
)

KEY_STEP = -1
"""As the step that values come from: the key that is asked for."""


class PropagationStep(NamedTuple):
    """Rows of a base table: those whose `columns` have together the values that `names` have in rows of another step,
    or in the key (then names are places). Without columns: all."""

    table: int
    columns: tuple[str, ...] = ()
    source: int = KEY_STEP
    source_columns: tuple[str | int, ...] = ()
    extra_key_columns: tuple[tuple[str, int], ...] = ()
    """Columns that must have the key's values at these places too."""


@dataclass(frozen=True)
class KeyPropagation:
    """How an answer's rows are looked up: the steps, each after the one that it takes values from."""

    steps: tuple[PropagationStep, ...]
    min_key_columns: int
    """Columns of the key that must be known, so that anything is narrowed; 0: nothing ever is."""

    @property
    def lookup_keys(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """The tables that are looked up, and by which columns; each once."""
        return tuple(dict.fromkeys((s.table, s.columns) for s in self.steps if s.columns))

    @property
    def whole_tables(self) -> frozenset[int]:
        """Tables of which all rows are taken."""
        return frozenset(s.table for s in self.steps if not s.columns)


class _Restriction(NamedTuple):
    """Only rows matter whose columns have together the values that `names` have in rows of a step."""

    columns: tuple[str, ...]
    step: int
    source_columns: tuple[str, ...]


_KeyPositions = Mapping[str, int]
"""By plan column the place in the key whose value it must have."""
_SourceColumns = Mapping[str, tuple[int, str]]
"""By plan column a narrowed step and its column, among whose values are all that are not NULL."""


def propagate_key(
    view: int, key: Sequence[str], tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]
) -> KeyPropagation:
    """Of a view with this key (names of its columns). `tables`: base tables; `plans`: its own, and those it reads."""
    return to_any_depth(lambda: _narrowing(plans[view], key, tables, plans))


def _narrowing(
    plan: ViewPlan, key: Sequence[str], tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]
) -> KeyPropagation:
    shown = {name.lower(): c for name, c in plan.query.output}
    places = {shown[name.lower()].name: place for place, name in enumerate(key)}
    found = _KeyPropagator(tables, plans, 0)
    for needs in range(1, len(key) + 1):
        found = _KeyPropagator(tables, plans, needs)
        found.visit(plan.query.root, {c: p for c, p in places.items() if not _is_float(shown, key[p])}, ())
        if any(s.columns for s in found.steps):
            return KeyPropagation(tuple(found.steps), needs)
    nothing = _KeyPropagator(tables, plans, 0)
    nothing.visit(plan.query.root, {}, ())
    return KeyPropagation(tuple(nothing.steps), 0)


def _is_float(output_columns: Mapping[str, object], name: str) -> bool:
    return getattr(output_columns[name.lower()], "type", None) in types.FLOATS


@dataclass
class _KeyPropagator:
    """Down a plan, with what its rows are restricted to. Steps begin with one of the key's first `needs` columns."""

    tables: Mapping[int, Table]
    plans: Mapping[int, ViewPlan]
    min_key_columns: int
    steps: list[PropagationStep] = field(default_factory=list)

    def visit(self, node: Node, keys: _KeyPositions, restrictions: Sequence[_Restriction]) -> _SourceColumns:
        match node:
            case Scan():
                return self._visit_scan(node, keys, restrictions)
            case Filter() | Sort() | Consolidation():
                return self.visit(node.child, keys, restrictions)
            case Project():
                return self._visit_renamed(
                    node.child, {n.name: _plain_column(n.expr) for n in node.exprs}, keys, restrictions
                )
            case Aggregate():
                return self._visit_renamed(
                    node.child, {k.name: _plain_column(k.expr) for k in node.keys}, keys, restrictions
                )
            case Window():
                parted = {name: name for e in node.partition if (name := _plain_column(e)) is not None}
                return self._visit_renamed(node.child, parted, keys, restrictions)
            case Generate():
                return self._visit_renamed(node.child, {c.name: c.name for c in node.child_columns}, keys, restrictions)
            case Expand():
                return self._visit_renamed(node.child, _expanded_columns(node), keys, restrictions)
            case Union():
                for child in node.inputs:
                    names = {c.name: child.columns[i].name for i, c in enumerate(node.output)}
                    self._visit_renamed(child, names, keys, restrictions)
                return {}
            case Join():
                return self._visit_join(node, keys, restrictions)
        for child in node.children:  # a LIMIT, the members of a family: what its rows are depends on all others
            self.visit(child, {}, ())
        return {}

    def _visit_renamed(
        self, child: Node, names: Mapping[str, str | None], keys: _KeyPositions, restrictions: Sequence[_Restriction]
    ) -> _SourceColumns:
        """Below a node whose columns are columns of its child, as far as they are (None: they are not)."""
        inner = {name: was for name, was in names.items() if was is not None}
        offers = self.visit(
            child, {inner[c]: p for c, p in keys.items() if c in inner}, _rename_restrictions(inner, restrictions)
        )
        return {name: offers[was] for name, was in inner.items() if was in offers}

    def _visit_scan(self, node: Scan, keys: _KeyPositions, restrictions: Sequence[_Restriction]) -> _SourceColumns:
        fields = {c.name: stored for c, stored in node.fields}
        if node.table not in self.tables:
            plan = self.plans[node.table]
            inner = {name.lower(): c.name for name, c in plan.query.output}
            return self._visit_renamed(
                strip_sort(plan.query.root), {c: inner[s.lower()] for c, s in fields.items()}, keys, restrictions
            )
        asked = sorted((place, fields[c]) for c, place in keys.items() if c in fields)
        also = tuple((stored, place) for place, stored in asked)
        here = [m for m in _rename_restrictions(fields, restrictions) if m.columns]
        if asked and asked[0][0] < self.min_key_columns:
            step = PropagationStep(node.table, (asked[0][1],), KEY_STEP, (asked[0][0],), also[1:])
        elif here:
            best = max(here, key=lambda m: len(set(m.columns)))
            met_by = dict(
                sorted(zip(best.columns, best.source_columns, strict=True))
            )  # a column may be equal to two others
            step = PropagationStep(node.table, tuple(met_by), best.step, tuple(met_by.values()), also)
        else:
            step = PropagationStep(node.table, extra_key_columns=also)
        self.steps.append(step)
        return {c: (len(self.steps) - 1, stored) for c, stored in fields.items()} if step.columns else {}

    def _visit_join(self, node: Join, keys: _KeyPositions, restrictions: Sequence[_Restriction]) -> _SourceColumns:
        sides = [node.left, node.right]
        own = [{c.name for c in side.columns} for side in sides]
        pairs = list(_equal_columns(node.condition, own[0], own[1]))
        only_left = node.join_type in ("semi", "anti", "existence")
        visible = [own[0], set[str]() if only_left else own[1]]
        bound = [{c: p for c, p in keys.items() if c in names} for names in visible]
        begun = [any(p < self.min_key_columns for p in b.values()) for b in bound]
        asked = [_rename_restrictions({c: c for c in names}, restrictions) for names in visible]
        # The side that is restricted by itself comes first. Of an outer join it may be the one that is padded: rows
        # that are padded have NULL there, and are not among those that were asked for.
        first = 0 if begun[0] or not (begun[1] or (asked[1] and not asked[0])) else 1
        there = [dict(b) for b in bound]
        for pair in pairs:
            mine, other = pair[first], pair[1 - first]
            if mine in bound[first]:
                there[1 - first].setdefault(other, bound[first][mine])
        offers = self.visit(sides[first], bound[first], asked[first])
        meeting: dict[int, list[tuple[str, str]]] = {}
        for pair in pairs:
            if (offer := offers.get(pair[first])) is not None:
                meeting.setdefault(offer[0], []).append((pair[1 - first], offer[1]))
        new = [
            _Restriction(tuple(c for c, _ in found), step, tuple(n for _, n in found))
            for step, found in meeting.items()
        ]
        others = self.visit(sides[1 - first], there[1 - first], [*asked[1 - first], *new])
        return dict(offers) if only_left else {**offers, **others}


def _rename_restrictions(names: Mapping[str, str], restrictions: Sequence[_Restriction]) -> list[_Restriction]:
    """What is left of restrictions where columns have other names, or are none."""
    found = []
    for one in restrictions:
        kept = [(names[c], n) for c, n in zip(one.columns, one.source_columns, strict=True) if c in names]
        if kept:
            found.append(_Restriction(tuple(c for c, _ in kept), one.step, tuple(n for _, n in kept)))
    return found


def _plain_column(expr: Expr) -> str | None:
    return str(expr.value) if expr.op == "column" else None


def _expanded_columns(node: Expand) -> dict[str, str | None]:
    """The columns of grouping sets that are, wherever they are not NULL, one column of the child."""
    found: dict[str, str | None] = {}
    for place, column in enumerate(node.output):
        said = {
            _plain_column(p[place])
            for p in node.projections
            if not (p[place].op == "literal" and p[place].value is None)
        }
        found[column.name] = said.pop() if len(said) == 1 else None
    return found


def _equal_columns(condition: Expr | None, left: set[str], right: set[str]) -> Iterator[tuple[str, str]]:
    """The columns of both sides that a join's condition says are equal, but for floats."""
    if condition is None:
        return
    if condition.op == "And":
        for part in condition.args:
            yield from _equal_columns(part, left, right)
        return
    if condition.op != "EqualTo" or condition.args[0].type in types.FLOATS:
        return
    one, other = (_plain_column(e) for e in condition.args)
    if one in left and other in right:
        yield one, other
    elif one in right and other in left:
        yield other, one
