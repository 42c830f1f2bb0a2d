"""Every view against recompute: DuckDB's answer, timed, and where asked Spark's from Parquet files.

A view that differs ends the benchmark: figures of wrong answers are worth nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import viewkeeper as vk
from viewkeeper.verify.benchmark_check import find_differences
from viewkeeper.verify.reference_model import ReferenceModel
from viewkeeper.workloads.tpch import QUERIES, SCHEMAS

APPROXIMATE = {1: ("avg_qty", "avg_price", "avg_disc"), 8: ("mkt_share",), 14: ("promo_revenue",), 17: ("avg_yearly",)}
"""Columns that DuckDB computes as DOUBLE where Spark, and so we, have exact decimals."""

LIMITED = {
    "q2": ("s_acctbal", "n_name", "s_name", "p_partkey"),
    "q3": ("revenue", "o_orderdate"),
    "q10": ("revenue",),
    "q18": ("o_totalprice", "o_orderdate"),
    "q21": ("numwait", "s_name"),
}
"""What queries with a LIMIT order by. Which of the rows that tie at the end DuckDB gives is for it to choose."""


def recomputed(db: vk.Database, model: ReferenceModel, numbers: Iterable[int] = QUERIES) -> dict[str, float]:
    """DuckDB's seconds for each query over its own tables; every view is compared with the answer."""
    times, answers = {}, {}
    for number in numbers:
        started = time.perf_counter()
        answers[number] = model.rows(QUERIES[number])
        times[f"q{number}"] = time.perf_counter() - started
    for number, expected in answers.items():
        compare(f"q{number}", expected, db.read(f"q{number}"), APPROXIMATE.get(number, ()))
    return times


def compare(view: str, expected: pa.Table, got: pa.Table, approximate: Sequence[str] = ()) -> None:
    if expected.num_rows == got.num_rows and view in LIMITED:
        last = expected.select(LIMITED[view]).slice(max(0, expected.num_rows - 1)).to_pylist()
        expected, got = (_without(rows, last) for rows in (expected, got))
    exact = [c for c in got.column_names if c not in approximate]
    found = (
        find_differences(view, 0, expected.select(exact).cast(got.select(exact).schema), got.select(exact))
        if exact
        else []
    )
    if found:
        sys.exit(f"{view} differs: expected {found[0].expected}, got {found[0].actual}")
    for column in approximate:
        order = [(c, "ascending") for c in exact]
        sides = ((t.sort_by(order) if order else t)[column].to_pylist() for t in (expected, got))
        for want, have in zip(*sides, strict=True):
            if not close(want, have):
                sys.exit(f"{view}.{column} differs: expected {want}, got {have}")


def close(want: Any, have: Any) -> bool:
    if want is None or have is None:
        return want is have
    return abs(float(want) - float(have)) <= 1e-6 * max(1.0, abs(float(want)))


class SparkFiles:
    """Spark SQL over Parquet files, with the settings that a user of two cores would choose."""

    def __init__(self, spark: Any, files: Path) -> None:
        self.spark = spark.newSession()
        for name, value in {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.ansi.enabled": "true",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.adaptive.enabled": "true",
        }.items():
            self.spark.conf.set(name, value)
        for table in SCHEMAS:
            self.spark.read.parquet(str(files / f"{table}.parquet")).createOrReplaceTempView(table)

    def answer(self, number: int) -> tuple[pa.Table, float]:
        started = time.perf_counter()
        rows: pa.Table = self.spark.sql(QUERIES[number]).toArrow()
        return rows, time.perf_counter() - started


def _without(rows: pa.Table, tied: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows that do not tie with the last one; ties must be as many on either side, so the others are too."""
    keys = rows.select(list(tied[0]) if tied else []).to_pylist()
    return rows.filter(pa.array([key not in tied for key in keys], pa.bool_())) if tied else rows
