"""The diagram of a view's maintenance plan: boxes by round, and edges between them.

A box is an operator, described by columns and expressions of the tables (`operators.description`). An edge is a path of
deltas. The state that a lookup reads is named in the lookup's box, because lines for it would cross the other edges.
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
    """One operator. `reads` is the box number of the arrangement that a lookup probes; `rows` is None without state."""

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
    """Deltas from one box to another; `where` is the filter of the segment between them."""

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
    """Return the diagram of one view. `names` are the names of views and tables by id."""
    shown = list(number_operators(dataflow, table).values())
    numbers = {operator.id: i for i, operator in enumerate(shown, 1)}
    context = ExplainContext(dataflow, numbers, names)
    rounds = assign_rounds(dataflow, choose_broadcasts(dataflow, sizes))
    boxes = [_make_box(dataflow, operator, table, context, sizes, rounds[operator.id]) for operator in shown]
    return Diagram(
        table.name,
        tuple(k.column + (" DESC" if k.descending else "") for k in table.key),
        not table.is_bag,
        1 + max(b.round for b in boxes),
        tuple(boxes),
        tuple(link for operator in shown for link in _operator_edges(operator, context)),
    )


def number_operators(dataflow: Dataflow, table: Table) -> Mapping[int, Operator]:
    """Return the operators of one view by box number."""
    upstream = dataflow.upstream([dataflow.sink(table.id).id])
    operators = dataflow.views[table.id].operators
    return dict(
        enumerate(
            (operator for name, operator in operators.items() if name in upstream and not operator.is_load_only), 1
        )
    )


def _operator_edges(operator: Operator, context: ExplainContext) -> Iterator[DiagramEdge]:
    numbers, target = context.numbers, context.numbers[operator.id]
    segments = list(operator.segments())
    if not segments:  # a table's changes are passed to its arrangements unchanged
        yield from (DiagramEdge(numbers[source], target) for source in operator.upstream_ids)
    for segment in segments:
        if segment.source in numbers:
            # The box of a lookup already shows the comparison of its keys.
            where = " and ".join(
                t for w in segment.where if (t := context.describe_expr(segment.source, w)) and not _is_key_condition(t)
            )
            yield DiagramEdge(numbers[segment.source], target, where, segment.sign < 0)


def _is_key_condition(text: str) -> bool:
    """Whether a condition only compares a key or states that it is not null: the boxes show that already."""
    if text.endswith(" is not null") and " " not in text.removesuffix(" is not null"):
        return True
    left, equals, right = text.partition(" = ")
    return bool(equals) and left.isidentifier() and right.isidentifier()


def _make_box(
    dataflow: Dataflow, operator: Operator, view: Table, context: ExplainContext, sizes: SlotSizes, round_number: int
) -> DiagramBox:
    slot_sizes = [sizes.get(s, (0, 0)) for s in slot_names(operator)]
    shared_with = sorted(context.names[v] for v in dataflow.views_of(operator.id) if v != view.id)
    description = operator.box_description(context)
    return DiagramBox(
        context.numbers[operator.id],
        operator.kind,
        description.title,
        description.lines,
        round_number,
        description.table,
        description.key,
        description.reads,
        rows=sum(r for r, _ in slot_sizes) if slot_sizes else None,
        bytes=sum(b for _, b in slot_sizes) if slot_sizes else None,
        shared=() if operator.is_source else tuple(shared_with),
    )


# The diagram of a stored view, with the current sizes of its state.


def view_diagram(store: Store, catalog: Catalog, name: str) -> Diagram:
    """Return the diagram of one view."""
    return diagram_with_operators(store, catalog, name)[0]


def diagram_with_operators(store: Store, catalog: Catalog, name: str) -> tuple[Diagram, Mapping[int, str]]:
    """Return the diagram of one view, and the operator ids by box number."""
    view = catalog.maintained_view(catalog.view(name))
    names = {t.id: t.name for t in (*catalog.tables, *(v.table for v in catalog.views))}
    dataflow = cache.full_dataflow(store, catalog)
    return plan_diagram(dataflow, view.table, _slot_sizes(store), names), {
        number: operator.id for number, operator in number_operators(dataflow, view.table).items()
    }
