"""The graph of a set of views is the union of theirs, and is made as one: views are taken out and added.

A view compiles to the same operators whatever other views there are (`compiled`), and equal operators are one. What
decides what is kept (who needs an operator, which columns anybody reads) is a count, so a change costs what it changes.
Whatever is nested is copied before it is changed: the graph before stays as it is.

Every base table that is used has an image, from which later views are loaded. Any arrangement of it serves; one by
primary key is made if there is none, or if the store needs it for before-images (`keyed_images`). If the store
`selects`, it is asked only for the rows that matter (`selections`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from viewkeeper.model.filtered_table import selected, whole
from viewkeeper.model.schema import Column, Table
from viewkeeper.operators.kinds import Image, Input, SelectedImage
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.compile.compiled_view import Compiled, compiled, slots
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.dataflow import Counted, Flow, Way
from viewkeeper.plan.logical.nodes import Expr
from viewkeeper.plan.rules.predicate_pushdown import comparison, in_order

_MODULUS = 1 << 128


def assemble(
    tables: Mapping[int, Table],
    plans: Mapping[int, ViewPlan],
    views: Iterable[int],
    keyed_images: bool = False,
    selects: bool = False,
) -> Flow:
    """The flow of these views; `plans` holds every plan that they may refer to."""
    return moved(Flow(keyed_images=keyed_images, selects=selects), tables, plans, (), views)


def moved(
    before: Flow,
    tables: Mapping[int, Table],
    plans: Mapping[int, ViewPlan],
    changed: Iterable[int],
    new: Iterable[int],
) -> Flow:
    """The flow over these tables, of the views before and `new` ones. `changed`: ids that were there, and are gone or
    others now; such a view stays only if it is among the new ones.

    What reads a table or view that changed is compiled again, unless it is the same as before all the same.
    """
    inside = {i: t.inside for i, t in tables.items()}  # as plans and stored state know their columns
    altered = {i for i, t in before.tables.items() if whole(t) != inside.get(i)}
    others = altered.union(changed)
    out = {i for i in others if i in before.views}
    stale = {v for v, made in before.views.items() if v not in out and _reads(made, others)} if others else set()
    building = _Building(before, inside, altered)
    building.take_out(out | stale)
    for view in sorted({*new, *stale}):
        building.add(view, compiled(view, inside, plans))
    return building.done()


def _reads(made: Compiled, others: set[int]) -> bool:
    return not (others.isdisjoint(made.tables) and others.isdisjoint(made.plans))


class _Building:
    """A flow that is being changed."""

    def __init__(self, before: Flow, tables: Mapping[int, Table], altered: Iterable[int]) -> None:
        self.before, self.base = before, tables
        self.operators, self.views, self.slots = dict(before.operators), dict(before.views), dict(before.slots)
        self.consumers: dict[str, Sequence[Way]] = dict(before.consumers)
        counted = before.counted
        self.needed, self.first, self.places = dict(counted.operators), dict(counted.first), dict(counted.places)
        self.columns, self.held, self.filters = dict(counted.columns), dict(counted.held), dict(counted.filters)
        self.total = counted.total
        self.place = next(reversed(self.places.values())) if self.places else 0
        self.longer: dict[str, list[Way]] = {}
        """Ways from operators to which some were added."""
        self.arranged: dict[int, dict[str, Operator]] = {}
        self.mine: set[tuple[int, Any]] = set()
        self.touched = set(altered)
        """Tables of which something may be another than before."""

    # -- views --------------------------------------------------------------------------------------------------------

    def add(self, view: int, made: Compiled) -> None:
        self.views[view] = made
        for place, (name, operator) in enumerate(made.operators.items()):
            if name not in self.operators:
                self._add(operator)
            self.needed[name] = self.needed.get(name, 0) + 1
            if operator.arranges is not None:
                self.first[name] = min(self.first.get(name, (view, place)), (view, place))
        self._count(made, 1)

    def take_out(self, views: set[int]) -> None:
        images: set[str] = set()
        fed: set[str] = set()
        for view in views:
            made = self.views.pop(view)
            for name, operator in made.operators.items():
                self.needed[name] -= 1
                if not self.needed[name]:
                    self._remove(name)
                    fed.update(s.source for s in operator.segments())
                elif operator.arranges is not None and self.first[name][0] == view:
                    images.add(name)
            self._count(made, -1)
        for source in fed & self.operators.keys():
            self.consumers[source] = [way for way in self.consumers[source] if way[0] in self.operators]
        for name in images & self.needed.keys():
            users = ((view, made.operators) for view, made in self.views.items() if name in made.operators)
            self.first[name] = min((view, list(operators).index(name)) for view, operators in users)

    def _count(self, made: Compiled, sign: int) -> None:
        self.touched.update(made.tables)
        for table, names in made.used.items():
            self._tally(self.columns, table, names, sign)
        for image, names in made.held.items():
            self._tally(self.held, image, names, sign)
        if self.before.selects:
            for table in made.tables:
                source = Input(table).id
                for where in (s.where for o in made.operators.values() for s in o.segments() if s.source == source):
                    compared = dict.fromkeys(e for e in where if comparison(e) is not None)
                    self._tally(self.filters, table, (None, *compared), sign)

    def _tally(self, counts: dict[Any, Any], of: Any, things: Iterable[Any], sign: int) -> None:
        if (id(counts), of) not in self.mine:
            self.mine.add((id(counts), of))
            counts[of] = dict(counts.get(of, {}))
        counted = counts[of]
        for thing in things:
            counted[thing] = counted.get(thing, 0) + sign
            if not counted[thing]:
                del counted[thing]

    # -- operators ----------------------------------------------------------------------------------------------------

    def _add(self, operator: Operator) -> None:
        name = operator.id
        self.place += 1
        self.operators[name], self.places[name] = operator, self.place
        for port, segments in enumerate(operator.ports):
            for segment in segments:
                if segment.source not in self.longer:
                    self.longer[segment.source] = list(self.consumers.get(segment.source, ()))
                self.longer[segment.source].append((name, port, segment))
        if operator.arranges is not None:
            self._arranged(operator.arranges)[name] = operator
        if operator.stateful:
            self.slots |= dict.fromkeys(slots(operator), name)
            self.total = (self.total + _number(name)) % _MODULUS

    def _remove(self, name: str) -> None:
        operator = self.operators.pop(name)
        del self.places[name]
        self.needed.pop(name, None)
        self.first.pop(name, None)
        self.consumers.pop(name, None)
        if operator.arranges is not None:
            del self._arranged(operator.arranges)[name]
        if operator.changes_of is not None:
            for image in [i for i in self._arranged(operator.changes_of) if i not in self.needed]:
                self._remove(image)
        if operator.stateful:
            for slot in slots(operator):
                del self.slots[slot]
            self.total = (self.total - _number(name)) % _MODULUS

    # -- tables -------------------------------------------------------------------------------------------------------

    def done(self) -> Flow:
        before = self.before
        tables = {
            i: before.tables[i] if i in before.tables and i not in self.touched else t for i, t in self.base.items()
        }
        images, used, held = dict(before.images), dict(before.used), dict(before.held)
        for table in self.touched:
            for image in images.pop(table, ()):
                held.pop(image.id, None)
            used.pop(table, None)
            found, where = self._images(table)
            if found:
                compared = tuple(c for e in where if (c := comparison(e)) is not None)
                tables[table] = selected(self.base[table], compared)
                names = {n.lower() for n in self.columns[table]}
                used[table] = tuple(c for c in self.base[table].columns if c.name.lower() in names)
                images[table] = found
                held |= self._held(table, found, used[table])
        for source, ways in self.longer.items():
            self.consumers[source] = ways
        counted = Counted(
            self.needed,
            {t: c for t, c in self.columns.items() if c},
            {i: c for i, c in self.held.items() if c},
            {t: c for t, c in self.filters.items() if c},
            self.first,
            self.places,
            self.total,
        )
        how = (before.keyed_images, before.selects, counted)
        return Flow(self.operators, tables, self.views, self.consumers, images, used, held, self.slots, *how)

    def _images(self, table: int) -> tuple[list[Operator], tuple[Expr, ...]]:
        """The images of a table that views need, the first view's first, and last the one that the flow has of its own;
        with it the comparisons that its rows pass."""
        there = self._arranged(table)
        needed = sorted((i for i in there.values() if i.id in self.needed), key=lambda i: self.first[i.id])
        where = () if needed else self._common(table)
        wanted = self._own_image(table, where, bool(needed)) if Input(table).id in self.operators else None
        for image in [i for i in there.values() if i.id not in self.needed and i != wanted]:
            self._remove(image.id)
        if wanted is not None and wanted.id not in self.operators:
            self._add(wanted)
        return needed if wanted is None or wanted.id in self.needed else [*needed, wanted], where

    def _own_image(self, table: int, where: tuple[Expr, ...], is_arranged: bool) -> Operator | None:
        key = tuple(k.column for k in self.base[table].key)
        if where:
            return SelectedImage(table, key, where)
        return Image(table, key) if self.before.keyed_images or not is_arranged else None

    def _common(self, table: int) -> tuple[Expr, ...]:
        """The comparisons that all segments over a table make."""
        counts = self.filters.get(table, {})
        return in_order(e for e, count in counts.items() if e is not None and count == counts[None])

    def _held(self, table: int, images: Sequence[Operator], used: tuple[Column, ...]) -> dict[str, tuple[Column, ...]]:
        primary = tuple(k.column for k in self.base[table].key)
        largest = next((i for i in images if i.arranged_by == primary), images[0])
        names = {i.id: {n.lower() for n in (*i.arranged_by, *self.held.get(i.id, ()))} for i in images}
        return {i.id: used if i is largest else tuple(c for c in used if c.name.lower() in names[i.id]) for i in images}

    def _arranged(self, table: int) -> dict[str, Operator]:
        if table not in self.arranged:
            self.arranged[table] = {image.id: image for image in self.before.images.get(table, ())}
        return self.arranged[table]


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
