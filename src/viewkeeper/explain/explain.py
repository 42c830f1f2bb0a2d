"""EXPLAIN: a view's maintenance plan as text, round by round.

Each operator has a line: its number, its kind and what it does, the state it keeps with rows and bytes, and the other
views that share it. Under it: why it is of this kind or what a change costs there (`reasons`), and what feeds it. A
long path of lookups, each of which feeds only the next, is one line: of each the key, and where it looks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from viewkeeper.errors import Defect
from viewkeeper.expressions.backends.text import expr_text
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.schema import Table
from viewkeeper.operators.description import ExplainContext, FanOut
from viewkeeper.operators.operator import Operator, slot_names
from viewkeeper.operators.segment import Segment
from viewkeeper.plan.dataflow import dataflow
from viewkeeper.plan.dataflow.dataflow import Dataflow, SlotSizes, assign_rounds, choose_broadcasts, is_broadcast

# Why an operator is of its kind and no cheaper one, and what a change costs there: the second line of EXPLAIN.
#
# The kinds, cheapest first: a segment (no state), a lookup (no state of its own), sums by group (one row a group),
# values by group (one row a distinct value), rows by key that are recomputed slice by slice, and all rows in one
# slice. Each says its reason itself; where it runs on a cluster is added here.


def describe_reason(dataflow: Dataflow, operator: Operator, context: ExplainContext, sizes: SlotSizes) -> str | None:
    """One sentence, or None where the kind says it all."""
    found = operator.reason(context)
    return (
        found
        if found is None or operator.probed_arrangement is None
        else found + _describe_broadcast(dataflow, operator.probed_arrangement, sizes)
    )


def _describe_broadcast(flow: Dataflow, arrangement: str, sizes: SlotSizes) -> str:
    """Which side is broadcast, and why; nothing where that is not known yet or not a question."""
    rows, size = sizes.get(slot_names(flow.operators[arrangement])[0], (0, 0))
    if is_broadcast(flow, arrangement, sizes):
        return f"; broadcast: with {rows:,} rows every task reads it whole, so that the probes need not travel"
    if size > dataflow.BROADCAST_BYTES:
        return (
            f"; not broadcast: over {dataflow.BROADCAST_BYTES >> 20} MB, so on a cluster the probes travel to its parts"
        )
    return ""


_MAX_NAMED_VIEWS = 20
"""Views that an operator is shared with and that are told by name."""
_MIN_PATH_LENGTH = 4
"""Lookups from which a path is told in one line, and sources from which those that only pass columns on are."""


def render_explain(
    dataflow: Dataflow,
    table: Table,
    sizes: SlotSizes,
    names: Mapping[int, str],
    fan_out: FanOut | None = None,
    notes: Sequence[str] = (),
    members: Mapping[str, int] | None = None,
) -> str:
    """The plan of one view. `names`: view and table names by id; `notes` come last; `members` by operator."""
    mine = dataflow.upstream([dataflow.sink(table.id).id])
    shown = [o for n, o in dataflow.views[table.id].operators.items() if n in mine and not o.is_load_only]
    numbers = {o.id: i for i, o in enumerate(shown, 1)}
    key = ", ".join(k.column + (" DESC" if k.descending else "") for k in table.key)
    kind = "the whole row, with a count" if table.is_bag else "unique"
    lines = [f"view {table.name}  key ({key}), {kind}"]
    told = ExplainContext(dataflow, numbers, names, fan_out or {}, sizes, members or {})
    rounds = assign_rounds(dataflow, choose_broadcasts(dataflow, sizes))
    paths = {path[0].id: path for path in _lookup_chains(shown)}
    later = {o.id for path in paths.values() for o in path[1:]}
    shown = [o for o in shown if o.id not in later]
    for level in sorted({rounds[o.id] for o in shown}):
        lines.append(f"round {level}")
        for operator in shown:
            if rounds[operator.id] == level:
                path = paths.get(operator.id)
                found = (
                    _operator_lines(dataflow, operator, table.id, told, sizes)
                    if path is None
                    else [_path_line(path, told)]
                )
                lines.extend(found)
    return "\n".join([*lines, *notes])


def _lookup_chains(operators: Sequence[Operator]) -> Iterator[list[Operator]]:
    """Long chains of lookups of which each feeds only the next."""
    consumers: dict[str, list[Operator]] = defaultdict(list)
    for operator in operators:
        for source in operator.upstream_ids:
            consumers[source].append(operator)
    onward = {
        o.id: after[0]
        for o in operators
        if o.lookup is not None and len(after := consumers[o.id]) == 1
        and after[0].lookup is not None and len(after[0].upstream_ids) == 1
    }  # fmt: skip
    inner = {o.id for o in onward.values()}
    for operator in operators:
        if operator.id in onward and operator.id not in inner:
            path = [operator]
            while path[-1].id in onward:
                path.append(onward[path[-1].id])
            if len(path) >= _MIN_PATH_LENGTH:
                yield path


def _path_line(path: Sequence[Operator], context: ExplainContext) -> str:
    fed = [s for s in path[0].segments() if s.source in context.numbers]  # not by what only loads
    sources = ", ".join(f"#{context.numbers[s.source]}{_sign_text(s)}" for s in fed)
    steps = []
    for operator in path:
        segment = next(operator.segments())
        asked = [context.describe_expr(segment.source, w) for w in segment.where if not _is_key_comparison(w)]
        steps += [f"where {' and '.join(asked)}"] if asked else []
        steps.append(operator.describe_step(context))
    first, last = context.numbers[path[0].id], context.numbers[path[-1].id]
    return f"  #{first} to #{last} lookups from {sources}: {', '.join(steps)}"


def _is_key_comparison(condition: Expr) -> bool:
    """Whether it only compares the keys by which two relations were looked up."""
    return condition.op in ("EqualTo", "EqualNullSafe") and all(a.op == "column" for a in condition.args)


def _operator_lines(
    dataflow: Dataflow, operator: Operator, view: int, context: ExplainContext, sizes: SlotSizes
) -> list[str]:
    numbers = context.numbers
    text = f"  #{numbers[operator.id]} {operator.describe(context)}"
    held = [sizes.get(s, (0, 0)) for s in slot_names(operator)]
    if held:
        text += f"  state {sum(r for r, _ in held):,} rows, {_format_bytes(sum(b for _, b in held))}"
    others = sorted(context.names[v] for v in dataflow.views_of(operator.id) if v != view)
    if others and not operator.is_source:
        more = f" and {len(others) - _MAX_NAMED_VIEWS:,} more" if len(others) > _MAX_NAMED_VIEWS else ""
        text += f"  shared with {', '.join(others[:_MAX_NAMED_VIEWS])}{more}"
    fed = [s for s in operator.segments() if s.source in numbers]
    plain = [s for s in fed if not (s.where or s.times) and all(n.expr.op == "column" for n in s.exprs)]
    if len(plain) < _MIN_PATH_LENGTH:
        plain = []
    segments = [f"      from #{numbers[s.source]}{_segment_text(s)}" for s in fed if s not in plain]
    if plain:
        segments.append(
            f"      from {', '.join(f'#{numbers[s.source]}{_sign_text(s)}' for s in plain)}: columns as they are"
        )
    why = describe_reason(dataflow, operator, context, sizes)
    return [text, *([f"      {why}"] if why else []), *segments]


def _sign_text(segment: Segment) -> str:
    return " subtracted" if segment.sign < 0 else ""


def _segment_text(segment: Segment) -> str:
    text = f"{_sign_text(segment)}: "
    text += ", ".join(f"{expr_text(n.expr)} AS {n.name}" for n in segment.exprs)
    if segment.times:
        text += " repeated " + " times ".join(expr_text(t) for t in segment.times)
    if segment.where:
        text += " WHERE " + " AND ".join(expr_text(w) for w in segment.where)
    return text


def _format_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise Defect("The last unit has no end.")
