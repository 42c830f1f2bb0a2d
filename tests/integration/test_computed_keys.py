"""Joins on computed keys that can raise: looked up by the key, and raising for exactly the rows that Spark would."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from viewkeeper.errors import EvaluationError
from viewkeeper.operators.kinds import Lookup, Recompute

SHIFTED = "l.week = r.week - 3"
VIEWS = {
    "inner_join": f"SELECT l.id, r.id AS other FROM facts l JOIN others r ON {SHIFTED}",
    "both_sides": "SELECT l.id, r.id AS other FROM facts l JOIN others r ON l.week + 1 = r.week * 2",
    "null_safe": "SELECT l.id, r.id AS other FROM facts l JOIN others r ON l.week <=> r.week - 3",
    "left_join": f"SELECT l.id, r.id AS other FROM facts l LEFT JOIN others r ON {SHIFTED}",
    "right_join": f"SELECT l.id, r.id AS other FROM facts l RIGHT JOIN others r ON {SHIFTED}",
    "full_join": f"SELECT l.id, r.id AS other FROM facts l FULL JOIN others r ON {SHIFTED}",
    "semi_join": f"SELECT l.id, l.g FROM facts l LEFT SEMI JOIN others r ON {SHIFTED}",
    "anti_join": f"SELECT l.id, l.g FROM facts l LEFT ANTI JOIN others r ON {SHIFTED}",
    "existence": f"SELECT l.id FROM facts l WHERE l.g = 1 OR EXISTS (SELECT 1 FROM others r WHERE {SHIFTED})",
    "with_another": "SELECT l.id, r.id AS other FROM facts l JOIN others r ON l.g = r.g AND l.week = r.week - 3",
    "outer_and_more": "SELECT l.id, r.id AS other FROM facts l LEFT JOIN others r ON l.week = r.week - 3 AND l.g > r.g",
    "of_groups": """SELECT l.g, l.n, r.n AS later FROM (SELECT g, week, count(*) AS n FROM facts GROUP BY g, week) l
        JOIN (SELECT g, week, count(*) AS n FROM others GROUP BY g, week) r ON l.g = r.g AND l.week = r.week - 1""",
    "of_joins": """SELECT y.id, z.id AS other FROM (SELECT l.id, l.week FROM facts l JOIN days d ON l.day = d.day) y
        JOIN (SELECT r.id, r.week FROM others r JOIN days d ON r.day = d.day AND d.kind = 1) z
        ON y.week = z.week - 3""",
    "three": """SELECT l.id, d.kind, r.id AS other FROM facts l JOIN days d ON l.day = d.day - 1
        JOIN others r ON l.week + d.kind = r.week""",
    "of_two_relations": """SELECT l.id, d.kind, r.id AS other FROM facts l JOIN days d ON l.day = d.day
        JOIN others r ON coalesce(l.week, d.kind) = r.week""",
    "cast_text": "SELECT l.id, r.id AS other FROM facts l JOIN others r ON l.week = CAST(r.t AS INT)",
}
NOT_IN = "SELECT l.id FROM facts l WHERE l.week NOT IN (SELECT r.week - 3 FROM others r WHERE r.g = 2)"
"""Every row meets two facts here, whether the other side is empty and whether it has a NULL: no key."""


def tables(db: Any) -> None:
    for name in ("facts", "others"):
        db.sql(f"CREATE TABLE {name} (id INT, g INT, week INT, day INT, t STRING, PRIMARY KEY (id))")
    db.sql("CREATE TABLE days (day INT, kind INT, PRIMARY KEY (day))")


def row(rng: Random, number: int) -> dict[str, Any]:
    week = None if rng.random() < 0.1 else rng.randrange(20)
    return {"id": number, "g": rng.randrange(4), "week": week, "day": rng.randrange(9), "t": f" {rng.randrange(20)}"}


def test_views_equal_spark_and_meet_no_row_without_a_key(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark, durability="none")
    tables(db)
    rng = Random(3)
    for table in ("facts", "others"):
        db.put(table, [row(rng, i) for i in range(40)])
    db.put("days", [{"day": i, "kind": i % 3} for i in range(8)])
    for name, query in VIEWS.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    for operator in db._acquire_maintainer().publisher.dataflow.operators.values():
        if isinstance(operator, (Lookup, Recompute)):
            assert all(s.key for s in operator.segments()), operator
    db.sql(f"CREATE MATERIALIZED VIEW not_in AS {NOT_IN}")
    assert db.audit().differences == 0
    for number in range(5):
        for table in ("facts", "others"):
            db.put(table, [row(rng, rng.randrange(50)) for _ in range(6)])
            db.delete(table, [rng.randrange(50) for _ in range(3)])
        db.put("days", [{"day": rng.randrange(9), "kind": rng.randrange(3)}])
        db.refresh(lane="spark" if number == 3 else "driver")
        found = db.audit()
        assert found.differences == 0, found


LEAST = -(2**31)


@pytest.mark.parametrize("kind", ["JOIN", "LEFT ANTI JOIN"])
def test_a_key_raises_for_every_row_of_its_side(kind: str, make_db: Callable[..., Any], spark: Any) -> None:
    """Also for a row that has no partner: Spark computes the keys before it compares them."""
    db = make_db(spark=spark, durability="none")
    tables(db)
    db.put("facts", [{"id": 1, "g": 1, "week": 4}])
    db.put("others", [{"id": 1, "g": 7, "week": 7}])
    query = f"SELECT l.id FROM facts l {kind} others r ON l.g = r.g AND l.week = r.week - 3"
    db.sql(f"CREATE MATERIALIZED VIEW shifted AS {query}")
    before = db.read("shifted").to_pylist()
    db.put("others", [{"id": 2, "g": 9, "week": LEAST}])
    with pytest.raises(EvaluationError):
        db.refresh(suspend=False)
    assert db.read("shifted").to_pylist() == before
    db.delete("others", [2])
    db.put("facts", [{"id": 2, "g": 7, "week": 4}])
    db.refresh()
    assert db.audit().differences == 0


def test_a_key_does_not_raise_for_rows_that_a_join_below_dropped(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark, durability="none")
    tables(db)
    db.put("facts", [{"id": 1, "g": 1, "week": 4, "day": 1}])
    db.put("days", [{"day": 1, "kind": 1}, {"day": 2, "kind": 0}])
    below = "SELECT r.id, r.week FROM others r JOIN days d ON r.day = d.day AND d.kind = 1"
    query = f"SELECT l.id, z.id AS other FROM facts l JOIN ({below}) z ON l.week = z.week - 3"
    db.sql(f"CREATE MATERIALIZED VIEW shifted AS {query}")
    db.put("others", [{"id": 1, "week": LEAST, "day": 2}, {"id": 2, "week": 7, "day": 1}])
    db.refresh()
    assert db.read("shifted").to_pylist() == [{"id": 1, "other": 2}]
    # A row that came and went in paths of the same batch was in no state, so nobody computes its key.
    db.put("days", [{"day": 2, "kind": 1}])
    db.delete("others", [1])
    db.refresh()
    assert db.audit().differences == 0
    db.put("others", [{"id": 3, "week": LEAST, "day": 2}])
    with pytest.raises(EvaluationError):
        db.refresh(suspend=False)
