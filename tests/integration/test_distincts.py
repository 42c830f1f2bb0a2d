"""Several DISTINCT aggregates of one query are one aggregate, in one pass, and equal Spark's."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from viewkeeper.operators.kinds import Aggregate

VIEWS = {
    "two": "SELECT g, count(DISTINCT a) AS x, count(DISTINCT c) AS y FROM facts GROUP BY g",
    "with_others": """SELECT g, count(DISTINCT a) AS x, sum(DISTINCT b) AS y, max(d) AS m, count(*) AS n,
        count(d) AS nd, avg(d) AS av, count(1) FILTER (WHERE a > 3) AS few FROM facts GROUP BY g""",
    "filtered": """SELECT g, count(DISTINCT a) FILTER (WHERE d > 1) AS x, count(DISTINCT a) AS z,
        sum(DISTINCT d) FILTER (WHERE c = 'x') AS y, sum(a) FILTER (WHERE d < 3) AS m FROM facts GROUP BY g""",
    "one_filtered": "SELECT g, count(DISTINCT a) FILTER (WHERE d > 1) AS x FROM facts GROUP BY g",
    "of_everything": """SELECT count(DISTINCT a) AS x, count(DISTINCT c) AS y, sum(d) AS s, count(*) AS n,
        1 + max(b) AS m FROM facts""",
    "computed": """SELECT g % 2 AS k, count(DISTINCT a % 4) AS x, avg(DISTINCT a + 1) AS y, min(c) AS m
        FROM facts GROUP BY g % 2""",
    "by_a_float": "SELECT b, count(DISTINCT a) AS x, count(DISTINCT d) AS y FROM facts GROUP BY b",
    "rolled_up": """SELECT g, a, count(DISTINCT c) AS x, count(DISTINCT d) AS y, sum(d) AS s FROM facts
        GROUP BY ROLLUP (g, a)""",
    "over_a_group": """SELECT n, count(DISTINCT a) AS x, count(DISTINCT top) AS y FROM
        (SELECT a, count(*) AS n, max(d) AS top FROM facts GROUP BY a) GROUP BY n""",
}
PAIRS = "SELECT g, count(DISTINCT a, c) AS x, count(DISTINCT d) AS y, max(a) AS m FROM facts GROUP BY g"
MANY = 39
WIDE = ", ".join(f"max(a + {i}) AS m{i}, count(DISTINCT a % {i + 1}) AS n{i}" for i in range(MANY))


def fact(rng: Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "g": rng.choice((None, 1, 2, 3)),
        "a": rng.choice((None, *range(7))),
        "b": rng.choice((None, 0.0, -0.0, 1.5, float("nan"))),
        "c": rng.choice((None, "x", "y", "")),
        "d": rng.choice((None, "0.50", "1.50", "3.00")),
    }


def test_several_distincts_are_one_aggregate_and_equal_spark(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark, durability="none")
    db.sql("CREATE TABLE facts (id INT, g INT, a INT, b DOUBLE, c STRING, d DECIMAL(9,2), PRIMARY KEY (id))")
    rng = Random(5)
    db.put("facts", [fact(rng, i) for i in range(60)])
    for name, query in VIEWS.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        assert db.explain(name).count("aggregate by") == 1 + (name == "over_a_group"), name
    db.sql(f"CREATE MATERIALIZED VIEW pairs AS {PAIRS}")  # values of two columns together are not counted in one pass
    for number in range(5):
        db.put("facts", [fact(rng, rng.randrange(70)) for _ in range(12)])
        db.delete("facts", list(range(80)) if number == 3 else [rng.randrange(70) for _ in range(4)])
        db.refresh(lane="spark" if number == 2 else "driver")
        found = db.audit()
        assert found.differences == 0, found


def test_many_distincts_read_each_row_once(make_db: Callable[..., Any], spark: Any) -> None:
    """39 of them made 40 rows of each row, and two aggregates; now they are one segment into one aggregate."""
    db = make_db(spark=spark, durability="none")
    db.sql("CREATE TABLE facts (id INT, g INT, a INT, PRIMARY KEY (id))")
    db.sql(f"CREATE MATERIALIZED VIEW wide AS SELECT g, {WIDE} FROM facts GROUP BY g")
    aggregates = [o for o in db._acquire_maintainer().publisher.dataflow.operators.values() if isinstance(o, Aggregate)]
    assert [len(list(a.segments())) for a in aggregates] == [1]
    db.put("facts", [{"id": i, "g": i % 4, "a": i % 11} for i in range(40)])
    db.refresh()
    assert db.audit().differences == 0
