"""Typing of a query's expressions as Spark types them.

Spark's analyser converts operands of different types. This module makes only conversions that lose nothing: integers to
wider ones, numbers to a decimal or a double that holds both, a text constant beside a date or time. An operand that is
itself a comparison is left to Spark, because the two grammars could bind it differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from viewkeeper.model import types
from viewkeeper.model.types import Type
from viewkeeper.plan.logical.nodes import Call, Expr, column
from viewkeeper.sql.embedded.coercion import (
    INTEGERS,
    MAX_DECIMAL_DIGITS,
    UnknownColumn,
    UnprovenQuery,
    bounded_decimal,
    cast,
    cast_to_decimal,
    coerce_to_common,
)


@dataclass(frozen=True)
class ScopeField:
    """A column that a query may name: its relation, its name, and its internal name."""

    relation: str
    name: str
    internal_name: str
    type: Type
    nullable: bool

    @property
    def expr(self) -> Expr:
        return column(self.internal_name, self.type, self.nullable)


AddAggregate = Callable[[Call], Expr]
"""Adds an aggregate call and returns the column that holds its result."""


@dataclass(frozen=True)
class Scope:
    """The names that an expression may use. `aggregate` is None where no aggregate is allowed."""

    fields: tuple[ScopeField, ...]
    aggregate: AddAggregate | None = None

    def find_field(self, names: Sequence[str]) -> ScopeField | None:
        *relation, name = (n.lower() for n in names)
        if len(relation) > 1:
            raise UnprovenQuery("a name of more than two parts")
        matching = [
            f for f in self.fields if f.name.lower() == name and (not relation or f.relation.lower() == relation[0])
        ]
        if len(matching) > 1:
            raise UnprovenQuery(f"{name} is ambiguous")
        return matching[0] if matching else None

    def read(self, node: Mapping[str, Any]) -> Expr:
        """The expression of a node of the parse tree."""
        reader = _READERS.get(node["class"])
        if reader is None:
            raise UnprovenQuery(f"{node['class']} is not known here")
        return reader(self, node)


def _column(scope: Scope, node: Mapping[str, Any]) -> Expr:
    found = scope.find_field(node["column_names"])
    if found is None:
        raise UnknownColumn(f"there is no column {'.'.join(node['column_names'])}")
    return found.expr


def _constant(scope: Scope, node: Mapping[str, Any]) -> Expr:
    kind, text = node["literal"].get("kind"), node["literal"].get("text", "")
    if kind == "INTEGER":
        return integer_literal(int(text))
    if kind == "STRING":
        return Expr("literal", types.STRING, value=text, nullable=False)
    if kind == "BOOLEAN":
        return Expr("literal", types.BOOLEAN, value=text == "true", nullable=False)
    if kind == "NUMERIC" and "e" in text.lower():
        return Expr("literal", types.DOUBLE, value=repr(float(text)), nullable=False)
    if kind == "NUMERIC":
        return _decimal_literal(text)
    raise UnprovenQuery(f"a constant of kind {kind}")


def integer_literal(value: int) -> Expr:
    for type_, bits in ((types.INT, 31), (types.BIGINT, 63)):
        if abs(value) < 1 << bits:
            return Expr("literal", type_, value=value, nullable=False)
    raise UnprovenQuery(f"the number {value}")


def _decimal_literal(text: str) -> Expr:
    _, digits, exponent = Decimal(text).as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if scale < 0 or precision > MAX_DECIMAL_DIGITS:
        raise UnprovenQuery(f"the number {text}")
    return Expr("literal", types.decimal(precision, scale), value=text, nullable=False)


# -- conditions --------------------------------------------------------------------------------------------------------

_COMPARISONS = {
    "COMPARE_EQUAL": "EqualTo",
    "COMPARE_LESSTHAN": "LessThan",
    "COMPARE_LESSTHANOREQUALTO": "LessThanOrEqual",
    "COMPARE_GREATERTHAN": "GreaterThan",
    "COMPARE_GREATERTHANOREQUALTO": "GreaterThanOrEqual",
}


def _comparison(scope: Scope, node: Mapping[str, Any]) -> Expr:
    left, right = scope.read(_check_operand(node["left"])), scope.read(_check_operand(node["right"]))
    if node["type"] == "COMPARE_NOTEQUAL":
        return _not(_compare("EqualTo", left, right))
    if node["type"] not in _COMPARISONS:
        raise UnprovenQuery(f"{node['type']} is not known here")
    return _compare(_COMPARISONS[node["type"]], left, right)


def _check_operand(node: Any) -> Any:
    if node["class"] in ("COMPARISON", "BETWEEN", "CONJUNCTION") or node["type"] in (
        "OPERATOR_NOT",
        "COMPARE_IN",
        "COMPARE_NOT_IN",
    ):
        raise UnprovenQuery("a condition as an operand")
    return node


def _compare(op: str, left: Expr, right: Expr) -> Expr:
    left, right = coerce_to_common(left, right)
    return Expr(op, types.BOOLEAN, (left, right), nullable=left.nullable or right.nullable)


def _not(expr: Expr) -> Expr:
    return Expr("Not", types.BOOLEAN, (_require_boolean(expr),), nullable=expr.nullable)


def _require_boolean(expr: Expr) -> Expr:
    if expr.type != types.BOOLEAN:
        raise UnprovenQuery("a condition that is no BOOLEAN")
    return expr


def _conjunction(scope: Scope, node: Mapping[str, Any]) -> Expr:
    op = {"CONJUNCTION_AND": "And", "CONJUNCTION_OR": "Or"}[node["type"]]
    parts = [_require_boolean(scope.read(child)) for child in node["children"]]
    found = parts[0]
    for part in parts[1:]:
        found = Expr(op, types.BOOLEAN, (found, part), nullable=found.nullable or part.nullable)
    return found


def _between(scope: Scope, node: Mapping[str, Any]) -> Expr:
    value, low, high = (scope.read(_check_operand(node[part])) for part in ("input", "lower", "upper"))
    above, below = _compare("GreaterThanOrEqual", value, low), _compare("LessThanOrEqual", value, high)
    return Expr("And", types.BOOLEAN, (above, below), nullable=above.nullable or below.nullable)


def _operator(scope: Scope, node: Mapping[str, Any]) -> Expr:
    kind, children = node["type"], node["children"]
    if kind == "OPERATOR_NOT":
        return _not(scope.read(children[0]))
    args = [scope.read(_check_operand(child)) for child in children]
    if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        op = "IsNull" if kind == "OPERATOR_IS_NULL" else "IsNotNull"
        return Expr(op, types.BOOLEAN, (args[0],), nullable=False)
    if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
        if any(a.op != "literal" for a in args[1:]):
            raise UnprovenQuery("IN over something else than constants")
        args = list(coerce_to_common(*args))
        found = Expr("In", types.BOOLEAN, tuple(args), nullable=any(a.nullable for a in args))
        return found if kind == "COMPARE_IN" else _not(found)
    if kind == "OPERATOR_COALESCE":
        args = list(coerce_to_common(*args, read_texts_as_dates=False))
        return Expr("Coalesce", args[0].type, tuple(args), nullable=all(a.nullable for a in args))
    raise UnprovenQuery(f"{kind} is not known here")


def _case(scope: Scope, node: Mapping[str, Any]) -> Expr:
    checks = node["case_checks"]
    whens = [_require_boolean(scope.read(c["when_expr"])) for c in checks]
    values = [scope.read(c["then_expr"]) for c in checks]
    else_node = node.get("else_expr")
    if else_node is not None and else_node.get("literal", {}).get("kind") != "NULL_LITERAL":
        values.append(scope.read(else_node))
    values = list(coerce_to_common(*values, read_texts_as_dates=False))
    pairs = [part for pair in zip(whens, values, strict=False) for part in pair]
    nullable = len(values) == len(whens) or any(v.nullable for v in values)
    return Expr("CaseWhen", values[0].type, (*pairs, *values[len(whens) :]), nullable=nullable)


# -- values ------------------------------------------------------------------------------------------------------------

_ARITHMETIC = {"+": "Add", "-": "Subtract", "*": "Multiply", "/": "Divide", "%": "Remainder"}
_TEXT_FUNCTIONS = {"upper": "Upper", "lower": "Lower", "trim": "StringTrim"}
_DATE_PARTS = {"year": "Year", "month": "Month", "day": "DayOfMonth", "quarter": "Quarter"}
_AGGREGATES = {"count_star": "Count", "count": "Count", "sum": "Sum", "avg": "Average", "min": "Min", "max": "Max"}


def _function(scope: Scope, node: Mapping[str, Any]) -> Expr:
    name = node["function_name"].lower()
    if node.get("filter") or node["order_bys"].get("orders") or node.get("schema"):
        raise UnprovenQuery(f"{name} with clauses")
    if any(a.get("name") for a in node.get("arguments", ())):
        raise UnprovenQuery("named arguments")
    inputs = [_check_operand(a["expression"]) for a in node.get("arguments", ())]
    if name in _AGGREGATES:
        return _aggregate(scope, name, bool(node.get("distinct")), inputs)
    if node.get("distinct"):
        raise UnprovenQuery(f"{name} with DISTINCT")
    args = [scope.read(a) for a in inputs]
    types_ = [a.type for a in args]
    if name == "-" and len(args) == 1:
        return _negate_literal(args[0])
    if name in _ARITHMETIC and len(args) == 2:
        return _arithmetic(_ARITHMETIC[name], *args)
    if name in _TEXT_FUNCTIONS and types_ == [types.STRING]:
        return Expr(_TEXT_FUNCTIONS[name], types.STRING, tuple(args), nullable=args[0].nullable)
    if name in ("length", "char_length") and types_ == [types.STRING]:
        return Expr("Length", types.INT, tuple(args), nullable=args[0].nullable)
    if name in _DATE_PARTS and types_ == [types.DATE]:
        return Expr(_DATE_PARTS[name], types.INT, tuple(args), nullable=args[0].nullable)
    if name in ("~~", "!~~") and types_ == [types.STRING, types.STRING] and args[1].op == "literal":
        if "\\" in str(args[1].value):
            raise UnprovenQuery("LIKE with an escape")
        like = Expr("Like", types.BOOLEAN, tuple(args), ("\\",), args[0].nullable)
        return like if name == "~~" else _not(like)
    raise UnprovenQuery(f"the function {name} of {', '.join(map(str, types_)) or 'nothing'}")


def _negate_literal(value: Expr) -> Expr:
    if value.op != "literal" or value.type == types.STRING:
        raise UnprovenQuery("a minus before something else than a number")
    text = f"-{value.value}" if isinstance(value.value, str) else -value.value
    return Expr("literal", value.type, value=text, nullable=False)


def _arithmetic(op: str, left: Expr, right: Expr) -> Expr:
    nullable = left.nullable or right.nullable
    if left.type in INTEGERS and right.type in INTEGERS and op == "Divide":
        left, right = cast(left, types.DOUBLE), cast(right, types.DOUBLE)
    if (left.type in INTEGERS and right.type in INTEGERS) or left.type == right.type == types.DOUBLE:
        left, right = coerce_to_common(left, right)
        return Expr(op, left.type, (left, right), ("ANSI",), nullable)
    left, right = cast_to_decimal(left), cast_to_decimal(right)
    left_digits, right_digits = types.decimal_digits(left.type), types.decimal_digits(right.type)
    if left_digits is None or right_digits is None or op == "Remainder":
        raise UnprovenQuery(f"{op} of {left.type} and {right.type}")
    if op == "Multiply":
        precision, scale = left_digits[0] + right_digits[0] + 1, left_digits[1] + right_digits[1]
    elif op == "Divide":
        scale = max(6, left_digits[1] + right_digits[0] + 1)
        precision = left_digits[0] - left_digits[1] + right_digits[1] + scale
    else:
        scale = max(left_digits[1], right_digits[1])
        precision = scale + max(left_digits[0] - left_digits[1], right_digits[0] - right_digits[1]) + 1
    return Expr(op, bounded_decimal(precision, scale), (left, right), ("ANSI",), nullable)


def _aggregate(scope: Scope, name: str, distinct: bool, inputs: Sequence[Any]) -> Expr:
    if scope.aggregate is None:
        raise UnprovenQuery(f"{name} where no aggregate may stand")
    args = tuple(Scope(scope.fields).read(i) for i in inputs)
    if len(args) != (0 if name == "count_star" else 1):
        raise UnprovenQuery(f"{name} of {len(args)} arguments")
    type_ = _aggregate_type(name, args[0].type if args else types.VOID, distinct)
    nullable = not name.startswith("count")
    mode = (("evalMode", "ANSI"),) if name in ("sum", "avg") else None
    return scope.aggregate(Call("", _AGGREGATES[name], args, type_, distinct, None, mode, nullable))


def _aggregate_type(name: str, type_: Type, distinct: bool) -> Type:
    digits = types.decimal_digits(type_)
    if distinct and (types.is_float(type_) or name != "count"):
        raise UnprovenQuery(f"{name}(DISTINCT …) of {type_}")
    if name.startswith("count"):
        return types.BIGINT
    if name in ("min", "max") and type_ not in (types.BOOLEAN, types.BINARY):
        return type_
    if name == "sum" and type_ in INTEGERS:
        return types.BIGINT
    if name == "sum" and digits is not None and digits[0] + 10 <= MAX_DECIMAL_DIGITS:
        return types.decimal(digits[0] + 10, digits[1])
    if name == "avg" and type_ in (types.TINYINT, types.SMALLINT, types.INT):
        return types.DOUBLE
    if name == "avg" and digits is not None and digits[0] + 10 <= MAX_DECIMAL_DIGITS:
        return types.decimal(digits[0] + 4, digits[1] + 4)
    raise UnprovenQuery(f"{name} of {type_}, which may depend on the order of rows")


_CASTS = {
    **{
        type_.sql: type_
        for type_ in (
            types.TINYINT,
            types.SMALLINT,
            types.BIGINT,
            types.DOUBLE,
            types.DATE,
            types.TIMESTAMP,
            types.BOOLEAN,
        )
    },
    "INT": types.INT,
    "INTEGER": types.INT,
    "STRING": types.STRING,
}


def _cast(scope: Scope, node: Mapping[str, Any]) -> Expr:
    if node.get("try_cast"):
        raise UnprovenQuery("TRY_CAST")
    value, type_node = scope.read(_check_operand(node["child"])), node["type_expr"]
    name = type_node["type_name"]
    digits = [int(c["literal"]["text"]) for c in type_node.get("children", ())]
    type_ = types.decimal(digits[0], digits[1]) if name == "DECIMAL" and len(digits) == 2 else _CASTS.get(name)
    if type_ is None:
        raise UnprovenQuery(f"a cast to {name}")
    return cast(value, type_)


_READERS: Mapping[str, Callable[[Scope, Mapping[str, Any]], Expr]] = {
    "COLUMN_REF": _column,
    "CONSTANT": _constant,
    "COMPARISON": _comparison,
    "CONJUNCTION": _conjunction,
    "BETWEEN": _between,
    "OPERATOR": _operator,
    "CASE": _case,
    "FUNCTION": _function,
    "CAST": _cast,
}
