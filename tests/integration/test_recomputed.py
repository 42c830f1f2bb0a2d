"""Aggregates and window frames that are recomputed from a group's rows: each equals Spark's own, through changes.

Each expression is checked over groups with many rows, one row, rows that do not vary, and NULLs only.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.property.compare import difference
from tests.property.query import Select, View
from tests.property.typed import Typed

from viewkeeper.errors import Unsupported

AGGREGATES = (
    *("covar_pop(x, y)", "covar_samp(x, y)", "regr_slope(x, y)", "regr_intercept(x, y)", "regr_r2(x, y)"),
    *("regr_count(x, y)", "regr_avgx(x, y)", "regr_sxx(x, y)", "regr_syy(x, y)", "regr_sxy(x, y)"),
    *("skewness(x)", "kurtosis(x)", "median(n)", "percentile(x, 0.25)", "max_by(s, id)", "min_by(n, id)"),
    *("mode(n, true)", "mode() WITHIN GROUP (ORDER BY s DESC)", "mode(d, true) FILTER (WHERE n > 0)", "every(n > 0)"),
    *("listagg(s, '-') WITHIN GROUP (ORDER BY n DESC, id)", "listagg(s) WITHIN GROUP (ORDER BY x, id DESC)"),
    *("bit_and(n)", "bit_or(n)", "bool_and(n < 2)"),
    *("try_sum(n)", "try_sum(m)", "try_avg(m)", "try_avg(n)", "try_sum(x)", "try_sum(9223372036854775807L - n)"),
    *("max_by(s, id) FILTER (WHERE n > 1)", "count(DISTINCT n, s)", "bool_or(n > 1)", "bit_xor(n)", "mean(m)"),
    *(f"percentile_{form}(0.3) WITHIN GROUP (ORDER BY n {way})" for form in ("cont", "disc") for way in ("", "DESC")),
)
FRAMES = (
    "ORDER BY d RANGE BETWEEN INTERVAL 2 DAYS PRECEDING AND CURRENT ROW",
    "ORDER BY d DESC RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "ORDER BY d RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND INTERVAL 1 MONTH FOLLOWING",
    "ORDER BY CAST(d AS TIMESTAMP) RANGE BETWEEN INTERVAL 26 HOURS PRECEDING AND CURRENT ROW",
    "ORDER BY x RANGE BETWEEN 1.5D PRECEDING AND 1D FOLLOWING",
    "ORDER BY m RANGE BETWEEN 1.50 PRECEDING AND 1 FOLLOWING",
    "ORDER BY n DESC RANGE BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING",
    "ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING",
)
VIEWS = {
    "grouped": f"SELECT g, {', '.join(f'{a} AS o{i}' for i, a in enumerate(AGGREGATES))} FROM facts GROUP BY g",
    "listed": "SELECT g, listagg(DISTINCT s, ', ') WITHIN GROUP (ORDER BY s DESC) AS o FROM facts GROUP BY g",
    "framed": "SELECT id, "
    + ", ".join(f"sum(n) OVER (PARTITION BY g {f}) AS o{i}" for i, f in enumerate(FRAMES))
    + " FROM facts",
}


def fact(i: int, g: int) -> dict[str, Any]:
    row = {"id": i, "g": g, "x": float(i * i % 7), "y": float(i % 5), "n": i % 3, "s": "abc"[i % 3]}
    return row | {"d": dt.date(2024, 1, 20) + dt.timedelta(i * 5 % 23), "m": Decimal(i % 9) / 4}


@pytest.fixture
def facts(make_db: Callable[..., Any], spark: Any) -> Any:
    db = make_db(spark=spark, durability="none")
    db.sql("""CREATE TABLE facts (id BIGINT, g INT, x DOUBLE, y DOUBLE, n INT, s STRING, d DATE, m DECIMAL(9,2),
              PRIMARY KEY (id))""")
    db.put("facts", [fact(i, i % 4) for i in range(20)])
    return db


def test_aggregates_and_frames_equal_sparks(facts: Any, spark: Any) -> None:
    for name, sql in VIEWS.items():
        facts.sql(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
    facts.put("facts", [fact(i, i % 4) for i in range(20, 30)])
    facts.put("facts", [fact(40, 9), {"id": 41, "g": 8}, *(fact(42, 7) | {"id": i} for i in (42, 43))])
    facts.delete("facts", [3, 7, *range(2, 30, 4)])
    facts.put("facts", fact(50, 2))
    facts.refresh()
    spark.createDataFrame(facts.read("facts")).createOrReplaceTempView("facts")
    for name, sql in VIEWS.items():
        expected, got = spark.sql(sql).toArrow(), facts.read(name)
        columns = tuple(Typed(f.name, "", loose="near" if pa.types.is_floating(f.type) else "") for f in got.schema)
        assert difference(View(name, Select((), ()), columns), expected, got) is None


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("max(struct(x, s)).s", "STRUCT"),
        ("percentile(x, 0.5, n)", "frequencies"),
        ("mode(x)", "mode of a FLOAT"),
        ("listagg(s)", "order of rows"),
        ("any_value(n)", "order of rows"),
        ("approx_percentile(n, 0.5)", "estimate"),
        ("first(n)", "first"),
        ("collect_list(n)", "ARRAY"),
        ("approx_count_distinct(n)", "approx_count_distinct"),
    ],
)
def test_what_cannot_be_maintained_is_refused_by_name(facts: Any, call: str, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        facts.sql(f"CREATE MATERIALIZED VIEW refused AS SELECT g, {call} AS o FROM facts GROUP BY g")
    assert facts.sql("SHOW VIEWS").num_rows == 0
