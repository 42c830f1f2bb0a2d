"""Queries that public suites use and nobody had tried here: made and equal to Spark's answer, or refused by a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from viewkeeper.errors import BadStatement, Unsupported

FRAMES = (
    *("0 PRECEDING AND CURRENT ROW", "0 FOLLOWING AND CURRENT ROW", "1 FOLLOWING AND CURRENT ROW"),
    *("CURRENT ROW AND 0 PRECEDING", "CURRENT ROW AND 0 FOLLOWING", "CURRENT ROW AND 1 PRECEDING"),
    *("0 PRECEDING AND 0 FOLLOWING", "0 FOLLOWING AND 0 PRECEDING", "-1 PRECEDING AND CURRENT ROW"),
    *("1 PRECEDING AND 0 PRECEDING", "0 FOLLOWING AND 1 FOLLOWING", "2 PRECEDING AND 1 PRECEDING"),
    *("UNBOUNDED PRECEDING AND 0 PRECEDING", "0 FOLLOWING AND UNBOUNDED FOLLOWING"),
    *("UNBOUNDED PRECEDING AND -1 PRECEDING", "1 FOLLOWING AND UNBOUNDED FOLLOWING"),
)
"""Spark takes all of them; in some there are never any rows."""
ROWS = [
    {"k": k, "a": (None, 1, 1, 2, 4)[k % 5], "b": k % 3, "day": f"2024-01-0{1 + k % 4}", "s": "xyz"[k % 3]}
    for k in range(12)
]


@pytest.fixture
def db(make_db: Callable[..., Any], spark: Any) -> Any:
    made = make_db(spark=spark)
    made.sql("CREATE TABLE t (k INT, a INT, b INT, day DATE, s STRING, PRIMARY KEY (k))")
    made.sql("CREATE TABLE u (k INT, a INT, b INT, day DATE, s STRING, PRIMARY KEY (k))")
    for table in ("t", "u"):
        made.put(table, ROWS)
    return made


def check(db: Any, *queries: str) -> None:
    """Each query is a view that equals Spark's answer when it is made and after batches of both lanes."""
    for number, query in enumerate(queries):
        db.sql(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
    for lane in ("driver", "spark"):
        assert [(v.view, v.failed) for v in db.audit().views if v.differences or v.failed] == []
        db.put("t", [{**ROWS[3], "a": 1, "b": None}, {**ROWS[4], "k": 20, "a": 2}])
        db.put("u", [{**ROWS[7], "a": 4}, {**ROWS[5], "k": 21, "b": 1}])
        for table in ("t", "u"):
            db.delete(table, [0, 6] if lane == "driver" else [1, 20])
        assert db.refresh(lane=lane).suspended == {}
    assert [(v.view, v.failed) for v in db.audit().views if v.differences or v.failed] == []


def test_in_lists_of_columns(db: Any) -> None:
    check(
        db,
        "SELECT k FROM t WHERE a IN (b)",
        "SELECT k FROM t WHERE a NOT IN (b)",
        "SELECT k, a IN (b) AS one, a IN (b, k) AS two, a IN (b, 1) AS three FROM t WHERE s IN (s, 'x')",
        "SELECT a, count(*) AS n FROM t WHERE a IN (b) OR b IN (a, 2) GROUP BY a",
        "SELECT t.k FROM t JOIN u ON t.k = u.k AND t.a IN (u.a)",
    )


def test_windows_in_correlated_subqueries(db: Any) -> None:
    numbered = "SELECT u.k, row_number() OVER (ORDER BY u.k) AS n FROM u WHERE u.a = t.a"
    check(
        db,
        f"SELECT k, (SELECT max(n) FROM ({numbered})) AS m FROM t",
        f"SELECT t.k, w.k AS other, w.n FROM t, LATERAL ({numbered}) w",
        f"SELECT t.k, w.k AS other, w.n FROM t LEFT JOIN LATERAL ({numbered}) w ON w.n = 1",
        "SELECT t.k, w.k AS other, w.m FROM t, LATERAL (SELECT u.k, sum(u.b) OVER (PARTITION BY u.s ORDER BY u.k) AS m,"
        " rank() OVER (ORDER BY u.b) AS r FROM u WHERE u.a < t.a AND u.b = t.b) w WHERE w.r < 3",
        f"SELECT k FROM t WHERE EXISTS (SELECT 1 FROM ({numbered}) w WHERE w.n > 1)",
        "SELECT k FROM t WHERE b IN (SELECT row_number() OVER (ORDER BY u.k + t.b) FROM u WHERE u.a = t.a)",
    )


def test_every_frame_that_spark_takes(db: Any) -> None:
    def over(kind: str, order: str, frames: tuple[str, ...]) -> str:
        calls = [
            f"{call} OVER (PARTITION BY b ORDER BY {order} {kind} BETWEEN {frame}) AS c{i}_{j}"
            for i, frame in enumerate(frames)
            for j, call in enumerate(("sum(k)", "count(*)", "last_value(k)" if kind == "ROWS" else "max(k)"))
        ]
        return f"SELECT k, {', '.join(calls)} FROM t"

    spans = tuple(f.replace("0 ", "INTERVAL 0 DAY ").replace("1 ", "INTERVAL 1 DAY ") for f in FRAMES[:6])
    check(
        db,
        over("ROWS", "a, k", FRAMES),
        over("RANGE", "a", FRAMES),
        over("RANGE", "a DESC", FRAMES),
        over("RANGE", "day", FRAMES[:6]),
        over("RANGE", "CAST(a AS DOUBLE)", FRAMES[:6]),
        over("RANGE", "CAST(day AS TIMESTAMP)", spans),
        "SELECT k, sum(CAST(k AS DOUBLE)) OVER (ORDER BY a ROWS 0 PRECEDING) AS c FROM t",
    )


def test_the_first_of_equal_rows_does_not_depend_on_history(db: Any) -> None:
    calls = ("first_value(k)", "last_value(k)", "nth_value(k, 2)", "first_value(k) IGNORE NULLS", "last(s)")
    frames = ("", " RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING", " RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING")
    for i, frame in enumerate(frames):
        listed = ", ".join(f"{call} OVER (ORDER BY a DESC{frame}) AS c{j}" for j, call in enumerate(calls))
        parted = ", ".join(f"{call} OVER (PARTITION BY b ORDER BY a{frame}) AS d{j}" for j, call in enumerate(calls))
        db.sql(f"CREATE MATERIALIZED VIEW v{i} AS SELECT k, {listed}, {parted} FROM t")
    before = [db.read(f"v{i}").to_pylist() for i in range(len(frames))]
    for gone in ([2, 3], [1, 6, 7], [11], [0, 5, 10], list(range(12))):
        db.delete("t", gone)
        db.refresh()
        db.put("t", [ROWS[k] for k in reversed(gone)])
        db.refresh()
        assert [db.read(f"v{i}").to_pylist() for i in range(len(frames))] == before, gone
    assert {row["c0"] for row in before[0]} == {min(row["k"] for row in ROWS if row["a"] == 4)}


def test_nulls_without_a_type(db: Any) -> None:
    """Spark's type of them is VOID; here they are a column of STRING."""
    check(
        db,
        "SELECT k, NULL AS c, coalesce(NULL, NULL) AS d FROM t",
        "SELECT DISTINCT NULL AS c FROM t",
        "SELECT a, max(NULL) AS c, count(*) AS n FROM t GROUP BY a",
        "SELECT k, c FROM (SELECT k, NULL AS c FROM t) ORDER BY c, k LIMIT 2",
        "SELECT t.k, w.c, w.c IS NULL AS d FROM t LEFT JOIN (SELECT NULL AS c, k FROM u) w ON w.k = t.k",
    )
    assert str(db.read("v0").schema.field("c").type) == "string"


def test_an_order_of_a_subquery_is_no_order_of_the_view(db: Any) -> None:
    check(
        db,
        "SELECT k FROM (SELECT k FROM t ORDER BY b)",
        "SELECT a, n FROM (SELECT a, count(*) AS n FROM t GROUP BY a ORDER BY max(b))",
        "WITH w AS (SELECT k, s FROM t ORDER BY a DESC, b) SELECT s FROM w WHERE k > 1",
        "SELECT k, s FROM (SELECT * FROM t ORDER BY b) ORDER BY s, k",
    )
    with pytest.raises(Unsupported, match="ORDER BY"):
        db.sql("CREATE MATERIALIZED VIEW w AS SELECT k FROM t ORDER BY b")


def test_sha2_of_every_length(db: Any) -> None:
    lengths = ", ".join(f"sha2(s, {bits}) AS h{bits}" for bits in (0, 1, 224, 256, 384, 512))
    check(db, f"SELECT k, {lengths}, sha2(concat(s, '\u00e4'), CASE b WHEN 0 THEN 512 WHEN 1 THEN 7 END) AS h FROM t")


def test_structs_and_arrays_come_in_sparks_order(db: Any) -> None:
    """Inside of them NULL is the least; DuckDB holds it the greatest there."""
    nested = "struct(struct(a, s), array(b, a), k)"
    check(
        db,
        "SELECT k, struct(a, s) < struct(b, 'y') AS c, struct(a, k) >= struct(1, k) AS d FROM t",
        "SELECT k, array(a, k) > array(1, k) AS c, array(a) <= array(a, b) AS d FROM t",
        "SELECT b, min_by(k, struct(a, k)) AS c, max_by(k, struct(a, k)) AS d FROM t GROUP BY b",
        f"SELECT b, min_by(k, {nested}) AS c, max_by(k, {nested}) AS d FROM t GROUP BY b",
        "SELECT s, max_by(k, array(a, k)) AS c FROM t GROUP BY s",
        "SELECT u.k, (SELECT min_by(t.k, struct(t.a, t.k)) FROM t WHERE t.s = u.s) AS c FROM u",
    )
    for query in ("SELECT k FROM t ORDER BY struct(a, k) LIMIT 4", "SELECT k FROM t ORDER BY array(a, k) LIMIT 4"):
        with pytest.raises(Unsupported, match="Order by its parts"):
            db.sql(f"CREATE MATERIALIZED VIEW w AS {query}")
    with pytest.raises(Unsupported, match="LEAST of a STRUCT"):
        db.sql("CREATE MATERIALIZED VIEW w AS SELECT k, greatest(struct(a, k), struct(a, k)).k AS c FROM t")


def test_what_is_refused_says_why_and_what_to_do(db: Any) -> None:
    """A constant is not fetched before it is known to be small."""
    for query, error, says in (
        ("SELECT k, k FROM t", BadStatement, "Two columns of the result are called k. Rename one with AS."),
        ("SELECT k, s COLLATE UTF8_LCASE AS c FROM t", Unsupported, "Leave COLLATE out"),
        ("SELECT k, x FROM t LATERAL VIEW explode(sequence(1, 1000000)) e AS x", Unsupported, "1,000,000 values"),
        ("SELECT k FROM t WHERE array_contains(sequence(1, 50000), k)", Unsupported, "Put the values into a table"),
    ):
        with pytest.raises(error, match=says):
            db.sql(f"CREATE MATERIALIZED VIEW v AS {query}")


def test_joins_with_derived_columns_that_can_raise(db: Any) -> None:
    sides = "t a {} JOIN (SELECT k, a, b + 1 AS p FROM u) b ON a.a = b.a"
    check(db, *(f"SELECT a.k, b.p FROM {sides.format(how)}" for how in ("", "LEFT", "RIGHT", "FULL")))


def test_full_joins_of_inputs_without_a_key(db: Any) -> None:
    one = "(SELECT max(a) AS a, max(b) AS b FROM {})"
    check(
        db,
        f"SELECT x.a, y.b FROM {one.format('t')} x FULL JOIN {one.format('u')} y ON x.b = y.b",
        f"SELECT x.a, y.b FROM {one.format('t')} x FULL JOIN {one.format('u')} y ON x.a = y.b + 100",
        "SELECT x.a AS c, y.a AS d, n FROM (SELECT a, count(*) AS n FROM t GROUP BY a) x"
        " FULL JOIN (SELECT DISTINCT a FROM u) y ON x.a = y.a",
    )


def test_a_plan_of_spark_with_a_column_from_nowhere_is_refused(db: Any) -> None:
    constant = "(SELECT 1 AS k0, 2 AS c1) r"
    numbered = f"SELECT row_number() OVER (ORDER BY r.c1) AS n FROM {constant} WHERE r.k0 = t.k"
    with pytest.raises(Unsupported, match="does not give"):
        db.sql(f"CREATE MATERIALIZED VIEW v AS SELECT t.k, l.n FROM t, LATERAL ({numbered}) l")
