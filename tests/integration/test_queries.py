"""What the embedded engine answers is what Spark answers; what it does not know is Spark's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import viewkeeper as vk
from viewkeeper.errors import BadStatement, BadValue, EvaluationError, Unsupported, ViewkeeperError

QUERIES = (Path(__file__).parent / "queries.sql").read_text("utf-8").split(";\n")
EMBEDDED = [q.strip() for q in QUERIES if q.strip() and not q.strip().startswith("-- spark")]
SPARKS = [q.strip() for q in QUERIES if q.strip().startswith("-- spark")]
TYPES = {
    "a": "BIGINT", "b": "STRING", "c": "DOUBLE", "d": "DECIMAL(12,3)", "e": "DATE", "f": "TIMESTAMP",
    "g": "BOOLEAN", "h": "BINARY", "i": "TIMESTAMP_NTZ", "j": "SMALLINT", "n": "INT", "place": "INT", "q1": "INT",
}  # fmt: skip


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Iterator[Any]:
    with vk.open(f"lmdb:{tmp_path_factory.mktemp('queries') / 'db'}", spark=spark, durability="none") as found:
        fill(found)
        found.sql("CREATE MATERIALIZED VIEW v AS SELECT j, count(*) AS n, sum(d) AS s FROM t GROUP BY j")
        yield found


@pytest.fixture(scope="module")
def by_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The same tables with indexes, and rows that came after them."""
    with vk.open(f"lmdb:{tmp_path_factory.mktemp('indexed') / 'db'}", durability="none") as found:
        fill(found)
        for table, columns in (("t", TYPES), ("u", "kamdb")):
            for column in columns:
                found.sql(f"CREATE INDEX {table}_{column} ON {table} ({column})")
        found.sql("CREATE INDEX u_covering ON u (m DESC, a) INCLUDE (b, d)")
        found.sql("CREATE INDEX odd ON `odd ``name` (z) INCLUDE (`select`)")
        rows = found.read("t").to_pylist()
        found.put("t", [{**row, "n": 77, "b": "gone", "g": None, "j": 9} for row in rows[3:9]])
        found.refresh()
        found.delete("t", [1, 2])
        found.put("t", rows[:9])
        yield found


def fill(db: Any) -> None:
    chance = random.Random(1)
    texts, floats = ["é", "Z", "", None, "a", "Ab"], [float("nan"), -0.0, None, 1.5, float("-inf"), 0.0]
    db.sql(f"CREATE TABLE t ({', '.join(f'{n} {t}' for n, t in TYPES.items())}, PRIMARY KEY (a))")
    db.sql("CREATE TABLE u (k BIGINT, a BIGINT, m INT, d DECIMAL(5,1), b STRING, PRIMARY KEY (k))")
    db.sql("CREATE TABLE `odd ``name` (`r t` STRING, `select` INT, z INT, PRIMARY KEY (`r t`, `select`))")
    db.put("t", [
        {
            "a": n, "b": texts[n % 6], "c": floats[n % 5], "g": [True, False, None][n % 3], "h": bytes([255 - n]),
            "d": f"{chance.randint(-99, 99)}.{chance.randint(0, 999):03}" if n % 7 else None,
            "e": f"20{n:02}-0{n % 9 + 1}-02" if n % 5 else None, "f": f"19{60 + n}-03-04 05:06:07.5Z",
            "i": f"19{60 + n}-03-04 05:06:07", "j": n % 4 if n % 6 else None, "n": n % 5 - 2, "place": -n, "q1": n % 3,
        }
        for n in range(30)
    ])  # fmt: skip
    db.put("u", [
        {
            "k": n, "a": chance.choice([None, *range(12)]), "m": chance.choice([None, 0, 1, 2, 3]),
            "d": chance.choice([None, "1.5", "-2.0", "0.0"]), "b": chance.choice(texts),
        }
        for n in range(40)
    ])  # fmt: skip
    db.put("odd `name", [{"r t": t, "select": s, "z": s} for t in ("x", "y", "it's") for s in range(3)])


def shown(found: Any, query: str) -> list[str]:
    rows = [str(row) for row in found.to_pylist()]  # as text: NaN is NaN, and the zone's name counts
    return rows if "ORDER BY" in query.upper() else sorted(rows)


def test_the_embedded_engine_gives_what_spark_gives(db: Any, by_index: Any) -> None:
    used = 0
    for query in EMBEDDED:
        found, expected = db.sql(query, engine="embedded"), db.sql(query, engine="spark")
        if " v" not in query:
            assert shown(by_index.sql(query, engine="embedded"), query) == shown(expected, query), query
            used += any("the thin index" in line or "the covering" in line for line in plan(by_index, query))
        assert (found.engine, expected.engine) == ("embedded", "spark")
        assert shown(found, query) == shown(expected, query), query
        types = [[(f.name, f.type) for f in r.to_arrow().schema] for r in (found, expected)]
        assert types[0] == types[1], query
        assert db.sql(query).engine == "embedded"
    assert used > 10


def plan(db: Any, query: str) -> list[str]:
    return [line for line in db.sql(f"EXPLAIN {query}")["plan"].to_pylist() if line.startswith("reads: ")]


@pytest.mark.parametrize("query", SPARKS)
def test_any_other_query_is_left_to_spark(db: Any, query: str) -> None:
    with pytest.raises(Unsupported):
        db.sql(query, engine="embedded")
    (plan,) = db.sql(f"EXPLAIN {query.split(chr(10), 1)[1]}")["plan"].to_pylist()[:1]
    assert plan.startswith("engine: spark, because of ")


def test_an_error_is_sparks(db: Any) -> None:
    """In rows, and in constants that Spark works out while it plans: both are VK401, and no wrong SQL (VK301)."""
    for query in (
        "SELECT 1 / 0",
        "SELECT CAST('x' AS INT)",
        "SELECT 1 / n AS x FROM t",
        "SELECT sum(a * 9223372036854775807) AS x FROM t WHERE a > 1",
        "SELECT array(1)[n + 7] AS x FROM t",
    ):
        with pytest.raises(EvaluationError, match=r"(?i)by zero|overflow|malformed|out of bounds"):
            db.sql(query)


def test_a_key_is_looked_up(db: Any) -> None:
    text = "SELECT z FROM `odd ``name` WHERE `select` = 2 AND `r t` = 'it''s'"
    assert db.sql(f"EXPLAIN {text}")["plan"].to_pylist()[1].endswith('one row by its key: r t = "it\'s", select = 2')
    assert db.sql(text).rows == [{"z": 2}]
    prefix = "SELECT count(*) AS n FROM `odd ``name` WHERE `r t` = 'y'"
    assert "a range of keys" in db.sql(f"EXPLAIN {prefix}")["plan"].to_pylist()[1]
    assert db.sql(prefix).rows == [{"n": 3}]
    assert db.sql("SELECT n FROM v WHERE j = 1").rows == db.sql("SELECT n FROM v WHERE j = 1", engine="spark").rows
    joined = "SELECT u.k FROM t LEFT JOIN u ON t.a = u.a WHERE t.a = 3 ORDER BY k"
    assert db.sql(joined).rows == db.sql(joined, engine="spark").rows


def test_values_for_open_names(db: Any) -> None:
    day, moment = date(2001, 2, 2), datetime(1961, 3, 4, 5, 6, 7, 500_000, UTC)
    assert db.sql("SELECT a FROM t WHERE a = :k", k=3).rows == [{"a": 3}]
    assert db.sql("SELECT a FROM t WHERE e = :day AND a::int > -:less", day=day, less=-0).rows == [{"a": 1}]
    for name, value in {"f": moment, "h": b"\xfe", "b": "é", "d": Decimal("0.5"), "c": 1.5, "g": True}.items():
        found = db.sql(f"SELECT count(*) AS n FROM t WHERE {name} >= :value", value=value)
        assert found.rows[0]["n"] > 0, name
    assert db.sql("SELECT ':k' AS x, count(*) AS n FROM t WHERE b = :b", b="' OR TRUE --").rows == [{"x": ":k", "n": 0}]
    with pytest.raises(BadValue, match="no value for :k"):
        db.sql("SELECT a FROM t WHERE a = :k")
    with pytest.raises(BadValue, match="no :z"):
        db.sql("SELECT a FROM t", z=1)
    with pytest.raises(BadValue, match="no literal"):
        db.sql("SELECT a FROM t WHERE a = :k", k=[1])


def test_rows_are_written_by_statements(make_db: Any) -> None:
    db = make_db()
    db.sql("CREATE TABLE t (k INT, s STRING, n INT DEFAULT 7, PRIMARY KEY (k))")
    assert db.sql("INSERT INTO t (k, s) VALUES (1, :s), (2, NULL)", s="it's").done == "2 inserted"
    assert db.sql("UPDATE t SET n = n + k, s = coalesce(s, 'none') WHERE k >= 1 AND n = 7").done == "2 updated"
    assert list(db.sql("SELECT * FROM t ORDER BY k")) == [
        {"k": 1, "s": "it's", "n": 8},
        {"k": 2, "s": "none", "n": 9},
    ]
    assert db.sql("DELETE FROM t WHERE n > 8").done == "1 deleted"
    assert db.sql("DELETE FROM t WHERE k IN (1, 5)").done == "1 deleted"
    assert len(db.sql("SELECT k FROM t")) == 0
    for text, error in {
        "DELETE FROM t": BadStatement,
        "UPDATE t SET k = 1": BadStatement,
        "UPDATE t SET n = 1, n = 2": BadStatement,
        "UPDATE t SET n = WHERE k = 1": BadStatement,
        "UPDATE t SET z = 1": ViewkeeperError,
        "UPDATE t n = 1": BadStatement,
        "DELETE FROM t WHERE k + 1": ViewkeeperError,
    }.items():
        with pytest.raises(error):
            db.sql(text, engine="embedded")


def test_a_result_goes_wherever_rows_go(make_db: Any) -> None:
    import pyarrow as pa

    db = make_db()
    db.sql("CREATE TABLE t (k INT, s STRING, PRIMARY KEY (k))")
    db.put("t", [{"k": k, "s": "<b>"} for k in range(25)])
    found = db.sql("SELECT * FROM t ORDER BY k")
    assert found.to_arrow().num_rows == len(found) == found.num_rows == 25
    assert found.to_pandas()["k"].tolist() == found.to_polars()["k"].to_list() == list(range(25))
    assert pa.table(found) == found.to_arrow()
    assert "&lt;b&gt;" in found._repr_html_()
    assert "25 rows, the first 20 are shown" in found._repr_html_()
    assert repr(found).splitlines()[-1] == "(25 rows)"
    assert repr(db.sql("DELETE FROM t WHERE TRUE")) == "25 deleted"
    with pytest.raises(BadValue, match="no engine"):
        db.sql("SELECT 1", engine="duck")


def test_an_embedded_error_is_the_views_own(make_db: Any) -> None:
    db = make_db()
    db.sql("CREATE TABLE t (k INT, PRIMARY KEY (k))")
    db.put("t", {"k": 0})
    with pytest.raises((EvaluationError, Unsupported)):
        db.sql("SELECT 1 / k AS x FROM t", engine="embedded")
