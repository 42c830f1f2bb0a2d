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
from viewkeeper.operators.kinds import Input, Sink, TableImage
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.operator import slot_names as slot_names
from viewkeeper.plan.compile.compiler import Compiler, ViewPlan
from viewkeeper.plan.depth import to_any_depth
from viewkeeper.plan.rules.key_propagation import propagate_key


@dataclass(frozen=True)
class CompiledView:
    """A view's operators, sources first, and what they were made from: base `tables` and `plans`, by id."""

    sink: Sink
    operators: Mapping[str, Operator]
    tables: Mapping[int, Table]
    plans: Mapping[int, ViewPlan]

    @cached_property
    def used_columns(self) -> Mapping[int, frozenset[str]]:
        """The names of the columns of each base table that it uses, the key included."""
        names: dict[int, set[str]] = defaultdict(set)
        for operator in self.operators.values():
            for arrangement, taken in operator.lookup_columns.items():
                if (table := self.operators[arrangement].arranged_table) is not None:
                    names[table].update(taken)
            if operator.arranged_table is not None:
                names[operator.arranged_table].update(operator.arrangement_key)
            if operator.input_table is not None:
                names[operator.input_table].update(k.column for k in self.tables[operator.input_table].key)
            for segment in operator.segments():
                if (table := self.operators[segment.source].input_table) is not None:
                    names[table].update(segment.used_columns())
        return {table: frozenset(found) for table, found in names.items()}

    @cached_property
    def image_columns(self) -> Mapping[str, frozenset[str]]:
        """The names of the columns that it looks up in each image, the image's key included."""
        names = {o.id: set(o.arrangement_key) for o in self.operators.values() if o.arranged_table is not None}
        for operator in self.operators.values():
            for arrangement, taken in operator.lookup_columns.items():
                if arrangement in names:
                    names[arrangement].update(taken)
        return {image: frozenset(found) for image, found in names.items()}

    @cached_property
    def last_aggregate(self) -> Operator | None:
        """The aggregate of which its rows are made, and nothing else is; None if it cannot be one with others."""
        source = self.sink.source
        found = self.operators.get(source[0].source) if len(source) == 1 else None
        if found is None or found.aggregation_input_id is None:
            return None
        users = [o.id for o in self.operators.values() if found.id in o.upstream_ids or found.id in o.lookup_columns]
        return found if users == [self.sink.id] else None

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The names of its arrangements in the manifest."""
        return tuple(slot for operator in self.operators.values() for slot in slot_names(operator))


@dataclass(frozen=True)
class CompiledLazyView(CompiledView):
    """What batches keep for a lazy view: arrangements of its tables, which hold every column that it uses."""

    table_columns: Mapping[int, frozenset[str]]

    @cached_property
    def used_columns(self) -> Mapping[int, frozenset[str]]:
        return self.table_columns

    @cached_property
    def image_columns(self) -> Mapping[str, frozenset[str]]:
        images = (o for o in self.operators.values() if o.arranged_table is not None)
        return {
            image.id: self.table_columns[image.arranged_table] for image in images if image.arranged_table is not None
        }


def plan_of(view: View) -> ViewPlan:
    """A view's plan, read once."""
    stored = view.stored_plan
    if not hasattr(stored, "compiled"):
        stored.compiled = to_any_depth(lambda: ViewPlan.from_json(stored))
    made: ViewPlan = stored.compiled
    return made


def compile_view(view: int, tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]) -> CompiledView:
    """A view's operators. `tables`: base tables as plans know their columns; `plans`: its own, and those it reads."""
    plan = plans[view]
    for made in plan.compiled_cache:
        same = made.sink.view == view and all(plans.get(i) is p for i, p in made.plans.items())
        if same and all(tables.get(i) == t for i, t in made.tables.items()):
            known: CompiledView = made
            return known
    result = to_any_depth(lambda: _compiled(view, tables, plans))
    plan.compiled_cache[:] = [result]
    return result


def _compiled(view: int, tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]) -> CompiledView:
    compiler = Compiler(tables, plans)
    sink = compiler.compile_view(view)
    read = _transitive_reads(view, tables, plans)
    found = {i: plans[i] for i in read if i not in tables}
    whole = CompiledView(sink, _sort_operators(compiler.operators), {i: tables[i] for i in read if i in tables}, found)
    lazy = plans[view].lazy_key
    return whole if lazy is None else _compile_lazy_view(view, lazy, whole, plans)


def _compile_lazy_view(
    view: int, key: Sequence[str], full_view: CompiledView, plans: Mapping[int, ViewPlan]
) -> CompiledLazyView:
    found = propagate_key(view, key, full_view.tables, plans)
    arranged = {table for table, _ in found.lookup_keys}
    images = [TableImage(table, columns) for table, columns in found.lookup_keys]
    images += [
        TableImage(t, tuple(k.column for k in full_view.tables[t].key)) for t in full_view.tables if t not in arranged
    ]
    operators: list[Operator] = [*map(Input, full_view.tables), *images, Sink(view, (), tuple(i.id for i in images))]
    uses = {
        t: full_view.used_columns.get(t, frozenset()) | {k.column for k in full_view.tables[t].key}
        for t in full_view.tables
    }
    for image in images:
        uses[image.table] |= set(image.key)
    return CompiledLazyView(operators[-1], {o.id: o for o in operators}, full_view.tables, full_view.plans, uses)  # type: ignore[arg-type]


def dependencies_of(operator: Operator) -> Iterator[str]:
    """The operators that must run before this one."""
    yield from operator.upstream_ids
    yield from operator.lookup_columns


def _transitive_reads(view: int, tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]) -> set[int]:
    """A view, and all that its query reads, through views."""
    found: set[int] = set()
    waiting = [view]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting.extend(plans[number].reads if number not in tables else ())
    return found


def _sort_operators(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Sources before consumers. Compilation adds an operator after its sources, but for the inputs of images."""
    result: dict[str, Operator] = {}

    def place(name: str) -> None:
        if name not in result:
            for source in dependencies_of(operators[name]):
                place(source)
            result[name] = operators[name]

    for name in operators:
        place(name)
    return result
