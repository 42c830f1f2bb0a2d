"""A view compiled by itself: the same operators whatever other views there are.

So it is compiled once for a plan and the tables and plans that it reads, and kept with the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.schema import Table
from viewkeeper.operators.kinds import Image, Input, Sink
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.operator import slots as slots
from viewkeeper.plan.compile.compiler import Compiler, ViewPlan
from viewkeeper.plan.depth import to_any_depth
from viewkeeper.plan.rules.key_propagation import narrowing


@dataclass(frozen=True)
class Compiled:
    """A view's operators, sources first, and what they were made from: base `tables` and `plans`, by id."""

    sink: Sink
    operators: Mapping[str, Operator]
    tables: Mapping[int, Table]
    plans: Mapping[int, ViewPlan]

    @cached_property
    def used(self) -> Mapping[int, frozenset[str]]:
        """The names of the columns of each base table that it uses, the key included."""
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
        return {table: frozenset(found) for table, found in names.items()}

    @cached_property
    def held(self) -> Mapping[str, frozenset[str]]:
        """The names of the columns that it looks up in each image, the image's key included."""
        names = {o.id: set(o.arranged_by) for o in self.operators.values() if o.arranges is not None}
        for operator in self.operators.values():
            for arrangement, taken in operator.reads.items():
                if arrangement in names:
                    names[arrangement].update(taken)
        return {image: frozenset(found) for image, found in names.items()}

    @cached_property
    def last_aggregate(self) -> Operator | None:
        """The aggregate of which its rows are made, and nothing else is; None if it cannot be one with others."""
        source = self.sink.source
        found = self.operators.get(source[0].source) if len(source) == 1 else None
        if found is None or found.adds_up is None:
            return None
        users = [o.id for o in self.operators.values() if found.id in o.fed_by or found.id in o.reads]
        return found if users == [self.sink.id] else None

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The names of its arrangements in the manifest."""
        return tuple(slot for operator in self.operators.values() for slot in slots(operator))


@dataclass(frozen=True)
class KeptFor(Compiled):
    """What batches keep for a lazy view: arrangements of its tables, which hold every column that it uses."""

    uses: Mapping[int, frozenset[str]]

    @cached_property
    def used(self) -> Mapping[int, frozenset[str]]:
        return self.uses

    @cached_property
    def held(self) -> Mapping[str, frozenset[str]]:
        images = (o for o in self.operators.values() if o.arranges is not None)
        return {image.id: self.uses[image.arranges] for image in images if image.arranges is not None}


def plan_of(view: View) -> ViewPlan:
    """A view's plan, read once."""
    stored = view.stored
    if not hasattr(stored, "made"):
        stored.made = to_any_depth(lambda: ViewPlan.from_json(stored))
    made: ViewPlan = stored.made
    return made


def compiled(view: int, tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]) -> Compiled:
    """A view's operators. `tables`: base tables as plans know their columns; `plans`: its own, and those it reads."""
    plan = plans[view]
    for made in plan.compiled:
        same = made.sink.view == view and all(plans.get(i) is p for i, p in made.plans.items())
        if same and all(tables.get(i) == t for i, t in made.tables.items()):
            known: Compiled = made
            return known
    result = to_any_depth(lambda: _compiled(view, tables, plans))
    plan.compiled[:] = [result]
    return result


def _compiled(view: int, tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]) -> Compiled:
    compiler = Compiler(tables, plans)
    sink = compiler.view(view)
    read = _read(view, tables, plans)
    found = {i: plans[i] for i in read if i not in tables}
    whole = Compiled(sink, _ordered(compiler.operators), {i: tables[i] for i in read if i in tables}, found)
    lazy = plans[view].lazy
    return whole if lazy is None else _kept_for(view, lazy, whole, plans)


def _kept_for(view: int, key: Sequence[str], made: Compiled, plans: Mapping[int, ViewPlan]) -> KeptFor:
    found = narrowing(view, key, made.tables, plans)
    arranged = {table for table, _ in found.arranged}
    images = [Image(table, columns) for table, columns in found.arranged]
    images += [Image(t, tuple(k.column for k in made.tables[t].key)) for t in made.tables if t not in arranged]
    operators: list[Operator] = [*map(Input, made.tables), *images, Sink(view, (), tuple(i.id for i in images))]
    uses = {t: made.used.get(t, frozenset()) | {k.column for k in made.tables[t].key} for t in made.tables}
    for image in images:
        uses[image.table] |= set(image.key)
    return KeptFor(operators[-1], {o.id: o for o in operators}, made.tables, made.plans, uses)  # type: ignore[arg-type]


def sources_of(operator: Operator) -> Iterator[str]:
    """The operators that must run before this one."""
    yield from operator.fed_by
    yield from operator.reads


def _read(view: int, tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]) -> set[int]:
    """A view, and all that its query reads, through views."""
    found: set[int] = set()
    waiting = [view]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting.extend(plans[number].reads if number not in tables else ())
    return found


def _ordered(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Sources before consumers. Compilation adds an operator after its sources, but for the inputs of images."""
    result: dict[str, Operator] = {}

    def place(name: str) -> None:
        if name not in result:
            for source in sources_of(operators[name]):
                place(source)
            result[name] = operators[name]

    for name in operators:
        place(name)
    return result
