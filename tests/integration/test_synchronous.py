"""Synchronous views against Spark: every type as key and argument, Spark's writer, other views above and below."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.errors import EvaluationError
from viewkeeper.spark import register
from viewkeeper.store.ordered import observed_writes

TABLE = """CREATE TABLE t (k BIGINT PRIMARY KEY, s STRING, i INT, l BIGINT, m DECIMAL(9,2), w DECIMAL(30,4), d DOUBLE,
    f FLOAT, day DATE, at TIMESTAMP, b BOOLEAN, x BINARY)"""
VIEWS = {
    "by_text": "SELECT s, count(*) AS n, sum(i) AS si, avg(i) AS ai, sum(m) AS sm, min(day) AS d0, max(at) AS a1"
    " FROM t GROUP BY s",
    "by_day": "SELECT day, b, sum(l) AS sl, avg(l) AS al, sum(w) AS sw, avg(m) AS am, min(s) AS s0, max(s) AS s1"
    " FROM t GROUP BY day, b",
    "sums": "SELECT day, s, count(*) AS n, count(i) AS ni, sum(i) AS si, avg(l) AS al, avg(i) AS ai, sum(m) AS sm"
    " FROM t WHERE i > 2 AND s < 'c' GROUP BY day, s",
    "by_moment": "SELECT at, m, b, sum(i) AS si FROM t GROUP BY at, m, b",
    "by_number": "SELECT d, f, count(x) AS nx, sum(d) AS sd, avg(f) AS af, max(d) AS d1, stddev(d) AS dev"
    " FROM t GROUP BY d, f",
    "by_decimal": "SELECT m, at, count(DISTINCT i) AS ni, sum(DISTINCT i) AS si, min(w) AS w0 FROM t GROUP BY m, at",
    "having": "SELECT s, max(i) AS top FROM t WHERE i > 2 AND s IS NOT NULL GROUP BY s HAVING max(i) < 40 ORDER BY top",
    "whole": "SELECT count(*) AS n, sum(i) AS si, max(day) AS d1, min(i) AS i0 FROM t WHERE b",
    "plain": "SELECT k, i, s FROM t WHERE s = 'b'",
    "worked": "SELECT k, upper(s) AS su, i * 2 AS i2, coalesce(m, 0) AS m0 FROM t WHERE i % 3 <> 1 OR i IS NULL",
    "bag": "SELECT s, i FROM t",
    "distinct": "SELECT DISTINCT s, b FROM t",
    "levels": "SELECT n, count(*) AS times FROM by_text GROUP BY n",
}
ABOVE = "SELECT n, count(*) AS times, max(si) AS top FROM by_text GROUP BY n"


@pytest.fixture
def db(make_db: Callable[..., Any], spark: Any) -> Any:
    found = make_db(spark=spark)
    found.sql(TABLE)
    found.put("t", [_row(random.Random(n), n) for n in range(40)])
    return found


def _row(chance: random.Random, k: int) -> dict[str, Any]:
    some = {
        "s": chance.choice(("a", "b", "é\0", "")),
        "i": chance.randrange(-5, 60),
        "l": chance.choice((2**53 + 1, -7, 12)),
        "m": Decimal(chance.randrange(-500, 500)) / 100,
        "w": Decimal(chance.randrange(-(10**9), 10**9)) * 10**12,
        "d": chance.choice((0.1, -0.0, 0.0, 1e300, float("nan"), float("inf"))),
        "f": chance.choice((0.5, -2.25)),
        "day": dt.date(2024, 1, chance.randrange(1, 4)),
        "at": dt.datetime(2024, 1, 1, chance.randrange(3), tzinfo=dt.UTC),
        "b": chance.random() < 0.5,
        "x": chance.choice((b"", b"\0\1")),
    }
    return {"k": k, **{name: None if chance.random() < 0.15 else value for name, value in some.items()}}


def test_spark_says_the_same_after_calls_of_all_sizes(db: Any, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, query in VIEWS.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} WITH (sync = true) AS {query}")
    db.sql("CREATE INDEX by_i ON t (i DESC, day) INCLUDE (w) WITH (sync = true)")
    db.sql(f"CREATE MATERIALIZED VIEW above AS {ABOVE}")
    chance = random.Random(2)
    for few, some in ((1_000, 1_000), (0, -1), (1_000, -1)):  # one by one, by columns, by the operators
        monkeypatch.setattr(observed_writes, "_MAX_ROW_SUMS", few)
        monkeypatch.setattr(observed_writes, "_MAX_ROWS_ONE_BY_ONE", some)
        for _ in range(8):
            keys = [chance.randrange(60) for _ in range(chance.choice((1, 2, 25)))]
            if chance.random() < 0.3:
                db.delete("t", sorted(set(keys)))
            else:
                db.put("t", [_row(chance, k) for k in keys])
    db.refresh()  # an audit is of the batch's state
    audit = db.audit()
    assert audit.is_right, [v for v in audit.views if v.is_wrong]
    assert {v.view for v in audit.views} == {*VIEWS, "by_i", "above"}
    db.delete("t", list(range(60)))
    left = {name: db.read(name).num_rows for name in VIEWS}
    assert left == dict.fromkeys(VIEWS, 0) | {"whole": 1}


def test_an_audit_makes_it_right_again(db: Any) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW by_text WITH (sync = true) AS {VIEWS['by_text']}")
    db.refresh()
    view = db._store.catalog().view("by_text")
    db._store.write(view.table, db._store.get_rows(view.table, _key("nobody's")), _key("a"))  # as a bug would
    assert not db.audit().is_right
    assert db.audit(repair=True).is_right
    db.put("t", [_row(random.Random(3), 3)])
    db.refresh()
    assert db.audit().is_right


def _key(s: str) -> pa.Table:
    return pa.table({"s": pa.array([s])})


def test_sparks_writer_and_sql_keep_it(db: Any, spark: Any) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW by_text WITH (sync = true) AS {VIEWS['by_text']}")
    db.sql("CREATE MATERIALIZED VIEW halves WITH (sync = true) AS SELECT k, 100 / i AS h FROM t WHERE k >= 1000")
    register(spark)
    rows = spark.createDataFrame([(1000 + n, "new", n + 1) for n in range(9)], "k BIGINT, s STRING, i INT")
    rows.write.format("viewkeeper").option("db", db._store.url).option("table", "t").mode("append").save()
    assert db.get("by_text", "new")["si"] == 45
    db.sql("UPDATE t SET i = 11 WHERE k = 1000")
    db.sql("DELETE FROM t WHERE k = 1001")
    db.sql("INSERT INTO t (k, s, i) VALUES (2000, 'new', 1)")
    assert db.get("by_text", "new")["si"] == 45 + 10 - 2 + 1
    with pytest.raises(EvaluationError, match="halves"):
        db.sql("UPDATE t SET i = 0 WHERE k = 1002")
    assert db.get("t", 1002)["i"] == 3
