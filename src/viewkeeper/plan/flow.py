"""All live views as one graph: who feeds whom, in which order. In which round, `levels` says."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from viewkeeper.model.schema import Column, Table
from viewkeeper.model.selection import selected
from viewkeeper.plan.compiler import Compiler, ViewPlan
from viewkeeper.plan.dataflow import Image, Input, Lookup, Operator, Recompute, Segment, SelectedImage, Sink
from viewkeeper.plan.selections import comparison, selections


@dataclass(frozen=True)
class Flow:
    """The operators of a set of views, sources first."""

    operators: Mapping[str, Operator]
    tables: Mapping[int, Table]
    sinks: Mapping[int, Sink]

    @cached_property
    def orders(self) -> dict[frozenset[str], Any]:
        """What a lane has worked out about sets of operators, for the next batch."""
        return {}

    @cached_property
    def consumers(self) -> Mapping[str, Sequence[tuple[str, int, Segment]]]:
        """For each operator the segments over it: (consumer, port, segment)."""
        found: dict[str, list[tuple[str, int, Segment]]] = defaultdict(list)
        for operator in self.operators.values():
            for port, segments in enumerate(operator.ports):
                for segment in segments:
                    found[segment.source].append((operator.id, port, segment))
        return found

    @cached_property
    def images(self) -> Mapping[int, Sequence[Image]]:
        """The arrangements of each base table."""
        found: dict[int, list[Image]] = defaultdict(list)
        for operator in self.operators.values():
            if isinstance(operator, Image):
                found[operator.table].append(operator)
        return found

    @cached_property
    def used(self) -> Mapping[int, tuple[Column, ...]]:
        """The columns of each base table that any view uses, its key included, in table order."""
        names: dict[int, set[str]] = defaultdict(set)
        for operator in self.operators.values():
            if isinstance(operator, Lookup) and isinstance(image := self.operators[operator.arrangement], Image):
                names[image.table].update(name for name, _ in operator.take)
            if isinstance(operator, Image):
                names[operator.table].update(operator.key)
            if isinstance(operator, Input):
                names[operator.table].update(k.column for k in self.tables[operator.table].key)
            for segment in operator.segments():
                if isinstance(source := self.operators[segment.source], Input):
                    names[source.table].update(segment.used())
        lowered = {table: {n.lower() for n in found} for table, found in names.items()}
        return {
            table: tuple(c for c in self.tables[table].columns if c.name.lower() in found)
            for table, found in lowered.items()
        }

    @cached_property
    def held(self) -> Mapping[str, tuple[Column, ...]]:
        """The columns of each image: those that are looked up in it.

        One image of a table, that by primary key or else the first, holds all that is used, for later loads.
        """
        names: dict[str, set[str]] = {i.id: set(i.key) for images in self.images.values() for i in images}
        for operator in self.operators.values():
            if isinstance(operator, Lookup) and operator.arrangement in names:
                names[operator.arrangement].update(name for name, _ in operator.take)
            if isinstance(operator, Recompute):
                for port, arrangement in zip(operator.inputs, operator.shared, strict=True):
                    if arrangement is not None:
                        names[arrangement].update(port[0].used())
        found = {}
        for table, images in self.images.items():
            primary = tuple(k.column for k in self.tables[table].key)
            whole = next((i for i in images if i.key == primary), images[0])
            for image in images:
                wanted = {n.lower() for n in names[image.id]}
                columns = self.used[table]
                found[image.id] = columns if image is whole else tuple(c for c in columns if c.name.lower() in wanted)
        return found

    @cached_property
    def views_of(self) -> Mapping[str, frozenset[int]]:
        """For each operator the views that need it."""
        found: dict[str, set[int]] = {o: set() for o in self.operators}
        for view, sink in self.sinks.items():
            for operator in self.behind([sink.id]):
                found[operator].add(view)
        return {o: frozenset(v) for o, v in found.items()}

    def sources(self, operator: Operator) -> Iterator[str]:
        """The operators that must run before this one."""
        yield from (s.source for s in operator.segments())
        yield from _beside(operator)

    def behind(self, operators: Iterable[str]) -> set[str]:
        """These operators and everything they are made from."""
        found: set[str] = set()
        waiting = list(operators)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(self.sources(self.operators[name]))
        return found

    def stateful(self) -> Iterator[Operator]:
        return (o for o in self.operators.values() if o.stateful)

    @cached_property
    def fingerprint(self) -> str:
        """Of the operators whose state is kept: under another one the state is another program's, or another plan's."""
        names = ",".join(sorted(o.id for o in self.stateful()))
        return hashlib.sha256(names.encode()).hexdigest()[:16]


def assemble(
    tables: Mapping[int, Table],
    plans: Mapping[int, ViewPlan],
    views: Iterable[int],
    keyed_images: bool = False,
    selects: bool = False,
) -> Flow:
    """The flow of these views; `plans` holds every plan that they may refer to.

    Every base table that is used has an image, from which later views are loaded. Any arrangement of it serves; one by
    primary key is made if there is none, or if the store needs it for before-images (`keyed_images`). If the store
    `selects`, it is asked only for the rows that matter (`selections`).
    """
    tables = {i: t.inside for i, t in tables.items()}  # as plans and stored state know their columns
    compiler = Compiler(tables, plans)
    sinks = {view: compiler.view(view) for view in views}
    arranged = {o.table for o in compiler.operators.values() if isinstance(o, Image)}
    chosen = selections(compiler.operators.values()) if selects else {}
    for table in [o.table for o in compiler.operators.values() if isinstance(o, Input)]:
        key = tuple(k.column for k in tables[table].key)
        if table in chosen:
            compiler.add(SelectedImage(table, key, chosen[table]))
        elif keyed_images or table not in arranged:
            compiler.image(table, key)
    compared = {t: tuple(c for e in where if (c := comparison(e)) is not None) for t, where in chosen.items()}
    tables = {i: selected(t, compared.get(i, ())) for i, t in tables.items()}
    return Flow(_ordered(compiler.operators), tables, sinks)


def slots(operator: Operator) -> list[str]:
    """The names of an operator's arrangements in the manifest."""
    return [f"{operator.id}/{i}" for i in range(operator.slots)]


def _beside(operator: Operator) -> Iterator[str]:
    """What an operator needs that does not come through its segments."""
    if isinstance(operator, Lookup):
        yield operator.arrangement
    else:
        yield from operator.looked_up
    if isinstance(operator, Image):
        yield Input(operator.table).id


def _ordered(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Sources before consumers. Compilation adds an operator after its sources, but for the inputs of images."""
    result: dict[str, Operator] = {}

    def place(name: str) -> None:
        if name in result:
            return
        operator = operators[name]
        for source in [*(s.source for s in operator.segments()), *_beside(operator)]:
            place(source)
        result[name] = operator

    for name in operators:
        place(name)
    return result
