"""A flow in parts: each view is made by one of them, and nothing of the state is kept twice or lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_union import Shop, histories

from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.plan.compile.compiled_view import dependencies_of
from viewkeeper.plan.dataflow import cache
from viewkeeper.runtime.processes.scheduler import partition_views


@given(histories(), st.integers(1, 4), st.booleans(), st.data())
def test_parts_make_all_views_and_keep_all_state_once(
    history: list[Catalog], count: int, before_images: bool, data: st.DataObject
) -> None:
    store: Any = Shop(before_images, False)
    flow = cache.maintained_dataflow(store, history[-1])
    seconds = {name: data.draw(st.sampled_from([0.0, 0.1, 1.0])) for name in flow.operators}
    parts = partition_views(flow, seconds, count)
    assert len(parts) == min(count, len(flow.views))
    if not parts:
        return
    assert sorted(view for part in parts for view in part.dataflow.views) == sorted(flow.views)
    assert sorted(slot for part in parts for slot in part.keep_slots) == sorted(flow.slots)
    assert set().union(*(part.dataflow.operators for part in parts)) == set(flow.operators)
    for part in parts:
        one = part.dataflow
        assert part.keep_slots <= one.slots.keys()
        assert list(one.operators) == [name for name in flow.operators if name in one.operators]
        for name, operator in one.operators.items():
            assert one.operators.keys() >= set(dependencies_of(operator))
            ways = flow.edges.get(name, ())
            assert [*one.edges.get(name, ())] == [way for way in ways if way[0] in one.operators]
            assert one.usage.operators.get(name, 0) == len(one.views_of(name))
        for table, images in one.images.items():
            assert images == [image for image in flow.images[table] if image.id in one.operators]


def test_the_longest_go_to_different_parts_and_what_they_share_draws_them_together() -> None:
    """Views are dealt out by what they add: four that take long and one that is done on the way."""
    store: Any = Shop(True, False)
    flow = cache.maintained_dataflow(store, _five_views())
    own = {view: flow.sink(view).id for view in flow.views}
    first, second, third, fourth, fifth = own
    seconds = {own[first]: 4.0, own[second]: 3.0, own[third]: 3.0, own[fourth]: 2.0, own[fifth]: 0.5}
    parts = [set(part.dataflow.views) for part in partition_views(flow, seconds, 2)]
    assert parts == [{first, fourth, fifth}, {second, third}]


def _five_views() -> Catalog:
    from tests.unit.test_union import COLUMNS, _plan, filtered, scan

    from viewkeeper.model.catalog.catalog import View
    from viewkeeper.model.schema import KeyPart, Table

    catalog = Catalog()
    catalog = catalog.with_table(Table(catalog.next_id, "t", COLUMNS, (KeyPart("id"),)))
    for number in range(5):
        plan = _plan(filtered(scan(1, "a"), "a", (number,)), ["aid", "aref", "avalue"])
        table = Table(catalog.next_id, f"v{number}", COLUMNS, (KeyPart("id"),), True)
        catalog = catalog.with_view(View(table, "", plan.to_json()))
    return catalog
