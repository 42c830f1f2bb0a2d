"""The dataflow that joins and their kin become: paths, shared arrangements, rounds."""

from __future__ import annotations

from collections import Counter

import pytest

from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.operators.kinds import Consolidate, Input, Lookup, Recompute, TableImage
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.build import build_dataflow
from viewkeeper.plan.dataflow.dataflow import BROADCAST_BYTES, Dataflow, assign_rounds, choose_broadcasts, slot_names
from viewkeeper.plan.logical.nodes import Aggregate, Call, Expr, Join, Named, Node, Project, Query, Scan, column


def table(number: int, name: str) -> Table:
    return Table(number, name, (Column("id", types.BIGINT, False), Column("ref", types.BIGINT)), (KeyPart("id"),))


TABLES = {i: table(i, n) for i, n in ((1, "a"), (2, "b"), (3, "c"))}


def scan(number: int) -> Scan:
    prefix = "abc"[number - 1]
    return Scan(
        number, ((Column(f"{prefix}i", types.BIGINT, False), "id"), (Column(f"{prefix}r", types.BIGINT), "ref"))
    )


def equal(a: str, b: str) -> Expr:
    return Expr("EqualTo", types.BOOLEAN, (column(a, types.BIGINT), column(b, types.BIGINT)))


def flow(*roots: Node) -> Dataflow:
    plans = {
        10 + i: ViewPlan(Query(root, tuple((c.name, c) for c in root.columns)), {1: 10, 2: 100, 3: 1000})
        for i, root in enumerate(roots)
    }
    return build_dataflow(TABLES, plans, plans)


CHAIN = Join("inner", Join("inner", scan(1), scan(2), equal("ai", "br")), scan(3), equal("bi", "cr"))


def test_a_join_has_one_path_for_each_relation_and_no_intermediate_state() -> None:
    made = flow(CHAIN)
    kinds = Counter(o.kind for o in made.operators.values())
    assert kinds["lookup"] == 6
    assert {(o.table, o.key) for o in made.operators.values() if isinstance(o, TableImage)} == {
        (1, ("id",)),
        (2, ("ref",)),
        (2, ("id",)),
        (3, ("ref",)),
    }
    assert not any(o.kind == "arrange" for o in made.operators.values())


def test_each_pair_of_relations_meets_once_new_and_once_old() -> None:
    """In Σ R₁ⁿᵉʷ ΔRᵢ Rₙᵒˡᵈ the two orders of a pair look at different states."""
    made = flow(Join("inner", scan(1), scan(2), equal("ai", "br")))
    states = {
        made.operators[o.arrangement].table: o.new_state for o in made.operators.values() if isinstance(o, Lookup)
    }  # type: ignore[attr-defined]
    assert sorted(states.values()) == [False, True]


def test_equal_sub_plans_of_two_views_are_one() -> None:
    one = flow(CHAIN)
    renamed = Project(CHAIN, tuple(Named(f"x{c.name}", column(c.name, c.type)) for c in CHAIN.columns))
    two = flow(CHAIN, renamed)
    assert len(two.operators) == len(one.operators) + 1
    image = next(o for o in two.operators.values() if isinstance(o, TableImage))
    assert two.views_of(image.id) == {10, 11}


def test_a_semi_join_is_an_inner_join_with_distinct_keys() -> None:
    made = flow(Join("semi", scan(1), scan(2), equal("ai", "br")))
    kinds = Counter(o.kind for o in made.operators.values())
    assert kinds["aggregate"] == 1
    assert kinds["recompute"] == 0


def test_an_anti_join_keeps_rows_without_a_match_and_subtracts_those_of_keys_that_came() -> None:
    made = flow(Join("anti", scan(1), scan(2), equal("ai", "br")))
    lookups = {o.optional: o for o in made.operators.values() if isinstance(o, Lookup)}
    assert lookups.keys() == {"anti", ""}
    assert {s.sign for s in lookups[""].probe} == {-1}
    assert Counter(o.kind for o in made.operators.values())["aggregate"] == 1


@pytest.mark.parametrize("count", [4, 8])
def test_the_operators_of_left_joins_grow_with_the_square_of_their_number_like_those_of_inner_joins(count: int) -> None:
    def joined(how: str) -> Node:
        node: Node = scan(1)
        for i in range(count):
            other = Project(scan(2), tuple(Named(f"{c.name}{i}", column(c.name, c.type)) for c in scan(2).columns))
            node = Join(how, node, other, equal("ar", f"bi{i}"))
        return node

    inner, left = (len(flow(joined(how)).operators) for how in ("inner", "left"))
    assert inner < left <= 2 * inner + count


def test_a_join_with_another_condition_recomputes_from_shared_arrangements() -> None:
    less = Expr("LessThan", types.BOOLEAN, (column("ar", types.BIGINT), column("bi", types.BIGINT)))
    made = flow(Join("full", scan(1), scan(2), Expr("And", types.BOOLEAN, (equal("ai", "br"), less))))
    (recompute,) = [o for o in made.operators.values() if isinstance(o, Recompute)]
    assert recompute.slot_count == 1
    assert all(isinstance(made.operators[a], TableImage) for a in recompute.new_state_lookups)


def test_an_expression_that_can_raise_waits_for_all_paths() -> None:
    quotient = Expr("IntegralDivide", types.BIGINT, (column("ar", types.BIGINT), column("bi", types.BIGINT)), ("ANSI",))
    joined = Join("inner", scan(1), scan(2), equal("ai", "br"))
    made = flow(Project(joined, (Named("q", quotient),)))
    assert any(isinstance(o, Consolidate) for o in made.operators.values())
    plain = flow(Project(joined, (Named("q", column("ar", types.BIGINT)),)))
    assert not any(isinstance(o, Consolidate) for o in plain.operators.values())


def test_rounds_follow_the_lookups() -> None:
    made = flow(
        Aggregate(
            CHAIN, (Named("k", column("ar", types.BIGINT)),), (Call("n", "Count", (), types.BIGINT, nullable=False),)
        )
    )
    rounds = assign_rounds(made)
    assert sorted(set(rounds.values())) == [0, 1, 2, 3]
    aggregate = next(o for o in made.operators.values() if o.kind == "aggregate")
    assert rounds[aggregate.id] == 3
    for operator in made.operators.values():
        for segment in operator.segments():
            assert rounds[segment.source] <= rounds[operator.id]


def test_a_change_reaches_the_operators_behind_its_table_and_no_others() -> None:
    made = flow(CHAIN, scan(3))
    fed = {o.id: {s.source for s in o.segments()} | set(o.upstream_ids) for o in made.operators.values()}
    for table in (1, 2, 3):
        begun = Input(table).id
        reached = made.reachable([begun], made.batch_operators)
        for name in made.batch_operators:
            assert (name in reached) == (name == begun or not fed[name].isdisjoint(reached))
        assert {made.operators[n].output_view for n in reached} >= ({10, 11} if table == 3 else {10})
    assert 11 not in {made.operators[n].output_view for n in made.reachable([Input(1).id], made.batch_operators)}


def test_a_lookup_in_a_small_side_makes_no_round() -> None:
    made = flow(
        Aggregate(
            CHAIN, (Named("k", column("ar", types.BIGINT)),), (Call("n", "Count", (), types.BIGINT, nullable=False),)
        )
    )
    small = {slot_names(o)[0]: (5, 100) for o in made.operators.values() if isinstance(o, TableImage) and o.table == 2}
    stay = choose_broadcasts(made, small)
    assert {made.operators[n].arrangement for n in stay} == {slot.split("/")[0] for slot in small}
    rounds = assign_rounds(made, stay)
    for operator in (o for o in made.operators.values() if isinstance(o, Lookup)):
        for segment in operator.segments():
            assert (rounds[operator.id] == rounds[segment.source]) == (operator.id in stay)
    assert not choose_broadcasts(made, dict.fromkeys(small, (10**6, BROADCAST_BYTES + 1)))


def test_a_table_image_holds_the_columns_that_any_view_uses() -> None:
    only_id = Scan(1, ((Column("z0", types.BIGINT, False), "id"),))
    assert [c.name for c in flow(only_id).used_columns[1]] == ["id"]
    assert [c.name for c in flow(only_id, scan(1)).used_columns[1]] == ["id", "ref"]
