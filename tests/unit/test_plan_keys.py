"""What a plan proves unique, and the key that a view gets from it."""

from __future__ import annotations

import pytest

from viewkeeper.errors import UnknownName, Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.plan.logical.nodes import (
    Aggregate,
    Expr,
    Filter,
    Join,
    Named,
    Node,
    Order,
    Project,
    Query,
    Scan,
    Sort,
    Union,
    column,
)
from viewkeeper.plan.logical.unique_keys import unique_keys
from viewkeeper.plan.planner import plan_view

ITEMS = Table(1, "items", (Column("id", types.BIGINT, False), Column("cat", types.STRING)), (KeyPart("id"),))
REVIEWS = Table(2, "reviews", (Column("rid", types.BIGINT, False), Column("item", types.BIGINT)), (KeyPart("rid"),))
TABLES = {1: ITEMS, 2: REVIEWS}
SCAN = Scan(1, ((Column("c0", types.BIGINT, False), "id"), (Column("c1", types.STRING), "cat")))
REVIEW = Scan(2, ((Column("c2", types.BIGINT, False), "rid"), (Column("c3", types.BIGINT), "item")))


def equal(a: str, b: str) -> Expr:
    return Expr("EqualTo", types.BOOLEAN, (column(a, types.BIGINT), column(b, types.BIGINT)))


def key(root: Node, *names: str, wanted: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    types = {c.name: c for c in root.columns}
    output = tuple((name, types[name]) for name in names)
    table, _ = plan_view("v", 9, Query(root, output), wanted, TABLES, {}, {1: 10, 2: 100}, {})
    return [k.column + (" desc" if k.descending else "") for k in table.key], table.is_bag


def test_a_filter_keeps_the_primary_key() -> None:
    kept = Filter(SCAN, Expr("IsNotNull", types.BOOLEAN, (column("c1", types.STRING),)))
    assert key(kept, "c0", "c1") == (["c0"], False)


def test_without_the_primary_key_the_whole_row_is_the_key() -> None:
    assert key(SCAN, "c1") == (["c1"], True)


def test_a_join_by_the_other_sides_key_has_one_sides_key() -> None:
    joined = Join("inner", SCAN, REVIEW, equal("c0", "c3"))
    assert unique_keys(joined, TABLES)[0] == ("c2",)
    assert key(joined, "c0", "c1", "c2", "c3") == (["c2"], False)


def test_a_join_on_plain_columns_has_both_keys() -> None:
    joined = Join(
        "inner",
        SCAN,
        Project(REVIEW, (Named("c4", column("c2", types.BIGINT)), Named("c5", column("c3", types.BIGINT)))),
        None,
    )
    assert key(joined, "c0", "c4") == (["c0", "c4"], False)


def test_a_left_join_by_the_right_sides_key_keeps_the_left_key() -> None:
    joined = Join("left", REVIEW, SCAN, equal("c3", "c0"))
    assert key(joined, "c2", "c1") == (["c2"], False)


def test_a_group_has_its_keys_and_a_union_none() -> None:
    grouped = Aggregate(SCAN, (Named("c1", column("c1", types.STRING)),), ())
    assert key(grouped, "c1") == (["c1"], False)
    both = Union((SCAN, SCAN), (Column("u0", types.BIGINT), Column("u1", types.STRING)))
    assert key(both, "u0", "u1") == (["u0", "u1"], True)


def test_order_by_comes_first_in_the_key() -> None:
    ordered = Sort(SCAN, (Order(column("c1", types.STRING), descending=True, nulls_last=True),))
    assert key(ordered, "c0", "c1") == (["c1 desc", "c0"], False)
    hidden = Project(ordered, (Named("c0", column("c0", types.BIGINT)),))
    with pytest.raises(Unsupported, match="ORDER BY"):
        key(hidden, "c0")


def test_order_by_finds_a_column_under_the_name_that_it_was_given() -> None:
    """SELECT cat AS y, id FROM items i ORDER BY i.cat: Spark sorts by one more column and drops it again."""
    both = (Named("y", column("c1", types.STRING)), Named("c0", column("c0", types.BIGINT)))
    ordered = Sort(Project(SCAN, (*both, Named("h", column("c1", types.STRING)))), (Order(column("h", types.STRING)),))
    shown = Project(ordered, (Named("y", column("y", types.STRING)), Named("c0", column("c0", types.BIGINT))))
    assert key(shown, "y", "c0") == (["y", "c0"], False)


def test_key_is_extended_unless_it_is_unique() -> None:
    assert key(SCAN, "c0", "c1", wanted=("c1",)) == (["c1", "c0"], False)
    assert key(SCAN, "c0", "c1", wanted=("c0",)) == (["c0"], False)
    with pytest.raises(UnknownName, match="nope"):
        key(SCAN, "c0", wanted=("nope",))
