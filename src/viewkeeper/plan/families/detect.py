"""Detect view families: views whose plans differ only in constants that conditions compare.

    filter x < 5 ─ scan t          is          filter x < :¤p0 ─ scan t          with 5 for ¤p0

A literal that a condition of a filter or a join compares with an expression over columns becomes a parameter; every
other literal is part of the template. Plans are compared after Catalyst's optimisation, so its folding, casts and moves
need not be predicted: two views have the same template if their plans with parameters are equal, over the same tables.
The plan of all members is the lifted template (`lift`), and a member's rows are those of its values.

A view is not made a member if the family could behave differently from the separate views:

- An expression can fail on a row. In a family it would be evaluated on rows that only other members read, and would
  stop all of them. Exempt are sums, differences and products of decimals, which fail only if 38 digits are too few.
- LIMIT and windows choose among ties, and a family might choose differently.
- Literals whose type cannot be a key's, which are NULL or NaN, or which are long.
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
"""Maximum number of parameters of a family: each is part of every key."""
_MAX_DEPTH = 40
_MAX_TEXT_LENGTH = 200
"""Maximum length of a text parameter, which is part of every key of its member."""


@dataclass(frozen=True)
class QueryTemplate:
    """A plan with parameters in place of literals, and the literals' values."""

    query: Query
    types: tuple[Type, ...]
    values: tuple[Any, ...]
    template_key: str
    """Equal for the plans of one template, and only for those."""

    @property
    def parameters(self) -> tuple[Column, ...]:
        return tuple(Column(_parameter_name(i), t, nullable=False) for i, t in enumerate(self.types))

    @property
    def bound_query(self) -> Query:
        """The plan with its literals, as before."""
        literals = {
            _parameter_name(i): Expr("literal", t, value=v, nullable=False)
            for i, (t, v) in enumerate(zip(self.types, self.values, strict=True))
        }
        return Query(_bind_node(self.query.root, literals), self.query.output)

    def to_json(self) -> dict[str, Any]:
        """Return the plan with its parameters. Their types are in the table of parameters, their values in its rows."""
        return ViewPlan(self.query, {}).to_json()

    def with_values(self, values: Sequence[Any]) -> QueryTemplate | None:
        """Return the template with other values; None if one of them cannot be a parameter."""
        if not all(can_be_parameter(t, v) for t, v in zip(self.types, values, strict=True)):
            return None
        return replace(self, values=tuple(values))


def make_query_template(query: Query, key: Sequence[str] = ()) -> QueryTemplate | None:
    """Return a query as a family member with its parameters; None if it has none, or must stay separate.

    `key`: the columns that the statement names as its key.
    """
    if any(node.kind not in _NODES for node in query.root.walk()) or not _is_error_free(query.root):
        return None
    builder = _TemplateBuilder([], [])
    root = builder.open_node(query.root)
    if not 0 < len(builder.values) <= _MAX_PARAMETERS:
        return None
    identity = [nodes.node_to_json(root), [[name, c.name, str(c.type), c.nullable] for name, c in query.output], [*key]]
    template = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return QueryTemplate(Query(root, query.output), tuple(builder.types), tuple(builder.values), template)


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
        """Replace compared literals by parameters; other expressions, and those nested too deeply, stay unchanged."""
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
    """Whether a literal can be a parameter: its type can be a key's, and it is neither NULL nor NaN nor too long."""
    if value is None:
        return False
    if types.is_float(type_):
        return not math.isnan(float(value))
    if type_ == types.STRING:
        return len(value) <= _MAX_TEXT_LENGTH
    return types.is_integer(type_) or bool(types.decimal_digits(type_)) or type_ in (types.DATE, *types.TIMES)


def _is_error_free(root: Node) -> bool:
    """Whether no expression of a plan can fail on a row, except for decimals with too many digits."""
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
    """Return the expressions of a node itself, without those of its children."""
    match value:
        case Expr():
            yield value
        case Named(_, expr) | Order(expr):
            yield expr
        case Call():
            yield from value.args
            yield from [value.filter] if value.filter is not None else []
        case tuple():
            for item in value:
                if not isinstance(item, Node):
                    yield from _expressions(item)
        case Node():
            for f in fields(value):
                field_value = getattr(value, f.name)
                if not isinstance(field_value, Node):
                    yield from _expressions(field_value)
        case _:
            return
