"""Spark's plan as Python trees, with few calls into the JVM.

`toJSON` gives every plan node's class, constructor fields and expressions, but not the data type of most expressions. A
call into the JVM for each would be thousands of calls. Instead:

    node.expressions()                 a node's expressions, in the order of its constructor fields; of all nodes
    CreateStruct(expressions)          one struct of them
    struct.map(identity)               every sub-expression, in the same pre-order as the JSON
    CreateStruct(that).dataType.json   the type, nullability and metadata of all of them, in one string

`identity` is Scala's own `<:<` evidence, a function object that is accessible by name. The live JVM object of a
sub-expression remains accessible by its index in the flat sequence, for the few facts that neither string contains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from viewkeeper.model import types
from viewkeeper.model.types import Kind, NestedField, Type

T = TypeVar("T")

_UNTYPED = frozenset(
    {
        "WindowSpecDefinition",
        "SpecifiedWindowFrame",
        "UnspecifiedFrame$",
        "UnboundedPreceding$",
        "UnboundedFollowing$",
        "CurrentRow$",
    }
)
"""Parts of a window's definition that are formally expressions: the JVM raises if their type is requested."""

_SEQUENCE_FIELDS = (
    "projections",
    "output",
    "projectList",
    "groupingExpressions",
    "aggregateExpressions",
    "windowExpressions",
    "partitionSpec",
    "orderSpec",
    "order",
    "generatorOutput",
)
"""Fields with sequences of expressions: Spark's JSON has null for some kinds of Scala sequence (seen: projections)."""

_SQL_TYPE_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


@dataclass(frozen=True)
class RawExpr:
    """One Catalyst expression: simple class name, constructor fields as JSON, children, type, live object."""

    op: str
    fields: Mapping[str, Any]
    args: tuple[RawExpr, ...]
    type: Type
    nullable: bool
    metadata: Mapping[str, Any]
    jvm: Jvm
    sequence: Any
    index: int

    @property
    def jvm_object(self) -> Any:
        """The live JVM object."""
        return self.sequence.apply(self.index)

    @property
    def id(self) -> int:
        """The expression id of an attribute or alias."""
        return int(self.fields["exprId"]["id"])

    def walk(self) -> Iterator[RawExpr]:
        stack = [self]
        while stack:
            yield (raw := stack.pop())
            stack += reversed(raw.args)


@dataclass(frozen=True)
class RawNode:
    """One Catalyst plan node. `exprs` holds, for each field with expressions, a tree or (nested) lists of trees."""

    op: str
    fields: Mapping[str, Any]
    exprs: Mapping[str, Any]
    children: tuple[RawNode, ...]
    jvm: Jvm
    jvm_object: Any

    @cached_property
    def output(self) -> tuple[int, ...]:
        """Expression ids of the output columns, in order."""
        return tuple(e.id for e in self.jvm.read_expressions(self.jvm_object.output()))


class Jvm:
    """The Scala objects that reading a plan needs, looked up once for each JVM gateway."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway
        self.identity = self.find_singleton("scala.$less$colon$less$").refl()
        self.struct = self.find_singleton("org.apache.spark.sql.catalyst.expressions.CreateStruct$")

    def find_singleton(self, name: str) -> Any:
        return self.gateway.java.lang.Class.forName(name).getField("MODULE$").get(None)

    def read_plan(self, jvm_object: Any) -> RawNode:
        """Return the whole plan below a JVM plan node."""
        bodies = json.loads(jvm_object.toJSON())
        jvm_nodes = jvm_object.map(self.identity)
        nodes = [jvm_nodes.apply(i) for i in range(len(bodies))]
        for body, node in zip(bodies, nodes, strict=True):
            for name in _SEQUENCE_FIELDS:
                if name in body and body[name] is None:
                    body[name] = self._sequence_json(getattr(node, name)())
        expression_fields = [{k: v for k, v in body.items() if _is_expressions(v)} for body in bodies]
        # Only parts of a window may lack a type, and then need a call each, so windows are read separately.
        typed: list[Iterator[RawExpr]] = [iter(())] * len(bodies)
        plain = [i for i, body in enumerate(bodies) if expression_fields[i] and _simple_name(body["class"]) != "Window"]
        for group in (plain, *([i] for i, body in enumerate(bodies) if _simple_name(body["class"]) == "Window")):
            trees = [t for i in group for v in expression_fields[i].values() for t in _field_trees(v)]
            stream_ = self._read_typed([nodes[i].expressions() for i in group], trees)
            for i in group:
                typed[i] = stream_

        exprs = [
            {name: _nest_trees(value, stream) for name, value in fields.items()}
            for fields, stream in zip(expression_fields, typed, strict=True)
        ]

        def make(index: int, children: tuple[RawNode, ...]) -> RawNode:
            fields = {k: v for k, v in bodies[index].items() if k not in exprs[index]}
            return RawNode(_simple_name(bodies[index]["class"]), fields, exprs[index], children, self, nodes[index])

        (root,) = _build_trees(bodies, make)
        return root

    def read_expressions(self, seq: Any) -> list[RawExpr]:
        """Return the trees of a Scala sequence of expressions."""
        return list(self._read_typed([seq], self._sequence_json(seq)))

    def _sequence_json(self, seq: Any) -> list[Any]:
        """Return the JSON of a (nested) sequence of expressions."""
        if seq.isEmpty():
            return []
        if "expressions" not in seq.head().getClass().getName():
            return [self._sequence_json(seq.apply(i)) for i in range(seq.length())]
        return list(_struct_fields(json.loads(self.struct.apply(seq).toJSON())))

    def _read_typed(self, seqs: list[Any], trees: list[list[dict[str, Any]]]) -> Iterator[RawExpr]:
        """Return the expressions of some sequences, whose JSON is `trees`."""
        if not trees:
            return iter(())
        combined = seqs[0]
        for seq in seqs[1:]:
            combined = combined.appendedAll(seq)
        flat = self.struct.apply(combined).map(self.identity)
        # The struct itself, then a name and the tree for each of its fields.
        bodies: list[dict[str, Any]] = [{"class": "", "num-children": 2 * len(trees)}]
        for tree in trees:
            bodies += [{"class": "", "num-children": 0}, *tree]
        typed = self._read_types(flat, bodies)

        def make(index: int, args: tuple[RawExpr, ...]) -> RawExpr:
            body = bodies[index]
            return RawExpr(_simple_name(body["class"]), body, args, *typed[index], self, flat, index)

        (struct,) = _build_trees(bodies, make)
        return iter(struct.args[1::2])

    def _read_types(self, sequence: Any, bodies: list[dict[str, Any]]) -> list[tuple[Type, bool, Mapping[str, Any]]]:
        typed = [i for i, body in enumerate(bodies) if _simple_name(body["class"]) not in _UNTYPED]
        if len(typed) < len(bodies):
            typed_exprs = self.gateway.java.util.ArrayList()
            # The structs around a window's definition are left out, too: their own type includes its type.
            typed = [i for i in typed if i > 0]
            for i in typed:
                typed_exprs.add(sequence.apply(i))
            sequence = self.gateway.PythonUtils.toSeq(typed_exprs)
        fields = json.loads(self.struct.apply(sequence).dataType().json())["fields"]
        result: list[tuple[Type, bool, Mapping[str, Any]]] = [(types.VOID, True, {})] * len(bodies)
        for i, field in zip(typed, fields, strict=True):
            result[i] = (type_of(field["type"]), field["nullable"], field["metadata"])
        return result


def type_of(json_type: Any) -> Type:
    """Return a type from Spark's JSON, without the nullability of nested parts, which no plan depends on.

    VOID, the type of an untyped NULL, is read as STRING: its only value is NULL, and neither Arrow nor a store has
    columns of that type.
    """
    if isinstance(json_type, str):
        return types.STRING if json_type == "void" else types.parse_type(_SQL_TYPE_NAMES.get(json_type, json_type))
    match json_type["type"]:
        case "struct":
            parts = tuple(NestedField(f["name"], type_of(f["type"])) for f in json_type["fields"])
            return Type(Kind.STRUCT, nested_fields=parts)
        case "array":
            return types.array(type_of(json_type["elementType"]))
        case "map":
            return Type(
                Kind.MAP,
                nested_fields=(
                    NestedField("key", type_of(json_type["keyType"])),
                    NestedField("value", type_of(json_type["valueType"])),
                ),
            )
        case other:
            return types.parse_type(str(other))


def _simple_name(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _is_expressions(value: Any) -> bool:
    """Whether a value is a tree (a list of objects with a class) or a sequence (a list of trees, possibly empty)."""
    if not isinstance(value, list) or not value:
        return False
    return _is_tree(value) or all(isinstance(v, list) and (not v or _is_expressions(v)) for v in value)


def _is_tree(value: list[Any]) -> bool:
    return isinstance(value[0], dict) and "class" in value[0]


def _field_trees(value: list[Any]) -> Iterator[list[dict[str, Any]]]:
    """Return all trees in a field, in order."""
    if value and _is_tree(value):
        yield value
    else:
        for part in value:
            yield from _field_trees(part)


def _struct_fields(bodies: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Return the trees of a struct's fields; the tree of a field's name precedes each of them."""

    def size(_: int, sizes: tuple[list[int], ...]) -> list[int]:
        return [1 + sum(s[0] for s in sizes), *(s[0] for s in sizes)]

    ((_, *sizes),) = _build_trees(bodies, size)
    start = 1
    for index, length in enumerate(sizes):
        if index % 2:
            yield bodies[start : start + length]
        start += length


def _build_trees(bodies: list[dict[str, Any]], make: Callable[[int, tuple[T, ...]], T]) -> list[T]:
    """Build trees from their pre-order, without recursion: the tree of a thousand ORs is a thousand levels deep."""
    built: list[T] = []
    for index in reversed(range(len(bodies))):
        built.append(make(index, tuple(built.pop() for _ in range(bodies[index]["num-children"]))))
    return built


def _nest_trees(value: list[Any], typed: Iterator[RawExpr]) -> Any:
    """Return the typed trees in the nesting of the JSON."""
    return next(typed) if value and _is_tree(value) else [_nest_trees(v, typed) for v in value]
