"""EXPLAIN: a view's maintenance plan as text, round by round.

Each operator has a line: its number, its kind and description, rows and bytes of its state, and the other views that
share it. Below that line are the reason for its kind or the cost of a change (`describe_reason`), and its inputs. A
long path of lookups, each of which feeds only the next, is one line with the key and the arrangement of each lookup.
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

# The second line of an operator: the reason for its kind instead of a cheaper one, and the cost of a change.
#
# The kinds, cheapest first: a segment (no state), a lookup (no state of its own), sums by group (one row for a group),
# values by group (one row for a distinct value), rows by key that are recomputed slice by slice, and all rows in one
# slice. Each operator returns its reason; this module adds whether an arrangement is broadcast on a cluster.


def describe_reason(dataflow: Dataflow, operator: Operator, context: ExplainContext, sizes: SlotSizes) -> str | None:
    """Return the reason in one sentence, or None if the kind needs no explanation."""
    reason = operator.reason(context)
    return (
        reason
        if reason is None or operator.probed_arrangement is None
        else reason + _describe_broadcast(dataflow, operator.probed_arrangement, sizes)
    )


def _describe_broadcast(flow: Dataflow, arrangement: str, sizes: SlotSizes) -> str:
    """Describe whether the arrangement is broadcast, and why; empty if its size does not decide that."""
    rows, size = sizes.get(slot_names(flow.operators[arrangement])[0], (0, 0))
    if is_broadcast(flow, arrangement, sizes):
        return f"; broadcast: with {rows:,} rows every task reads it whole, so that the probes need not travel"
    if size > dataflow.BROADCAST_BYTES:
        return (
            f"; not broadcast: over {dataflow.BROADCAST_BYTES >> 20} MB, so on a cluster the probes travel to its parts"
        )
    return ""


_MAX_NAMED_VIEWS = 20
"""Views sharing an operator that are listed by name."""
_MIN_PATH_LENGTH = 4
"""Minimum number of lookups for a path on one line, and of inputs that only pass columns on for listing them on one."""


def render_explain(
    dataflow: Dataflow,
    table: Table,
    sizes: SlotSizes,
    names: Mapping[int, str],
    fan_out: FanOut | None = None,
    notes: Sequence[str] = (),
    members: Mapping[str, int] | None = None,
) -> str:
    """Return the plan of one view as text, followed by the notes.

    `names` are the names of views and tables by id; `members` are numbers of family members by operator.
    """
    upstream = dataflow.upstream([dataflow.sink(table.id).id])
    shown = [o for name, o in dataflow.views[table.id].operators.items() if name in upstream and not o.is_load_only]
    numbers = {o.id: i for i, o in enumerate(shown, 1)}
    key = ", ".join(k.column + (" DESC" if k.descending else "") for k in table.key)
    kind = "the whole row, with a count" if table.is_bag else "unique"
    lines = [f"view {table.name}  key ({key}), {kind}"]
    context = ExplainContext(dataflow, numbers, names, fan_out or {}, sizes, members or {})
    rounds = assign_rounds(dataflow, choose_broadcasts(dataflow, sizes))
    paths = {path[0].id: path for path in _lookup_chains(shown)}
    inner = {o.id for path in paths.values() for o in path[1:]}
    shown = [o for o in shown if o.id not in inner]
    for round_number in sorted({rounds[o.id] for o in shown}):
        lines.append(f"round {round_number}")
        for operator in shown:
            if rounds[operator.id] == round_number:
                path = paths.get(operator.id)
                operator_text = (
                    _operator_lines(dataflow, operator, table.id, context, sizes)
                    if path is None
                    else [_path_line(path, context)]
                )
                lines.extend(operator_text)
    return "\n".join([*lines, *notes])


def _lookup_chains(operators: Sequence[Operator]) -> Iterator[list[Operator]]:
    """Yield long chains of lookups in which each lookup feeds only the next."""
    consumers: dict[str, list[Operator]] = defaultdict(list)
    for operator in operators:
        for source in operator.upstream_ids:
            consumers[source].append(operator)
    next_lookup = {
        o.id: after[0]
        for o in operators
        if o.lookup is not None and len(after := consumers[o.id]) == 1
        and after[0].lookup is not None and len(after[0].upstream_ids) == 1
    }  # fmt: skip
    inner = {o.id for o in next_lookup.values()}
    for operator in operators:
        if operator.id in next_lookup and operator.id not in inner:
            path = [operator]
            while path[-1].id in next_lookup:
                path.append(next_lookup[path[-1].id])
            if len(path) >= _MIN_PATH_LENGTH:
                yield path


def _path_line(path: Sequence[Operator], context: ExplainContext) -> str:
    # Operators that run in backfills only have no number.
    inputs = [s for s in path[0].segments() if s.source in context.numbers]
    sources = ", ".join(f"#{context.numbers[s.source]}{_sign_text(s)}" for s in inputs)
    steps = []
    for operator in path:
        segment = next(operator.segments())
        conditions = [context.describe_expr(segment.source, w) for w in segment.where if not _is_key_comparison(w)]
        steps += [f"where {' and '.join(conditions)}"] if conditions else []
        steps.append(operator.describe_step(context))
    first, last = context.numbers[path[0].id], context.numbers[path[-1].id]
    return f"  #{first} to #{last} lookups from {sources}: {', '.join(steps)}"


def _is_key_comparison(condition: Expr) -> bool:
    """Whether the condition only compares the keys of two relations that were looked up."""
    return condition.op in ("EqualTo", "EqualNullSafe") and all(a.op == "column" for a in condition.args)


def _operator_lines(
    dataflow: Dataflow, operator: Operator, view: int, context: ExplainContext, sizes: SlotSizes
) -> list[str]:
    numbers = context.numbers
    text = f"  #{numbers[operator.id]} {operator.describe(context)}"
    slot_sizes = [sizes.get(s, (0, 0)) for s in slot_names(operator)]
    if slot_sizes:
        text += f"  state {sum(r for r, _ in slot_sizes):,} rows, {_format_bytes(sum(b for _, b in slot_sizes))}"
    shared_with = sorted(context.names[v] for v in dataflow.views_of(operator.id) if v != view)
    if shared_with and not operator.is_source:
        more = f" and {len(shared_with) - _MAX_NAMED_VIEWS:,} more" if len(shared_with) > _MAX_NAMED_VIEWS else ""
        text += f"  shared with {', '.join(shared_with[:_MAX_NAMED_VIEWS])}{more}"
    inputs = [s for s in operator.segments() if s.source in numbers]
    plain = [s for s in inputs if not (s.where or s.times) and all(n.expr.op == "column" for n in s.exprs)]
    if len(plain) < _MIN_PATH_LENGTH:
        plain = []
    segments = [f"      from #{numbers[s.source]}{_segment_text(s)}" for s in inputs if s not in plain]
    if plain:
        segments.append(
            f"      from {', '.join(f'#{numbers[s.source]}{_sign_text(s)}' for s in plain)}: columns as they are"
        )
    reason = describe_reason(dataflow, operator, context, sizes)
    return [text, *([f"      {reason}"] if reason else []), *segments]


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
