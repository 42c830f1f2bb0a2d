"""Views with one state for the measures of all are those made apart, bit for bit, and Spark's: both lanes.

Random aggregates of one table by few keys and conditions, so that many add up the same rows; made, dropped, suspended
and resumed between batches.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

import viewkeeper as vk

from .test_shared import TABLES, random_row, rows_of

SEEDS = range(1, 31) if os.environ.get("VK_PROFILE") == "deep" else range(1, 3)
KEYS = ["l_part", "l_supplier", "l_part, l_supplier", ""]
CONDITIONS = ["", "", " WHERE l_quantity > 3"]
MEASURES = [
    "count(*)",
    "sum(l_price)",
    "sum(l_quantity)",
    "avg(l_price)",
    "avg(l_quantity)",
    "max(l_price)",
    "min(l_quantity)",
    "count(DISTINCT l_order)",
    "sum(l_rate)",
    "stddev(l_rate)",
    "sum(l_price) / count(*)",
    "sum(l_price * l_quantity)",
    "sum(CASE WHEN l_number = 1 THEN l_price END)",
    "sum(l_price / (l_quantity - 2))",
]
"""The last one can fail on a row (none has 2), and is kept apart."""


def random_query(rng: Random) -> str:
    keys = rng.choice(KEYS)
    called = ", ".join(f"{c} AS m{i}" for i, c in enumerate(rng.sample(MEASURES, rng.randrange(1, 4))))
    query = f"SELECT {keys + ', ' if keys else ''}{called} FROM line{rng.choice(CONDITIONS)}"
    if not keys:
        return query
    return f"{query} GROUP BY {keys}" + (" HAVING count(*) > 1" if rng.random() < 0.3 else "")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_views_in_one_state_are_those_apart_and_sparks(seed: int, spark: Any, tmp_path: Any) -> None:
    rng = Random(seed)
    lane = "spark" if seed % 2 == 0 else "driver"
    queries: dict[str, str] = {}
    with (
        vk.open(f"lmdb:{tmp_path / 'together'}", spark=spark, durability="none") as together,
        vk.open(f"lmdb:{tmp_path / 'apart'}", spark=spark, durability="none") as apart,
    ):
        for db in (together, apart):
            db.sql(f"CREATE TABLE line ({TABLES['line'][0]}, PRIMARY KEY ({TABLES['line'][1]}))")
        for number in range(4):
            rows = [random_row(rng, "line", i) for i in range(70 if number == 0 else 12)]
            put = list({(r["l_order"], r["l_number"]): r for r in rows}.values())
            gone = [(rng.randrange(26), rng.randrange(4)) for _ in range(6 if number else 0)]
            for db in (together, apart):
                db.put("line", put)
                db.delete("line", gone)
            together.refresh(lane, suspend=False)
            apart.refresh("driver", suspend=False)
            for name, query in queries.items():
                assert rows_of(together, name) == rows_of(apart, name), f"{name} after batch {number}: {query}"
            new = {f"v{number}_{i}": random_query(rng) for i in range(4 if number == 0 else 2)}
            queries |= new
            for name, query in new.items():
                apart.sql(f"CREATE MATERIALIZED VIEW {name} WITH (share = false) AS {query}")
            if number % 2:
                together.create_views(new)
            else:
                for name, query in new.items():
                    together.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
            if number:
                name = rng.choice(sorted(queries.keys() - new.keys()))
                if rng.random() < 0.5:
                    together.sql(f"ALTER MATERIALIZED VIEW {name} SUSPEND")
                    together.sql(f"ALTER MATERIALIZED VIEW {name} RESUME")
                else:
                    del queries[name]
                    for db in (together, apart):
                        db.sql(f"DROP MATERIALIZED VIEW {name}")
        spark.createDataFrame(together.read("line")).createOrReplaceTempView("line")
        for name, query in queries.items():
            expected = sorted(map(repr, spark.sql(query).toArrow().to_pylist()))
            assert rows_of(together, name) == expected, f"{name}: {query}"
