"""A view's maintenance plan as a picture to be drawn: boxes in rounds, and links between them.

A box is an operator, told in the words of the tables (`operators.telling`). A link is the flow of deltas; the state
that a lookup reads is named in its box, because lines for it would cross everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.operators.description import Told
from viewkeeper.operators.operator import Operator, slots
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Flow, Sizes, broadcast, levels
from viewkeeper.read.status import slot_sizes
from viewkeeper.store.contract.store import Store


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
    told = Told(flow, numbers, names)
    rounds = levels(flow, broadcast(flow, sizes))
    boxes = [_box(flow, o, table, told, sizes, rounds[o.id]) for o in shown]
    return Picture(
        table.name,
        tuple(k.column + (" DESC" if k.descending else "") for k in table.key),
        not table.is_bag,
        1 + max(b.round for b in boxes),
        tuple(boxes),
        tuple(link for o in shown for link in _links(o, told)),
    )


def numbered(flow: Flow, table: Table) -> Mapping[int, Operator]:
    """The operators of one view by the number of their box."""
    mine = flow.behind([flow.sink(table.id).id])
    made = flow.views[table.id].operators
    return dict(enumerate((o for n, o in made.items() if n in mine and not o.only_loads), 1))


def _links(operator: Operator, told: Told) -> Iterator[Link]:
    numbers, target = told.numbers, told.numbers[operator.id]
    segments = list(operator.segments())
    if not segments:  # a table's changes go to its arrangements as they are
        yield from (Link(numbers[source], target) for source in operator.fed_by)
    for segment in segments:
        if segment.source in numbers:
            # What only compares the keys of a lookup is in its box already.
            where = " and ".join(t for w in segment.where if (t := told.text(segment.source, w)) and not _plain(t))
            yield Link(numbers[segment.source], target, where, segment.sign < 0)


def _plain(text: str) -> bool:
    """Conditions that say nothing new: a key that is compared or is not null."""
    if text.endswith(" is not null") and " " not in text.removesuffix(" is not null"):
        return True
    left, equals, right = text.partition(" = ")
    return bool(equals) and left.isidentifier() and right.isidentifier()


def _box(flow: Flow, operator: Operator, view: Table, told: Told, sizes: Sizes, level: int) -> Box:
    held = [sizes.get(s, (0, 0)) for s in slots(operator)]
    others = sorted(told.names[v] for v in flow.views_of(operator.id) if v != view.id)
    drawn = operator.drawn(told)
    return Box(
        told.numbers[operator.id],
        operator.kind,
        drawn.title,
        drawn.lines,
        level,
        drawn.table,
        drawn.key,
        drawn.reads,
        rows=sum(r for r, _ in held) if held else None,
        bytes=sum(b for _, b in held) if held else None,
        shared=() if operator.is_source else tuple(others),
    )


# A view's maintenance plan as a picture, with the sizes that its state has now.


def picture_view(store: Store, catalog: Catalog, name: str) -> Picture:
    """The picture of one view."""
    return picture_of(store, catalog, name)[0]


def picture_of(store: Store, catalog: Catalog, name: str) -> tuple[Picture, Mapping[int, str]]:
    """The picture of one view, and by a box's number the id of its operator."""
    view = catalog.keeper(catalog.view(name))
    names = {t.id: t.name for t in (*catalog.tables, *(v.table for v in catalog.views))}
    flow = cache.everything(store, catalog)
    return picture(flow, view.table, slot_sizes(store), names), {n: o.id for n, o in numbered(flow, view.table).items()}
