"""Views are the same however far lookups look ahead and whether sums are made below joins, and Spark's."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

import viewkeeper as vk
from viewkeeper.model.catalog.view import LOOKAHEAD
from viewkeeper.operators.delta_join import plan

from .test_shared import TABLES, batches, random_query, rows_of

DEEP = os.environ.get("VK_PROFILE") == "deep"
SEEDS = range(1, 41) if DEEP else range(1, 3)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_views_do_not_depend_on_look_ahead(
    seed: int, spark: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    lane = "spark" if seed % 2 == 0 else "driver"
    if lane == "driver":  # so few views need several words too; tasks are other processes
        monkeypatch.setattr(plan, "WORD_BITS", 3)
    queries = {f"v{i}": random_query(rng) for i in range(6)}
    with ExitStack() as stack:
        url = f"lmdb:{tmp_path}"
        dbs = {m: stack.enter_context(vk.open(f"{url}/{m}", spark=spark, durability="none")) for m in LOOKAHEAD}
        for db in dbs.values():
            for table, (columns, key, _) in TABLES.items():
                db.sql(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({key}))")
        for number, calls in zip(range(5), batches(rng), strict=False):
            for mode, db in dbs.items():
                for table, call, rows in calls:
                    by_key = {tuple(r[k] for k in TABLES[table][1].split(", ")): r for r in rows}
                    if call == "put":
                        db.put(table, list(by_key.values()))
                    else:
                        db.delete(table, [key if len(key) > 1 else key[0] for key in by_key])
                db.refresh(lane if mode == "global" else "driver")
                for name, query in queries.items() if not number else ():
                    options = f"lookahead = '{mode}', presum = '{'always' if mode == 'auto' else 'none'}'"
                    db.sql(f"CREATE MATERIALIZED VIEW {name} WITH ({options}) AS {query}")
            for mode, db in dbs.items():
                for name, query in queries.items():
                    told = f"{name} {mode} after batch {number}: {query}"
                    assert rows_of(db, name) == rows_of(dbs["none"], name), told
        for table in TABLES:
            spark.createDataFrame(dbs["none"].read(table)).createOrReplaceTempView(table)
        for name, query in queries.items():
            expected = sorted(map(repr, spark.sql(query).toArrow().to_pylist()))
            assert rows_of(dbs["none"], name) == expected, f"{name}: {query}"
        left_out = {mode: sum(_left_out(db.explain(name)) for name in queries) for mode, db in dbs.items()}
        assert not left_out["none"]
        assert left_out["local"]
        assert lane == "spark" or left_out["global"] >= left_out["local"]


def _left_out(explained: str) -> int:
    return sum(int(found.replace(",", "")) for found in re.findall(r"; ([\d,]+) rows left out", explained))


@pytest.mark.spark
def test_explain_says_what_is_seen_ahead(make_db: Any, spark: Any) -> None:
    db = make_db(spark=spark)
    db.sql("CREATE TABLE users (id BIGINT PRIMARY KEY, vip BOOLEAN)")
    db.sql("CREATE TABLE follows (id BIGINT PRIMARY KEY, who BIGINT, whom BIGINT)")
    db.sql("CREATE TABLE tweets (id BIGINT PRIMARY KEY, author BIGINT)")
    query = (
        "SELECT t.id, f.who FROM tweets t JOIN follows f ON f.whom = t.author JOIN users u ON u.id = f.who WHERE u.vip"
    )
    with pytest.raises(vk.ViewkeeperError, match="lookahead"):
        db.sql(f"CREATE MATERIALIZED VIEW seen WITH (lookahead = 'far') AS {query}")
    db.sql(f"CREATE MATERIALIZED VIEW seen WITH (lookahead = 'global') AS {query}")
    db.put("users", [{"id": i, "vip": i == 7} for i in range(50)])
    db.put("follows", [{"id": i, "who": i, "whom": 1 + i % 2} for i in range(50)])
    db.refresh("driver")
    db.put("tweets", [{"id": 1, "author": 1}, {"id": 2, "author": 2}])
    db.refresh("driver")
    assert db.read("seen").to_pylist() == [{"id": 2, "who": 7}]
    told = db.explain("seen")
    assert "look-ahead global: rows that lead nowhere are left out" in told
    found = "changes of tweets: follows by (whom) that lead to users; 49 rows left out in the last"
    assert found in told, told
    db.put("users", {"id": 8, "vip": True})  # its row in follows leads somewhere again
    db.delete("users", [7])
    db.put("tweets", [{"id": 3, "author": 1}, {"id": 4, "author": 2}])
    db.refresh("driver")
    assert sorted(row["id"] for row in db.read("seen").to_pylist()) == [1, 3]
    assert db.audit("seen").is_right
