"""Views whose lookups are made together are those that are made apart, bit for bit, and Spark's.

Random sets of different views over one schema of foreign keys, views made and dropped between batches: on Spark, in the
driver, and in the driver with partners that make some of the views.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from tests.partners import always

import viewkeeper as vk
from viewkeeper.operators.delta_join import operator, partial_rows, plan
from viewkeeper.runtime.cost_model import SEVERAL_PROCESSES

DEEP = os.environ.get("VK_PROFILE") == "deep"
SEEDS = range(1, 61) if DEEP else range(1, 4)

TABLES = {
    "nation": ("n_id BIGINT, n_name STRING, region BIGINT", "n_id", 5),
    "customer": ("c_id BIGINT, c_nation BIGINT, c_segment STRING, c_balance DECIMAL(12,2)", "c_id", 12),
    "supplier": ("s_code STRING, s_nation BIGINT, s_rank INT", "s_code", 6),
    "orders": ("o_id BIGINT, o_customer BIGINT, o_date DATE, o_status STRING", "o_id", 25),
    "stock": ("k_part INT, k_supplier STRING, k_cost DECIMAL(12,2)", "k_part, k_supplier", 20),
    "line": (
        "l_order BIGINT, l_number INT, l_part INT, l_supplier STRING, l_quantity INT, l_price DECIMAL(12,2), "
        "l_rate DOUBLE",
        "l_order, l_number",
        70,
    ),
}
"""Columns, key, and how many rows it has about."""

JOINS = {
    "orders": ("line", "l_order = o_id"),
    "customer": ("orders", "o_customer = c_id"),
    "supplier": ("line", "l_supplier = s_code"),
    "stock": ("line", "l_part = k_part AND l_supplier = k_supplier"),
    "cn": ("customer", "c_nation = cn.n_id"),
    "sn": ("supplier", "s_nation = sn.n_id"),
}
"""What is joined, to what, and how; `cn` and `sn` are nations."""

CONDITIONS = {
    "line": ["l_quantity > 3", "l_price < 60", "l_quantity IS NOT NULL", "l_rate <> 0.5", "l_part IN (1, 2)"],
    "orders": ["o_status = 'open'", "o_date >= DATE '2024-01-10'", "o_date < DATE '2024-01-20'"],
    "customer": ["c_segment LIKE 'b%'", "c_balance > 0", "c_segment <> 'auto' OR c_balance < 5"],
    "supplier": ["s_rank < 3", "coalesce(s_rank, 0) = 0"],
    "stock": ["k_cost < l_price", "k_cost > 10"],
    "cn": ["cn.n_name <> 'peru'", "cn.region = 1"],
    "sn": ["sn.n_name IN ('peru', 'kenya')", "sn.n_id = cn.n_id"],
}

SHOWN = {
    "line": ["l_part", "l_supplier", "l_number"],
    "orders": ["o_status", "o_date", "o_id"],
    "customer": ["c_segment", "c_id"],
    "supplier": ["s_rank"],
    "stock": ["k_part"],
    "cn": ["cn.n_name"],
    "sn": ["sn.n_name"],
}

MEASURES = ["count(*)", "sum(l_price)", "sum(l_quantity)", "max(l_price)", "count(DISTINCT l_part)", "sum(l_rate)"]


def random_query(rng: Random) -> str:
    joined = ["line"] if rng.random() < 0.8 else ["orders"]
    for name, (to, _) in JOINS.items():
        if to in joined and name not in joined and rng.random() < 0.6:
            joined.append(name)
    source = joined[0]
    for name in joined[1:]:
        table = f"nation {name}" if name in ("cn", "sn") else name
        source += f" JOIN {table} ON {JOINS[name][1]}"
    asked = [c for name in joined for c in CONDITIONS[name] if rng.random() < 0.35]
    asked = [c for c in asked if "cn." not in c or "cn" in joined]
    where = f" WHERE {' AND '.join(asked)}" if asked else ""
    shown = rng.sample([c for name in joined for c in SHOWN[name]], rng.randrange(1, 3))
    listed = ", ".join(f"{c} AS g{i}" for i, c in enumerate(shown))
    if rng.random() < 0.2:
        return f"SELECT {listed}, 1 AS one FROM {source}{where}"
    measures = MEASURES if joined[0] == "line" else MEASURES[:1]
    calls = rng.sample(measures, rng.randrange(1, min(3, len(measures) + 1)))
    if joined[0] == "line" and rng.random() < 0.15:
        calls.append("sum(l_price / (l_quantity - 2))")  # raises where it is 2, which no row has
    told = ", ".join(f"{c} AS m{i}" for i, c in enumerate(calls))
    return f"SELECT {listed}, {told} FROM {source}{where} GROUP BY {', '.join(shown)}"


def random_row(rng: Random, table: str, number: int) -> dict[str, Any]:
    def some(*values: Any) -> Any:
        return None if rng.random() < 0.1 else rng.choice(values)

    def day() -> str:
        return f"2024-01-{rng.randrange(1, 30):02}"

    codes = [f"s{i}" for i in range(6)]
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "nation": lambda: {"n_id": number, "n_name": some("peru", "kenya", "japan"), "region": rng.randrange(3)},
        "customer": lambda: {
            "c_id": number, "c_nation": some(*range(6)), "c_segment": some("auto", "build", "boat"),
            "c_balance": some("-1.50", "0.00", "7.25"),
        },
        "supplier": lambda: {"s_code": f"s{number}", "s_nation": some(*range(6)), "s_rank": some(0, 1, 2, 3)},
        "orders": lambda: {
            "o_id": number, "o_customer": some(*range(13)), "o_date": some(day()),
            "o_status": some("open", "done"),
        },
        "stock": lambda: {"k_part": number % 5, "k_supplier": rng.choice(codes), "k_cost": some("5.00", "12.00")},
        "line": lambda: {
            "l_order": rng.randrange(26), "l_number": rng.randrange(4), "l_part": some(*range(5)),
            "l_supplier": some(*codes), "l_quantity": some(1, 3, 4, 9), "l_price": some("10.00", "30.50", "99.99"),
            "l_rate": some(0.5, -0.0, 0.25, 8.0),
        },
    }  # fmt: skip
    return made[table]()


def batches(rng: Random) -> Iterator[list[tuple[str, str, list[dict[str, Any]]]]]:
    """What is written before each refresh: (table, put or delete, rows)."""
    yield [(t, "put", [random_row(rng, t, i) for i in range(size)]) for t, (_, _, size) in TABLES.items()]
    while True:
        calls = []
        for table, (_, _, size) in TABLES.items():
            if rng.random() < 0.6:
                rows = [random_row(rng, table, rng.randrange(size + 2)) for _ in range(rng.randrange(1, 1 + size // 3))]
                calls.append((table, "put", rows))
            if rng.random() < 0.4:
                calls.append((table, "delete", [random_row(rng, table, rng.randrange(size))]))
        yield calls


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_views_together_are_those_apart_and_sparks(
    seed: int, spark: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    way = ("driver", "spark", "partners")[seed % 3]
    lane = "spark" if way == "spark" else "driver"
    if way == "driver":  # so few views need several words too; tasks and partners are other processes
        monkeypatch.setattr(plan, "WORD_BITS", 3)
        monkeypatch.setattr(partial_rows, "_CACHE_COST_FACTOR", rng.choice([2, 1000]))
        monkeypatch.setattr(partial_rows, "_STATEMENT_COST_IN_ROWS", 50_000 if seed % 2 else 0)
    ran = always(monkeypatch, 2 + seed % 2) if way == "partners" else []
    queries: dict[str, str] = {}
    with (
        vk.open(f"lmdb:{tmp_path / 'together'}", spark=spark, durability="none") as together,
        vk.open(f"lmdb:{tmp_path / 'apart'}", spark=spark, durability="none", threads=1) as apart,
    ):
        both = (together, apart)
        for db in both:
            for table, (columns, key, _) in TABLES.items():
                db.sql(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({key}))")
        for number, calls in zip(range(3), batches(rng), strict=False):
            for table, call, rows in calls:
                by_key = {tuple(r[k] for k in TABLES[table][1].split(", ")): r for r in rows}
                keys = [key if len(key) > 1 else key[0] for key in by_key]
                for db in both:
                    if call == "put":
                        db.put(table, list(by_key.values()))
                    else:
                        db.delete(table, keys)
            together.refresh(lane, suspend=False)
            apart.refresh("driver", suspend=False)
            for name, query in queries.items():
                assert rows_of(together, name) == rows_of(apart, name), f"{name} after batch {number}: {query}"
            if number and queries:
                gone = rng.choice(sorted(queries))
                del queries[gone]
                for db in both:
                    db.sql(f"DROP MATERIALIZED VIEW {gone}")
            for i in range(5 if not number else 1):
                name, query = f"v{number}_{i}", random_query(rng)
                queries[name] = query
                together.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
                apart.sql(f"CREATE MATERIALIZED VIEW {name} WITH (share = false) AS {query}")
        for table in TABLES:
            spark.createDataFrame(together.read(table)).createOrReplaceTempView(table)
        for name, query in queries.items():
            expected = sorted(map(repr, spark.sql(query).toArrow().to_pylist()))
            assert rows_of(together, name) == expected, f"{name}: {query}"
        assert way != "partners" or SEVERAL_PROCESSES in ran


def rows_of(db: Any, view: str) -> list[str]:
    return sorted(map(repr, db.read(view).to_pylist()))


@pytest.mark.spark
def test_what_fails_together_is_done_apart(make_db: Any, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared statement that fails stops nobody; and EXPLAIN tells what a view shares, or that it does not."""
    db = make_db(spark=spark)
    for table in ("orders", "line"):
        columns, key, size = TABLES[table]
        db.sql(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({key}))")
        db.put(table, [random_row(Random(i), table, i) for i in range(size)])
    joined = "line JOIN orders ON l_order = o_id GROUP BY o_status"
    db.sql(f"CREATE MATERIALIZED VIEW prices AS SELECT o_status, sum(l_price) AS s FROM {joined}")
    db.sql(f"CREATE MATERIALIZED VIEW counts AS SELECT o_status, count(*) AS c FROM {joined}")
    db.sql(
        f"CREATE MATERIALIZED VIEW alone WITH (share = false) AS SELECT o_status, max(l_quantity) AS m FROM {joined}"
    )
    told = db.explain("prices")
    assert "changes of line, of 2 views: orders by (o_id) with 1 other" in told
    estimates = re.findall(r"chosen: shared, about ([\d.]+) ms .* by itself, about ([\d.]+) ms", told)
    assert [float(shared) < float(apart) for shared, apart in estimates] == [True]
    assert "paths: by itself (share = false)" in db.explain("alone")
    with pytest.raises(vk.ViewkeeperError, match="share"):
        db.sql("CREATE MATERIALIZED VIEW bad WITH (share = maybe) AS SELECT o_status FROM orders")

    def broken(*_: Any) -> Any:
        raise ValueError("no such luck")

    before = rows_of(db, "counts")
    db.put("line", [random_row(Random(99), "line", 0) | {"l_order": 1, "l_number": 77}])
    with monkeypatch.context() as patched:
        patched.setattr(operator, "follow_paths", broken)
        db.refresh("driver")
    assert rows_of(db, "counts") != before
    assert db.audit("prices", "counts", "alone").is_right
