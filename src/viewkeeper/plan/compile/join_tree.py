"""Flatten a tree of joins into one list of relations.

Adjacent inner joins form one n-ary join. A left outer join or an anti join adds its right side to the list as an
*optional* relation: each row of the join so far is looked up in it. A left join keeps the row (padded with NULLs if
there is no match), an anti join drops it if there is a match. Both are linear in their left side, so filters,
projections and further joins above them still apply row by row.

If a backwards lookup, from the right side's key to the rows of the left side, could not find all of them, the left side
becomes a relation of its own, arranged by that key. This is so for:

    a key that spans several relations, such as the coalesced key of `FULL JOIN … USING`
    a key over an optional relation that matches NULL: a null-safe comparison, or an expression such as `coalesce(x, 0)`
    a condition below the join that can raise: it must see the same rows as in Spark

The right side of an outer join is always one relation: `A ⟕ (B ⋈ C)` is not `(A ⟕ B) ⟕ C`. Joins without an equality or
with a condition that can raise, and anti joins with a condition over both sides, are not flattened (`per_key`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from viewkeeper.errors import Defect
from viewkeeper.model import types
from viewkeeper.model.schema import Column, Table
from viewkeeper.plan.compile.branch import can_any_raise, column_reference, conjunction, conjuncts, substitute
from viewkeeper.plan.logical.nodes import (
    Aggregate,
    Call,
    Consolidation,
    Expr,
    Filter,
    Join,
    Named,
    Node,
    Project,
    column,
)
from viewkeeper.plan.logical.unique_keys import unique_keys
from viewkeeper.plan.rules.join_keys import KeyProjection, add_key_columns

Tables = Mapping[int, Table]

_TRUE = Expr("literal", types.BOOLEAN, value=True, nullable=False)


@dataclass(frozen=True)
class JoinInput:
    """One relation. `join_type`: inner; left (rows without a match get NULLs); anti (rows with a match are dropped).

    For left and anti, `on` decides on a match, over the columns of the relations before it and of its own.
    """

    node: Node
    join_type: str = "inner"
    on: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class FlatJoin:
    """A flattened tree: its relations, the conditions on their rows, and its columns over the relations' columns."""

    inputs: tuple[JoinInput, ...]
    conditions: tuple[Expr, ...]
    columns: Mapping[str, Expr]

    @property
    def is_join(self) -> bool:
        return len(self.inputs) > 1

    def inputs_of(self, expr: Expr) -> list[JoinInput]:
        """Return the relations whose columns an expression over the tree's columns uses."""
        names = substitute(expr, self.columns).columns()
        return [s for s in self.inputs if not names.isdisjoint(c.name for c in s.node.columns)]


def make_leaf(node: Node) -> FlatJoin:
    """Return a tree that consists of one relation."""
    return FlatJoin((JoinInput(node),), (), {c.name: column_reference(c) for c in node.columns})


def flatten(node: Node, tables: Tables | None = None) -> FlatJoin:
    """Flatten a tree of joins. Without `tables`, outer and anti joins remain relations."""
    if isinstance(node, Join):
        return _flatten_join(add_key_columns(node), tables)
    if isinstance(node, Filter) or (isinstance(node, Project) and not isinstance(node, KeyProjection)):
        flat = flatten(node.child, tables)
        if not flat.is_join:
            return make_leaf(node)
        if isinstance(node, Project):
            return replace(flat, columns={n.name: substitute(n.expr, flat.columns) for n in node.exprs})
        return replace(flat, conditions=(*flat.conditions, *_resolve_exprs(conjuncts(node.condition), flat.columns)))
    return make_leaf(node)


def _flatten_join(node: Join, tables: Tables | None) -> FlatJoin:
    if node.join_type == "inner":
        return _flatten_inner(node, tables)
    if node.join_type == "semi" and find_only_equalities(node):
        return flatten(as_inner_join(node), tables)
    if tables is None:
        return make_leaf(node)
    if node.join_type == "right":
        node = replace(node, join_type="left", left=node.right, right=node.left)
    if node.join_type == "anti" and (sides := null_aware_sides(node)) is not None:
        return flatten(rewrite_not_in(node, *sides), tables)
    if node.join_type == "left":
        return _flatten_optional(node, tables)
    if node.join_type == "anti":
        return _flatten_optional(node, tables) if is_by_key(node) else make_leaf(node)
    if node.join_type == "existence" and is_by_key(node):
        return flatten(_as_left_join(node, tables), tables)
    return make_leaf(node)


def _flatten_inner(node: Join, tables: Tables | None) -> FlatJoin:
    left, right = flatten(node.left, tables), flatten(node.right, tables)
    for a, b, _ in _find_equalities(node):
        left = left if _is_inner_key(left, a) else make_leaf(node.left)
        right = right if _is_inner_key(right, b) else make_leaf(node.right)
    columns = {**left.columns, **right.columns}
    own_conditions = _resolve_exprs(conjuncts(node.condition), columns)
    return FlatJoin((*left.inputs, *right.inputs), (*left.conditions, *right.conditions, *own_conditions), columns)


def _flatten_optional(node: Join, tables: Tables) -> FlatJoin:
    """Flatten a left outer or anti join with its right side as an optional relation."""
    on = conjuncts(node.condition)
    pairs = _find_equalities(node)
    if not pairs or can_any_raise(on):
        return make_leaf(node)
    right_columns = {c.name for c in node.right.columns}
    right_only = [c for c in on if c.columns() and c.columns() <= right_columns]
    right = node.right if not right_only else Filter(node.right, conjunction(right_only) or _TRUE)
    on = tuple(c for c in on if c not in right_only)
    if node.join_type == "anti":
        right, on = _project_keys(right, pairs, on, tables)
    flat = flatten(node.left, tables)
    if can_any_raise(flat.conditions) or not all(_is_key(flat, a, safe) for a, _, safe in pairs):
        flat = make_leaf(node.left)
    columns = dict(flat.columns)
    padded_columns = {c.name: column_reference(Column(c.name, c.type)) for c in right.columns}
    source = JoinInput(right, node.join_type, _resolve_exprs(on, {**columns, **padded_columns}))
    return FlatJoin(
        (*flat.inputs, source), flat.conditions, columns if node.join_type == "anti" else {**columns, **padded_columns}
    )


def _is_inner_key(flat: FlatJoin, expr: Expr) -> bool:
    touched = flat.inputs_of(expr)
    return len(touched) < 2 and all(s.join_type == "inner" for s in touched)


def _is_key(flat: FlatJoin, expr: Expr, null_safe: bool) -> bool:
    """Whether a lookup by this side of an equality finds all rows of the left side that have its value."""
    touched = flat.inputs_of(expr)
    if len(touched) != 1:
        return False
    return touched[0].join_type == "inner" or (substitute(expr, flat.columns).op == "column" and not null_safe)


def _resolve_exprs(exprs: Iterable[Expr], columns: Mapping[str, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(e, columns) for e in exprs)


# -- equalities -------------------------------------------------------------------------------------------------------


def _find_equalities(node: Join) -> list[tuple[Expr, Expr, bool]]:
    """Return (left, right, null-safe) for each part of the condition that is an equality between the sides."""
    left, right = ({c.name for c in side.columns} for side in (node.left, node.right))
    equalities = []
    for condition in conjuncts(node.condition):
        if condition.op not in ("EqualTo", "EqualNullSafe") or can_any_raise([condition]):
            continue
        a, b = condition.args
        if a.columns() and b.columns() and a.columns() <= right and b.columns() <= left:
            a, b = b, a
        if a.columns() and b.columns() and a.columns() <= left and b.columns() <= right:
            equalities.append((a, b, condition.op == "EqualNullSafe"))
    return equalities


def find_only_equalities(node: Join) -> list[tuple[Expr, Expr, bool]] | None:
    """Return the equalities if the whole condition consists of them, else None."""
    equalities = _find_equalities(node)
    return equalities if equalities and len(equalities) == len(conjuncts(node.condition)) else None


def is_by_key(node: Join) -> bool:
    """Whether a match depends on the key's presence alone: only equalities span both sides."""
    pairs, on = _find_equalities(node), conjuncts(node.condition)
    left, right = ({c.name for c in side.columns} for side in (node.left, node.right))
    across = [c for c in on if c.columns() & left and c.columns() & right]
    return bool(pairs) and len(across) == len(pairs) and not can_any_raise(on)


# -- rewriting joins as other joins -----------------------------------------------------------------------------------


def as_inner_join(node: Join) -> Node:
    """Rewrite a semi join on equalities as an inner join with the distinct keys of its right side."""
    pairs = find_only_equalities(node)
    if pairs is None:
        raise Defect("A semi join that is no join on equalities was taken for one.")
    keys = _key_exprs(node.right, pairs)
    joined = Join("inner", node.left, Aggregate(node.right, keys, ()), conjunction(_equality_conditions(pairs, keys)))
    return Project(joined, tuple(Named(c.name, column_reference(c)) for c in node.left.columns))


def _as_left_join(node: Join, tables: Tables) -> Node:
    """Rewrite an existence join as a left join with the distinct keys of its right side and a flag."""
    if node.existence_column is None:
        raise Defect("An existence join has no column for what it found.")
    pairs, on = _find_equalities(node), conjuncts(node.condition)
    right_columns = {c.name for c in node.right.columns}
    right_only = [c for c in on if c.columns() and c.columns() <= right_columns]
    right = node.right if not right_only else Filter(node.right, conjunction(right_only) or _TRUE)
    keys, on = _project_keys(right, pairs, tuple(c for c in on if c not in right_only), tables)
    flag = Column(f"{node.right.columns[0].name}!exists", types.BOOLEAN)
    flagged = Project(keys, (*(Named(c.name, column_reference(c)) for c in keys.columns), Named(flag.name, _TRUE)))
    joined = Join("left", node.left, flagged, conjunction(on))
    exists = Named(node.existence_column, Expr("IsNotNull", types.BOOLEAN, (column_reference(flag),), nullable=False))
    return Project(joined, (*(Named(c.name, column_reference(c)) for c in node.left.columns), exists))


def _project_keys(
    right: Node, pairs: list[tuple[Expr, Expr, bool]], on: tuple[Expr, ...], tables: Tables
) -> tuple[Node, tuple[Expr, ...]]:
    """Return a plan of the distinct keys of a right side, and the join condition over them."""
    keys = _key_exprs(right, pairs)
    plain = {k.expr.value for k in keys if k.expr.op == "column"}
    is_unique = any(key and set(key) <= plain for key in unique_keys(right, tables))
    right_columns = {c.name for c in right.columns}
    other_conditions = [c for c in on if not c.columns() & right_columns]
    return Project(right, keys) if is_unique else Aggregate(right, keys, ()), (
        *_equality_conditions(pairs, keys),
        *other_conditions,
    )


def _key_exprs(right: Node, pairs: list[tuple[Expr, Expr, bool]]) -> tuple[Named, ...]:
    base = right.columns[0].name
    return tuple(Named(f"{base}!{i}", side) for i, (_, side, _) in enumerate(pairs))


def _equality_conditions(pairs: list[tuple[Expr, Expr, bool]], keys: tuple[Named, ...]) -> list[Expr]:
    return [
        Expr("EqualNullSafe" if safe else "EqualTo", types.BOOLEAN, (a, column(k.name, k.expr.type, k.expr.nullable)))
        for (a, _, safe), k in zip(pairs, keys, strict=True)
    ]


def null_aware_sides(node: Join) -> tuple[Expr, Expr] | None:
    """Return the two sides of NOT IN, which Catalyst writes as (l = r) OR isnull(l = r); else None."""
    parts = conjuncts(node.condition)
    null_aware = [p for p in parts if p.op == "Or" and p.args[1].op == "IsNull" and p.args[1].args[0] == p.args[0]]
    if len(null_aware) != 1 or null_aware[0].args[0].op != "EqualTo" or len(parts) > 1:
        return None
    pairs = find_only_equalities(replace(node, condition=null_aware[0].args[0]))
    return None if pairs is None else (pairs[0][0], pairs[0][1])


def rewrite_not_in(node: Join, left: Expr, right: Expr) -> Node:
    """Rewrite NOT IN as the anti join by key and two facts: whether the right side is empty, and whether it has
    a NULL."""
    base = node.right.columns[0].name
    rows, present = f"{base}!rows", f"{base}!present"
    one = Expr("literal", types.INT, value=1, nullable=False)
    calls = (
        Call(rows, "Count", (one,), types.BIGINT, nullable=False),
        Call(present, "Count", (right,), types.BIGINT, nullable=False),
    )
    count, present_count = column(rows, types.BIGINT, False), column(present, types.BIGINT, False)
    zero = Expr("literal", types.BIGINT, value=0, nullable=False)
    empty, null_free = f"{base}!empty", f"{base}!whole"
    # Two booleans instead of the counts: they rarely change, and the consolidation stops a delta that cancels.
    facts = Project(
        Aggregate(node.right, (), calls),
        (
            Named(empty, Expr("EqualTo", types.BOOLEAN, (count, zero), nullable=False)),
            Named(null_free, Expr("EqualTo", types.BOOLEAN, (count, present_count), nullable=False)),
        ),
    )
    anti = Join("anti", node.left, node.right, Expr("EqualTo", types.BOOLEAN, (left, right)))
    is_empty, is_null_free = column(empty, types.BOOLEAN, False), column(null_free, types.BOOLEAN, False)
    keyed = Expr("IsNotNull", types.BOOLEAN, (left,), nullable=False)
    condition = Expr(
        "Or",
        types.BOOLEAN,
        (is_empty, Expr("And", types.BOOLEAN, (is_null_free, keyed), nullable=False)),
        nullable=False,
    )
    return Filter(Join("inner", anti, Consolidation(facts), None), condition)
