"""Lazy views against Spark: keys of every type, rows that fail, audits, Spark's reader, views above and below."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from viewkeeper.errors import EvaluationError
from viewkeeper.spark import register

TABLES = (
    """CREATE TABLE t (k BIGINT, s STRING, i INT, m DECIMAL(9,2), d DOUBLE, day DATE, at TIMESTAMP, b BOOLEAN,
       x BINARY, z SMALLINT, PRIMARY KEY (k))""",
    "CREATE TABLE u (k BIGINT, ref BIGINT, i INT, v INT, PRIMARY KEY (k))",
)
VIEWS = {
    **{f"by_{c}": f"SELECT {c}, i, count(*) AS n, sum(k) AS sk FROM t GROUP BY {c}, i" for c in "smdbxz"},
    "by_day": "SELECT day, at, max(k) AS top FROM t GROUP BY day, at",
    "falling": "SELECT s, i, k FROM t ORDER BY s DESC, i DESC NULLS FIRST",
    "outer_joined": "SELECT t.k, t.s, u.v FROM t LEFT JOIN u ON t.k = u.ref",
    "padded": "SELECT u.v, t.k, u.k AS uk FROM t LEFT JOIN u ON t.k = u.ref",
    "all_joined": "SELECT t.s, u.v, t.k, u.k AS uk FROM t FULL JOIN u ON t.k = u.ref AND t.i = u.i",
    "without": "SELECT s, k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.ref = t.k) AND k NOT IN (SELECT v FROM u)",
    "rolled": "SELECT s, b, count(*) AS n FROM t GROUP BY ROLLUP (s, b)",
    "ranked": "SELECT s, k, row_number() OVER (PARTITION BY s ORDER BY k DESC) AS place FROM t",
    "best": "SELECT s, i FROM t ORDER BY i DESC, k LIMIT 5",
    "both": "SELECT s, k FROM t WHERE i > 3 UNION ALL SELECT s, k FROM t WHERE i < 10",
    "itself": "SELECT a.s, count(*) AS n FROM t a JOIN t b ON a.i = b.i AND a.k = b.k GROUP BY a.s",
    "whole": "SELECT count(*) AS n, sum(i) AS si FROM t",
    "computed": "SELECT upper(s) AS su, k FROM t",
}


def _row(k: int) -> dict[str, Any]:
    some = {
        "s": ("a", "b", "é\0", "")[k % 4],
        "i": k % 5,
        "m": Decimal(k % 7 - 3) / 4,
        "d": (0.0, -0.0, float("nan"), 1.5)[k % 4],
        "day": dt.date(1969 + k % 3, 1, 1),
        "at": dt.datetime(2024, 1, 1, k % 3, tzinfo=dt.UTC),
        "b": k % 2 == 0,
        "x": (b"", b"\0\1", b"\xff")[k % 3],
        "z": k % 3 - 1,
    }
    gone = list(some)[k % 11] if k % 11 < len(some) else None
    return {"k": k} | {name: None if name == gone else value for name, value in some.items()}


def _agree(db: Any) -> None:
    """By every part of the keys of some rows, then whole."""
    for name in VIEWS:
        stored = db.read(f"stored_{name}")
        key = [
            c["column"] for c in sorted(db.sql(f"DESCRIBE {name}").to_pylist(), key=lambda c: c["key"] or 0) if c["key"]
        ]
        for row in stored.slice(0, 1).to_pylist() + stored.slice(stored.num_rows // 2, 1).to_pylist():
            for width in range(1, len(key) + 1):
                prefix = tuple(row[c] for c in key[:width])
                expected = list(map(repr, db.scan(f"stored_{name}", prefix=prefix)))
                assert list(map(repr, db.scan(name, prefix=prefix))) == expected, (name, prefix)
        assert repr(db.read(name).to_pylist()) == repr(stored.to_pylist()), name


def test_lazy_views_equal_stored_ones_and_sparks(
    make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("viewkeeper.store.contract.store.Store.lazy_cache_bytes", 0)
    db = make_db(spark=spark)
    for statement in TABLES:
        db.sql(statement)
    db.put("t", [_row(k) for k in range(60)])
    db.put("u", [{"k": k, "ref": k % 20 if k % 6 else None, "i": k % 5, "v": k % 4} for k in range(40)])
    stored = {f"stored_{name}": query for name, query in VIEWS.items()}
    db.create_views(stored)
    for name, query in VIEWS.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} WITH (store = 'lazy') AS {query}")
    db.sql("CREATE MATERIALIZED VIEW above AS SELECT s, max(n) AS most FROM by_s GROUP BY s")
    db.sql(
        "CREATE MATERIALIZED VIEW lazily_above WITH (store = 'lazy') AS SELECT s, max(n) AS most FROM by_s GROUP BY s"
    )
    for lane in ("driver", "spark"):
        _agree(db)
        db.put("t", [_row(k) | {"i": 3, "s": "b"} for k in range(10, 70, 7)])
        db.delete("t", list(range(0, 60, 13)))
        db.put("u", [{"k": k, "ref": k % 30, "i": None, "v": None} for k in range(30, 45)])
        db.refresh(lane=lane)
        assert list(db.scan("lazily_above", prefix=("b",))) == list(db.scan("above", prefix=("b",)))
    _agree(db)
    assert db.audit().is_right


def test_a_row_that_fails_is_for_who_reads_it(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark)
    db.sql("CREATE TABLE r (k BIGINT, part INT, whole INT, PRIMARY KEY (k))")
    db.put("r", [{"k": 1, "part": 1, "whole": 2}, {"k": 2, "part": 1, "whole": 0}])
    db.sql("CREATE MATERIALIZED VIEW shares WITH (store = 'lazy') AS SELECT k, 100 * part / whole AS share FROM r")
    assert db.get("shares", 1) == {"k": 1, "share": 50.0}
    for read in (lambda: db.get("shares", 2), lambda: db.read("shares")):
        with pytest.raises(EvaluationError):
            read()
    db.put("r", [{"k": 2, "part": 1, "whole": 4}])
    assert not db.refresh().suspended
    assert db.read("shares")["share"].to_pylist() == [50.0, 25.0]


def test_sparks_reader_and_the_query_engines_see_it(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark)
    db.sql("CREATE TABLE t (k BIGINT, s STRING, PRIMARY KEY (k))")
    db.put("t", [{"k": k, "s": "abc"[k % 3]} for k in range(30)])
    db.sql("CREATE MATERIALIZED VIEW n WITH (store = 'lazy') AS SELECT s, count(*) AS n FROM t GROUP BY s")
    register(spark)
    found = spark.read.format("viewkeeper").option("db", db._store.url).option("table", "n").load()
    assert {r["s"]: r["n"] for r in found.collect()} == {"a": 10, "b": 10, "c": 10}
    assert [r["n"] for r in found.where("s = 'b'").collect()] == [10]
    with pytest.raises(Exception, match="lazy"):
        found.sparkSession.read.format("viewkeeper").options(db=db._store.url, table="n", at="1").load().collect()
    for engine in ("embedded", "spark"):
        assert (
            db.sql("SELECT sum(n.n) AS n FROM n JOIN t ON n.s = t.s WHERE t.k = 4", engine=engine)["n"][0].as_py() == 10
        )
    assert "one row by its key" in "\n".join(db.sql("EXPLAIN SELECT n FROM n WHERE s = 'a'")["plan"].to_pylist())
    with pytest.raises(Exception, match="lazy"):
        spark.readStream.format("viewkeeper").options(db=db._store.url, table="n", changes="true").load()
