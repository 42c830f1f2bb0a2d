"""One view must not stop the others: whatever a view's own rows do to it, it alone is stopped, and the row is named."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from viewkeeper import STALE
from viewkeeper.errors import EvaluationError

FACTS = """CREATE TABLE facts (id INT, kind INT, n INT, big BIGINT, d DECIMAL(38,0), x DOUBLE, s STRING, b BINARY,
           day DATE, t TIMESTAMP, PRIMARY KEY (id))"""
LONG = "k" * 70_000


@dataclass(frozen=True)
class Case:
    """A query over the facts of one kind, a row that it fails on, and what is said of it beside the row's name."""

    query: str
    row: dict[str, Any]
    told: str
    names: str = "id = {id}"


def row_of(expression: str) -> str:
    return f"SELECT id, {expression} AS o FROM facts WHERE kind = {{kind}}"


CASES: dict[str, Case] = {
    "division": Case(row_of("10 / n"), {"n": 0}, "DIVIDE_BY_ZERO"),
    "overflow": Case(row_of("n + 1"), {"n": 2**31 - 1}, "ARITHMETIC_OVERFLOW"),
    "narrowing": Case(row_of("CAST(n AS TINYINT)"), {"n": 128}, "CAST_OVERFLOW"),
    "decimal range": Case(row_of("d * 10"), {"d": 5 * 10**37}, "NUMERIC_VALUE_OUT_OF_RANGE"),
    "text to number": Case(row_of("CAST(s AS INT)"), {"s": "x1"}, "CAST_INVALID_INPUT"),
    "text to date": Case(row_of("to_date(s, 'yyyy-MM-dd')"), {"s": "2024-02-30"}, ""),
    "double to integer": Case(row_of("CAST(x AS INT)"), {"x": float("inf")}, "CAST_OVERFLOW"),
    "own error": Case(row_of("CASE WHEN n = 0 THEN raise_error('none left') ELSE n END"), {"n": 0}, "none left"),
    "no such element": Case(row_of("element_at(split(s, ','), 2)"), {"s": "alone"}, ""),
    "date range": Case(row_of("date_add(day, n)"), {"n": 2**31 - 1}, ""),
    "filter": Case("SELECT id FROM facts WHERE kind = {kind} AND 10 / n > 1", {"n": 0}, "DIVIDE_BY_ZERO"),
    "sum": Case(
        "SELECT s, sum(big) AS o FROM facts WHERE kind = {kind} GROUP BY s",
        {"big": 2**63 - 1, "s": "ok"},
        "OVERFLOW",
        "facts.s = 'ok'",
    ),
    "sum of a group's rows": Case(
        "SELECT s, sum(10 / n) AS o FROM facts WHERE kind = {kind} GROUP BY s", {"n": 0}, "DIVIDE_BY_ZERO"
    ),
    "long group key": Case(
        "SELECT s, count(*) AS o FROM facts WHERE kind = {kind} GROUP BY s", {"s": LONG}, "key", "s = 'kkkk"
    ),
    "long bag key": Case("SELECT s FROM facts WHERE kind = {kind}", {"s": LONG}, "key", "s = 'kkkk"),
    "window": Case(
        "SELECT id, sum(10 div n) OVER (PARTITION BY s ORDER BY id) AS o FROM facts WHERE kind = {kind}",
        {"n": 0},
        "DIVIDE_BY_ZERO",
    ),
    "join": Case(
        "SELECT a.id, b.id AS other, 10 / (a.n - b.n + 1) AS o FROM facts a JOIN facts b ON a.s = b.s"
        " WHERE a.kind = {kind} AND b.kind = {kind}",
        {"n": 4, "s": "ok"},
        "DIVIDE_BY_ZERO",
        "facts.id = ",
    ),
    "text that is none": Case(row_of("decode(b, 'UTF-8')"), {"b": b"\xff\xfe"}, ""),
}
GOOD = {"n": 5, "big": 1, "d": 1, "x": 1.0, "s": "ok", "b": b"ok", "day": "2024-01-01", "t": "2024-01-01 00:00:00"}
TEXT = {"text to number": "1", "text to date": "2024-02-29", "no such element": "a,b"}


def view_of(case: str) -> str:
    return "v_" + case.replace(" ", "_").replace("'", "")


def statement(case: str) -> str:
    return f"CREATE MATERIALIZED VIEW {view_of(case)} AS {CASES[case].query.format(kind=list(CASES).index(case))}"


def good(case: str) -> dict[str, Any]:
    number = list(CASES).index(case)
    return {**GOOD, "id": 100 + number, "kind": number, "s": TEXT.get(case, "ok")}


def bad(case: str) -> dict[str, Any]:
    return {**good(case), **CASES[case].row, "id": 200 + list(CASES).index(case)}


def refused(case: str, said: str) -> None:
    assert CASES[case].told in said
    assert CASES[case].names.format(id=bad(case)["id"]) in said, said
    assert view_of(case) in said


def prepared(make_db: Callable[..., Any], spark: Any) -> Any:
    db = make_db(spark=spark, durability="none")
    db.sql(FACTS)
    db.sql("CREATE MATERIALIZED VIEW fine AS SELECT kind, count(*) AS n FROM facts GROUP BY kind")
    return db


def stopped(db: Any) -> dict[str, str]:
    return {v.name: v.suspended for v in db.status().views if v.suspended}


def test_a_view_that_cannot_be_made_from_its_rows_fails_alone(make_db: Callable[..., Any], spark: Any) -> None:
    db = prepared(make_db, spark)
    for case in CASES:
        db.put("facts", [good(case), bad(case)])
        with pytest.raises(EvaluationError) as failed:
            db.sql(statement(case))
        refused(case, failed.value.message)
    db.refresh()
    assert db.read("fine")["n"].to_pylist() == [2] * len(CASES)
    assert [v.name for v in db.status().views] == ["fine"]


@pytest.mark.parametrize(
    ("lane", "cases"),
    [
        ("driver", list(CASES)),
        ("spark", ["division", "sum", "long group key", "window", "join"]),
        pytest.param("spark", list(CASES), marks=pytest.mark.deep),
    ],
    ids=["driver", "spark", "all on spark"],
)
def test_a_row_that_breaks_a_view_stops_that_view_alone(
    make_db: Callable[..., Any], spark: Any, lane: str, cases: list[str]
) -> None:
    db = prepared(make_db, spark)
    for case in cases:
        db.put("facts", good(case))
        db.sql(statement(case))
    before = {case: db.read(view_of(case)).to_pylist() for case in cases}
    db.put("facts", bad(cases[0]))
    with pytest.raises(EvaluationError) as failed:
        db.refresh(lane, suspend=False)
    refused(cases[0], failed.value.message)
    with db.maintain(lane=lane):
        token = db.put("facts", [bad(case) for case in cases])
        fine = db.read("fine", after=token, timeout=240)
        assert fine["n"].to_pylist() == [2] * len(cases)
        reasons = stopped(db)
        for case in cases:
            refused(case, f"{view_of(case)}: {reasons.get(view_of(case), 'it is not stopped')}")
            assert db.read(view_of(case), STALE).to_pylist() == before[case], "it shows what it showed"
        assert db._writes.maintenance.running
        db.delete("facts", [bad(case)["id"] for case in cases])
        for case in cases:
            db.sql(f"ALTER MATERIALIZED VIEW {view_of(case)} RESUME")
        assert stopped(db) == {}
        assert {case: db.read(view_of(case)).to_pylist() for case in cases} == before


def test_a_view_that_is_made_anew_at_intervals_is_stopped_by_a_key_that_is_too_long(
    make_db: Callable[..., Any], spark: Any
) -> None:
    db = prepared(make_db, spark)
    db.sql("CREATE MATERIALIZED VIEW long WITH (strategy = 'ISN', interval = 0.05) AS SELECT s, n FROM facts")
    with db.maintain():
        db.put("facts", bad("long group key"))
        deadline = time.monotonic() + 60
        while "long" not in stopped(db):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert "s = 'kkkk" in stopped(db)["long"]
        assert db.read("fine", after=db.put("facts", good("sum")), timeout=60).num_rows == 2
    db.delete("facts", bad("long group key")["id"])
    db.sql("ALTER MATERIALIZED VIEW long RESUME")
    assert db.read("long").to_pylist() == [{"s": "ok", "n": 5}]


GROUPS = {
    "of_all": ("SELECT sum(big) AS o FROM facts", "In the group of all rows."),
    "by_key": ("SELECT s, sum(big) AS o FROM facts GROUP BY s", "In the group with facts.s = 'ok'."),
    "by_expression": (
        "SELECT kind % 2 AS p, sum(big) AS o FROM facts GROUP BY kind % 2",
        "In the group with kind % 2 = 1.",
    ),
    "of_some": ("SELECT s, sum(big) AS o FROM facts WHERE n > 0 GROUP BY s", "In the group with facts.s = 'ok'."),
    "of_a_computed": ("SELECT s, sum(big + 1) AS o FROM facts GROUP BY s", "In the group with facts.s = 'ok'."),
    "computed_of_it": (
        "SELECT s, CAST(o AS TINYINT) AS o FROM (SELECT s, sum(n) AS o FROM facts GROUP BY s)",
        "In the group with facts.s = 'ok'.",
    ),
}


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_a_group_is_named_by_its_key_and_the_row_that_came(make_db: Callable[..., Any], spark: Any, lane: str) -> None:
    db = make_db(spark=spark, durability="none")
    db.sql(FACTS)
    for name, (query, _) in GROUPS.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    db.put("facts", {**GOOD, "id": 1, "kind": 1, "big": 2**63 - 9})
    db.refresh(lane)
    db.put("facts", [{**GOOD, "id": 2, "kind": 3, "big": 2**62, "n": 200}, {**GOOD, "id": 0, "kind": 2, "s": "other"}])
    reasons = db.refresh(lane).suspended
    for name, (_, told) in GROUPS.items():
        assert told in reasons[name]
        assert re.search(r"The last row that came into it is the one with facts.id = [02]\.$", reasons[name])
        assert name == "of_all" or reasons[name].endswith("facts.id = 2.")
        assert not any(internal in reasons[name] for internal in ("¤", "_n =", "_sum", "k0 =")), reasons[name]
