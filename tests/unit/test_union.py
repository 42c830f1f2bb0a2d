"""A flow that grew and shrank with its views is the flow that these views make from nothing."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.view import Suspension
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.plan.compile.compiled_view import dependencies_of
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.build import build_dataflow
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.plan.logical.nodes import Aggregate, Call, Expr, Filter, Join, Named, Node, Query, Scan, Union, column
from viewkeeper.store.contract.store import Capabilities

COLUMNS = (Column("id", types.BIGINT, False), Column("ref", types.BIGINT), Column("value", types.BIGINT))


class Shop:
    """As much of a store as a flow wants to know."""

    def __init__(self, before_images: bool, selects: bool) -> None:
        self.capabilities = Capabilities(True, True, True, before_images, False)
        self.can_filter_scans = selects


def scan(number: int, prefix: str) -> Scan:
    return Scan(number, tuple((replace(c, name=f"{prefix}{c.name}"), c.name) for c in COLUMNS))


def filtered(node: Node, prefix: str, limits: tuple[int, ...]) -> Node:
    for limit in limits:
        bound = Expr("literal", types.BIGINT, value=limit, nullable=False)
        node = Filter(node, Expr("GreaterThan", types.BOOLEAN, (column(f"{prefix}value", types.BIGINT), bound)))
    return node


def joined(left: Node, right: Node, on: str) -> Node:
    condition = Expr("EqualTo", types.BOOLEAN, (column("aid", types.BIGINT), column(f"b{on}", types.BIGINT)))
    return Join("inner", left, right, condition)


def summed(node: Node, function: str) -> Node:
    call = Call("total", function, (column("avalue", types.BIGINT),), types.BIGINT, True)
    return Aggregate(node, (Named("key", column("aref", types.BIGINT)),), (call,))


@st.composite
def plans(draw: st.DrawFn, readable: list[int]) -> ViewPlan:
    limits = st.lists(st.sampled_from([1, 2]), max_size=2, unique=True).map(tuple)
    one, two = draw(st.sampled_from(readable)), draw(st.sampled_from(readable))
    left = filtered(scan(one, "a"), "a", draw(limits))
    kind = draw(st.sampled_from(["plain", "union", "join", "sum", "extreme", "joined sum"]))
    root: Node = left
    if kind == "union":
        columns = tuple(replace(c, name=f"u{c.name}") for c in COLUMNS)
        root = Union((left, filtered(scan(two, "b"), "b", draw(limits))), columns)
        return _plan(root, [f"u{c.name}" for c in COLUMNS])
    if kind in ("join", "joined sum"):
        root = joined(left, filtered(scan(two, "b"), "b", draw(limits)), draw(st.sampled_from(["id", "ref"])))
    if kind.endswith("sum") or kind == "extreme":
        root = summed(root, "Max" if kind == "extreme" else "Sum")
        return _plan(root, ["key", "key", "total"])
    shown = draw(st.permutations([c.name for c in COLUMNS]))
    return _plan(root, [f"a{name}" for name in shown])


def _plan(root: Node, names: list[str]) -> ViewPlan:
    there = {c.name: c for c in root.columns}
    return ViewPlan(
        Query(root, tuple((c.name, there[name]) for c, name in zip(COLUMNS, names, strict=True))), {1: 10, 2: 99, 3: 7}
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Catalog]:
    """Catalogs one after the other, sometimes several changes apart."""
    catalog = Catalog()
    for name in "tuv":
        catalog = catalog.with_table(Table(catalog.next_id, name, COLUMNS, (KeyPart("id"),)))
    found = [catalog]
    for step in range(draw(st.integers(1, 12))):
        catalog = draw(changes(catalog, step))
        if draw(st.booleans()):
            found.append(catalog)
    return [*found, catalog]


@st.composite
def changes(draw: st.DrawFn, catalog: Catalog, step: int) -> Catalog:
    kinds = ["create", "create", "drop", "replace", "suspend", "resume", "rename", "add column", "alone"]
    kind = draw(st.sampled_from(kinds))
    views = catalog.views
    if kind == "add column":
        table = draw(st.sampled_from(catalog.tables))
        return catalog.with_columns(table.with_column(Column(f"c{step}", types.INT)))
    if kind in ("create", "alone") or not views:
        readable = [*catalog.tables_by_id, *catalog.views_by_id]
        plan = draw(plans(readable))
        table = Table(catalog.next_id, f"w{step}", COLUMNS, (KeyPart("id"),), True)
        options = {"strategy": "SN"} if kind == "alone" else {}
        return catalog.with_view(View(table, str(step), plan.to_json(), options))
    view = draw(st.sampled_from(views))
    if kind == "drop":
        return catalog if catalog.readers.get(view.table.id) else catalog.without(view.table.id)
    if kind == "replace":
        hidden = {view.table.id, *catalog.dependents([view.table.id])}
        readable = [i for i in (*catalog.tables_by_id, *catalog.views_by_id) if i not in hidden]
        return catalog.with_replaced_view(replace(view, plan=draw(plans(readable)).to_json()))
    if kind == "rename":
        return catalog.with_renamed_entry(view.table, f"n{step}")
    stop = Suspension("", 0, 0, 0.0) if kind == "suspend" else None
    return catalog.with_replaced_view(replace(view, suspended=stop))


def fresh(store: Shop, catalog: Catalog) -> Dataflow:
    """From nothing: another process, which has read the same records."""
    views = [View.from_json(v.to_json()) for v in catalog.views]
    known = {v.table.id: ViewPlan.from_json(v.plan) for v in views}
    active = [v.table.id for v in views if v.suspended is None and not v.options]
    return build_dataflow(
        catalog.tables_by_id, known, active, not store.capabilities.before_images, store.can_filter_scans
    )


def said(flow: Dataflow) -> Mapping[str, Any]:
    return {
        "operators": dict(flow.operators),
        "tables": dict(flow.tables),
        "views": {view: (made.sink, list(made.operators)) for view, made in flow.views.items()},
        "consumers": {name: set(ways) for name, ways in flow.edges.items() if ways},
        "images": {table: list(images) for table, images in flow.images.items()},
        "used": dict(flow.used_columns),
        "held": dict(flow.image_columns),
        "slots": dict(flow.slots),
        "fingerprint": flow.fingerprint,
        "in batches": flow.batch_operators,
        "counted": {
            name: value
            for name, value in vars(flow.usage).items()
            if name != "order_numbers"  # they depend on which view came first
        },
    }


@pytest.mark.parametrize(("before_images", "selects"), [(True, False), (False, False), (False, True)])
@given(data=st.data())
def test_a_flow_is_the_same_however_it_came_about(before_images: bool, selects: bool, data: st.DataObject) -> None:
    store: Any = Shop(before_images, selects)
    for catalog in data.draw(histories()):
        flow, anew = cache.maintained_dataflow(store, catalog), fresh(store, catalog)
        assert said(flow) == said(anew)
        for made in (flow, anew):
            seen: set[str] = set()
            for name, operator in made.operators.items():
                assert seen.issuperset(dependencies_of(operator))
                seen.add(name)
            assert made.sort_operators(made.operators) == list(made.operators)
            for name in made.operators:
                needs = {v for v, c in made.views.items() if name in made.upstream([c.sink.id])}
                assert made.views_of(name) == needs
        assert cache.maintained_dataflow(store, catalog) is flow
        assert flow.has_fingerprint(flow.fingerprint)


def test_a_flow_before_stays_as_it_is_and_travels_without_its_views() -> None:
    store: Any = Shop(True, False)
    catalog = Catalog()
    catalog = catalog.with_table(Table(catalog.next_id, "t", COLUMNS, (KeyPart("id"),)))
    flow = cache.maintained_dataflow(store, catalog)
    for number in range(5):
        before, known = said(flow), flow
        plan = _plan(filtered(scan(1, "a"), "a", (number,)), ["aid", "aref", "avalue"])
        table = Table(catalog.next_id, f"v{number}", COLUMNS, (KeyPart("id"),), True)
        catalog = catalog.with_view(View(table, "", plan.to_json()))
        flow = cache.maintained_dataflow(store, catalog)
        assert said(known) == before != said(flow)
    sent = pickle.loads(pickle.dumps(flow))
    assert (dict(sent.operators), sent.image_columns) == (flow.operators, flow.image_columns)
    assert not sent.views
    lonely = cache.separate_dataflow(catalog, catalog.views[2])
    assert list(lonely.views) == [catalog.views[2].table.id]
