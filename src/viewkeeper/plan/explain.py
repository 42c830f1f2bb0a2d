"""EXPLAIN: a view's maintenance plan as text, round by round.

Each operator has a line: its number, its kind and what it does, the state it keeps with rows and bytes, and the other
views that share it. Under it: why it is of this kind or what a change costs there (`reasons`), and what feeds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from viewkeeper.errors import Defect
from viewkeeper.expressions.text import expr_text
from viewkeeper.model.schema import Table
from viewkeeper.operators.operator import Operator, slots
from viewkeeper.operators.segments import Segment
from viewkeeper.operators.telling import FanOut, Told
from viewkeeper.plan.flow import Flow
from viewkeeper.plan.levels import Sizes, broadcast, levels
from viewkeeper.plan.reasons import reason

_NAMED = 20
"""Views that an operator is shared with and that are told by name."""


def explain(
    flow: Flow,
    table: Table,
    sizes: Sizes,
    names: Mapping[int, str],
    fan_out: FanOut | None = None,
    notes: Sequence[str] = (),
    members: Mapping[str, int] | None = None,
) -> str:
    """The plan of one view. `names`: view and table names by id; `notes` come last; `members` by operator."""
    mine = flow.behind([flow.sink(table.id).id])
    shown = [o for n, o in flow.views[table.id].operators.items() if n in mine and not o.only_loads]
    numbers = {o.id: i for i, o in enumerate(shown, 1)}
    key = ", ".join(k.column + (" DESC" if k.descending else "") for k in table.key)
    kind = "the whole row, with a count" if table.is_bag else "unique"
    lines = [f"view {table.name}  key ({key}), {kind}"]
    told = Told(flow, numbers, names, fan_out or {}, sizes, members or {})
    rounds = levels(flow, broadcast(flow, sizes))
    for level in sorted({rounds[o.id] for o in shown}):
        lines.append(f"round {level}")
        for operator in shown:
            if rounds[operator.id] == level:
                lines.extend(_lines(flow, operator, table.id, told, sizes))
    return "\n".join([*lines, *notes])


def _lines(flow: Flow, operator: Operator, view: int, told: Told, sizes: Sizes) -> list[str]:
    numbers = told.numbers
    text = f"  #{numbers[operator.id]} {operator.describe(told)}"
    held = [sizes.get(s, (0, 0)) for s in slots(operator)]
    if held:
        text += f"  state {sum(r for r, _ in held):,} rows, {_bytes(sum(b for _, b in held))}"
    others = sorted(told.names[v] for v in flow.views_of(operator.id) if v != view)
    if others and not operator.is_source:
        more = f" and {len(others) - _NAMED:,} more" if len(others) > _NAMED else ""
        text += f"  shared with {', '.join(others[:_NAMED])}{more}"
    segments = [f"      from #{numbers[s.source]}{_segment(s)}" for s in operator.segments() if s.source in numbers]
    why = reason(flow, operator, told, sizes)
    return [text, *([f"      {why}"] if why else []), *segments]


def _segment(segment: Segment) -> str:
    text = f"{' subtracted' if segment.sign < 0 else ''}: "
    text += ", ".join(f"{expr_text(n.expr)} AS {n.name}" for n in segment.exprs)
    if segment.times:
        text += " repeated " + " times ".join(expr_text(t) for t in segment.times)
    if segment.where:
        text += " WHERE " + " AND ".join(expr_text(w) for w in segment.where)
    return text


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise Defect("The last unit has no end.")
