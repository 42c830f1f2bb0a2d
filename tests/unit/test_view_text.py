"""A view's text after its tables were renamed: in place where no word can mean anything else."""

from __future__ import annotations

import pytest

from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.syntax.renamed_text import rename_in_query
from viewkeeper.syntax.view_text import current_names, has_whole_rows

ITEMS = Table(1, "items", tuple(Column(name, types.INT) for name in ("id", "price", "day")), (KeyPart("id"),))
OTHERS = frozenset({"order_id", "id"})


def renamed(text: str, column: str, to: str, *outputs: str) -> str | None:
    return rename_in_query(text, current_names(ITEMS), ITEMS.with_renamed_column(column, to), OTHERS, outputs)


@pytest.mark.parametrize(
    ("text", "outputs", "expected"),
    [
        ("SELECT price FROM items", ["price"], "SELECT cost AS `price` FROM items"),
        ("SELECT Price p FROM items", ["p"], "SELECT cost p FROM items"),
        ("SELECT sum(i.price)*2 FROM items i", ["x"], "SELECT sum(i.cost)*2 AS `x` FROM items i"),
        (
            "SELECT 'price' AS a, `price` > 1 AS b FROM items",
            ["a", "b"],
            "SELECT 'price' AS a, cost > 1 AS b FROM items",
        ),
        (
            "SELECT x.price FROM (SELECT price FROM items) x",
            ["p"],
            "SELECT x.cost AS `p` FROM (SELECT cost FROM items) x",
        ),
        (
            "SELECT id FROM items WHERE NOT price IN (1, price)",
            ["id"],
            "SELECT id FROM items WHERE NOT cost IN (1, cost)",
        ),
    ],
)
def test_a_column_gets_its_new_name(text: str, outputs: list[str], expected: str) -> None:
    assert renamed(text, "price", "cost", *outputs) == expected


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id AS price FROM items",  # a name that the query gives
        "SELECT id price FROM items",
        "SELECT price(id) FROM items",
        "SELECT price.id FROM items price",
        "SELECT price FROM items, (SELECT 1 AS cost)",
        "SELECT `sum(price)` FROM (SELECT sum(price) FROM items)",  # a name that Spark gives
    ],
)
def test_a_word_that_may_mean_something_else_is_left_alone(text: str) -> None:
    assert renamed(text, "price", "cost", "x") is None


def test_names_that_are_words_of_sql() -> None:
    assert (
        renamed("SELECT DATE '2020-01-01' AS d, extract(day FROM now()) AS x FROM items", "day", "on", "d", "x") is None
    )
    assert renamed("SELECT price AS p FROM items", "price", "order", "p") == "SELECT `order` AS p FROM items"
    assert renamed("SELECT id AS p FROM items", "id", "key", "p") is None, "another table has a column id"
    assert renamed("SELECT i.id AS p FROM items i", "id", "key", "p") == "SELECT i.key AS p FROM items i"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM items", True),
        ("SELECT a, i.* FROM items i", True),
        ("SELECT DISTINCT * FROM items", True),
        ("SELECT struct(*) FROM items", True),
        ("SELECT a FROM items AS x (a, b, c)", True),
        ("SELECT a FROM items x NATURAL JOIN y", True),
        ("FROM items |> WHERE a > 1", True),
        ("SELECT count(*), a * 2, (a) * b FROM items", False),
        ("SELECT a /* * */ FROM items -- *", False),
    ],
)
def test_queries_that_mean_all_columns_of_a_table(text: str, expected: bool) -> None:
    assert has_whole_rows(text, "items") is expected
