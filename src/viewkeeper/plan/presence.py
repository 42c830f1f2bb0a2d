"""Semi, anti and outer joins on equalities, by the presence of a key.

    L ⋉ R = L ⋈ distinct(R.key)        a key matters when its count leaves or reaches 0
    L ▷ R = L − L ⋉ R
    left outer = L ⋈ R + (L ▷ R padded with NULLs); right and full likewise
    exists     = L ⋉ R with TRUE + L ▷ R with FALSE
    NOT IN     = L ▷ R where R is empty, or R has no NULL and the key is not NULL

So they need no operator of their own: a distinct aggregate (counts by key), inner joins over shared arrangements, and
branches that are subtracted. With other conditions than equalities the rows of a key are compared: `slices.join`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from viewkeeper.errors import Defect
from viewkeeper.model import types
from viewkeeper.plan import slices
from viewkeeper.plan.branches import Branch, conjunction, conjuncts, raises, reference
from viewkeeper.plan.nodes import Aggregate, Call, Expr, Filter, Join, Named, Node, Project, Steady, column

if TYPE_CHECKING:
    from viewkeeper.plan.compiler import Compiler

_TRUE, _FALSE = (Expr("literal", types.BOOLEAN, value=v, nullable=False) for v in (True, False))


def join(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    """Any join but an inner one."""
    if node.how == "anti" and (facts := _null_aware(node)) is not None:
        return _not_in(compiler, node, *facts, needed)
    if equalities(node) is None:
        return slices.join(compiler, node, needed)
    if node.how == "semi":
        return compiler.compile(as_inner(node), needed)
    if node.how == "anti":
        return _unmatched(compiler, node, needed)
    if node.how == "existence":
        if node.exists is None:
            raise Defect("An existence join has no column for what it found.")
        columns = [Named(c.name, reference(c)) for c in node.left.columns if c.name in needed]
        inner = needed - {node.exists}
        matched = compiler.compile(as_inner(node), inner)
        unmatched = _unmatched(compiler, node, inner)
        return [b.projected([*columns, Named(node.exists, _TRUE)]) for b in matched] + [
            b.projected([*columns, Named(node.exists, _FALSE)]) for b in unmatched
        ]
    return _outer(compiler, node, needed)


def equalities(node: Join) -> list[tuple[Expr, Expr, bool]] | None:
    """(left, right, null-safe) for each part of the condition, None if one is no equality between the sides."""
    left, right = ({c.name for c in side.columns} for side in (node.left, node.right))
    found = []
    for condition in conjuncts(node.condition):
        if condition.op not in ("EqualTo", "EqualNullSafe") or raises([condition]):
            return None
        a, b = condition.args
        if a.columns() and b.columns() and a.columns() <= right and b.columns() <= left:
            a, b = b, a
        if not (a.columns() and b.columns() and a.columns() <= left and b.columns() <= right):
            return None
        found.append((a, b, condition.op == "EqualNullSafe"))
    return found or None


def as_inner(node: Join) -> Node:
    """A semi join on equalities as an inner join with the distinct keys of its right side."""
    pairs = equalities(node)
    if pairs is None:
        raise Defect("A semi join that is no join on equalities was taken for one.")
    base = node.right.columns[0].name
    keys = tuple(Named(f"{base}!{i}", right) for i, (_, right, _) in enumerate(pairs))
    condition = conjunction(
        [
            Expr(
                "EqualNullSafe" if safe else "EqualTo",
                types.BOOLEAN,
                (left, column(k.name, k.expr.type, k.expr.nullable)),
            )
            for (left, _, safe), k in zip(pairs, keys, strict=True)
        ]
    )
    joined = Join("inner", node.left, Aggregate(node.right, keys, ()), condition)
    return Project(joined, tuple(Named(c.name, reference(c)) for c in node.left.columns))


def _unmatched(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    """L − L ⋉ R."""
    matched = compiler.compile(as_inner(replace(node, how="semi", exists=None)), needed)
    return compiler.compile(node.left, needed) + [b.negated() for b in matched]


def _outer(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    inner = replace(node, how="inner")
    result = compiler.compile(inner, needed)
    if node.how in ("left", "full"):
        result += _padded(compiler, node, needed)
    if node.how in ("right", "full"):
        result += _padded(compiler, replace(node, left=node.right, right=node.left), needed)
    return result


def _padded(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    """The left rows without a match, with NULLs for the right columns."""
    own = frozenset(c.name for c in node.left.columns) & needed
    columns = [Named(c.name, reference(c)) for c in node.left.columns if c.name in needed]
    columns += [Named(c.name, Expr("literal", c.type)) for c in node.right.columns if c.name in needed]
    return [b.projected(columns) for b in _unmatched(compiler, node, own)]


def _null_aware(node: Join) -> tuple[Expr, Expr] | None:
    """The two sides of NOT IN as Catalyst writes it: (l = r) OR isnull(l = r)."""
    parts = conjuncts(node.condition)
    special = [p for p in parts if p.op == "Or" and p.args[1].op == "IsNull" and p.args[1].args[0] == p.args[0]]
    if len(special) != 1 or special[0].args[0].op != "EqualTo" or len(parts) > 1:
        return None
    pairs = equalities(replace(node, condition=special[0].args[0]))
    return None if pairs is None else (pairs[0][0], pairs[0][1])


def _not_in(compiler: Compiler, node: Join, left: Expr, right: Expr, needed: frozenset[str]) -> list[Branch]:
    """The anti join by key, beside two facts: is R empty, has R a NULL."""
    base = node.right.columns[0].name
    rows, present = f"{base}!rows", f"{base}!present"
    calls = (
        Call(rows, "Count", (Expr("literal", types.INT, value=1, nullable=False),), types.BIGINT, nullable=False),
        Call(present, "Count", (right,), types.BIGINT, nullable=False),
    )
    counts = Aggregate(node.right, (), calls)
    count, known = column(rows, types.BIGINT, False), column(present, types.BIGINT, False)
    zero = Expr("literal", types.BIGINT, value=0, nullable=False)
    empty, whole = f"{base}!empty", f"{base}!whole"
    # Two booleans instead of the counts: they rarely change, and what does not change is not passed on.
    facts = Project(
        counts,
        (
            Named(empty, Expr("EqualTo", types.BOOLEAN, (count, zero), nullable=False)),
            Named(whole, Expr("EqualTo", types.BOOLEAN, (count, known), nullable=False)),
        ),
    )
    anti = Join("anti", node.left, node.right, Expr("EqualTo", types.BOOLEAN, (left, right)))
    is_empty, is_whole = column(empty, types.BOOLEAN, False), column(whole, types.BOOLEAN, False)
    keyed = Expr("IsNotNull", types.BOOLEAN, (left,), nullable=False)
    condition = Expr(
        "Or", types.BOOLEAN, (is_empty, Expr("And", types.BOOLEAN, (is_whole, keyed), nullable=False)), nullable=False
    )
    return compiler.compile(Filter(Join("inner", anti, Steady(facts), None), condition), needed)
