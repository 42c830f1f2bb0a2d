"""Which views are members of one family: those whose plans differ only in constants that conditions compare.

    filter x < 5 ─ scan t          is          filter x < :¤p0 ─ scan t          with 5 for ¤p0

A literal that a condition of a filter or a join compares with something else stands open; every other literal is part
of the template. Plans are compared after Catalyst, so nothing that it folds, casts or moves is guessed at: two views
are of one template if their plans with open literals are the same, over the same tables. The plan of all members is
then that plan lifted (`lifting`), and a member's rows are those of its values.

A view stays apart where all members together could behave otherwise than each by itself:

- an expression that can fail on a row. Together it would be tried on rows that only others want, and stop all of them.
  Only sums, differences and products of decimals may: they fail where 38 digits are too few.
- LIMIT and windows, which choose among ties, and of which the choice would be another one;
- literals whose type is no key's, which are NULL or NaN, or which are long.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from viewkeeper import expressions
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Type
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.families.lift import PARAMETER
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Named, Node, Order, Query

_COMPARISONS = frozenset({"EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"})
_ARITHMETIC = frozenset({"Add", "Subtract", "Multiply"})
_NODES = frozenset({"scan", "filter", "project", "join", "aggregate", "union", "sort", "expand"})
_MAX_PARAMETERS = 12
"""Parameters of a family: each is part of every key."""
_MAX_DEPTH = 40
_MAX_TEXT_LENGTH = 200
"""Characters of a text that is part of every key of its member."""


@dataclass(frozen=True)
class QueryTemplate:
    """A plan whose open literals are parameters, and what they were."""

    query: Query
    types: tuple[Type, ...]
    values: tuple[Any, ...]
    template_key: str
    """The same for the plans of one template, and for no others."""

    @property
    def parameters(self) -> tuple[Column, ...]:
        return tuple(Column(_parameter_name(i), t, nullable=False) for i, t in enumerate(self.types))

    @property
    def bound_query(self) -> Query:
        """The plan as it was."""
        literals = {
            _parameter_name(i): Expr("literal", t, value=v, nullable=False)
            for i, (t, v) in enumerate(zip(self.types, self.values, strict=True))
        }
        return Query(_bind_node(self.query.root, literals), self.query.output)

    def to_json(self) -> dict[str, Any]:
        """The plan with its parameters; their types are those of the table of parameters, values its members have."""
        return ViewPlan(self.query, {}).to_json()

    def with_values(self, values: Sequence[Any]) -> QueryTemplate | None:
        """The same plan with other constants; None if one of them may not stand open."""
        if not all(can_be_parameter(t, v) for t, v in zip(self.types, values, strict=True)):
            return None
        return replace(self, values=tuple(values))


def make_query_template(query: Query, key: Sequence[str] = ()) -> QueryTemplate | None:
    """A query as a member of a family with these parameters; None if it has none, or stays apart.

    `key`: the columns that its statement names as its key.
    """
    if any(node.kind not in _NODES for node in query.root.walk()) or not _is_error_free(query.root):
        return None
    opening = _TemplateBuilder([], [])
    root = opening.open_node(query.root)
    if not 0 < len(opening.values) <= _MAX_PARAMETERS:
        return None
    said = [nodes.node_to_json(root), [[name, c.name, str(c.type), c.nullable] for name, c in query.output], [*key]]
    template = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return QueryTemplate(Query(root, query.output), tuple(opening.types), tuple(opening.values), template)


def _parameter_name(index: int) -> str:
    return f"¤p{index}"


@dataclass
class _TemplateBuilder:
    types: list[Type]
    values: list[Any]

    def open_node(self, node: Node) -> Node:
        changed: dict[str, Any] = {}
        for f in fields(node):
            value = getattr(node, f.name)
            if isinstance(value, Node):
                changed[f.name] = self.open_node(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], Node):
                changed[f.name] = tuple(map(self.open_node, value))
        if isinstance(node, nodes.Filter | nodes.Join) and node.condition is not None:
            changed["condition"] = self.open_condition(node.condition)
        return replace(node, **changed) if changed else node

    def open_condition(self, expr: Expr, depth: int = 0) -> Expr:
        """Open what is compared; a comparison within an expression of another kind, or far down, is left as it is."""
        if expr.op in ("And", "Or", "Not") and depth < _MAX_DEPTH:
            return replace(expr, args=tuple(self.open_condition(a, depth + 1) for a in expr.args))
        if expr.op not in _COMPARISONS:
            return expr
        left, right = expr.args
        if _is_parameter_literal(left) and right.columns():
            return replace(expr, args=(self.add_parameter(left), right))
        if _is_parameter_literal(right) and left.columns():
            return replace(expr, args=(left, self.add_parameter(right)))
        return expr

    def add_parameter(self, literal: Expr) -> Expr:
        self.types.append(literal.type)
        self.values.append(literal.value)
        return Expr(PARAMETER, literal.type, value=_parameter_name(len(self.values) - 1), nullable=False)


def _bind_node(node: Node, literals: Mapping[str, Expr]) -> Node:
    changed: dict[str, Any] = {}
    for f in fields(node):
        value = getattr(node, f.name)
        if isinstance(value, Node):
            changed[f.name] = _bind_node(value, literals)
        elif isinstance(value, tuple) and value and isinstance(value[0], Node):
            changed[f.name] = tuple(_bind_node(v, literals) for v in value)
        elif isinstance(value, Expr):
            changed[f.name] = _bind_expr(value, literals)
    return replace(node, **changed) if changed else node


def _bind_expr(expr: Expr, literals: Mapping[str, Expr]) -> Expr:
    if expr.op == PARAMETER:
        return literals[expr.value]
    return replace(expr, args=tuple(_bind_expr(a, literals) for a in expr.args)) if expr.args else expr


def _is_parameter_literal(expr: Expr) -> bool:
    return expr.op == "literal" and can_be_parameter(expr.type, expr.value)


def can_be_parameter(type_: Type, value: Any) -> bool:
    """Whether a literal can be a parameter: a value that keys have, and neither NULL nor NaN nor long."""
    if value is None:
        return False
    if types.is_float(type_):
        return not math.isnan(float(value))
    if type_ == types.STRING:
        return len(value) <= _MAX_TEXT_LENGTH
    return types.is_integer(type_) or bool(types.decimal_digits(type_)) or type_ in (types.DATE, *types.TIMES)


def _is_error_free(root: Node) -> bool:
    """Whether nothing in a plan fails on a row, but for decimals of too many digits."""
    for node in root.walk():
        for expr in _expressions(node):
            for part in expressions.failing(expr):
                if part.op not in _ARITHMETIC or not types.decimal_digits(part.type):
                    return False
        condition = node.condition if isinstance(node, nodes.Filter | nodes.Join) else None
        if condition is not None and expressions.can_raise(condition):
            return False
    return True


def _expressions(value: Any) -> Iterator[Expr]:
    """The expressions of a node itself."""
    match value:
        case Expr():
            yield value
        case Named(_, expr) | Order(expr):
            yield expr
        case Call():
            yield from value.args
            yield from [value.filter] if value.filter is not None else []
        case tuple():
            for one in value:
                if not isinstance(one, Node):
                    yield from _expressions(one)
        case Node():
            for f in fields(value):
                found = getattr(value, f.name)
                if not isinstance(found, Node):
                    yield from _expressions(found)
        case _:
            return
