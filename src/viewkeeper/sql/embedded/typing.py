"""Expressions of a query with the types that Spark gives them.

Spark's analyser converts where types differ. Only conversions that lose nothing are made here: integers to wider ones,
numbers to a decimal or a double that holds what is compared, a text constant that meets a date or time. An operand that
is itself a comparison is left to Spark too: there the two grammars could bind otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from viewkeeper.model import types
from viewkeeper.model.types import Type
from viewkeeper.plan.logical.nodes import Call, Expr, column
from viewkeeper.sql.embedded.coercion import INTEGERS, MOST_DIGITS, NoColumn, NotProven, cast, common, fitted, in_digits


@dataclass(frozen=True)
class Field:
    """A column that a query may name: of which relation, by which name, and what it is called inside."""

    relation: str
    name: str
    inside: str
    type: Type
    nullable: bool

    @property
    def expr(self) -> Expr:
        return column(self.inside, self.type, self.nullable)


Aggregate = Callable[[Call], Expr]
"""Takes an aggregate call and gives the column that holds its result."""


@dataclass(frozen=True)
class Scope:
    """What an expression may refer to. `aggregate` is None where no aggregate may stand."""

    fields: tuple[Field, ...]
    aggregate: Aggregate | None = None

    def find(self, names: Sequence[str]) -> Field | None:
        *relation, name = (n.lower() for n in names)
        if len(relation) > 1:
            raise NotProven("a name of more than two parts")
        there = [
            f for f in self.fields if f.name.lower() == name and (not relation or f.relation.lower() == relation[0])
        ]
        if len(there) > 1:
            raise NotProven(f"{name} is ambiguous")
        return there[0] if there else None

    def read(self, node: Mapping[str, Any]) -> Expr:
        """The expression that a node of the parser's tree stands for."""
        known = _READERS.get(node["class"])
        if known is None:
            raise NotProven(f"{node['class']} is not known here")
        return known(self, node)


def _column(scope: Scope, node: Mapping[str, Any]) -> Expr:
    found = scope.find(node["column_names"])
    if found is None:
        raise NoColumn(f"there is no column {'.'.join(node['column_names'])}")
    return found.expr


def _constant(scope: Scope, node: Mapping[str, Any]) -> Expr:
    kind, text = node["literal"].get("kind"), node["literal"].get("text", "")
    if kind == "INTEGER":
        return integer(int(text))
    if kind == "STRING":
        return Expr("literal", types.STRING, value=text, nullable=False)
    if kind == "BOOLEAN":
        return Expr("literal", types.BOOLEAN, value=text == "true", nullable=False)
    if kind == "NUMERIC" and "e" in text.lower():
        return Expr("literal", types.DOUBLE, value=repr(float(text)), nullable=False)
    if kind == "NUMERIC":
        return _decimal(text)
    raise NotProven(f"a constant of kind {kind}")


def integer(value: int) -> Expr:
    for type_, bits in ((types.INT, 31), (types.BIGINT, 63)):
        if abs(value) < 1 << bits:
            return Expr("literal", type_, value=value, nullable=False)
    raise NotProven(f"the number {value}")


def _decimal(text: str) -> Expr:
    _, digits, exponent = Decimal(text).as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if scale < 0 or precision > MOST_DIGITS:
        raise NotProven(f"the number {text}")
    return Expr("literal", types.decimal(precision, scale), value=text, nullable=False)


# -- conditions --------------------------------------------------------------------------------------------------------

_COMPARED = {
    "COMPARE_EQUAL": "EqualTo",
    "COMPARE_LESSTHAN": "LessThan",
    "COMPARE_LESSTHANOREQUALTO": "LessThanOrEqual",
    "COMPARE_GREATERTHAN": "GreaterThan",
    "COMPARE_GREATERTHANOREQUALTO": "GreaterThanOrEqual",
}


def _comparison(scope: Scope, node: Mapping[str, Any]) -> Expr:
    left, right = scope.read(_operand(node["left"])), scope.read(_operand(node["right"]))
    if node["type"] == "COMPARE_NOTEQUAL":
        return _not(_compared("EqualTo", left, right))
    if node["type"] not in _COMPARED:
        raise NotProven(f"{node['type']} is not known here")
    return _compared(_COMPARED[node["type"]], left, right)


def _operand(node: Any) -> Any:
    if node["class"] in ("COMPARISON", "BETWEEN", "CONJUNCTION") or node["type"] in (
        "OPERATOR_NOT",
        "COMPARE_IN",
        "COMPARE_NOT_IN",
    ):
        raise NotProven("a condition as an operand")
    return node


def _compared(op: str, left: Expr, right: Expr) -> Expr:
    left, right = common(left, right)
    return Expr(op, types.BOOLEAN, (left, right), nullable=left.nullable or right.nullable)


def _not(expr: Expr) -> Expr:
    return Expr("Not", types.BOOLEAN, (_boolean(expr),), nullable=expr.nullable)


def _boolean(expr: Expr) -> Expr:
    if expr.type != types.BOOLEAN:
        raise NotProven("a condition that is no BOOLEAN")
    return expr


def _conjunction(scope: Scope, node: Mapping[str, Any]) -> Expr:
    op = {"CONJUNCTION_AND": "And", "CONJUNCTION_OR": "Or"}[node["type"]]
    parts = [_boolean(scope.read(child)) for child in node["children"]]
    found = parts[0]
    for part in parts[1:]:
        found = Expr(op, types.BOOLEAN, (found, part), nullable=found.nullable or part.nullable)
    return found


def _between(scope: Scope, node: Mapping[str, Any]) -> Expr:
    value, low, high = (scope.read(_operand(node[part])) for part in ("input", "lower", "upper"))
    above, below = _compared("GreaterThanOrEqual", value, low), _compared("LessThanOrEqual", value, high)
    return Expr("And", types.BOOLEAN, (above, below), nullable=above.nullable or below.nullable)


def _operator(scope: Scope, node: Mapping[str, Any]) -> Expr:
    kind, children = node["type"], node["children"]
    if kind == "OPERATOR_NOT":
        return _not(scope.read(children[0]))
    args = [scope.read(_operand(child)) for child in children]
    if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        op = "IsNull" if kind == "OPERATOR_IS_NULL" else "IsNotNull"
        return Expr(op, types.BOOLEAN, (args[0],), nullable=False)
    if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
        if any(a.op != "literal" for a in args[1:]):
            raise NotProven("IN over something else than constants")
        args = list(common(*args))
        found = Expr("In", types.BOOLEAN, tuple(args), nullable=any(a.nullable for a in args))
        return found if kind == "COMPARE_IN" else _not(found)
    if kind == "OPERATOR_COALESCE":
        args = list(common(*args, texts=False))
        return Expr("Coalesce", args[0].type, tuple(args), nullable=all(a.nullable for a in args))
    raise NotProven(f"{kind} is not known here")


def _case(scope: Scope, node: Mapping[str, Any]) -> Expr:
    checks = node["case_checks"]
    whens = [_boolean(scope.read(c["when_expr"])) for c in checks]
    values = [scope.read(c["then_expr"]) for c in checks]
    otherwise = node.get("else_expr")
    if otherwise is not None and otherwise.get("literal", {}).get("kind") != "NULL_LITERAL":
        values.append(scope.read(otherwise))
    values = list(common(*values, texts=False))
    pairs = [part for pair in zip(whens, values, strict=False) for part in pair]
    nullable = len(values) == len(whens) or any(v.nullable for v in values)
    return Expr("CaseWhen", values[0].type, (*pairs, *values[len(whens) :]), nullable=nullable)


# -- values ------------------------------------------------------------------------------------------------------------

_ARITHMETIC = {"+": "Add", "-": "Subtract", "*": "Multiply", "/": "Divide", "%": "Remainder"}
_TEXTS = {"upper": "Upper", "lower": "Lower", "trim": "StringTrim"}
_PARTS = {"year": "Year", "month": "Month", "day": "DayOfMonth", "quarter": "Quarter"}
_SUMMED = {"count_star": "Count", "count": "Count", "sum": "Sum", "avg": "Average", "min": "Min", "max": "Max"}


def _function(scope: Scope, node: Mapping[str, Any]) -> Expr:
    name = node["function_name"].lower()
    if node.get("filter") or node["order_bys"].get("orders") or node.get("schema"):
        raise NotProven(f"{name} with clauses")
    if any(a.get("name") for a in node.get("arguments", ())):
        raise NotProven("named arguments")
    inputs = [_operand(a["expression"]) for a in node.get("arguments", ())]
    if name in _SUMMED:
        return _aggregated(scope, name, bool(node.get("distinct")), inputs)
    if node.get("distinct"):
        raise NotProven(f"{name} with DISTINCT")
    args = [scope.read(a) for a in inputs]
    types_ = [a.type for a in args]
    if name == "-" and len(args) == 1:
        return _negative(args[0])
    if name in _ARITHMETIC and len(args) == 2:
        return _arithmetic(_ARITHMETIC[name], *args)
    if name in _TEXTS and types_ == [types.STRING]:
        return Expr(_TEXTS[name], types.STRING, tuple(args), nullable=args[0].nullable)
    if name in ("length", "char_length") and types_ == [types.STRING]:
        return Expr("Length", types.INT, tuple(args), nullable=args[0].nullable)
    if name in _PARTS and types_ == [types.DATE]:
        return Expr(_PARTS[name], types.INT, tuple(args), nullable=args[0].nullable)
    if name in ("~~", "!~~") and types_ == [types.STRING, types.STRING] and args[1].op == "literal":
        if "\\" in str(args[1].value):
            raise NotProven("LIKE with an escape")
        like = Expr("Like", types.BOOLEAN, tuple(args), ("\\",), args[0].nullable)
        return like if name == "~~" else _not(like)
    raise NotProven(f"the function {name} of {', '.join(map(str, types_)) or 'nothing'}")


def _negative(value: Expr) -> Expr:
    if value.op != "literal" or value.type == types.STRING:
        raise NotProven("a minus before something else than a number")
    text = f"-{value.value}" if isinstance(value.value, str) else -value.value
    return Expr("literal", value.type, value=text, nullable=False)


def _arithmetic(op: str, left: Expr, right: Expr) -> Expr:
    nullable = left.nullable or right.nullable
    if left.type in INTEGERS and right.type in INTEGERS and op == "Divide":
        left, right = cast(left, types.DOUBLE), cast(right, types.DOUBLE)
    if (left.type in INTEGERS and right.type in INTEGERS) or left.type == right.type == types.DOUBLE:
        left, right = common(left, right)
        return Expr(op, left.type, (left, right), ("ANSI",), nullable)
    left, right = in_digits(left), in_digits(right)
    one, other = types.decimal_digits(left.type), types.decimal_digits(right.type)
    if one is None or other is None or op == "Remainder":
        raise NotProven(f"{op} of {left.type} and {right.type}")
    if op == "Multiply":
        precision, scale = one[0] + other[0] + 1, one[1] + other[1]
    elif op == "Divide":
        scale = max(6, one[1] + other[0] + 1)
        precision = one[0] - one[1] + other[1] + scale
    else:
        scale = max(one[1], other[1])
        precision = scale + max(one[0] - one[1], other[0] - other[1]) + 1
    return Expr(op, fitted(precision, scale), (left, right), ("ANSI",), nullable)


def _aggregated(scope: Scope, name: str, distinct: bool, inputs: Sequence[Any]) -> Expr:
    if scope.aggregate is None:
        raise NotProven(f"{name} where no aggregate may stand")
    args = tuple(Scope(scope.fields).read(i) for i in inputs)
    if len(args) != (0 if name == "count_star" else 1):
        raise NotProven(f"{name} of {len(args)} arguments")
    type_ = _summed_type(name, args[0].type if args else types.VOID, distinct)
    nullable = not name.startswith("count")
    mode = (("evalMode", "ANSI"),) if name in ("sum", "avg") else None
    return scope.aggregate(Call("", _SUMMED[name], args, type_, distinct, None, mode, nullable))


def _summed_type(name: str, type_: Type, distinct: bool) -> Type:
    digits = types.decimal_digits(type_)
    if distinct and (types.is_float(type_) or name != "count"):
        raise NotProven(f"{name}(DISTINCT …) of {type_}")
    if name.startswith("count"):
        return types.BIGINT
    if name in ("min", "max") and type_ not in (types.BOOLEAN, types.BINARY):
        return type_
    if name == "sum" and type_ in INTEGERS:
        return types.BIGINT
    if name == "sum" and digits is not None and digits[0] + 10 <= MOST_DIGITS:
        return types.decimal(digits[0] + 10, digits[1])
    if name == "avg" and type_ in (types.TINYINT, types.SMALLINT, types.INT):
        return types.DOUBLE
    if name == "avg" and digits is not None and digits[0] + 10 <= MOST_DIGITS:
        return types.decimal(digits[0] + 4, digits[1] + 4)
    raise NotProven(f"{name} of {type_}, which may depend on the order of rows")


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
        raise NotProven("TRY_CAST")
    value, written = scope.read(_operand(node["child"])), node["type_expr"]
    name = written["type_name"]
    digits = [int(c["literal"]["text"]) for c in written.get("children", ())]
    type_ = types.decimal(digits[0], digits[1]) if name == "DECIMAL" and len(digits) == 2 else _CASTS.get(name)
    if type_ is None:
        raise NotProven(f"a cast to {name}")
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
