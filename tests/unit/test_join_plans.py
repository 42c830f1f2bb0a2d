"""A plan of n joins has operators in proportion to n, whatever their kinds; nothing is compiled twice for each join.

Counted, not timed: `benchmarks/joins.py` has the bars for time. No JVM: plans are made here.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from viewkeeper.errors import Unsupported
from viewkeeper.explain.explain import render_explain
from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.build import build_dataflow
from viewkeeper.plan.depth import to_any_depth
from viewkeeper.plan.logical.nodes import Expr, Filter, Join, Named, Node, Project, Query, Scan, column
from viewkeeper.plan.rules.key_propagation import KeyPropagation, propagate_key

MOST = 12
ROOM = 90
"""Calls that a caller leaves: enough to compile a small plan, not one of so many joins."""
GROWTH = 5.0
LINES = 150
KINDS = ("inner", "left", "right", "full", "semi", "anti", "existence")
TABLES = {
    i: Table(
        i,
        f"t{i}",
        (Column("id", types.BIGINT, False), Column("ref", types.BIGINT), Column("v", types.BIGINT)),
        (KeyPart("id"),),
    )
    for i in range(1, 4 * MOST + 2)
}


def scan(i: int) -> Scan:
    return Scan(i, tuple((Column(f"{c.name}{i}", c.type, c.nullable), c.name) for c in TABLES[i].columns))


def equal(left: str, right: str) -> Expr:
    return Expr("EqualTo", types.BOOLEAN, (column(left, types.BIGINT), column(right, types.BIGINT)))


def joins(n: int, how: Callable[[int], str], chained: bool) -> Node:
    """n joins in turn: each to the first table, or to the one before that can be seen."""
    node: Node = scan(1)
    seen = 1
    for i in range(2, n + 2):
        kind = how(i)
        exists = f"e{i}" if kind == "existence" else None
        node = Join(kind, node, scan(i), equal(f"ref{seen if chained else 1}", f"id{i}"), exists)
        if exists is not None:
            either = (column(exists, types.BOOLEAN), Expr("IsNull", types.BOOLEAN, (column("v1", types.BIGINT),)))
            kept = Filter(node, Expr("Or", types.BOOLEAN, either))
            node = Project(kept, tuple(Named(c.name, column(c.name, c.type)) for c in node.columns if c.name != exists))
        if kind in ("inner", "left", "right", "full"):
            seen = i
    return node


def using(n: int, how: Callable[[int], str]) -> Node:
    """n joins USING one key, each on the key of those before, which a FULL JOIN takes from either side."""
    node: Node = scan(1)
    key = "id1"
    for i in range(2, n + 2):
        joined = Join(how(i), node, scan(i), equal(key, f"id{i}"))
        both = (column(key, types.BIGINT), column(f"id{i}", types.BIGINT))
        value = {"full": Expr("Coalesce", types.BIGINT, both), "right": both[1]}.get(how(i), both[0])
        rest = [Named(c.name, column(c.name, c.type)) for c in joined.columns if c.name not in (key, f"id{i}")]
        key = f"key{i}"
        node = Project(joined, (Named(key, value), *rest))
    return node


def size(root: Node) -> tuple[int, int]:
    """Operators of the plan, and lines of EXPLAIN."""
    plan = ViewPlan(Query(root, tuple((c.name, c) for c in root.columns)), dict.fromkeys(TABLES, 100))
    flow = build_dataflow(TABLES, {90: plan}, [90])
    view = Table(90, "v", root.columns, (KeyPart(root.columns[0].name),))
    names = {i: t.name for i, t in TABLES.items()} | {90: "v"}
    return len(flow.operators), len(render_explain(flow, view, {}, names).splitlines())


@pytest.mark.parametrize("chained", [False, True], ids=["star", "chain"])
@pytest.mark.parametrize("kind", KINDS)
def test_plans_of_one_kind_of_join_grow_with_their_number(kind: str, chained: bool) -> None:
    assert_linear(lambda n: joins(n, lambda _: kind, chained))


@pytest.mark.parametrize("kind", ["inner", "left", "right", "full"])
def test_plans_of_joins_using_one_key_grow_with_their_number(kind: str) -> None:
    assert_linear(lambda n: using(n, lambda _: kind))


@pytest.mark.parametrize("chained", [False, True], ids=["star", "chain"])
@pytest.mark.parametrize("seed", range(6))
def test_plans_of_mixed_joins_grow_with_their_number(seed: int, chained: bool) -> None:
    rng = Random(seed)
    drawn = [rng.choice(KINDS) for _ in range(MOST + 2)]
    assert_linear(lambda n: joins(n, lambda i: drawn[i], chained))


def assert_linear(made: Callable[[int], Node]) -> None:
    """Twice the joins are at most five times as much; few first, so that a plan that doubles each time fails soon."""
    found: dict[int, tuple[int, int]] = {}
    for n in (3, 6, MOST):
        found[n] = size(made(n))
        for index, what in enumerate(("operators", "lines of EXPLAIN")):
            few, more = found.get(n // 2, found[n])[index], found[n][index]
            assert more <= GROWTH * few, f"{few} {what} at {n // 2} joins, {more} at {n}"


@pytest.mark.parametrize("chained", [False, True], ids=["star", "chain"])
def test_explain_of_twelve_left_joins_can_be_read(chained: bool) -> None:
    assert size(joins(12, lambda _: "left", chained))[1] <= LINES


@pytest.mark.parametrize("made", [using, lambda n, how: joins(n, how, True)], ids=["using", "chain"])
def test_a_plan_is_compiled_however_deep_the_caller_is_in_the_stack(made: Callable[..., Node]) -> None:
    """A script defines the view, a server opens the database again in the middle of a request."""
    node = made(MOST, lambda _: "full")

    used = len(inspect.stack(0))
    assert at(sys.getrecursionlimit() - used - ROOM, lambda: size(node)) == size(node)


def test_what_a_read_of_a_lazy_view_narrows_is_found_however_deep_the_caller_is() -> None:
    node = using(4 * MOST, lambda _: "full")
    plans = {90: ViewPlan(Query(node, tuple((c.name, c) for c in node.columns)), {})}

    def found() -> KeyPropagation:
        return propagate_key(90, [node.columns[0].name], TABLES, plans)

    used = len(inspect.stack(0))
    assert at(sys.getrecursionlimit() - used - ROOM, found) == found()


def at(depth: int, work: Callable[[], Any]) -> Any:
    return at(depth - 1, work) if depth else work()


def test_what_is_too_deep_for_any_stack_is_refused_by_name() -> None:
    def nested(depth: int) -> int:
        return nested(depth - 1) if depth else 0

    assert to_any_depth(lambda: nested(50)) == 0
    with pytest.raises(Unsupported, match="nested too deeply"):
        to_any_depth(lambda: nested(sys.getrecursionlimit()))


def test_an_error_is_the_same_from_another_stack() -> None:
    def work() -> None:
        raise RecursionError if threading.current_thread() is threading.main_thread() else Unsupported("No.")

    with pytest.raises(Unsupported, match="No"):
        to_any_depth(work)
