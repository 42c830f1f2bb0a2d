"""Whatever a caller's own Spark session is set to: views mean the same, and the session stays as it was.

The deep profile runs much of the suite in another time zone and locale, on a context whose settings are odd.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD
from pyspark.sql import SparkSession
from tests.conftest import ODD_SESSION

import viewkeeper as vk
from viewkeeper.errors import StoreError
from viewkeeper.spark import register

NOON = dt.datetime(2024, 1, 1, 0, 30, tzinfo=dt.UTC)
ROWS = [
    {"id": 1, "ts": NOON, "day": "2024-02-03", "n": 7, "s": "Ab"},
    {"id": 2, "ts": NOON - dt.timedelta(hours=1), "day": "2023-12-31", "n": None, "s": 'a"b'},
    {"id": 3, "ts": NOON + dt.timedelta(hours=10), "day": "0099-01-01", "n": 2, "s": "\\n"},
]
QUERY = r"""SELECT ID AS id, ts > TIMESTAMP'2024-01-01 00:00:00' AS new, hour(ts) AS h, date_trunc('DAY', ts) AS d,
                   CAST(ts AS STRING) AS text, to_date(DAY, 'yyyy-MM-dd') AS day, CAST(ts AS DATE) AS cast_day,
                   n / 3 AS third, CAST(1.10 AS DECIMAL(38,18)) * CAST(2.5 AS DECIMAL(38,18)) AS product,
                   s = "Ab" AS same, s = '\\n' AS escaped, `s` AS s
            FROM Events"""
GROUPS = "SELECT hour(ts) AS `hour`, count(*) AS n FROM events GROUP BY 1"
EXPECTED = [
    (1, True, 0, "2024-01-01 00:30:00", dt.date(2024, 2, 3), dt.date(2024, 1, 1), True, False),
    (2, False, 23, "2023-12-31 23:30:00", dt.date(2023, 12, 31), dt.date(2023, 12, 31), False, False),
    (3, True, 10, "2024-01-01 10:30:00", dt.date(99, 1, 1), dt.date(2024, 1, 1), False, True),
]


@pytest.fixture
def odd(spark: Any) -> Iterator[Any]:
    """A caller's session with settings of its own, which is the active one."""
    before = SparkSession._activeSession
    session = spark.newSession()
    for name, value in ODD_SESSION.items():
        session.conf.set(name, value)
    session.createDataFrame([(1,)], "a int")
    yield session
    SparkSession._activeSession = before
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)


def seen(rows: Any) -> list[tuple[Any, ...]]:
    names = ("id", "new", "h", "text", "day", "cast_day", "same", "escaped")
    return sorted(tuple(row[n] for n in names) for row in rows.to_pylist())


def active(session: Any) -> tuple[Any, bool]:
    found = session._jvm.SparkSession.getActiveSession()
    return SparkSession._activeSession, found.isDefined() and found.get().equals(session._jsparkSession)


def test_views_mean_the_same_in_any_session_and_leave_it_alone(odd: Any, tmp_path: Path) -> None:
    settings, to_frame = dict(odd.conf.getAll), RDD.toDF
    with vk.open(tmp_path / "db", spark=odd) as db:
        db.sql("CREATE TABLE events (id INT, ts TIMESTAMP, day STRING, n INT, s STRING, PRIMARY KEY (id))")
        db.put("events", ROWS[:2])
        db.sql(f"CREATE MATERIALIZED VIEW seen AS {QUERY}")
        db.sql(f"CREATE MATERIALIZED VIEW by_hour AS {GROUPS}")
        assert active(odd) == (odd, True)
        db.put("events", ROWS[2])
        db.refresh(lane="spark")
        assert active(odd) == (odd, True)
        assert seen(db.read("seen")) == EXPECTED
        assert db.read("by_hour").to_pylist() == [{"hour": h, "n": 1} for h in (0, 10, 23)]
        assert db.audit().differences == 0
        assert active(odd) == (odd, True)
        assert seen(db.sql(QUERY, engine="spark").to_arrow()) == EXPECTED
        assert active(odd) == (odd, True)
        with pytest.raises(vk.ViewkeeperError, match=r"DIVIDE_BY_ZERO|Division by zero"):
            db.sql("CREATE MATERIALIZED VIEW by_zero AS SELECT id, 1 / (n - 7) AS x FROM events")
        assert active(odd) == (odd, True)
    assert dict(odd.conf.getAll) == settings
    assert RDD.toDF is to_frame
    assert odd.sql("SELECT 1 / 0 AS x").collect()[0].x is None  # ANSI is off there, as it was


def test_the_data_source_reads_and_writes_instants_in_any_session(odd: Any, tmp_path: Path) -> None:
    register(odd)
    url = f"lmdb:{tmp_path / 'db'}"
    with vk.open(url) as db:
        db.sql("CREATE TABLE events (id INT, ts TIMESTAMP, plain TIMESTAMP_NTZ, PRIMARY KEY (id))")
        plain = dt.datetime(2024, 1, 1, 12)
        db.put("events", {"id": 1, "ts": NOON, "plain": plain})
        frame = odd.read.format("viewkeeper").options(db=url, table="events").load()
        assert frame.selectExpr("CAST(ts AS STRING) AS s").collect()[0].s == "2024-01-01 09:30:00"  # in Tokyo
        assert frame.where("id = 1").count() == 1
        frame.selectExpr("id + 1 AS id", "ts", "plain").write.format("viewkeeper").options(db=url, table="events").mode(
            "append"
        ).save()
        assert db.get("events", 2) == {"id": 2, "ts": NOON, "plain": plain}


def test_a_forked_child_does_not_speak_to_its_parents_spark(spark: Any, tmp_path: Path) -> None:
    parents = vk.open(f"lmdb:{tmp_path / 'parent'}", spark=spark)
    if not (child := os.fork()):
        code = 1
        try:
            with vk.open(f"lmdb:{tmp_path / 'child'}") as db:
                db.sql("CREATE TABLE t (k BIGINT, PRIMARY KEY (k))")
                db.put("t", {"k": 1})
                with pytest.raises(StoreError, match="Spark was started by the process of which this one is a fork"):
                    db.sql("CREATE MATERIALIZED VIEW v AS SELECT k FROM t")
                assert db.get("t", 1) == {"k": 1}
            with pytest.raises(StoreError, match="Spark was started"):
                vk.open(f"lmdb:{tmp_path / 'child'}", spark=spark)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    parents.sql("CREATE TABLE t (k BIGINT, PRIMARY KEY (k))")
    parents.sql("CREATE MATERIALIZED VIEW v AS SELECT k FROM t")
    parents.close()


def test_variables_are_not_substituted(spark: Any, tmp_path: Path) -> None:
    with vk.open(tmp_path / "db", spark=spark) as db:
        db.sql("CREATE TABLE t (k INT, PRIMARY KEY (k))")
        db.put("t", {"k": 1})
        db.sql("CREATE MATERIALIZED VIEW v AS SELECT k, '${env:HOME}${a}' AS s FROM t")
        assert db.read("v")["s"].to_pylist() == ["${env:HOME}${a}"]


SUITE = (
    *("tests/integration/test_names.py", "tests/integration/test_sessions.py", "tests/integration/test_engine.py"),
    *("tests/integration/test_queries.py", "tests/integration/test_expressions_spark.py"),
    *("tests/integration/test_recomputed.py", "tests/property/test_views.py", "tests/torture/test_audit.py"),
    *("tests/unit/test_cli.py", "tests/unit/test_rows.py", "tests/unit/test_keys.py", "tests/contract/test_rows.py"),
)


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.skipif("VK_SESSION" in os.environ, reason="this is the run inside")
def test_the_suite_in_another_zone_and_locale_on_an_odd_context() -> None:
    """Turkish has two letters i; Kathmandu is 5:45 ahead."""
    there = {"VK_TZ": "Asia/Kathmandu", "VK_SESSION": "odd", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}
    java = {"JAVA_TOOL_OPTIONS": "-Duser.language=tr -Duser.country=TR -Dfile.encoding=UTF-8"}
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not deep", "-p", "no:cacheprovider", *SUITE],
        env={**os.environ, **there, **java},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3500,
    )
    assert told.returncode == 0, told.stdout[-5000:]
