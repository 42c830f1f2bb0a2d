"""What a lazy view costs and what it would cost if it were stored, in rows, for EXPLAIN.

lazy      a change   a row in each arrangement of its table
          a read     the rows that are looked up from step to step, each as many as its arrangement has of one key
stored    a change   the rows that the lookups of a join make of it, and the view's rows that it changes
          a read     the view's rows that are asked for
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from viewkeeper.model.catalog import Catalog, View
from viewkeeper.operators.kinds import Image, Input
from viewkeeper.operators.telling import FanOut
from viewkeeper.plan.compiled import slots
from viewkeeper.plan.flow import Flow
from viewkeeper.plan.levels import Sizes
from viewkeeper.plan.narrowing import KEY, Step
from viewkeeper.read.asked import Asked, asked_of


def both_costs(catalog: Catalog, view: View, names: Mapping[int, str], sizes: Sizes, fan_out: FanOut) -> list[str]:
    """The lines of EXPLAIN about it."""
    asked = asked_of(catalog, view)
    whole = sum(sizes.get(slots(image)[0], (0, 0))[0] for image in asked.kept.values())
    lines = ["lazy: batches keep these arrangements; nothing is joined or summed until it is read"]
    by_key = _by_key(asked, fan_out, sizes)
    if by_key is not None:
        known = ", ".join(k.column for k in view.table.key[: asked.narrowing.needs])
        steps = ", ".join(_said(step, names, rows) for step, rows in zip(asked.narrowing.steps, by_key, strict=True))
        lines.append(f"  a read by ({known}): about {sum(by_key):,.0f} rows: {steps}")
    else:
        lines.append("  a read by key: as one of all, since no column of the key is a column of its tables")
    lines.append(f"  a read of all: {whole:,} rows; answers are remembered until one of the tables changes")
    changes = {table: _made(asked.flow, Input(table).id, fan_out) for table in asked.kept}
    said = ", ".join(f"of {names[table]} about {rows:,.1f}" for table, rows in changes.items())
    lines.append(f"stored, it would cost joined rows for each change: {said}; and a read by key one row")
    most, read = max(changes.values()), sum(by_key) if by_key is not None else whole
    if read:
        lines.append(f"  so lazy does less work while fewer than {most / read:,.2g} keys are read for a change")
    return lines


def _said(step: Step, names: Mapping[int, str], rows: float) -> str:
    by = f" by ({', '.join(step.columns)})" if step.columns else ", all"
    return f"{names[step.table]}{by} {rows:,.0f}"


def _by_key(asked: Asked, fan_out: FanOut, sizes: Sizes) -> Sequence[float] | None:
    """Rows that each step finds for one key; None if nothing is narrowed."""
    if not asked.narrowing.needs:
        return None
    found: list[float] = []
    for step in asked.narrowing.steps:
        image = Image(step.table, step.columns) if step.columns else asked.kept[step.table]
        rows = sizes.get(slots(image)[0], (0, 0))[0]
        each = fan_out.get(image.id, 0.0)
        found.append(rows if not step.columns else each if step.source == KEY else found[step.source] * each)
    return found


def _made(flow: Flow, source: str, fan_out: FanOut) -> float:
    """Rows that lookups make of one changed row of a table; where an arrangement is not kept, one each."""
    rows = {source: 1.0}
    made = 0.0
    for name in flow.ordered(flow.reached([source], flow.in_batches)):
        operator = flow.operators[name]
        if name == source:
            continue
        came = max((rows.get(s, 0.0) for s in flow.feeders(name)), default=0.0)
        if operator.probes is not None:
            came *= fan_out.get(operator.probes, 1.0)
            made += came
        rows[name] = came
    return max(made, 1.0)
