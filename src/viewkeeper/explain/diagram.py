"""A view's maintenance plan as a picture to be drawn: boxes in rounds, and links between them.

A box is an operator, told in the words of the tables (`operators.telling`). A link is the flow of deltas; the state
that a lookup reads is named in its box, because lines for it would cross everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.operators.description import ExplainContext
from viewkeeper.operators.operator import Operator, slot_names
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Dataflow, SlotSizes, assign_rounds, choose_broadcasts
from viewkeeper.read.status import _slot_sizes
from viewkeeper.store.contract.store import Store


@dataclass(frozen=True)
class DiagramBox:
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
class DiagramEdge:
    """Deltas from one box to another; `where` is the filter on the way."""

    source: int
    target: int
    where: str = ""
    subtracted: bool = False


@dataclass(frozen=True)
class Diagram:
    view: str
    key: tuple[str, ...]
    unique: bool
    rounds: int
    boxes: tuple[DiagramBox, ...]
    links: tuple[DiagramEdge, ...]


def plan_diagram(dataflow: Dataflow, table: Table, sizes: SlotSizes, names: Mapping[int, str]) -> Diagram:
    """The picture of one view. `names`: view and table names by id."""
    shown = list(number_operators(dataflow, table).values())
    numbers = {o.id: i for i, o in enumerate(shown, 1)}
    told = ExplainContext(dataflow, numbers, names)
    rounds = assign_rounds(dataflow, choose_broadcasts(dataflow, sizes))
    boxes = [_make_box(dataflow, o, table, told, sizes, rounds[o.id]) for o in shown]
    return Diagram(
        table.name,
        tuple(k.column + (" DESC" if k.descending else "") for k in table.key),
        not table.is_bag,
        1 + max(b.round for b in boxes),
        tuple(boxes),
        tuple(link for o in shown for link in _operator_edges(o, told)),
    )


def number_operators(dataflow: Dataflow, table: Table) -> Mapping[int, Operator]:
    """The operators of one view by the number of their box."""
    mine = dataflow.upstream([dataflow.sink(table.id).id])
    made = dataflow.views[table.id].operators
    return dict(enumerate((o for n, o in made.items() if n in mine and not o.is_load_only), 1))


def _operator_edges(operator: Operator, context: ExplainContext) -> Iterator[DiagramEdge]:
    numbers, target = context.numbers, context.numbers[operator.id]
    segments = list(operator.segments())
    if not segments:  # a table's changes go to its arrangements as they are
        yield from (DiagramEdge(numbers[source], target) for source in operator.upstream_ids)
    for segment in segments:
        if segment.source in numbers:
            # What only compares the keys of a lookup is in its box already.
            where = " and ".join(
                t for w in segment.where if (t := context.describe_expr(segment.source, w)) and not _is_key_condition(t)
            )
            yield DiagramEdge(numbers[segment.source], target, where, segment.sign < 0)


def _is_key_condition(text: str) -> bool:
    """Conditions that say nothing new: a key that is compared or is not null."""
    if text.endswith(" is not null") and " " not in text.removesuffix(" is not null"):
        return True
    left, equals, right = text.partition(" = ")
    return bool(equals) and left.isidentifier() and right.isidentifier()


def _make_box(
    dataflow: Dataflow, operator: Operator, view: Table, context: ExplainContext, sizes: SlotSizes, round_number: int
) -> DiagramBox:
    held = [sizes.get(s, (0, 0)) for s in slot_names(operator)]
    others = sorted(context.names[v] for v in dataflow.views_of(operator.id) if v != view.id)
    drawn = operator.box_description(context)
    return DiagramBox(
        context.numbers[operator.id],
        operator.kind,
        drawn.title,
        drawn.lines,
        round_number,
        drawn.table,
        drawn.key,
        drawn.reads,
        rows=sum(r for r, _ in held) if held else None,
        bytes=sum(b for _, b in held) if held else None,
        shared=() if operator.is_source else tuple(others),
    )


# A view's maintenance plan as a picture, with the sizes that its state has now.


def view_diagram(store: Store, catalog: Catalog, name: str) -> Diagram:
    """The picture of one view."""
    return diagram_with_operators(store, catalog, name)[0]


def diagram_with_operators(store: Store, catalog: Catalog, name: str) -> tuple[Diagram, Mapping[int, str]]:
    """The picture of one view, and by a box's number the id of its operator."""
    view = catalog.maintained_view(catalog.view(name))
    names = {t.id: t.name for t in (*catalog.tables, *(v.table for v in catalog.views))}
    flow = cache.full_dataflow(store, catalog)
    return plan_diagram(flow, view.table, _slot_sizes(store), names), {
        n: o.id for n, o in number_operators(flow, view.table).items()
    }
