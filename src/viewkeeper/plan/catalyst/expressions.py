"""Read Catalyst expressions as `nodes.Expr`.

`op` is Catalyst's simple class name, `args` are its children in Catalyst's order, and `value` holds the constructor
fields that `FIELDS` lists for the class, in that order. For a class that is not listed, text and boolean fields are
kept; for one that the renderer does not support, the SQL name, with which the renderer refuses it. Expressions that do
not affect the value are removed (Alias, KnownNotNull, PromotePrecision). An attribute becomes the input column with its
id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.expressions import OPS as SUPPORTED_OPS
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Family, Kind, Type
from viewkeeper.plan.catalyst.raw_tree import RawExpr
from viewkeeper.plan.logical.nodes import Expr, Order, column

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
"""Catalyst class → the constructor fields kept in `Expr.value`, in order. Modes are 'ANSI', 'TRY' or 'LEGACY'."""

CALL_FIELDS: Mapping[str, tuple[str, ...]] = {
    "Sum": ("evalMode",),
    "Average": ("evalMode",),
    "HyperLogLogPlusPlus": ("relativeSD",),
}
"""The same for aggregate and window functions, kept in `Call.value` as (name, value) pairs, with all boolean fields."""

_TRANSPARENT = frozenset({"Alias", "PromotePrecision", "KnownFloatingPointNormalized", "KnownNullable"})
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "InSubquery", "ListQuery", "LateralSubquery"})
_IGNORED_FIELDS = frozenset({"class", "num-children", "dataType", "timeZoneId", "name", "qualifier"})

_LIKE_LISTS = {
    "LikeAll": ("And", False),
    "NotLikeAll": ("And", True),
    "LikeAny": ("Or", False),
    "NotLikeAny": ("Or", True),
}

TRUE = Expr("literal", types.BOOLEAN, value=True, nullable=False)
FALSE = Expr("literal", types.BOOLEAN, value=False, nullable=False)
MAX_CONSTANTS = 10_000
"""Maximum number of rows or values of one constant: each is fetched from the JVM by a call."""


def null_literal(type_: Type) -> Expr:
    return Expr("literal", type_, value=None, nullable=True)


def raise_error(message: Expr, type_: Type) -> Expr:
    """Return an expression that raises an error in place of a value of this type."""
    return Expr("RaiseError", type_, (message,))


SpecialReader = Callable[[RawExpr], Expr | None]
"""Reads the expressions that a plan node treats specially (subqueries, aggregate calls); returns None for all
others.
"""


@dataclass(frozen=True)
class Scope:
    """What an expression may refer to: columns by expression id, and the node's special expressions."""

    columns: Mapping[int, Column]
    special: SpecialReader = lambda _: None

    def read(self, raw: RawExpr) -> Expr:
        if (special_expr := self.special(raw)) is not None:
            return special_expr
        if raw.op in _TRANSPARENT:
            return self.read(raw.args[0])
        if raw.op == "KnownNotNull":
            return replace(self.read(raw.args[0]), nullable=False)
        if raw.op == "AttributeReference":
            input_column = self.columns.get(raw.id)
            if input_column is None:  # seen for a window in LATERAL over a constant relation
                raise Unsupported(
                    f"Spark's optimised plan refers to a column ({raw.jvm_object.name()}) that its input does not give;"
                    " Spark cannot run the query either.",
                    hint="Write the subquery in another way, for instance with its constants in a table.",
                )
            return column(input_column.name, input_column.type, input_column.nullable)
        if raw.op == "Literal":
            return _read_literal(raw)
        if raw.op == "OuterReference":  # in a family's query: one of its parameters
            return Expr("parameter", raw.type, value=str(raw.jvm_object.name()).lower(), nullable=raw.nullable)
        if raw.op in ("DynamicPruningSubquery", "DynamicPruningExpression"):
            return TRUE
        if raw.op in _SUBQUERIES:
            raise Unsupported(f"A subquery that Spark cannot turn into a join is not supported ({raw.op}).")
        if raw.op == "Invoke":
            return Expr(_invoked_method(raw), raw.type, tuple(self.read(a) for a in raw.args[1:]), None, raw.nullable)
        if raw.op == "RaiseError":
            return raise_error(self._read_message(raw.args[-1]), raw.type)
        if raw.op in ("And", "Or"):
            return connect(raw.op, [self.read(part) for part in _chain_operands(raw)])
        if raw.op in _LIKE_LISTS:
            return self._read_like_list(raw)
        args = tuple(self.read(a) for a in raw.args)
        if raw.op == "StaticInvoke":
            return Expr(_invoked_method(raw), raw.type, args, None, raw.nullable)
        if raw.op == "SortOrder":
            return Expr(
                raw.op,
                raw.type,
                args[:1],
                (scala_name(raw.fields["direction"]), scala_name(raw.fields["nullOrdering"])),
            )
        value = _parameters(raw) if raw.op in SUPPORTED_OPS else sql_name(raw)
        return Expr(raw.op, raw.type, args, value, raw.nullable)

    def _read_like_list(self, raw: RawExpr) -> Expr:
        """Read LIKE ALL / ANY of several patterns, which Spark holds as values, as that many LIKEs."""
        connective, negated = _LIKE_LISTS[raw.op]
        tested, patterns = self.read(raw.args[0]), raw.jvm_object.patterns()
        parts = []
        for index in range(patterns.length()):
            pattern = patterns.apply(index)
            text = Expr("literal", types.STRING, value=literal_value(pattern, types.STRING), nullable=pattern is None)
            like = Expr("Like", types.BOOLEAN, (tested, text), ("\\",), tested.nullable or text.nullable)
            parts.append(Expr("Not", types.BOOLEAN, (like,), None, like.nullable) if negated else like)
        return connect(connective, parts)

    def _read_message(self, parameters: RawExpr) -> Expr:
        """Read the text of raise_error: the only value of a map, which the optimiser may have folded to a constant."""
        if parameters.op == "CreateMap":
            return self.read(parameters.args[1])
        text = parameters.jvm_object.value().valueArray().getUTF8String(0)
        return Expr(
            "literal", types.STRING, value=None if text is None else str(text.toString()), nullable=text is None
        )

    def read_order(self, raw: RawExpr) -> Order:
        descending = scala_name(raw.fields["direction"]) == "Descending"
        expr = self.read(raw.args[0])
        if expr.type.family is Family.NESTED:
            raise Unsupported(
                f"ORDER BY a value of type {expr.type.sql} is not supported in a view.", hint="Order by its parts."
            )
        return Order(expr, descending, scala_name(raw.fields["nullOrdering"]) == "NullsLast")


def sql_name(raw: RawExpr) -> str:
    """Return the function's name in Spark SQL, which may differ from its class name."""
    return str(raw.jvm_object.prettyName())


def scala_name(value: Any) -> str:
    """Return the simple name of a Scala object or class in Spark's JSON."""
    return str(value.get("object", value.get("product-class"))).rsplit(".", 1)[-1].rstrip("$")


def _invoked_method(raw: RawExpr) -> str:
    """Return the Java method that an expression calls; for an evaluator object, preceded by its class."""
    function = str(raw.fields["functionName"])
    if raw.op == "Invoke":
        return f"{raw.args[0].fields.get('value', raw.args[0].op)}".split("(")[0] + "." + function
    return function


def _parameters(raw: RawExpr) -> tuple[Any, ...] | None:
    if raw.op in FIELDS:
        return tuple(field_value(raw, name) for name in FIELDS[raw.op]) or None
    values = [v for k, v in raw.fields.items() if k not in _IGNORED_FIELDS and isinstance(v, (bool, str))]
    return tuple(values) or None


def field_value(raw: RawExpr, name: str) -> Any:
    """Return a constructor field, from the JSON or, if it is null there (enumerations, characters), from the JVM."""
    value = raw.fields.get(name)
    if isinstance(value, (bool, int, str)):
        return value
    if name == "evalMode" and "evalContext" in raw.fields:
        return str(raw.jvm_object.evalContext().evalMode().toString())
    if name == "name":  # an Option
        return None
    jvm_value = getattr(raw.jvm_object, name)()
    return jvm_value if jvm_value is None or isinstance(jvm_value, (bool, int, str)) else str(jvm_value)


def _read_literal(raw: RawExpr) -> Expr:
    """Read a literal with its value in the form that `nodes.Expr` describes; an array as an array constructor."""
    text = raw.fields.get("value")
    if raw.type.kind is Kind.ARRAY and text is not None:
        element = raw.jvm_object.dataType().elementType()
        type_, count = raw.type.element, int(raw.jvm_object.value().numElements())
        if count > MAX_CONSTANTS:
            raise Unsupported(f"A constant of {count:,} values is too large.", hint="Put the values into a table.")
        items = [literal_value(v, type_) for v in raw.jvm_object.value().toObjectArray(element)]
        args = tuple(Expr("literal", type_, value=v, nullable=v is None) for v in items)
        return Expr("CreateArray", raw.type, args, None, False)
    value: Any
    match raw.type:
        case _ if text is None:
            value = None
        case types.BOOLEAN:
            value = text == "true"
        case Type(kind=Kind.TINYINT | Kind.SMALLINT | Kind.INT | Kind.BIGINT):
            value = int(text)
        case types.STRING:
            value = str(text)
        case _:
            value = literal_value(raw.jvm_object.value(), raw.type)
    return Expr("literal", raw.type, value=value, nullable=raw.nullable)


def literal_value(value: Any, type_: Type) -> Any:
    """Convert a value in Spark's internal form (days, microseconds, UTF8String, Decimal) to the value of a literal."""
    if value is None:
        return None
    if types.is_float(type_):
        return repr(float(value))
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, (bool, int)):
        return value
    if type_ == types.STRING or type_.kind is Kind.DECIMAL:
        return str(value.toString() if hasattr(value, "toString") else value)
    raise Unsupported(f"A constant of type {type_} is not supported.")


def _chain_operands(raw: RawExpr) -> Iterator[RawExpr]:
    """Return the operands of a AND b AND c … (or OR), from left to right, however they are nested."""
    pending = [raw]
    while pending:
        part = pending.pop()
        if part.op == raw.op:
            pending += reversed(part.args)
        else:
            yield part


_MAX_CHAIN_LENGTH = 32


def connect(op: str, parts: Sequence[Expr]) -> Expr:
    """Connect the parts with AND or OR.

    A long chain becomes a balanced tree, because all later processing is recursive.
    """
    if len(parts) > _MAX_CHAIN_LENGTH:
        half = len(parts) // 2
        return connect(op, [connect(op, parts[:half]), connect(op, parts[half:])])
    result = parts[0]
    for part in parts[1:]:
        result = Expr(op, types.BOOLEAN, (result, part), None, result.nullable or part.nullable)
    return result


def conjuncts(condition: Expr | None) -> tuple[Expr, ...]:
    if condition is None or condition == TRUE:
        return ()
    if condition.op == "And":
        return (*conjuncts(condition.args[0]), *conjuncts(condition.args[1]))
    return (condition,)


_COMPARISONS = ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "In")
_SAFE_OPS = frozenset(
    {"column", "literal", "parameter", *_COMPARISONS, "IsNull", "IsNotNull", "Not", "And", "Or", "NormalizeNaNAndZero"}
)


def conjunction(parts: tuple[Expr, ...]) -> Expr | None:
    """Connect the parts with AND, in an order that does not depend on expression ids.

    Catalyst reads inferred conditions from a hash set, in arbitrary order. Conditions that cannot raise come first,
    sorted; the others keep their order, because one may guard the next (`x <> 0 AND 1 / x > 2`).
    """
    safe = sorted((p for p in set(parts) if all(e.op in _SAFE_OPS for e in p.walk())), key=_sort_key)
    ordered = [p for p in dict.fromkeys(parts) if p not in set(safe)]
    return connect("And", [*safe, *ordered]) if parts else None


def _sort_key(expr: Expr) -> tuple[Any, ...]:
    numbers = sorted(int(c[1:]) for c in expr.columns())
    return (expr.op not in ("IsNotNull",), numbers, expr.op, repr(expr))
