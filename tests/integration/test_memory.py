"""Memory is bounded: the anonymous memory of the whole process tree, watched from outside, under a budget.

Each program runs by itself, as a user's would; what it leaves is compared with Spark's recompute. Python, its libraries
and a JVM that plans take some of it before the first row is read: that is why a bar is more than its budget.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.anonymous import Peak, watched
from tests.integration import fanning_out, many_changes, yardsticks

import viewkeeper as vk
from viewkeeper.verify.benchmark_check import SparkOracle, find_differences, is_order_dependent, view_key

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

HERE = Path(__file__).parent


def run(program: str, *arguments: str, most: int, **environment: str) -> str:
    return peak(program, *arguments, most=most, **environment).output


def peak(program: str, *arguments: str, most: int, **environment: str) -> Peak:
    found = watched([sys.executable, str(HERE / program), *arguments], most, environment)
    told = f"{found.total} MB, {found.java} MB of them Java's, {found.own} MB the program's own"
    print(f"{program} {' '.join(arguments)}: {told}")
    return found


@pytest.mark.slow
def test_a_join_that_multiplies_rows_is_loaded_and_maintained_in_little_memory(
    make_db: Callable[..., Any], spark: Any, tmp_path: Path
) -> None:
    """Five million joined rows at once take half a gigabyte more than here, where libraries are most of it."""
    with make_db("fan", spark=spark, durability="none") as db:
        fanning_out.make(db)
        db.sql(fanning_out.VIEW)
    url = f"lmdb:{tmp_path / 'fan'}"
    said = run("fanning_out.py", url, "--rows", "17000", "--keys", "1000", "--memory", "128MB", most=350)
    assert [line.split()[0] for line in said.splitlines()] == ["rebuild", "driver"]
    with vk.open(url, spark=spark) as db:
        assert db.audit().differences == 0


MILLIONS = 5_000_000
CALLS = {"one": MILLIONS, "many": 250_000}


@pytest.mark.deep
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("calls", CALLS)
def test_five_million_changes_under_a_gigabyte(tmp_path: Path, calls: str) -> None:
    """Of eight million rows. One call cannot be cut, and the view that it changes most has as many rows as it: LMDB
    writes them in one transaction, which holds half a gigabyte of changed pages."""
    url = f"lmdb:{tmp_path / 'many'}"
    rows = 8 * MILLIONS // 5
    run("many_changes.py", "make", url, "--rows", str(rows), "--memory", "1GB", most=1_900)
    run("many_changes.py", "put", url, "--rows", str(MILLIONS), "--at-once", str(CALLS[calls]), most=2_500)
    said = run("many_changes.py", "refresh", url, "--memory", "1GB", most=1_150)
    assert "in the lane driver" in said
    with vk.open(url, mode="r") as db:
        # Too many rows for Spark here; the values are those that the generators draw.
        values = np.concatenate(
            [many_changes.values(MILLIONS, CALLS[calls], 2), many_changes.values(rows, 250_000, 1)[MILLIONS:]]
        )
        groups = np.arange(rows) % many_changes.GROUPS
        sums = np.bincount(groups, values, many_changes.GROUPS).astype(np.int64)
        found = db.read("grouped").sort_by("g")
        assert found["s"].to_numpy().tolist() == sums.tolist()
        assert db.read("named").group_by([]).aggregate([("t", "sum"), ("n", "sum")]).to_pylist() == [
            {"t_sum": int(values.sum()), "n_sum": rows}
        ]
        assert db.read("chosen").num_rows == int((values > 990).sum())


@pytest.mark.deep
@pytest.mark.timeout(7_200)
def test_five_million_changed_rows_of_a_view_on_spark_leave_the_driver_small(tmp_path: Path) -> None:
    """Of eight million. Tasks resolve them and leave them in files. The driver's JVM has a heap of less than a
    gigabyte; its Python puts the rows into LMDB, in one transaction, whose changed pages are most of what it holds."""
    url = f"lmdb:{tmp_path / 'every'}"
    rows, changes = 8 * MILLIONS // 5, MILLIONS + MILLIONS // 500  # of which one in a thousand draws what it had
    run("many_changes.py", "make", url, "--every", "--rows", str(rows), "--memory", "1GB", most=2_500)
    run("many_changes.py", "put", url, "--rows", str(changes), "--at-once", str(changes), most=2_500)
    environment = {"PYSPARK_PYTHON": sys.executable}
    found = peak("many_changes.py", "refresh", url, "--memory", "1GB", "--heap", "900m", most=6_000, **environment)
    told = re.search(r"^1 batches, the last of (\d+) changes in the lane spark$", found.output, re.MULTILINE)
    assert told is not None, found.output[-500:]
    assert int(told[1]) >= MILLIONS
    assert found.own < 1_000
    with vk.open(url, mode="r") as db:
        kept = db.read("every", columns=["k", "v"])
        values = many_changes.values(rows, many_changes.AT_ONCE, 1)
        values[:changes] = many_changes.values(changes, changes, 2)
        assert np.array_equal(kept["k"].to_numpy(), np.arange(rows))
        assert np.array_equal(kept["v"].to_numpy(), values)


@pytest.fixture(scope="module")
def tpcds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of scale 0.01; VK_TPCDS names a directory that keeps them from run to run."""
    from viewkeeper.workloads.tpcds.data import generate

    return generate(0.01, Path(os.environ.get("VK_TPCDS") or tmp_path_factory.mktemp("tpcds")))


@pytest.mark.deep
@pytest.mark.timeout(7_200)
def test_the_join_that_multiplies_most_in_tpc_ds_is_loaded_within_two_gigabytes(tmp_path: Path, tpcds: Path) -> None:
    """Query 72 took 18.5 GB."""
    url = f"lmdb:{tmp_path / 'q72'}"
    run("yardsticks.py", "load", "tpcds", str(tpcds), url, "--views", "72", most=2_000)
    run("yardsticks.py", "create", "tpcds", str(tpcds), url, "--views", "72", "--memory", "1GB", most=2_000)


@pytest.mark.deep
@pytest.mark.timeout(14_400)
def test_batches_of_all_tpc_ds_views_stay_within_four_gigabytes(tmp_path: Path, tpcds: Path, spark: Any) -> None:
    """1.5 % of each of the 24 tables change, twice; the second batch took more than 12 GB."""
    url = f"lmdb:{tmp_path / 'ds'}"
    run("yardsticks.py", "load", "tpcds", str(tpcds), url, most=4_000)
    run("yardsticks.py", "create", "tpcds", str(tpcds), url, "--memory", "2GB", most=4_000)
    for batch in ("1", "2"):
        run("yardsticks.py", "change", "tpcds", str(tpcds), url, "--batch", batch, most=4_000)
        run("yardsticks.py", "refresh", "tpcds", str(tpcds), url, "--memory", "2GB", most=4_000)
    model, oracle = yardsticks.model_of("tpcds", tpcds), SparkOracle(spark)
    try:
        for _ in range(2):
            model.apply(model.batch())
        oracle.load(model, list(model.schemas))
        views = yardsticks.chosen("tpcds")
        with vk.open(url, mode="r") as db:
            for view, expected in oracle.answers(views):
                near = is_order_dependent(views[view])
                assert find_differences(view, 2, expected, db.read(view), view_key(db, view), approximate=near) == []
    finally:
        oracle.close()
        model.close()


@pytest.mark.deep
@pytest.mark.timeout(7_200)
def test_the_tpc_h_views_at_scale_one_are_loaded_within_four_gigabytes(tmp_path: Path) -> None:
    """VK_TPCH names a directory that keeps the files from run to run."""
    from viewkeeper.workloads.tpch.changes import generate

    files, url = str(generate(1, Path(os.environ.get("VK_TPCH") or tmp_path))), f"lmdb:{tmp_path / 'h'}"
    run("yardsticks.py", "load", "tpch", files, url, most=6_000)
    said = run("yardsticks.py", "create", "tpch", files, url, "--memory", "2GB", most=4_000)
    assert said.count("loaded in") == 22


@pytest.mark.deep
@pytest.mark.timeout(3_600)
def test_two_hundred_million_joined_rows_under_a_gigabyte(tmp_path: Path, spark: Any) -> None:
    """CREATE with its JVM, and a batch that fans out."""
    url = f"lmdb:{tmp_path / 'fan'}"
    run("fanning_out.py", url, "--create", "--rows", "100000", "--keys", "2200", "--memory", "1GB", most=1_700)
    with vk.open(url, mode="r", spark=spark) as db:
        # Too many rows for Spark to join here: what a key of b joins is what its key has in a and in c.
        a, b, c = (db.read(t) for t in "abc")
        counted = [t.group_by(f"{n}_k").aggregate([([], "count_all")]) for n, t in zip("abc", (a, b, c), strict=True)]
        by_key = [dict(zip(*(t[c].to_pylist() for c in t.column_names), strict=True)) for t in counted]
        wanted = sum(x * by_key[1].get(k, 0) * by_key[2].get(k, 0) for k, x in by_key[0].items())
        assert sum(db.read("fanned")["n"].to_pylist()) == wanted > 200_000_000
