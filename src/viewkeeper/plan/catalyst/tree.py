"""Spark's plan as Python trees, with few calls into the JVM.

`toJSON` gives every plan node's class, constructor fields and expressions, but not the data type of most expressions.
Asking the JVM for each would be thousands of calls. Instead:

    node.expressions()                 a node's expressions, in the order of its constructor fields; of all nodes
    CreateStruct(expressions)          one struct of them
    struct.map(identity)               every sub-expression, in the same pre-order as the JSON
    CreateStruct(that).dataType.json   the type, nullability and metadata of all of them, in one string

`identity` is Scala's own `<:<` evidence, which is a function object that can be reached by its name. The live JVM
object of a sub-expression stays reachable by its place in the flat sequence, for the little that neither string says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
"""Parts of a window's definition: expressions in name only, the JVM raises when asked for their type."""

_CATALOG_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


@dataclass(frozen=True)
class RawExpr:
    """One Catalyst expression: simple class name, constructor fields as JSON, children, type, live object."""

    op: str
    fields: Mapping[str, Any]
    args: tuple[RawExpr, ...]
    type: str
    nullable: bool
    metadata: Mapping[str, Any]
    jvm: Jvm
    flat: Any
    place: int

    @property
    def live(self) -> Any:
        """The JVM object."""
        return self.flat.apply(self.place)

    @property
    def id(self) -> int:
        """The expression id of an attribute or alias."""
        return int(self.fields["exprId"]["id"])

    def walk(self) -> Iterator[RawExpr]:
        yield self
        for arg in self.args:
            yield from arg.walk()


@dataclass(frozen=True)
class RawNode:
    """One Catalyst plan node. `exprs` holds, for each field with expressions, a tree or (nested) lists of trees."""

    op: str
    fields: Mapping[str, Any]
    exprs: Mapping[str, Any]
    children: tuple[RawNode, ...]
    jvm: Jvm
    live: Any

    @cached_property
    def output(self) -> tuple[int, ...]:
        """Expression ids of the output columns, in order."""
        return tuple(e.id for e in self.jvm.expressions(self.live.output()))


class Jvm:
    """The few Scala objects that reading needs, looked up once for each JVM gateway."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway
        self.identity = self.singleton("scala.$less$colon$less$").refl()
        self.struct = self.singleton("org.apache.spark.sql.catalyst.expressions.CreateStruct$")

    def singleton(self, name: str) -> Any:
        return self.gateway.java.lang.Class.forName(name).getField("MODULE$").get(None)

    def plan(self, live: Any) -> RawNode:
        """The whole plan below a JVM plan node."""
        bodies = json.loads(live.toJSON())
        places = live.map(self.identity)
        nodes = [places.apply(i) for i in range(len(bodies))]
        parts = [{k: v for k, v in body.items() if _is_expressions(v)} for body in bodies]
        # Only a window's parts may have no type, and then cost a call each: they are asked for apart.
        typed: list[Iterator[RawExpr]] = [iter(())] * len(bodies)
        plain = [i for i, body in enumerate(bodies) if parts[i] and _simple(body["class"]) != "Window"]
        for group in (plain, *([i] for i, body in enumerate(bodies) if _simple(body["class"]) == "Window")):
            trees = [t for i in group for v in parts[i].values() for t in _trees(v)]
            found = self._typed([nodes[i].expressions() for i in group], trees)
            for i in group:
                typed[i] = found

        def build(place: int) -> tuple[RawNode, int]:
            body = bodies[place]
            fields = {k: v for k, v in body.items() if k not in parts[place]}
            exprs = {k: _shaped(v, typed[place]) for k, v in parts[place].items()}
            after, children = place + 1, []
            for _ in range(body["num-children"]):
                child, after = build(after)
                children.append(child)
            return RawNode(_simple(body["class"]), fields, exprs, tuple(children), self, nodes[place]), after

        return build(0)[0]

    def expressions(self, seq: Any) -> list[RawExpr]:
        """The trees of a Scala sequence of expressions."""
        bodies = json.loads(self.struct.apply(seq).toJSON())
        return list(self._typed([seq], [tree for _, tree in _pairs(bodies)]))

    def _typed(self, seqs: list[Any], trees: list[list[dict[str, Any]]]) -> Iterator[RawExpr]:
        """The expressions of some sequences, given their JSON."""
        if not trees:
            return iter(())
        together = seqs[0]
        for seq in seqs[1:]:
            together = together.appendedAll(seq)
        flat = self.struct.apply(together).map(self.identity)
        # The struct itself, then for each of its fields a name and the tree.
        bodies: list[dict[str, Any]] = [{"class": "", "num-children": 0}]
        starts = []
        for tree in trees:
            starts.append(len(bodies) + 1)
            bodies += [{"class": "", "num-children": 0}, *tree]
        types = self._types(flat, bodies)

        def build(place: int) -> tuple[RawExpr, int]:
            body = bodies[place]
            after, args = place + 1, []
            for _ in range(body["num-children"]):
                arg, after = build(after)
                args.append(arg)
            type_, nullable, metadata = types[place]
            op = _simple(body["class"])
            return RawExpr(op, body, tuple(args), type_, nullable, metadata, self, flat, place), after

        return iter([build(start)[0] for start in starts])

    def _types(self, flat: Any, bodies: list[dict[str, Any]]) -> list[tuple[str, bool, Mapping[str, Any]]]:
        typed = [i for i, body in enumerate(bodies) if _simple(body["class"]) not in _UNTYPED]
        if len(typed) < len(bodies):
            chosen = self.gateway.java.util.ArrayList()
            # The structs around a window's definition are left out too: their own type includes it.
            typed = [i for i in typed if i > 0]
            for i in typed:
                chosen.add(flat.apply(i))
            flat = self.gateway.PythonUtils.toSeq(chosen)
        found = json.loads(self.struct.apply(flat).dataType().json())["fields"]
        result: list[tuple[str, bool, Mapping[str, Any]]] = [("void", True, {})] * len(bodies)
        for i, field in zip(typed, found, strict=True):
            result[i] = (catalog_name(field["type"]), field["nullable"], field["metadata"])
        return result


def catalog_name(type_: Any) -> str:
    """Spark's `catalogString` of a type in Spark's JSON."""
    if isinstance(type_, str):
        return _CATALOG_NAMES.get(type_, type_)
    match type_["type"]:
        case "struct":
            return "struct<" + ",".join(f"{f['name']}:{catalog_name(f['type'])}" for f in type_["fields"]) + ">"
        case "array":
            return f"array<{catalog_name(type_['elementType'])}>"
        case "map":
            return f"map<{catalog_name(type_['keyType'])},{catalog_name(type_['valueType'])}>"
        case other:
            return str(other)


def _simple(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _is_expressions(value: Any) -> bool:
    """A tree is a list of objects with a class; a sequence is a list of trees, and may be empty."""
    if not isinstance(value, list) or not value:
        return False
    return _is_tree(value) or all(isinstance(v, list) and (not v or _is_expressions(v)) for v in value)


def _is_tree(value: list[Any]) -> bool:
    return isinstance(value[0], dict) and "class" in value[0]


def _trees(value: list[Any]) -> Iterator[list[dict[str, Any]]]:
    """All trees in a field, in order."""
    if value and _is_tree(value):
        yield value
    else:
        for part in value:
            yield from _trees(part)


def _pairs(bodies: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The (name, tree) fields of a struct in pre-order."""

    def end(place: int) -> int:
        after = place + 1
        for _ in range(bodies[place]["num-children"]):
            after = end(after)
        return after

    place = 1
    while place < len(bodies):
        yield bodies[place]["value"], bodies[place + 1 : end(place + 1)]
        place = end(place + 1)


def _shaped(value: list[Any], typed: Iterator[RawExpr]) -> Any:
    """The typed trees in the nesting that the JSON shows."""
    return next(typed) if value and _is_tree(value) else [_shaped(v, typed) for v in value]
