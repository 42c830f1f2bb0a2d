"""Catalyst expressions as ours.

`op` is Catalyst's simple class name, `args` are its children in Catalyst's order, and `value` holds the constructor
fields that `FIELDS` lists for the class, in that order. Of a class that is not listed, plain text and boolean fields
are kept; the renderer refuses classes that it does not know. What says nothing about the value is stripped (Alias,
KnownNotNull, PromotePrecision). An attribute becomes the column that its id stands for among the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.model.schema import Column
from viewkeeper.plan.catalyst.tree import RawExpr
from viewkeeper.plan.nodes import Expr, Order, column

_ARITHMETIC = ("Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder", "Pmod")

FIELDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_ARITHMETIC, ("evalMode",)),
    "Cast": ("evalMode",),
    "UnaryMinus": ("failOnError",),
    "Abs": ("failOnError",),
    "CheckOverflow": ("nullOnOverflow",),
    "Round": ("ansiEnabled",),
    "BRound": ("ansiEnabled",),
    "RoundCeil": (),
    "RoundFloor": (),
    "Like": ("escapeChar",),
    "ILike": ("escapeChar",),
    "LikeAll": ("patterns",),
    "LikeAny": ("patterns",),
    "NotLikeAll": ("patterns",),
    "NotLikeAny": ("patterns",),
    "GetStructField": ("ordinal", "name"),
    "ElementAt": ("failOnError",),
    "Elt": ("failOnError",),
    "GetArrayItem": ("failOnError",),
    "MakeDate": ("failOnError",),
    "MakeTimestamp": ("failOnError",),
    "DateAddInterval": ("ansiEnabled",),
    "NextDay": ("failOnError",),
    "SubtractDates": ("legacyInterval",),
    "SubtractTimestamps": ("legacyInterval",),
    "TimestampAdd": ("unit",),
    "TimestampDiff": ("unit",),
    "ToUnixTimestamp": ("failOnError",),
    "UnixTimestamp": ("failOnError",),
    "GetTimestamp": ("failOnError",),
    "Conv": ("ansiEnabled",),
    "XxHash64": ("seed",),
    "Murmur3Hash": ("seed",),
}
"""Catalyst class: the constructor fields kept in `Expr.value`, in order. Modes are 'ANSI', 'TRY' or 'LEGACY'."""

CALL_FIELDS: Mapping[str, tuple[str, ...]] = {
    "Sum": ("evalMode",),
    "Average": ("evalMode",),
    "First": ("ignoreNulls",),
    "Last": ("ignoreNulls",),
    "Lead": ("ignoreNulls",),
    "Lag": ("ignoreNulls",),
    "NthValue": ("ignoreNulls",),
    "Percentile": ("reverse",),
    "PercentileCont": ("reverse",),
    "PercentileDisc": ("reverse",),
    "CovSample": ("nullOnDivideByZero",),
    "VarianceSamp": ("nullOnDivideByZero",),
    "StddevSamp": ("nullOnDivideByZero",),
}
"""The same for aggregate and window functions, kept in `Call.value` as (name, value) pairs."""

_TRANSPARENT = frozenset({"Alias", "PromotePrecision", "KnownFloatingPointNormalized", "KnownNullable"})
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "InSubquery", "ListQuery", "LateralSubquery", "OuterReference"})
_NOISE = frozenset({"class", "num-children", "dataType", "timeZoneId", "name", "qualifier"})

TRUE = Expr("literal", "boolean", value=True, nullable=False)
FALSE = Expr("literal", "boolean", value=False, nullable=False)


def null(type_: str) -> Expr:
    return Expr("literal", type_, value=None, nullable=True)


def raising(message: str, type_: str) -> Expr:
    """An error where a value of this type should be."""
    return Expr("RaiseError", type_, (Expr("literal", "string", value=message, nullable=False),))


Special = Callable[[RawExpr], Expr | None]
"""A node's own reading of some expressions (subqueries, aggregate calls); None for all others."""


@dataclass(frozen=True)
class Scope:
    """What an expression may refer to: columns by expression id, and the node's special cases."""

    columns: Mapping[int, Column]
    special: Special = lambda _: None

    def read(self, raw: RawExpr) -> Expr:
        if (found := self.special(raw)) is not None:
            return found
        if raw.op in _TRANSPARENT:
            return self.read(raw.args[0])
        if raw.op == "KnownNotNull":
            return replace(self.read(raw.args[0]), nullable=False)
        if raw.op == "AttributeReference":
            known = self.columns[raw.id]
            return column(known.name, known.type, known.nullable)
        if raw.op == "Literal":
            return Expr("literal", raw.type, value=literal_value(raw), nullable=raw.nullable)
        if raw.op in ("DynamicPruningSubquery", "DynamicPruningExpression"):
            return TRUE
        if raw.op in _SUBQUERIES:
            raise Unsupported(f"A subquery that Spark cannot turn into a join is not supported ({raw.op}).")
        args = tuple(self.read(a) for a in raw.args)
        if raw.op in ("StaticInvoke", "Invoke"):
            return Expr(_invoked(raw), raw.type, args[raw.op == "Invoke" :], None, raw.nullable)
        if raw.op == "RaiseError" and len(args) == 2 and args[1].op == "CreateMap" and len(args[1].args) == 2:
            return Expr("RaiseError", raw.type, (args[1].args[1],), None, True)  # map(errorMessage, text)
        return Expr(raw.op, raw.type, args, _parameters(raw), raw.nullable)

    def order(self, raw: RawExpr) -> Order:
        descending = scala_name(raw.fields["direction"]) == "Descending"
        return Order(self.read(raw.args[0]), descending, scala_name(raw.fields["nullOrdering"]) == "NullsLast")


def scala_name(value: Any) -> str:
    """The simple name of a Scala object or class in Spark's JSON."""
    return str(value.get("object", value.get("product-class"))).rsplit(".", 1)[-1].rstrip("$")


def _invoked(raw: RawExpr) -> str:
    """The Java method that an expression calls; of an evaluator object, with its class."""
    function = str(raw.fields["functionName"])
    if raw.op == "Invoke":
        return f"{raw.args[0].fields.get('value', raw.args[0].op)}".split("(")[0] + "." + function
    return function


def _parameters(raw: RawExpr) -> tuple[Any, ...] | None:
    if raw.op in FIELDS:
        return tuple(field_value(raw, name) for name in FIELDS[raw.op]) or None
    kept = [v for k, v in raw.fields.items() if k not in _NOISE and isinstance(v, (bool, str))]
    return tuple(kept) or None


def field_value(raw: RawExpr, name: str) -> Any:
    """A constructor field, from the JSON or, where that is null (enumerations, characters), from the JVM."""
    value = raw.fields.get(name)
    if isinstance(value, (bool, int, str)):
        return value
    if name == "evalMode" and "evalContext" in raw.fields:
        return str(raw.live.evalContext().evalMode().toString())
    if name == "name":  # an Option
        return None
    live = getattr(raw.live, name)()
    return live if live is None or isinstance(live, (bool, int, str)) else str(live.toString())


def literal_value(raw: RawExpr) -> Any:
    """A literal's value in the form that `nodes.Expr` describes."""
    text = raw.fields.get("value")
    if text is None:
        return None
    match raw.type:
        case "boolean":
            return text == "true"
        case "tinyint" | "smallint" | "int" | "bigint":
            return int(text)
        case "string":
            return str(text)
        case _:
            return internal_value(raw.live.value(), raw.type)


def internal_value(value: Any, type_: str) -> Any:
    """A value as Spark keeps it inside (days, microseconds, UTF8String, Decimal), in the form of a literal."""
    if value is None:
        return None
    if type_ in ("float", "double"):
        return repr(float(value))
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, (bool, int)):
        return value
    if type_ == "string" or type_.startswith("decimal"):
        return str(value.toString() if hasattr(value, "toString") else value)
    raise Unsupported(f"A constant of type {type_} is not supported.")


def conjuncts(condition: Expr | None) -> tuple[Expr, ...]:
    if condition is None or condition == TRUE:
        return ()
    if condition.op == "And":
        return (*conjuncts(condition.args[0]), *conjuncts(condition.args[1]))
    return (condition,)


_COMPARISONS = ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "In")
_SAFE = frozenset(
    {"column", "literal", *_COMPARISONS, "IsNull", "IsNotNull", "Not", "And", "Or", "NormalizeNaNAndZero"}
)


def conjunction(parts: tuple[Expr, ...]) -> Expr | None:
    """The parts with AND between them, in an order that does not depend on expression ids.

    Catalyst takes the conditions that it infers from a hash set. Those that cannot raise come first, sorted; the others
    keep their order, because one may guard the next (`x <> 0 AND 1 / x > 2`).
    """
    safe = sorted((p for p in set(parts) if all(e.op in _SAFE for e in p.walk())), key=_sort_key)
    rest = [p for p in dict.fromkeys(parts) if p not in set(safe)]
    result: Expr | None = None
    for part in (*safe, *rest):
        result = (
            part if result is None else Expr("And", "boolean", (result, part), None, result.nullable or part.nullable)
        )
    return result


def _sort_key(expr: Expr) -> tuple[Any, ...]:
    numbers = sorted(int(c[1:]) for c in expr.columns())
    return (expr.op not in ("IsNotNull",), numbers, expr.op, repr(expr))
