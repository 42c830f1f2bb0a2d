"""Key propagation: which rows of its base tables a lazy view needs for some values of its key.

    view restricted to a key  =  (view over restricted tables) restricted to that key

A restriction of a node's output to values of some columns becomes a restriction of its inputs, as far as these columns
are plain columns of the inputs: through filters and projections, to the groups of an aggregate, to the partitions of a
window, to both sides of an equality. The restriction of one side of a join also restricts the other side, because only
rows that join can matter. A read of a lazy view therefore starts with the rows of one table that have the key, follows
the joins from table to table, each time with a lookup in an arrangement, and runs the query over the few rows found.

A restriction that is too weak only costs time: additional input rows give output rows of other keys. Where no law is
known (below a LIMIT, under null-safe comparisons, for floats, whose −0.0 equals 0.0) all rows are read.
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
"""The `source` of a step whose values come from the requested key."""


class PropagationStep(NamedTuple):
    """Rows of a base table whose `columns` have values that occur together in `source_columns` of the source.

    The source is another step, or the key (then `source_columns` are positions in it). Without `columns`: all rows.
    """

    table: int
    columns: tuple[str, ...] = ()
    source: int = KEY_STEP
    source_columns: tuple[str | int, ...] = ()
    extra_key_columns: tuple[tuple[str, int], ...] = ()
    """Columns that must also have the key's values at these positions."""


@dataclass(frozen=True)
class KeyPropagation:
    """How the rows for a key are looked up: the steps, each after its source."""

    steps: tuple[PropagationStep, ...]
    min_key_columns: int
    """Key columns that must be known to restrict anything; 0: the key never restricts."""

    @property
    def lookup_keys(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """The tables that are looked up, each with its lookup columns, without duplicates."""
        return tuple(dict.fromkeys((s.table, s.columns) for s in self.steps if s.columns))

    @property
    def whole_tables(self) -> frozenset[int]:
        """Tables of which all rows are read."""
        return frozenset(s.table for s in self.steps if not s.columns)


class _Restriction(NamedTuple):
    """Only rows matter in which `columns` have a combination of values that occurs in `source_columns` of a step."""

    columns: tuple[str, ...]
    step: int
    source_columns: tuple[str, ...]


_KeyPositions = Mapping[str, int]
"""By plan column: the position in the key whose value the column must have."""
_SourceColumns = Mapping[str, tuple[int, str]]
"""By plan column: a step and its column among whose values are all non-NULL values of the plan column."""


def propagate_key(
    view: int, key: Sequence[str], tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]
) -> KeyPropagation:
    """Propagate the key of a view (names of its columns) to its base tables.

    `tables`: base tables; `plans`: the view's own, and those it reads.
    """
    return to_any_depth(lambda: _narrowing(plans[view], key, tables, plans))


def _narrowing(
    plan: ViewPlan, key: Sequence[str], tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]
) -> KeyPropagation:
    outputs = {name.lower(): c for name, c in plan.query.output}
    key_positions = {outputs[name.lower()].name: position for position, name in enumerate(key)}
    propagator = _KeyPropagator(tables, plans, 0)
    for column_count in range(1, len(key) + 1):
        propagator = _KeyPropagator(tables, plans, column_count)
        propagator.visit(
            plan.query.root, {c: p for c, p in key_positions.items() if not _is_float(outputs, key[p])}, ()
        )
        if any(s.columns for s in propagator.steps):
            return KeyPropagation(tuple(propagator.steps), column_count)
    unrestricted = _KeyPropagator(tables, plans, 0)
    unrestricted.visit(plan.query.root, {}, ())
    return KeyPropagation(tuple(unrestricted.steps), 0)


def _is_float(output_columns: Mapping[str, object], name: str) -> bool:
    return getattr(output_columns[name.lower()], "type", None) in types.FLOATS


@dataclass
class _KeyPropagator:
    """Visits a plan with the restrictions on its rows.

    A chain of steps starts at one of the key's first `min_key_columns`.
    """

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
                partition_columns = {name: name for e in node.partition if (name := _plain_column(e)) is not None}
                return self._visit_renamed(node.child, partition_columns, keys, restrictions)
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
        # a LIMIT, or the members of a family: a row of the output depends on all rows of the input
        for child in node.children:
            self.visit(child, {}, ())
        return {}

    def _visit_renamed(
        self, child: Node, names: Mapping[str, str | None], keys: _KeyPositions, restrictions: Sequence[_Restriction]
    ) -> _SourceColumns:
        """Visit the child of a node; `names` maps the node's columns to columns of the child (None: computed)."""
        inner = {name: child_name for name, child_name in names.items() if child_name is not None}
        offers = self.visit(
            child, {inner[c]: p for c, p in keys.items() if c in inner}, _rename_restrictions(inner, restrictions)
        )
        return {name: offers[child_name] for name, child_name in inner.items() if child_name in offers}

    def _visit_scan(self, node: Scan, keys: _KeyPositions, restrictions: Sequence[_Restriction]) -> _SourceColumns:
        fields = {c.name: stored for c, stored in node.fields}
        if node.table not in self.tables:
            plan = self.plans[node.table]
            inner = {name.lower(): c.name for name, c in plan.query.output}
            return self._visit_renamed(
                strip_sort(plan.query.root), {c: inner[s.lower()] for c, s in fields.items()}, keys, restrictions
            )
        key_columns = sorted((position, fields[c]) for c, position in keys.items() if c in fields)
        extra_columns = tuple((stored, position) for position, stored in key_columns)
        applicable = [m for m in _rename_restrictions(fields, restrictions) if m.columns]
        if key_columns and key_columns[0][0] < self.min_key_columns:
            step = PropagationStep(node.table, (key_columns[0][1],), KEY_STEP, (key_columns[0][0],), extra_columns[1:])
        elif applicable:
            best = max(applicable, key=lambda m: len(set(m.columns)))
            sources = dict(
                sorted(zip(best.columns, best.source_columns, strict=True))
            )  # a column may be equal to two others
            step = PropagationStep(node.table, tuple(sources), best.step, tuple(sources.values()), extra_columns)
        else:
            step = PropagationStep(node.table, extra_key_columns=extra_columns)
        self.steps.append(step)
        return {c: (len(self.steps) - 1, stored) for c, stored in fields.items()} if step.columns else {}

    def _visit_join(self, node: Join, keys: _KeyPositions, restrictions: Sequence[_Restriction]) -> _SourceColumns:
        sides = [node.left, node.right]
        side_columns = [{c.name for c in side.columns} for side in sides]
        pairs = list(_equal_columns(node.condition, side_columns[0], side_columns[1]))
        only_left = node.join_type in ("semi", "anti", "existence")
        visible = [side_columns[0], set[str]() if only_left else side_columns[1]]
        bound = [{c: p for c, p in keys.items() if c in names} for names in visible]
        is_started = [any(p < self.min_key_columns for p in b.values()) for b in bound]
        side_restrictions = [_rename_restrictions({c: c for c in names}, restrictions) for names in visible]
        # The side that the key restricts by itself is visited first. In an outer join this may be the optional side:
        # padded rows have NULL there, so they do not have the requested key.
        first = 0 if is_started[0] or not (is_started[1] or (side_restrictions[1] and not side_restrictions[0])) else 1
        key_positions = [dict(b) for b in bound]
        for pair in pairs:
            first_column, second_column = pair[first], pair[1 - first]
            if first_column in bound[first]:
                key_positions[1 - first].setdefault(second_column, bound[first][first_column])
        offers = self.visit(sides[first], bound[first], side_restrictions[first])
        columns_by_step: dict[int, list[tuple[str, str]]] = {}
        for pair in pairs:
            if (offer := offers.get(pair[first])) is not None:
                columns_by_step.setdefault(offer[0], []).append((pair[1 - first], offer[1]))
        new_restrictions = [
            _Restriction(tuple(c for c, _ in column_pairs), step, tuple(n for _, n in column_pairs))
            for step, column_pairs in columns_by_step.items()
        ]
        second_offers = self.visit(
            sides[1 - first], key_positions[1 - first], [*side_restrictions[1 - first], *new_restrictions]
        )
        return dict(offers) if only_left else {**offers, **second_offers}


def _rename_restrictions(names: Mapping[str, str], restrictions: Sequence[_Restriction]) -> list[_Restriction]:
    """Return the restrictions with renamed columns, without columns that have no name below."""
    renamed = []
    for restriction in restrictions:
        pairs = [
            (names[c], n) for c, n in zip(restriction.columns, restriction.source_columns, strict=True) if c in names
        ]
        if pairs:
            renamed.append(_Restriction(tuple(c for c, _ in pairs), restriction.step, tuple(n for _, n in pairs)))
    return renamed


def _plain_column(expr: Expr) -> str | None:
    return str(expr.value) if expr.op == "column" else None


def _expanded_columns(node: Expand) -> dict[str, str | None]:
    """Return the columns of grouping sets that, wherever they are not NULL, equal one column of the child."""
    columns: dict[str, str | None] = {}
    for index, column in enumerate(node.output):
        sources = {
            _plain_column(p[index])
            for p in node.projections
            if not (p[index].op == "literal" and p[index].value is None)
        }
        columns[column.name] = sources.pop() if len(sources) == 1 else None
    return columns


def _equal_columns(condition: Expr | None, left: set[str], right: set[str]) -> Iterator[tuple[str, str]]:
    """Return the pairs of columns that a join's condition equates, except for floats."""
    if condition is None:
        return
    if condition.op == "And":
        for part in condition.args:
            yield from _equal_columns(part, left, right)
        return
    if condition.op != "EqualTo" or condition.args[0].type in types.FLOATS:
        return
    first, second = (_plain_column(e) for e in condition.args)
    if first in left and second in right:
        yield first, second
    elif first in right and second in left:
        yield second, first
