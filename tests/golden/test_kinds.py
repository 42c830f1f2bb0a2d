"""Each kind of operator in a plan that has it, as EXPLAIN prints it and as it is drawn. No JVM: plans are made here.

A kind that is added needs a plan here; `VK_GOLDEN=write` makes the files anew. The ids are part of the text: state on
disk is found by them, so a change of one is a change of what stored databases can be opened by.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from viewkeeper.explain.diagram import plan_diagram
from viewkeeper.explain.explain import render_explain
from viewkeeper.explain.render import to_mermaid
from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.operators.kinds import KINDS
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.build import build_dataflow
from viewkeeper.plan.logical.nodes import (
    Aggregate,
    Call,
    Expr,
    Filter,
    Join,
    Limit,
    MemberJoin,
    MemberSeeds,
    Named,
    Node,
    Order,
    Project,
    Query,
    Scan,
    Sort,
    column,
)

TABLES = {
    i: Table(i, name, (Column("id", types.BIGINT, False), Column("ref", types.BIGINT)), (KeyPart("id"),))
    for i, name in ((1, "a"), (2, "b"))
}
A, B = (
    Scan(i, ((Column(f"{name}i", types.BIGINT, False), "id"), (Column(f"{name}r", types.BIGINT), "ref")))
    for i, name in ((1, "a"), (2, "b"))
)
AI, AR, BI, BR = (column(name, types.BIGINT) for name in ("ai", "ar", "bi", "br"))
EQUAL = Expr("EqualTo", types.BOOLEAN, (AI, BR))
JOINED = Join("inner", A, B, EQUAL)
TOTAL = Aggregate(B, (Named("k", BR),), (Call("s", "Sum", (BI,), types.BIGINT), Call("m", "Max", (BI,), types.BIGINT)))
MEMBERS = MemberJoin(A, B, Expr("LessThan", types.BOOLEAN, (AR, BI)))

PLANS: Mapping[str, Node] = {
    "input": Project(A, (Named("q", AR),)),
    "table_image": Filter(A, Expr("IsNotNull", types.BOOLEAN, (AR,), nullable=False)),
    "arrange": Join("inner", A, TOTAL, Expr("EqualTo", types.BOOLEAN, (AI, column("k", types.BIGINT)))),
    "lookup": JOINED,
    "bulk_join": JOINED,
    "consolidate": Project(JOINED, (Named("q", Expr("IntegralDivide", types.BIGINT, (AR, BI), ("ANSI",))),)),
    "aggregate": TOTAL,
    "family_cells": Aggregate(
        MemberSeeds(MEMBERS, B, B.columns[:1]), (Named("k", BI),), (Call("s", "Sum", (AI,), types.BIGINT),)
    ),
    "family_rows": MEMBERS,
    "recompute": Join("full", A, B, Expr("And", types.BOOLEAN, (EQUAL, Expr("LessThan", types.BOOLEAN, (AR, BI))))),
    "top_k": Limit(Sort(A, (Order(AR, descending=True),)), 3, 1),
    "sink": A,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_with_each_kind_is_as_before(kind: str) -> None:
    root = PLANS[kind]
    plan = ViewPlan(Query(root, tuple((c.name, c) for c in root.columns)), {1: 10, 2: 100})
    flow = build_dataflow(TABLES, {10: plan}, [10])
    assert kind in {o.kind for o in flow.operators.values()}
    view = Table(10, "v", root.columns, (KeyPart(root.columns[0].name),))
    names = {1: "a", 2: "b", 10: "v"}
    drawn = to_mermaid(plan_diagram(flow, view, {}, names))
    found = "\n".join([*flow.operators, "", render_explain(flow, view, {}, names), "", drawn, ""])
    golden = Path(__file__).parent / "kinds" / f"{kind}.txt"
    if os.environ.get("VK_GOLDEN") == "write":
        golden.write_text(found, "utf-8")
    assert found == golden.read_text("utf-8")
