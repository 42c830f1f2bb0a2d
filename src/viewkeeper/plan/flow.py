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
from viewkeeper.operators.kinds import SelectedImage, Sink
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.operator import slots as slots
from viewkeeper.operators.segments import Segment
from viewkeeper.plan.compiler import Compiler, ViewPlan
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
    def images(self) -> Mapping[int, Sequence[Operator]]:
        """The arrangements of each base table."""
        found: dict[int, list[Operator]] = defaultdict(list)
        for operator in self.operators.values():
            if operator.arranges is not None:
                found[operator.arranges].append(operator)
        return found

    @cached_property
    def used(self) -> Mapping[int, tuple[Column, ...]]:
        """The columns of each base table that any view uses, its key included, in table order."""
        names: dict[int, set[str]] = defaultdict(set)
        for operator in self.operators.values():
            for arrangement, taken in operator.reads.items():
                if (table := self.operators[arrangement].arranges) is not None:
                    names[table].update(taken)
            if operator.arranges is not None:
                names[operator.arranges].update(operator.arranged_by)
            if operator.changes_of is not None:
                names[operator.changes_of].update(k.column for k in self.tables[operator.changes_of].key)
            for segment in operator.segments():
                if (table := self.operators[segment.source].changes_of) is not None:
                    names[table].update(segment.used())
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
        names: dict[str, set[str]] = {i.id: set(i.arranged_by) for images in self.images.values() for i in images}
        for operator in self.operators.values():
            for arrangement, taken in operator.reads.items():
                if arrangement in names:
                    names[arrangement].update(taken)
        found = {}
        for table, images in self.images.items():
            primary = tuple(k.column for k in self.tables[table].key)
            whole = next((i for i in images if i.arranged_by == primary), images[0])
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
        yield from operator.fed_by
        yield from operator.reads

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
    arranged = {o.arranges for o in compiler.operators.values()}
    chosen = selections(compiler.operators.values()) if selects else {}
    for table in [t for o in compiler.operators.values() if (t := o.changes_of) is not None]:
        key = tuple(k.column for k in tables[table].key)
        if table in chosen:
            compiler.add(SelectedImage(table, key, chosen[table]))
        elif keyed_images or table not in arranged:
            compiler.image(table, key)
    compared = {t: tuple(c for e in where if (c := comparison(e)) is not None) for t, where in chosen.items()}
    tables = {i: selected(t, compared.get(i, ())) for i, t in tables.items()}
    return Flow(_ordered(compiler.operators), tables, sinks)


def _ordered(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Sources before consumers. Compilation adds an operator after its sources, but for the inputs of images."""
    result: dict[str, Operator] = {}

    def place(name: str) -> None:
        if name in result:
            return
        operator = operators[name]
        for source in [*operator.fed_by, *operator.reads]:
            place(source)
        result[name] = operator

    for name in operators:
        place(name)
    return result
