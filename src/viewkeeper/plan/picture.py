"""A view's maintenance plan as a picture to be drawn: boxes in rounds, and links between them.

A box is an operator, told in the words of the tables: inside the plan columns have positions for names, here each is
traced back to what it was made from (`o_orderdate`, `year(o_orderdate)`). A link is the flow of deltas; the state that
a lookup reads is named in its box, because lines for it would cross everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from viewkeeper.expressions.text import expr_text
from viewkeeper.model.schema import Table
from viewkeeper.plan.dataflow import (
    Aggregate,
    Arrange,
    BulkJoin,
    Image,
    Input,
    Lookup,
    Operator,
    Recompute,
    Segment,
    Sink,
    TopK,
)
from viewkeeper.plan.flow import Flow, slots
from viewkeeper.plan.levels import Sizes, broadcast, levels
from viewkeeper.plan.nodes import Expr


@dataclass(frozen=True)
class Box:
    """One operator. `reads` is the number of the state that a lookup reads; `rows` is None where there is no state."""

    number: int
    kind: str
    title: str
    lines: tuple[str, ...]
    round: int
    table: str | None = None
    key: tuple[str, ...] = ()
    reads: int | None = None
    rows: int | None = None
    bytes: int | None = None
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Link:
    """Deltas from one box to another; `where` is the filter on the way."""

    source: int
    target: int
    where: str = ""
    subtracted: bool = False


@dataclass(frozen=True)
class Picture:
    view: str
    key: tuple[str, ...]
    unique: bool
    rounds: int
    boxes: tuple[Box, ...]
    links: tuple[Link, ...]


def picture(flow: Flow, table: Table, sizes: Sizes, names: Mapping[int, str]) -> Picture:
    """The picture of one view. `names`: view and table names by id."""
    shown = list(numbered(flow, table).values())
    numbers = {o.id: i for i, o in enumerate(shown, 1)}
    traced = _Traced(flow)
    rounds = levels(flow, broadcast(flow, sizes))
    boxes = [_box(flow, o, table, numbers, sizes, names, traced, rounds[o.id]) for o in shown]
    return Picture(
        table.name,
        tuple(k.column + (" DESC" if k.descending else "") for k in table.key),
        not table.is_bag,
        1 + max(b.round for b in boxes),
        tuple(boxes),
        tuple(link for o in shown for link in _links(flow, o, numbers, traced)),
    )


def numbered(flow: Flow, table: Table) -> Mapping[int, Operator]:
    """The operators of one view by the number of their box."""
    mine = flow.behind([flow.sinks[table.id].id])
    return dict(enumerate((o for n, o in flow.operators.items() if n in mine and not isinstance(o, BulkJoin)), 1))


def _links(flow: Flow, operator: Operator, numbers: Mapping[str, int], traced: _Traced) -> Iterator[Link]:
    target = numbers[operator.id]
    if isinstance(operator, Image):
        yield Link(numbers[Input(operator.table).id], target)
    for segment in operator.segments():
        if segment.source in numbers:
            # What only compares the keys of a lookup is in its box already.
            where = " and ".join(t for w in segment.where if (t := traced.text(segment.source, w)) and not _plain(t))
            yield Link(numbers[segment.source], target, where, segment.sign < 0)


def _plain(text: str) -> bool:
    """Conditions that say nothing new: a key that is compared or is not null."""
    if text.endswith(" is not null") and " " not in text.removesuffix(" is not null"):
        return True
    left, equals, right = text.partition(" = ")
    return bool(equals) and left.isidentifier() and right.isidentifier()


def _box(
    flow: Flow,
    operator: Operator,
    view: Table,
    numbers: Mapping[str, int],
    sizes: Sizes,
    names: Mapping[int, str],
    traced: _Traced,
    level: int,
) -> Box:
    held = [sizes.get(s, (0, 0)) for s in slots(operator)]
    others = sorted(names[v] for v in flow.views_of[operator.id] if v != view.id)
    plain = Box(
        numbers[operator.id],
        operator.kind,
        operator.kind,
        (),
        level,
        rows=sum(r for r, _ in held) if held else None,
        bytes=sum(b for _, b in held) if held else None,
        shared=tuple(others) if not isinstance(operator, Input) else (),
    )
    if isinstance(operator, Input):
        columns = [c.name for c in flow.used[operator.table]]
        return replace(
            plain, title=f"Δ {names[operator.table]}", table=names[operator.table], lines=(", ".join(columns),)
        )
    if isinstance(operator, Image):
        table = names[operator.table]
        primary = tuple(k.column for k in flow.tables[operator.table].key)
        kind = "table image" if operator.key == primary else "arrangement"
        return replace(plain, title=f"{kind} of {table}", table=table, key=operator.key)
    if isinstance(operator, Lookup):
        return _lookup(flow, operator, plain, numbers, names, traced)
    if isinstance(operator, Aggregate):
        source = operator.source[0]
        keys = tuple(_given(traced, source, k.name) for k in operator.spec.keys)
        calls = [
            f"{m.function.lower()}({'distinct ' if m.distinct else ''}"
            f"{_given(traced, source, m.argument) if m.argument else '*'})"
            for m in operator.spec.measures
        ]
        return replace(plain, title="aggregate", key=keys, lines=tuple(calls) or ("distinct rows",))
    if isinstance(operator, Arrange):
        return replace(
            plain, title="arrangement", key=tuple(_given(traced, operator.source[0], k) for k in operator.key)
        )
    if isinstance(operator, Recompute):
        first = operator.inputs[0][0]
        keys = tuple(_given(traced, first, k) for k in first.key or ())
        return replace(plain, title="recompute", key=keys, lines=(operator.why,))
    if isinstance(operator, TopK):
        return replace(
            plain, title=f"top {operator.count}", lines=(f"after {operator.offset}",) if operator.offset else ()
        )
    if isinstance(operator, Sink):
        return replace(plain, title=f"view {names[operator.view]}", table=names[operator.view])
    return plain


def _lookup(
    flow: Flow, operator: Lookup, plain: Box, numbers: Mapping[str, int], names: Mapping[int, str], traced: _Traced
) -> Box:
    arranged = flow.operators[operator.arrangement]
    table = names[arranged.table] if isinstance(arranged, Image) else None
    probe = operator.probe[0]
    return replace(
        plain,
        title=f"look up {table or 'state'}",
        table=table,
        key=tuple(_given(traced, probe, k) for k in probe.key or ()),
        lines=(f"in #{numbers[operator.arrangement]}, {'new' if operator.fresh else 'old'}",),
        reads=numbers[operator.arrangement],
    )


def _given(traced: _Traced, segment: Segment, name: str) -> str:
    """What a segment gives under a name."""
    return next((traced.text(segment.source, n.expr) for n in segment.exprs if n.name == name), name)


class _Traced:
    """What the columns of each operator are made from, as text."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.known: dict[str, Mapping[str, str]] = {}

    def text(self, source: str, expr: Expr) -> str:
        names = self.columns(source)
        return expr_text(_renamed(expr, names))

    def columns(self, name: str) -> Mapping[str, str]:
        if name not in self.known:
            self.known[name] = self._columns(self.flow.operators[name])
        return self.known[name]

    def _columns(self, operator: Operator) -> Mapping[str, str]:
        if isinstance(operator, (Input, Image)):
            return {}
        segment = next(operator.segments())
        given = {n.name: self.text(segment.source, n.expr) for n in segment.exprs}
        if isinstance(operator, Lookup):
            taken = self.columns(operator.arrangement)
            return given | {c.name: taken.get(column, column) for column, c in operator.take}
        if isinstance(operator, Aggregate):
            calls = {
                m.name: f"{m.function.lower()}({given.get(m.argument or '', '*')})" for m in operator.spec.measures
            }
            return given | calls
        return given


def _renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    if expr.op == "column":
        return replace(expr, value=names.get(expr.value, expr.value))
    return replace(expr, args=tuple(_renamed(a, names) for a in expr.args))
