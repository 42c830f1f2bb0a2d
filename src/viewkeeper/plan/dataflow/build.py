"""Build a dataflow incrementally: remove and add views in the dataflow of the previous catalog.

A view compiles to the same operators whatever other views there are (`compiled_view`), and equal operators are one.
What decides which operators and columns are kept is a reference count, so an update costs as much as what it changes.
Nested mappings are copied before they are changed: the previous dataflow stays valid.

Every base table in use has a table image, from which later views are backfilled. Any arrangement of the table serves;
an image by primary key is added if there is none, or if the store needs it for before-images (`keyed_images`). If the
store can filter scans, it returns only the rows that pass the comparisons which all segments over the table share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from viewkeeper.model.filtered_table import filter_table, unfiltered_table
from viewkeeper.model.schema import Column, Table
from viewkeeper.operators.kinds import FilteredTableImage, Input, TableImage
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.compile.compiled_view import CompiledView, compile_view, slot_names
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.dataflow import Dataflow, Edge, UsageCounts
from viewkeeper.plan.logical.nodes import Expr
from viewkeeper.plan.rules.predicate_pushdown import read_comparison, sort_comparisons

_MODULUS = 1 << 128


def build_dataflow(
    tables: Mapping[int, Table],
    plans: Mapping[int, ViewPlan],
    views: Iterable[int],
    keyed_images: bool = False,
    can_filter_scans: bool = False,
) -> Dataflow:
    """Return the dataflow of these views; `plans` holds every plan that they may refer to."""
    return update_dataflow(
        Dataflow(keyed_images=keyed_images, can_filter_scans=can_filter_scans), tables, plans, (), views
    )


def update_dataflow(
    previous: Dataflow,
    tables: Mapping[int, Table],
    plans: Mapping[int, ViewPlan],
    changed: Iterable[int],
    new: Iterable[int],
) -> Dataflow:
    """Return the dataflow over these tables, with the views of `previous` and the `new` ones.

    `changed`: ids of tables and views that were dropped or redefined; such a view stays only if it is also in `new`. A
    view that reads a changed table or view is compiled again, unless the change leaves its definition equal.
    """
    # with the column names that plans and stored state use
    internal_tables = {i: t.internal for i, t in tables.items()}
    altered = {i for i, t in previous.tables.items() if unfiltered_table(t) != internal_tables.get(i)}
    changed_ids = altered.union(changed)
    removed = {i for i in changed_ids if i in previous.views}
    stale = (
        {
            v
            for v, compiled_view in previous.views.items()
            if v not in removed and _is_reader(compiled_view, changed_ids)
        }
        if changed_ids
        else set()
    )
    builder = _DataflowBuilder(previous, internal_tables, altered)
    builder.remove_views(removed | stale)
    for view in sorted({*new, *stale}):
        builder.add_view(view, compile_view(view, internal_tables, plans))
    return builder.build()


def _is_reader(compiled_view: CompiledView, ids: set[int]) -> bool:
    return not (ids.isdisjoint(compiled_view.tables) and ids.isdisjoint(compiled_view.plans))


class _DataflowBuilder:
    """A mutable copy of a dataflow while views are removed and added."""

    def __init__(self, previous: Dataflow, tables: Mapping[int, Table], altered: Iterable[int]) -> None:
        self.previous, self.base_tables = previous, tables
        self.operators, self.views, self.slots = dict(previous.operators), dict(previous.views), dict(previous.slots)
        self.edges: dict[str, Sequence[Edge]] = dict(previous.edges)
        usage = previous.usage
        self.operator_counts, self.first_users, self.order_numbers = (
            dict(usage.operators),
            dict(usage.first_users),
            dict(usage.order_numbers),
        )
        self.column_counts, self.image_columns, self.filter_counts = (
            dict(usage.columns),
            dict(usage.image_columns),
            dict(usage.filters),
        )
        self.id_hash_sum = usage.id_hash_sum
        self.last_order_number = next(reversed(self.order_numbers.values())) if self.order_numbers else 0
        self.extended_edges: dict[str, list[Edge]] = {}
        """By source operator: the edges from it, if edges were added."""
        self.table_images: dict[int, dict[str, Operator]] = {}
        self.copied_counts: set[tuple[int, Any]] = set()
        self.changed_tables = set(altered)
        """Tables whose images, columns or filters may differ from the previous dataflow."""

    # -- views --------------------------------------------------------------------------------------------------------

    def add_view(self, view: int, compiled_view: CompiledView) -> None:
        self.views[view] = compiled_view
        for index, (name, operator) in enumerate(compiled_view.operators.items()):
            if name not in self.operators:
                self._add_operator(operator)
            self.operator_counts[name] = self.operator_counts.get(name, 0) + 1
            if operator.arranged_table is not None:
                self.first_users[name] = min(self.first_users.get(name, (view, index)), (view, index))
        self._count(compiled_view, 1)

    def remove_views(self, views: set[int]) -> None:
        images: set[str] = set()
        sources: set[str] = set()
        for view in views:
            compiled_view = self.views.pop(view)
            for name, operator in compiled_view.operators.items():
                self.operator_counts[name] -= 1
                if not self.operator_counts[name]:
                    self._remove_operator(name)
                    sources.update(s.source for s in operator.segments())
                elif operator.arranged_table is not None and self.first_users[name][0] == view:
                    images.add(name)
            self._count(compiled_view, -1)
        for source in sources & self.operators.keys():
            self.edges[source] = [edge for edge in self.edges[source] if edge[0] in self.operators]
        for name in images & self.operator_counts.keys():
            users = (
                (view, compiled_view.operators)
                for view, compiled_view in self.views.items()
                if name in compiled_view.operators
            )
            self.first_users[name] = min((view, list(operators).index(name)) for view, operators in users)

    def _count(self, compiled_view: CompiledView, sign: int) -> None:
        self.changed_tables.update(compiled_view.tables)
        for table, names in compiled_view.used_columns.items():
            self._adjust_counts(self.column_counts, table, names, sign)
        for image, names in compiled_view.image_columns.items():
            self._adjust_counts(self.image_columns, image, names, sign)
        if self.previous.can_filter_scans:
            for table in compiled_view.tables:
                source = Input(table).id
                for where in (
                    s.where for o in compiled_view.operators.values() for s in o.segments() if s.source == source
                ):
                    compared = dict.fromkeys(e for e in where if read_comparison(e) is not None)
                    self._adjust_counts(self.filter_counts, table, (None, *compared), sign)

    def _adjust_counts(self, counts: dict[Any, Any], key: Any, items: Iterable[Any], sign: int) -> None:
        if (id(counts), key) not in self.copied_counts:
            self.copied_counts.add((id(counts), key))
            counts[key] = dict(counts.get(key, {}))
        item_counts = counts[key]
        for item in items:
            item_counts[item] = item_counts.get(item, 0) + sign
            if not item_counts[item]:
                del item_counts[item]

    # -- operators ----------------------------------------------------------------------------------------------------

    def _add_operator(self, operator: Operator) -> None:
        name = operator.id
        self.last_order_number += 1
        self.operators[name], self.order_numbers[name] = operator, self.last_order_number
        for port, segments in enumerate(operator.ports):
            for segment in segments:
                if segment.source not in self.extended_edges:
                    self.extended_edges[segment.source] = list(self.edges.get(segment.source, ()))
                self.extended_edges[segment.source].append((name, port, segment))
        if operator.arranged_table is not None:
            self._images_of(operator.arranged_table)[name] = operator
        if operator.stateful:
            self.slots |= dict.fromkeys(slot_names(operator), name)
            self.id_hash_sum = (self.id_hash_sum + _id_hash(name)) % _MODULUS

    def _remove_operator(self, name: str) -> None:
        operator = self.operators.pop(name)
        del self.order_numbers[name]
        self.operator_counts.pop(name, None)
        self.first_users.pop(name, None)
        self.edges.pop(name, None)
        if operator.arranged_table is not None:
            del self._images_of(operator.arranged_table)[name]
        if operator.input_table is not None:
            for image in [i for i in self._images_of(operator.input_table) if i not in self.operator_counts]:
                self._remove_operator(image)
        if operator.stateful:
            for slot in slot_names(operator):
                del self.slots[slot]
            self.id_hash_sum = (self.id_hash_sum - _id_hash(name)) % _MODULUS

    # -- tables -------------------------------------------------------------------------------------------------------

    def build(self) -> Dataflow:
        previous = self.previous
        tables = {
            i: previous.tables[i] if i in previous.tables and i not in self.changed_tables else t
            for i, t in self.base_tables.items()
        }
        images, used_columns, image_columns = (
            dict(previous.images),
            dict(previous.used_columns),
            dict(previous.image_columns),
        )
        for table in self.changed_tables:
            for image in images.pop(table, ()):
                image_columns.pop(image.id, None)
            used_columns.pop(table, None)
            table_images, comparisons = self._update_images(table)
            if table_images:
                compared = tuple(c for e in comparisons if (c := read_comparison(e)) is not None)
                tables[table] = filter_table(self.base_tables[table], compared)
                names = {n.lower() for n in self.column_counts[table]}
                used_columns[table] = tuple(c for c in self.base_tables[table].columns if c.name.lower() in names)
                images[table] = table_images
                image_columns |= self._image_columns(table, table_images, used_columns[table])
        for source, edges in self.extended_edges.items():
            self.edges[source] = edges
        usage = UsageCounts(
            self.operator_counts,
            {t: c for t, c in self.column_counts.items() if c},
            {i: c for i, c in self.image_columns.items() if c},
            {t: c for t, c in self.filter_counts.items() if c},
            self.first_users,
            self.order_numbers,
            self.id_hash_sum,
        )
        options = (previous.keyed_images, previous.can_filter_scans, usage)
        return Dataflow(
            self.operators, tables, self.views, self.edges, images, used_columns, image_columns, self.slots, *options
        )

    def _update_images(self, table: int) -> tuple[list[Operator], tuple[Expr, ...]]:
        """Return the images of a table and the comparisons that its rows pass.

        The images that views need come first, in the order of their first users; the dataflow's own image comes last.
        """
        images = self._images_of(table)
        needed = sorted(
            (i for i in images.values() if i.id in self.operator_counts), key=lambda i: self.first_users[i.id]
        )
        where = () if needed else self._common_comparisons(table)
        default_image = self._default_image(table, where, bool(needed)) if Input(table).id in self.operators else None
        for image in [i for i in images.values() if i.id not in self.operator_counts and i != default_image]:
            self._remove_operator(image.id)
        if default_image is not None and default_image.id not in self.operators:
            self._add_operator(default_image)
        return needed if default_image is None or default_image.id in self.operator_counts else [
            *needed,
            default_image,
        ], where

    def _default_image(self, table: int, where: tuple[Expr, ...], is_arranged: bool) -> Operator | None:
        key = tuple(k.column for k in self.base_tables[table].key)
        if where:
            return FilteredTableImage(table, key, where)
        return TableImage(table, key) if self.previous.keyed_images or not is_arranged else None

    def _common_comparisons(self, table: int) -> tuple[Expr, ...]:
        """Return the comparisons that all segments over a table have in common."""
        counts = self.filter_counts.get(table, {})
        return sort_comparisons(e for e, count in counts.items() if e is not None and count == counts[None])

    def _image_columns(
        self, table: int, images: Sequence[Operator], used_columns: tuple[Column, ...]
    ) -> dict[str, tuple[Column, ...]]:
        primary = tuple(k.column for k in self.base_tables[table].key)
        largest = next((i for i in images if i.arrangement_key == primary), images[0])
        names = {i.id: {n.lower() for n in (*i.arrangement_key, *self.image_columns.get(i.id, ()))} for i in images}
        return {
            i.id: used_columns if i is largest else tuple(c for c in used_columns if c.name.lower() in names[i.id])
            for i in images
        }

    def _images_of(self, table: int) -> dict[str, Operator]:
        if table not in self.table_images:
            self.table_images[table] = {image.id: image for image in self.previous.images.get(table, ())}
        return self.table_images[table]


def _id_hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
