"""A join of many to many: `rows` rows in each of three tables with `keys` keys, rows · (rows / keys)² joined ones."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pyarrow as pa

import viewkeeper as vk

VIEW = """CREATE MATERIALIZED VIEW fanned AS
SELECT a_v AS g, count(*) AS n, sum(b_v + c_v) AS s, max(c_v) AS m
FROM a JOIN b ON a_k = b_k JOIN c ON b_k = c_k GROUP BY a_v"""


def make(db: Any) -> None:
    """The empty tables."""
    for t in "abc":
        db.sql(f"CREATE TABLE {t} ({t}_id BIGINT, {t}_k BIGINT, {t}_v BIGINT, PRIMARY KEY ({t}_id))")


def put(db: Any, table: str, rows: int, keys: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = {"id": np.arange(rows), "k": rng.integers(0, keys, rows), "v": rng.integers(0, 1_000, rows)}
    db.put(table, pa.table({f"{table}_{name}": column for name, column in values.items()}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--memory")
    parser.add_argument("--create", action="store_true")
    asked = parser.parse_args()
    with vk.open(asked.url, memory=asked.memory, durability="none") as db:
        if asked.create:
            make(db)
        for seed, table in enumerate("abc"):
            put(db, table, asked.rows, asked.keys, seed)
        if asked.create:
            db.sql(VIEW)
        print(db.refresh("driver").lane, sum(db.read("fanned")["n"].to_pylist()))
        put(db, "b", asked.rows // 20, asked.keys, 7)
        print(db.refresh("driver").lane, sum(db.read("fanned")["n"].to_pylist()))


if __name__ == "__main__":
    main()
