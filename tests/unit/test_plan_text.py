"""Plans as text: what the plan means is on the line, and different plans look different."""

from __future__ import annotations

from dataclasses import replace

from viewkeeper.expressions.backends.text import expr_text
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.plan.logical.nodes import (
    Aggregate,
    Call,
    Expr,
    Filter,
    Join,
    Limit,
    Named,
    Order,
    Project,
    Scan,
    Sort,
    column,
)
from viewkeeper.plan.logical.text import plan_text

A, B, C = column("c0", types.INT), column("c1", types.INT), column("c2", types.STRING)
ITEMS = Scan(7, ((Column("c0", types.INT), "n"), (Column("c1", types.INT), "m"), (Column("c2", types.STRING), "name")))


def literal(value: object, type_: str = "int") -> Expr:
    return Expr("literal", types.parse_type(type_), value=value, nullable=value is None)


def binary(op: str, left: Expr, right: Expr, type_: str = "int", value: object = None) -> Expr:
    return Expr(op, types.parse_type(type_), (left, right), value)


def test_a_plan_is_one_line_a_node_with_its_children_below() -> None:
    call = Call(
        "c3", "Count", (A,), types.BIGINT, distinct=True, filter=binary("GreaterThan", B, literal(2), "boolean")
    )
    grouped = Aggregate(Filter(ITEMS, Expr("IsNotNull", types.BOOLEAN, (C,))), (Named("c2", C),), (call,))
    plan = Limit(Sort(grouped, (Order(C, descending=True), Order(column("c3", types.BIGINT), nulls_last=True))), 5, 1)
    assert plan_text(plan, {7: "items"}).splitlines() == [
        "limit 5 offset 1",
        "  sort c2 desc nulls first, c3 nulls last",
        "    aggregate by c2: c3 = count(distinct c0) filter c1 > 2",
        "      filter c2 is not null",
        "        scan items: c0 = n, c1 = m, c2 = name",
    ]


def test_parentheses_stand_only_where_they_change_the_meaning() -> None:
    product = binary("Multiply", binary("Add", A, B), literal(2))
    assert expr_text(product) == "(c0 + c1) * 2"
    assert expr_text(binary("Add", A, binary("Multiply", B, literal(2)))) == "c0 + c1 * 2"
    assert expr_text(binary("Subtract", A, binary("Subtract", B, A))) == "c0 - (c1 - c0)"
    either = binary("Or", binary("EqualTo", A, B, "boolean"), Expr("IsNull", types.BOOLEAN, (C,)), "boolean")
    assert expr_text(binary("And", either, either, "boolean")) == "(c0 = c1 or c2 is null) and (c0 = c1 or c2 is null)"
    assert expr_text(Expr("Not", types.BOOLEAN, (either,))) == "not (c0 = c1 or c2 is null)"
    equal = binary("EqualTo", A, B, "boolean")
    assert expr_text(Expr("IsNull", types.BOOLEAN, (equal,))) == "(c0 = c1) is null"


def test_parameters_that_matter_are_shown() -> None:
    assert expr_text(Expr("Cast", types.INT, (C,), ("ANSI",))) == "cast(c2 as int)"
    assert expr_text(Expr("Cast", types.INT, (C,), ("TRY",))) == "try_cast(c2 as int)"
    assert expr_text(binary("Add", A, B, value=("TRY",))) != expr_text(binary("Add", A, B, value=("ANSI",)))
    like = binary("Like", C, literal("a!%", "string"), "boolean", ("!",))
    assert expr_text(like) != expr_text(replace(like, value=("\\",)))


def test_literals_show_their_type_where_it_cannot_be_seen() -> None:
    assert expr_text(literal("it's", "string")) == "'it''s'"
    assert expr_text(literal(-1, "date")) == "date '1969-12-31'"
    assert expr_text(literal("1.0", "double")) == "double '1.0'"
    assert expr_text(literal(None)) == "null"


def test_joins_name_their_kind_and_condition() -> None:
    other = Scan(8, ((Column("c9", types.INT), "k"),))
    condition = binary("EqualTo", A, column("c9", types.INT), "boolean")
    assert plan_text(Join("existence", ITEMS, other, condition, "c10")).startswith("join existence as c10 on c0 = c9\n")
    assert plan_text(Join("inner", ITEMS, other, None)).startswith("join inner\n")
    assert plan_text(Project(ITEMS, (Named("c0", A), Named("c4", B)))).startswith("project c0, c4 = c1\n")
