"""The nodes of the logical plan, read from Catalyst's optimised plan.

Every column of a plan has a name that is unique in the whole plan (`c0`, `c1`, … in the order of first appearance), so
an expression needs no scope. Types are Spark's. Nodes are converted to JSON and back, so a plan is stored with its view
and compiled without Spark.

    Scan ─ Filter ─ Project ─ Join ─ Aggregate ─ Union ─ Sort ─ Limit ─ Window ─ Expand ─ Generate
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from viewkeeper.errors import Defect
from viewkeeper.expressions.tree import Expr as Expr
from viewkeeper.expressions.tree import Named as Named
from viewkeeper.expressions.tree import column as column
from viewkeeper.model import types
from viewkeeper.model.schema import Column, column_from_json
from viewkeeper.model.types import Type


@dataclass(frozen=True)
class Call:
    """One aggregate or window function call. `function` is a Catalyst class name: Count, Sum, Average, Min, …

    `filter` is the FILTER (WHERE …) clause. `value` holds parameters (percentages, ignoreNulls, offset, frame).
    """

    name: str
    function: str
    args: tuple[Expr, ...]
    type: Type
    distinct: bool = False
    filter: Expr | None = None
    value: Any = None
    nullable: bool = True

    @property
    def column(self) -> Column:
        return Column(self.name, self.type, self.nullable)


@dataclass(frozen=True)
class Order:
    """One ORDER BY item."""

    expr: Expr
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True)
class Node:
    """Base class of all plan nodes. `columns` are the output columns, in order."""

    kind: ClassVar[str]

    @property
    def columns(self) -> tuple[Column, ...]:
        raise Defect(f"A {type(self).__name__} does not say what it is.")

    @property
    def children(self) -> tuple[Node, ...]:
        children: list[Node] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Node):
                children.append(value)
            elif isinstance(value, tuple):
                children.extend(v for v in value if isinstance(v, Node))
        return tuple(children)

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Scan(Node):
    """A base table or view. `fields` pairs each plan column with the stored column that it reads."""

    table: int
    fields: tuple[tuple[Column, str], ...]
    kind: ClassVar[str] = "scan"

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(c for c, _ in self.fields)


@dataclass(frozen=True)
class Filter(Node):
    child: Node
    condition: Expr
    kind: ClassVar[str] = "filter"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.child.columns


@dataclass(frozen=True)
class Project(Node):
    child: Node
    exprs: tuple[Named, ...]
    kind: ClassVar[str] = "project"

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(n.column for n in self.exprs)


@dataclass(frozen=True)
class Join(Node):
    """`join_type`: inner, left, right, full, semi, anti, existence (then `existence_column` names the boolean
    column)."""

    join_type: str
    left: Node
    right: Node
    condition: Expr | None
    existence_column: str | None = None
    kind: ClassVar[str] = "join"

    @property
    def columns(self) -> tuple[Column, ...]:
        left, right = self.left.columns, self.right.columns
        if self.join_type in ("semi", "anti"):
            return left
        if self.join_type == "existence":
            if self.existence_column is None:
                raise Defect("An existence join has no column for what it found.")
            return (*left, Column(self.existence_column, types.BOOLEAN, nullable=False))
        if self.join_type in ("right", "full"):
            left = tuple(Column(c.name, c.type) for c in left)
        if self.join_type in ("left", "full"):
            right = tuple(Column(c.name, c.type) for c in right)
        return (*left, *right)


@dataclass(frozen=True)
class Aggregate(Node):
    """GROUP BY `keys` (plain named expressions) with `calls`; without keys there is one row, even over no input.

    Arithmetic over calls is a Project above; DISTINCT is an Aggregate without calls.
    """

    child: Node
    keys: tuple[Named, ...]
    calls: tuple[Call, ...]
    kind: ClassVar[str] = "aggregate"

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*(k.column for k in self.keys), *(c.column for c in self.calls))


@dataclass(frozen=True)
class Union(Node):
    """UNION ALL by position; `output` names the result's columns."""

    inputs: tuple[Node, ...]
    output: tuple[Column, ...]
    kind: ClassVar[str] = "union"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.output


@dataclass(frozen=True)
class Consolidation(Node):
    """The child's rows; an update that leaves a row unchanged is not passed on.

    Added by rules, never read from Catalyst.
    """

    child: Node
    kind: ClassVar[str] = "steady"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.child.columns


@dataclass(frozen=True)
class MemberJoin(Node):
    """Each row of the child joined with every family member whose condition it satisfies. Added by `families.lift`."""

    child: Node
    parameters: Scan
    condition: Expr | None
    kind: ClassVar[str] = "members"

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.child.columns, *self.parameters.columns)


@dataclass(frozen=True)
class MemberSeeds(Node):
    """The child's rows, which belong to members, and one row for each member with NULLs beside its `member_columns`."""

    child: Node
    parameters: Scan
    member_columns: tuple[Column, ...]
    kind: ClassVar[str] = "seeded"

    @property
    def columns(self) -> tuple[Column, ...]:
        own = {c.name for c in self.member_columns}
        return tuple(c if c.name in own else Column(c.name, c.type) for c in self.child.columns)


@dataclass(frozen=True)
class Sort(Node):
    child: Node
    order: tuple[Order, ...]
    kind: ClassVar[str] = "sort"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.child.columns


@dataclass(frozen=True)
class Limit(Node):
    """The first `count` rows after `offset` of the child, which is a Sort or an unordered plan."""

    child: Node
    count: int | None
    offset: int = 0
    kind: ClassVar[str] = "limit"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.child.columns


@dataclass(frozen=True)
class Window(Node):
    """Window functions over `partition` ordered by `order`; each call's `value` holds its frame."""

    child: Node
    partition: tuple[Expr, ...]
    order: tuple[Order, ...]
    calls: tuple[Call, ...]
    kind: ClassVar[str] = "window"

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.child.columns, *(c.column for c in self.calls))


@dataclass(frozen=True)
class Expand(Node):
    """Each input row once for each projection (grouping sets)."""

    child: Node
    projections: tuple[tuple[Expr, ...], ...]
    output: tuple[Column, ...]
    kind: ClassVar[str] = "expand"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.output


@dataclass(frozen=True)
class Generate(Node):
    """`explode` and similar: for each row the elements of `generator`; `outer` keeps rows without elements."""

    child: Node
    generator: Expr
    outer: bool
    child_columns: tuple[Column, ...]
    output: tuple[Column, ...]
    kind: ClassVar[str] = "generate"

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.child_columns, *self.output)


@dataclass(frozen=True)
class Query:
    """A whole query: its plan, and for each output column the plan column and the user-visible name."""

    root: Node
    output: tuple[tuple[str, Column], ...]


_NODE_CLASSES = (
    Scan,
    Filter,
    Project,
    Join,
    Aggregate,
    Union,
    Sort,
    Limit,
    Window,
    Expand,
    Generate,
    MemberJoin,
    MemberSeeds,
)
_NODE_BY_KIND = {c.kind: c for c in _NODE_CLASSES}


def node_to_json(node: Node) -> dict[str, Any]:
    """Return a node as JSON: its kind and its fields."""
    return {"kind": node.kind, **{f.name: _to_json(getattr(node, f.name)) for f in fields(node)}}


def node_from_json(data: Mapping[str, Any]) -> Node:
    """Return the node that `node_to_json` has written."""
    cls = _NODE_BY_KIND[data["kind"]]
    return cls(**{f.name: _from_json(data[f.name]) for f in fields(cls)})


def _to_json(value: Any) -> Any:
    if isinstance(value, Node):
        return node_to_json(value)
    if isinstance(value, Expr):
        return {"expr": value.to_json()}
    if isinstance(value, (Column, Named, Call, Order)):
        return {type(value).__name__.lower(): [_to_json(getattr(value, f.name)) for f in fields(value)]}
    if isinstance(value, Type):
        return str(value)
    if isinstance(value, tuple):
        return [_to_json(v) for v in value]
    return value


def _call(name: str, function: str, args: tuple[Expr, ...], type_: str, *rest: Any) -> Call:
    return Call(name, function, args, types.parse_type(type_), *rest)


_VALUE_READERS: Mapping[str, Callable[..., Any]] = {
    "column": lambda *parts: column_from_json(parts),
    "named": Named,
    "call": _call,
    "order": Order,
}


def _from_json(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_from_json(v) for v in data)
    if isinstance(data, dict):
        if "kind" in data:
            return node_from_json(data)
        ((tag, body),) = data.items()
        return Expr.from_json(body) if tag == "expr" else _VALUE_READERS[tag](*(_from_json(v) for v in body))
    return data
