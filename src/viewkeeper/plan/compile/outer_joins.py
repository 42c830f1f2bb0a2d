"""Joins that are no part of a flattened tree (`flatten`): full outer joins, and those that compare rows of a key.

    X ⟗ R = (X ⟕ R) + pad(R ▷ X)

Each term is a join that is taken apart; X and R are compiled once, and both terms read their deltas. With a condition
over both sides, one that can raise, or no equality at all, the rows of a key are compared with each other: `slices`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from viewkeeper.plan.compile import per_key
from viewkeeper.plan.compile.branch import Branch, Given, reference
from viewkeeper.plan.compile.join_tree import is_by_key
from viewkeeper.plan.logical.nodes import Expr, Join, Named, Node

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler


def join(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    if node.how == "full" and is_by_key(node):
        return _full(compiler, node, needed)
    return per_key.join(compiler, node, needed)


def _full(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    used = needed if node.condition is None else needed | node.condition.columns()
    left, right = _given(compiler, node.left, used), _given(compiler, node.right, used)
    matched = compiler.compile(replace(node, how="left", left=left, right=right), needed)
    own = frozenset(c.name for c in right.columns) & needed
    unmatched = compiler.compile(replace(node, how="anti", left=right, right=left), own)
    columns = [Named(c.name, Expr("literal", c.type)) for c in left.columns if c.name in needed]
    columns += [Named(c.name, reference(c)) for c in right.columns if c.name in needed]
    return [*matched, *(b.projected(columns) for b in unmatched)]


def _given(compiler: Compiler, node: Node, used: frozenset[str]) -> Given:
    columns = frozenset(c.name for c in node.columns) & used
    return Given(node, tuple(compiler.compile(node, columns)))
