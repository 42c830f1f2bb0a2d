"""EXPLAIN: a view's maintenance plan as text, round by round.

Each operator has a line: its number, its kind and what it does, the state it keeps with rows and bytes, and the other
views that share it. Under it: why it is of this kind or what a change costs there (`reasons`), and what feeds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from viewkeeper.errors import Defect
from viewkeeper.expressions.text import expr_text
from viewkeeper.model.schema import Table
from viewkeeper.plan.dataflow import (
    Aggregate,
    Arrange,
    BulkJoin,
    Consolidate,
    Image,
    Input,
    Lookup,
    Operator,
    Recompute,
    Segment,
    SelectedImage,
    Sink,
    TopK,
)
from viewkeeper.plan.flow import Flow, slots
from viewkeeper.plan.levels import Sizes, broadcast, levels
from viewkeeper.plan.reasons import FanOut, reason


def explain(
    flow: Flow,
    table: Table,
    sizes: Sizes,
    names: Mapping[int, str],
    fan_out: FanOut | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The plan of one view. `names`: view and table names by id; `notes` come last."""
    mine = flow.behind([flow.sinks[table.id].id])
    shown = [o for n, o in flow.operators.items() if n in mine and not isinstance(o, BulkJoin)]
    numbers = {o.id: i for i, o in enumerate(shown, 1)}
    key = ", ".join(k.column + (" DESC" if k.descending else "") for k in table.key)
    kind = "the whole row, with a count" if table.is_bag else "unique"
    lines = [f"view {table.name}  key ({key}), {kind}"]
    rounds = levels(flow, broadcast(flow, sizes))
    for level in sorted({rounds[o.id] for o in shown}):
        lines.append(f"round {level}")
        for operator in shown:
            if rounds[operator.id] == level:
                lines.extend(_lines(flow, operator, table.id, numbers, sizes, names, fan_out or {}))
    return "\n".join([*lines, *notes])


def _lines(
    flow: Flow,
    operator: Operator,
    view: int,
    numbers: Mapping[str, int],
    sizes: Sizes,
    names: Mapping[int, str],
    fan_out: FanOut,
) -> list[str]:
    text = f"  #{numbers[operator.id]} {_DESCRIBE[operator.kind](flow, operator, numbers, names)}"
    held = [sizes.get(s, (0, 0)) for s in slots(operator)]
    if held:
        text += f"  state {sum(r for r, _ in held):,} rows, {_bytes(sum(b for _, b in held))}"
    others = sorted(names[v] for v in flow.views_of[operator.id] if v != view)
    if others and not isinstance(operator, Input):
        text += f"  shared with {', '.join(others)}"
    segments = [f"      from #{numbers[s.source]}{_segment(s)}" for s in operator.segments() if s.source in numbers]
    why = reason(flow, operator, fan_out, sizes)
    return [text, *([f"      {why}"] if why else []), *segments]


def _segment(segment: Segment) -> str:
    text = f"{' subtracted' if segment.sign < 0 else ''}: "
    text += ", ".join(f"{expr_text(n.expr)} AS {n.name}" for n in segment.exprs)
    if segment.times:
        text += " repeated " + " times ".join(expr_text(t) for t in segment.times)
    if segment.where:
        text += " WHERE " + " AND ".join(expr_text(w) for w in segment.where)
    return text


def _input(flow: Flow, operator: Input, numbers: Mapping[str, int], names: Mapping[int, str]) -> str:
    return f"input {names[operator.table]} ({', '.join(c.name for c in flow.used[operator.table])})"


def _image(flow: Flow, operator: Image, numbers: Mapping[str, int], names: Mapping[int, str]) -> str:
    primary = tuple(k.column for k in flow.tables[operator.table].key)
    what = "table image" if operator.key == primary else "arrangement"
    rows = f", rows with {' and '.join(map(expr_text, operator.where))}" if isinstance(operator, SelectedImage) else ""
    return f"{what} of {names[operator.table]} by ({', '.join(operator.key)}){rows}"


def _arrange(flow: Flow, operator: Arrange, numbers: Mapping[str, int], names: Mapping[int, str]) -> str:
    return f"arrangement {'in the order of' if operator.source[0].ordered else 'by'} ({', '.join(operator.key)})"


def _lookup(flow: Flow, operator: Lookup, numbers: Mapping[str, int], names: Mapping[int, str]) -> str:
    state = "new" if operator.fresh else "old"
    arranged = flow.operators[operator.arrangement]
    where = f"#{numbers[operator.arrangement]}"
    if isinstance(arranged, Image):
        where += f" {names[arranged.table]}"
    take = ", ".join(f"{name} AS {c.name}" for name, c in operator.take)
    probe = ", ".join(operator.probe[0].key or ())
    if operator.reach:
        return f"rows of {where}, {state} state, that a move of {probe} passes, taking {take or 'nothing'}"
    return f"lookup ({probe}) in {where}, {state} state, taking {take or 'nothing'}"


def _consolidate(flow: Flow, operator: Consolidate, numbers: Mapping[str, int], names: Mapping[int, str]) -> str:
    return "consolidate"


def _aggregate(flow: Flow, operator: Aggregate, numbers: Mapping[str, int], names: Mapping[int, str]) -> str:
    calls = [
        f"{m.function}({'DISTINCT ' if m.distinct else ''}{m.argument or '*'}) AS {m.name}"
        for m in operator.spec.measures
    ]
    return f"aggregate by ({', '.join(k.name for k in operator.spec.keys)}): {', '.join(calls) or 'distinct rows'}"


def _recompute(flow: Flow, operator: Recompute, numbers: Mapping[str, int], names: Mapping[int, str]) -> str:
    keys = operator.inputs[0][0].key or ()
    return f"recompute by ({', '.join(keys)}): {operator.why}"


def _topk(flow: Flow, operator: TopK, numbers: Mapping[str, int], names: Mapping[int, str]) -> str:
    offset = f" after {operator.offset}" if operator.offset else ""
    return f"top {operator.count}{offset} by {operator.order}"


def _sink(flow: Flow, operator: Sink, numbers: Mapping[str, int], names: Mapping[int, str]) -> str:
    return f"sink {names[operator.view]}"


_DESCRIBE: Mapping[str, Callable[[Flow, Any, Mapping[str, int], Mapping[int, str]], str]] = {
    "input": _input,
    "image": _image,
    "arrange": _arrange,
    "lookup": _lookup,
    "consolidate": _consolidate,
    "aggregate": _aggregate,
    "recompute": _recompute,
    "topk": _topk,
    "sink": _sink,
}


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise Defect("An operator has no words for EXPLAIN.")
