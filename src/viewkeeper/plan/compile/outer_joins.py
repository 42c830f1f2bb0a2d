"""Compile joins that `join_tree` does not flatten: full outer joins, and joins that must compare the rows of a key.

    X ⟗ R = (X ⟕ R) + pad(R ▷ X)

Both terms are joins that can be flattened. X and R are compiled once, and both terms read their deltas. If a condition
spans both sides, can raise, or contains no equality, the join is recomputed per key (`per_key`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from viewkeeper.plan.compile import per_key
from viewkeeper.plan.compile.branch import Branch, CompiledNode, column_reference
from viewkeeper.plan.compile.join_tree import is_by_key
from viewkeeper.plan.logical.nodes import Expr, Join, Named, Node

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler


def compile_outer_join(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    """Compile a join that is not flattened."""
    if node.join_type == "full" and is_by_key(node):
        return _compile_full_join(compiler, node, needed)
    return per_key.compile_per_key_join(compiler, node, needed)


def _compile_full_join(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    used = needed if node.condition is None else needed | node.condition.columns()
    left, right = _compile_once(compiler, node.left, used), _compile_once(compiler, node.right, used)
    matched = compiler.compile(replace(node, join_type="left", left=left, right=right), needed)
    own = frozenset(c.name for c in right.columns) & needed
    unmatched = compiler.compile(replace(node, join_type="anti", left=right, right=left), own)
    columns = [Named(c.name, Expr("literal", c.type)) for c in left.columns if c.name in needed]
    columns += [Named(c.name, column_reference(c)) for c in right.columns if c.name in needed]
    return [*matched, *(b.project(columns) for b in unmatched)]


def _compile_once(compiler: Compiler, node: Node, used: frozenset[str]) -> CompiledNode:
    columns = frozenset(c.name for c in node.columns) & used
    return CompiledNode(node, tuple(compiler.compile(node, columns)))
