"""`vk verify tpcds`: every view equal to Spark's own answer after every batch of changes on all tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from viewkeeper.cli import main
from viewkeeper.errors import MissingDependency
from viewkeeper.verify.benchmark_check import SparkOracle, mentioned_tables
from viewkeeper.workloads.tpcds import QUERIES, SCHEMAS
from viewkeeper.workloads.tpcds.changes import TpcdsModel, references
from viewkeeper.workloads.tpcds.data import columns_of, generate

Verify = Callable[..., tuple[int, str]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files are; VK_TPCDS names a directory that keeps them from run to run."""
    place = Path(os.environ.get("VK_TPCDS") or tmp_path_factory.mktemp("tpcds"))
    try:
        generate(0.001, place)
    except MissingDependency as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    return place


@pytest.fixture
def verify(data: Path, spark: Any, capsys: pytest.CaptureFixture[str]) -> Verify:
    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as done:
            main(["verify", "tpcds", "--data", str(data), *arguments])
        said = capsys.readouterr()
        print(said.err)
        return int(done.value.code or 0), said.out

    return run


@pytest.fixture
def verify_apart(data: Path) -> Verify:
    """In a process with a Spark of its own, as a user would: that of the tests has little memory."""

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "viewkeeper", "verify", "tpcds", "--data", str(data), *arguments]
        told = subprocess.run(command, env={**os.environ, "SPARK_DRIVER_MEMORY": "3g"}, capture_output=True, text=True)
        print(told.stderr[-5000:])
        return told.returncode, told.stdout

    return run


@pytest.fixture
def model(data: Path) -> Iterator[TpcdsModel]:
    made = TpcdsModel(generate(0.001, data), seed=3)
    yield made
    made.close()


def test_a_few_views_equal_spark_after_a_batch(verify: Verify) -> None:
    code, out = verify("--scale", "0.001", "--batches", "1", "--views", "3,37,52,93", "--lane", "driver")
    assert code == 0
    assert "4 views equal to Spark's answer after each of 1 batches" in out


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_all_views_equal_spark_after_every_batch(verify_apart: Verify, seed: str) -> None:
    code, out = verify_apart("--scale", "0.01", "--batches", "3", "--seed", seed, "--lane", "driver")
    assert code == 0
    assert out.count(f"{len(QUERIES)} views equal") == 5  # after the first load, after each batch, and at the end


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_views_of_each_kind_equal_spark_in_its_lane(verify_apart: Verify) -> None:
    """Correlated subqueries, windows, rollups, set operations, outer joins, deviations."""
    views = "1,5,14,17,23,36,39,47,51,67,75,78,87,97"
    code, out = verify_apart("--scale", "0.01", "--batches", "2", "--lane", "spark", "--views", views)
    assert code == 0
    assert out.count(" spark lane") == 2


OUT_OF_MEMORY = """
from viewkeeper.errors import OutOfMemory
from viewkeeper.plan.catalyst.jvm import local_spark
from viewkeeper.verify.benchmark_check import SparkOracle

oracle = SparkOracle(local_spark())
endless = {v: f"SELECT {v} AS v, collect_list(repeat(id, 99)) AS rows FROM range(0, 1000000000, 1, 1)" for v in (1, 2)}
try:
    list(oracle.answers(endless))
except OutOfMemory as error:
    print(error.code, error)
"""


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_a_spark_that_runs_out_of_memory_is_an_error_and_no_wait() -> None:
    small = {**os.environ, "SPARK_DRIVER_MEMORY": "600m"}
    told = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], env=small, capture_output=True, text=True, timeout=500)
    assert "[VK503] Spark's JVM has ended" in told.stdout, told.stdout + told.stderr


def test_the_queries_name_all_tables_and_each_has_one_order_under_its_limit(model: TpcdsModel, spark: Any) -> None:
    assert (len(SCHEMAS), len(QUERIES)) == (24, 103)
    assert mentioned_tables(SCHEMAS, dict(QUERIES)) == list(SCHEMAS)
    oracle = SparkOracle(spark)
    oracle.load(model, ["date_dim", "time_dim", "store"])
    text = "SELECT d_year, max(d_moy) AS m FROM date_dim GROUP BY d_year ORDER BY (d_year % (7 - 1)) LIMIT 3"
    assert oracle.complete_order(text).endswith("ORDER BY (d_year % (7 - 1)), 1, 2 LIMIT 3")
    ranked = "SELECT rank() OVER (ORDER BY s_store_sk) AS r FROM store\nLIMIT 1"
    assert (
        oracle.complete_order(ranked) == "SELECT rank() OVER (ORDER BY s_store_sk) AS r FROM store ORDER BY 1 LIMIT 1"
    )
    assert oracle.complete_order("SELECT 1 AS limit_1") == "SELECT 1 AS limit_1"
    oracle.close()


def test_a_batch_changes_every_table_in_three_ways(model: TpcdsModel) -> None:
    before = {table: model.table(table) for table in SCHEMAS}
    first, second = [], []
    for batch in (first, second):
        batch.extend(model.batch())
        model.apply(batch)
    for table in SCHEMAS:
        key = list(model.keys[table])
        puts = next(c.puts for c in first if c.table == table and c.puts is not None)
        assert puts.column_names == list(columns_of(table))
        assert puts.group_by(key).aggregate([]).num_rows == puts.num_rows, f"{table}: a key twice"
        known = before[table].select(key)
        updated = puts.join(known, keys=key, join_type="left semi").num_rows
        assert 0 < updated < puts.num_rows, f"{table}: {updated} of {puts.num_rows} are updates"
        assert any(c.deletes is not None and c.deletes.num_rows for c in second if c.table == table), table
        assert model.count(table) > 0
    stores = {c.table: c.puts for c in first if c.puts is not None}
    opened = pc.greater(stores["store"]["s_store_sk"], pc.max(before["store"]["s_store_sk"]))
    new = stores["store"].filter(opened)["s_store_sk"]
    assert pc.any(pc.is_in(stores["store_sales"]["ss_store_sk"], new.combine_chunks())).as_py(), "it sells at once"


def test_the_same_seed_makes_the_same_changes(data: Path) -> None:
    files = generate(0.001, data)
    models = [TpcdsModel(files, seed=9) for _ in range(2)]
    one, other = (model.batch() for model in models)
    assert [(c.table, c.puts, c.deletes) for c in one] == [(c.table, c.puts, c.deletes) for c in other]
    for model in models:
        model.close()


def test_columns_that_refer_are_known_by_their_names() -> None:
    assert references("inventory", ("inv_date_sk", "inv_item_sk", "inv_warehouse_sk")) == {
        "inv_date_sk": "date_dim",
        "inv_item_sk": "item",
        "inv_warehouse_sk": "warehouse",
    }
    assert references("item", ("i_item_sk",)) == {}
