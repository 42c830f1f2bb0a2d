"""What Spark's ANSI mode raises on the data, a refresh refuses: nothing is published, and a good batch heals it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.naming import Called, Naming

from viewkeeper.errors import EvaluationError

# An expression over n INT, d DECIMAL(38,0), s STRING, and a row that makes it raise.
RAISING: dict[str, tuple[str, dict[str, Any]]] = {
    "division": ("10 / n", {"n": 0}),
    "integer division": ("10 div n", {"n": 0}),
    "remainder": ("10 % n", {"n": 0}),
    "addition": ("n + 1", {"n": 2**31 - 1}),
    "multiplication": ("n * 2", {"n": 2**30}),
    "negation": ("-n", {"n": -(2**31)}),
    "absolute": ("abs(n)", {"n": -(2**31)}),
    "narrowing": ("CAST(n AS TINYINT)", {"n": 128}),
    "decimal overflow": ("d * 10", {"d": 10**37 * 5}),
    "decimal narrowing": ("CAST(d AS DECIMAL(5,0))", {"d": 100_000}),
    "text to number": ("CAST(s AS INT)", {"s": "x1"}),
    "text to date": ("CAST(s AS DATE)", {"s": "2024-02-30"}),
    "text to boolean": ("CAST(s AS BOOLEAN)", {"s": "maybe"}),
}
GOOD: dict[str, Any] = {"id": 1, "n": 3, "d": 7, "s": "1"}


def named(db: Any, seed: str) -> Called:
    """The database under names from the pool."""
    return Called(db, Naming(seed, {"facts", "computed", "total"}, {"id", "n", "d", "s", "o"}))


@pytest.mark.slow
@pytest.mark.parametrize("case", RAISING)
def test_what_spark_raises_is_refused_and_nothing_is_published(
    case: str, spark: Any, make_db: Callable[..., Any]
) -> None:
    expression, row = RAISING[case]
    text = {"text to date": "2024-02-29", "text to boolean": "true"}.get(case, "1")
    db = named(make_db(spark=spark, durability="none"), case)
    db.sql("CREATE TABLE facts (id INT, n INT, d DECIMAL(38,0), s STRING, PRIMARY KEY (id))")
    db.sql(f"CREATE MATERIALIZED VIEW computed AS SELECT id, {expression} AS o FROM facts")
    db.put("facts", GOOD | {"s": text})
    db.refresh()
    before = db.read("computed").to_pylist()
    assert len(before) == 1
    db.put("facts", {"id": 2, "n": 1, "d": 1, "s": text} | row)
    with pytest.raises(EvaluationError):
        db.refresh(suspend=False)
    assert db.read("computed").to_pylist() == before
    db.delete("facts", 2)
    db.refresh()
    assert db.read("computed").to_pylist() == before


@pytest.mark.slow
def test_a_value_that_does_not_survive_the_batch_does_not_raise(spark: Any, make_db: Callable[..., Any]) -> None:
    db = named(make_db(spark=spark, durability="none"), "")
    db.sql("CREATE TABLE facts (id INT, n INT, PRIMARY KEY (id))")
    db.sql("CREATE MATERIALIZED VIEW computed AS SELECT id, 10 / n AS o FROM facts")
    db.put("facts", {"id": 1, "n": 0})
    db.put("facts", {"id": 1, "n": 5})
    db.put("facts", {"id": 2, "n": 0})
    db.delete("facts", 2)
    db.refresh()
    assert db.read("computed").to_pylist() == [{"id": 1, "o": 2.0}]


@pytest.mark.slow
def test_a_sum_that_overflows_raises_and_one_that_comes_back_does_not(spark: Any, make_db: Callable[..., Any]) -> None:
    db = named(make_db(spark=spark, durability="none"), "")
    db.sql("CREATE TABLE facts (id INT, n BIGINT, PRIMARY KEY (id))")
    db.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(n) AS o FROM facts")
    db.put("facts", [{"id": 1, "n": 2**63 - 1}, {"id": 2, "n": 1}, {"id": 3, "n": -5}])
    db.refresh()  # in range as a whole, in whatever order
    assert db.get("total", ()) == {"o": 2**63 - 5}
    db.put("facts", {"id": 4, "n": 5})
    with pytest.raises(EvaluationError):
        db.refresh(suspend=False)
    assert db.get("total", ()) == {"o": 2**63 - 5}
    db.delete("facts", 4)
    db.refresh()
    assert db.get("total", ()) == {"o": 2**63 - 5}
