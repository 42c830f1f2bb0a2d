"""What is said of a text that cannot be meant so: a code, what is wrong, and what to write. No JVM starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract import planned

from viewkeeper.errors import BadStatement, NameTaken, UnknownName

HALF = "\ud800"
"""A surrogate without its other half: Python's strings may hold it, UTF-8 cannot."""


@pytest.fixture
def shop(make_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    planned.install(monkeypatch.setattr)
    db = make_db()
    planned.fill(db, 6)
    return db


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT upper(category) FROM items\nWHERE category = '{}'",
        "EXPLAIN SELECT '{}' AS half FROM items",
        "CREATE MATERIALIZED VIEW v AS SELECT item_id, '{}' AS half FROM items",
        "CREATE MATERIALIZED VIEW v PARAMETERS (a INT) AS SELECT '{}' AS half, :a AS a FROM items",
        "DELETE FROM items WHERE upper(category) = '{}'",
        "UPDATE items SET category = concat('{}', category) WHERE item_id = 1",
        "INSERT INTO items SELECT 99, '{}', 1 FROM items",
    ],
)
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_query_that_is_no_utf8_is_refused(shop: Any, statement: str, engine: str) -> None:
    before = shop.read("items").to_pylist()
    with pytest.raises(BadStatement, match="half a character") as refused:
        shop.sql(statement.format(HALF), engine=engine)
    assert refused.value.hint == "Give text that is valid UTF-8."
    assert str(refused.value).encode(), "it can be printed"
    assert shop.read("items").to_pylist() == before
    assert not shop.views()


def test_a_value_or_a_view_of_many_that_is_no_utf8_is_refused(shop: Any) -> None:
    with pytest.raises(BadStatement, match="half a character"):
        shop.sql("SELECT * FROM items WHERE category = :c", c=HALF)
    with pytest.raises(BadStatement, match="half a character"):
        shop.create_views({"v": planned.TOTALS, "w": f"SELECT '{HALF}' AS half FROM items"})
    assert not shop.views()


def test_two_of_many_views_of_one_name_are_told_as_that(shop: Any) -> None:
    with pytest.raises(NameTaken, match="Two of the views to be made are called 'V' and 'v': names do not") as refused:
        shop.create_views({"v": planned.TOTALS, "V": planned.DEAR})
    assert refused.value.hint == "Nothing was made. Rename one of them."
    script = f"CREATE MATERIALIZED VIEW v AS {planned.TOTALS}; CREATE MATERIALIZED VIEW {{}}v AS {planned.DEAR}"
    with pytest.raises(NameTaken, match=r"Two of the views to be made are called 'v'\."):
        shop.sql(script.format(""))
    assert not shop.views()
    shop.sql(script.format("IF NOT EXISTS "))
    assert [v.name for v in shop.views()] == ["v"]
    assert "n" in shop.read("v").column_names, "the first of them"


def test_a_name_in_backticks_outside_of_sql_is_told(shop: Any) -> None:
    with pytest.raises(UnknownName, match="Backticks belong into SQL"):
        shop.read("`items`")
