"""Compile a single view. The result does not depend on the other views of the catalog.

A view is therefore compiled once for its plan and the tables and plans that it reads; the result is kept with the plan.
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
    """A view's operators, sources first, and the base `tables` and `plans` from which they were compiled, by id."""

    sink: Sink
    operators: Mapping[str, Operator]
    tables: Mapping[int, Table]
    plans: Mapping[int, ViewPlan]

    @cached_property
    def used_columns(self) -> Mapping[int, frozenset[str]]:
        """By base table: the names of the columns that the view uses, the key included."""
        names: dict[int, set[str]] = defaultdict(set)
        for operator in self.operators.values():
            for arrangement, fetched in operator.lookup_columns.items():
                if (table := self.operators[arrangement].arranged_table) is not None:
                    names[table].update(fetched)
            if operator.arranged_table is not None:
                names[operator.arranged_table].update(operator.arrangement_key)
            if operator.input_table is not None:
                names[operator.input_table].update(k.column for k in self.tables[operator.input_table].key)
            for segment in operator.segments():
                if (table := self.operators[segment.source].input_table) is not None:
                    names[table].update(segment.used_columns())
        return {table: frozenset(columns) for table, columns in names.items()}

    @cached_property
    def image_columns(self) -> Mapping[str, frozenset[str]]:
        """By table image: the names of the columns that the view looks up in it, the image's key included."""
        names = {o.id: set(o.arrangement_key) for o in self.operators.values() if o.arranged_table is not None}
        for operator in self.operators.values():
            for arrangement, fetched in operator.lookup_columns.items():
                if arrangement in names:
                    names[arrangement].update(fetched)
        return {image: frozenset(columns) for image, columns in names.items()}

    @cached_property
    def last_aggregate(self) -> Operator | None:
        """The aggregate that the sink reads, if nothing else reads it; None if it cannot be shared with other views."""
        source = self.sink.source
        aggregate = self.operators.get(source[0].source) if len(source) == 1 else None
        if aggregate is None or aggregate.aggregation_input_id is None:
            return None
        users = [
            o.id for o in self.operators.values() if aggregate.id in o.upstream_ids or aggregate.id in o.lookup_columns
        ]
        return aggregate if users == [self.sink.id] else None

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The names of the view's state slots in the manifest."""
        return tuple(slot for operator in self.operators.values() for slot in slot_names(operator))


@dataclass(frozen=True)
class CompiledLazyView(CompiledView):
    """What batches keep for a lazy view: images of its tables, which hold every column that the view uses."""

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
    """Return a view's plan, which is parsed once."""
    stored = view.stored_plan
    if not hasattr(stored, "compiled"):
        stored.compiled = to_any_depth(lambda: ViewPlan.from_json(stored))
    plan: ViewPlan = stored.compiled
    return plan


def compile_view(view: int, tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]) -> CompiledView:
    """Compile a view. `tables`: base tables with internal column names; `plans`: the view's own, and those it reads."""
    plan = plans[view]
    for cached_view in plan.compiled_cache:
        is_same_view = cached_view.sink.view == view and all(plans.get(i) is p for i, p in cached_view.plans.items())
        if is_same_view and all(tables.get(i) == t for i, t in cached_view.tables.items()):
            cached: CompiledView = cached_view
            return cached
    result = to_any_depth(lambda: _compiled(view, tables, plans))
    plan.compiled_cache[:] = [result]
    return result


def _compiled(view: int, tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]) -> CompiledView:
    compiler = Compiler(tables, plans)
    sink = compiler.compile_view(view)
    read = _transitive_reads(view, tables, plans)
    read_plans = {i: plans[i] for i in read if i not in tables}
    full_view = CompiledView(
        sink, _sort_operators(compiler.operators), {i: tables[i] for i in read if i in tables}, read_plans
    )
    lazy_key = plans[view].lazy_key
    return full_view if lazy_key is None else _compile_lazy_view(view, lazy_key, full_view, plans)


def _compile_lazy_view(
    view: int, key: Sequence[str], full_view: CompiledView, plans: Mapping[int, ViewPlan]
) -> CompiledLazyView:
    propagation = propagate_key(view, key, full_view.tables, plans)
    arranged = {table for table, _ in propagation.lookup_keys}
    images = [TableImage(table, columns) for table, columns in propagation.lookup_keys]
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
    """Return the operators that must run before this one."""
    yield from operator.upstream_ids
    yield from operator.lookup_columns


def _transitive_reads(view: int, tables: Mapping[int, Table], plans: Mapping[int, ViewPlan]) -> set[int]:
    """Return the ids of a view and of all tables and views that its query reads, through views."""
    found: set[int] = set()
    pending = [view]
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending.extend(plans[number].reads if number not in tables else ())
    return found


def _sort_operators(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Order sources before consumers. The compiler adds operators after their sources, except for the inputs of
    images."""
    result: dict[str, Operator] = {}

    def place(name: str) -> None:
        if name not in result:
            for source in dependencies_of(operators[name]):
                place(source)
            result[name] = operators[name]

    for name in operators:
        place(name)
    return result
