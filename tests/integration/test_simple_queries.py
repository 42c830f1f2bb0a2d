"""A simple query gives what Spark gives for it, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import viewkeeper as vk
from viewkeeper.cli import query
from viewkeeper.cli.simple import simple

TYPES = {
    "a": "BIGINT", "b": "STRING", "c": "DOUBLE", "d": "DECIMAL(12,3)", "e": "DATE", "f": "TIMESTAMP",
    "g": "BOOLEAN", "h": "BINARY", "i": "TIMESTAMP_NTZ", "j": "SMALLINT",
}  # fmt: skip
SIMPLE = [
    "SELECT * FROM t ORDER BY a",
    "SELECT B, a FROM T ORDER BY c DESC, a",
    "SELECT a, f FROM t ORDER BY b DESC NULLS FIRST, d, a LIMIT 3",
    "select `a` from t order by g, h desc, e asc nulls last, a;",
    "SELECT a FROM t LIMIT 0",
    "SELECT place, c0 FROM `named so` ORDER BY c0 DESC, place",
]
NOT_SIMPLE = [
    "SELECT a + 1 FROM t",
    "SELECT a AS x FROM t",
    "SELECT DISTINCT b FROM t",
    "SELECT a FROM t WHERE a = 1",
    "SELECT a, a FROM t",
    "SELECT a FROM t, t",
    "SELECT a FROM t LIMIT 1 + 1",
    "SELECT a FROM t ORDER BY 1",
    "SELECT z FROM t",
    "SELECT count FROM t",
    "SELECT true FROM `named so`",
    "SELECT a FROM t LIMIT 99999999999999999999",
    "WITH u AS (SELECT 1) SELECT * FROM t",
]


@pytest.fixture
def db(tmp_path: Path, spark: Any) -> Any:
    with vk.open(f"lmdb:{tmp_path / 'db'}", spark=spark) as database:
        database.sql(f"CREATE TABLE t ({', '.join(f'{n} {t}' for n, t in TYPES.items())}, PRIMARY KEY (a))")
        database.sql("CREATE TABLE `named so` (place INT, c0 INT, `true` INT, PRIMARY KEY (place))")
        database.put("named so", [{"place": n, "c0": n % 2, "true": 0} for n in (7, 4, 9, 2)])
        texts, floats = ["é", "Z", "", None, "a"], [float("nan"), -0.0, None, 1.5, float("-inf")]
        for n in range(12):
            day, moment = f"20{n:02}-01-02", f"19{60 + n}-03-04 05:06:07.{n}"
            values = [
                n,
                texts[n % 5],
                floats[n % 4],
                f"{n - 6}.125",
                day,
                f"{moment}Z",
                n % 3 == 0,
                bytes([255 - n]),
                moment,
                n,
            ]
            row = dict(zip(TYPES, values, strict=True))
            database.put("t", row if n % 4 else {k: row[k] if k in "ab" else None for k in row})
        yield database


@pytest.mark.spark
@pytest.mark.parametrize("text", SIMPLE)
def test_it_gives_what_spark_gives(db: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = query.select(db, text)
    assert simple(db._catalog(), text) is not None
    monkeypatch.setattr(query, "simple", lambda *_: None)
    expected = query.select(db, text)
    assert found.column_names == expected.column_names
    assert str(found.to_pylist()) == str(expected.to_pylist())  # as text: NaN is NaN, and the zone's name counts


@pytest.mark.spark
@pytest.mark.parametrize("text", NOT_SIMPLE)
def test_any_other_query_is_left_to_spark(db: Any, text: str) -> None:
    assert simple(db._catalog(), text) is None
