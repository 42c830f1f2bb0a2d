"""The Spark lane on a standalone cluster of a master and two workers on loopback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyspark
import pytest
from tests import clusters

import viewkeeper
from viewkeeper.runtime.spark.sessions import (
    MACHINE_VARIABLE,
    ReachabilityCheck,
    _ensure_marker,
    check_reachability,
    machine_name,
)

pytestmark = pytest.mark.deep
cluster = clusters.cluster

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("cluster_shop.py")
TOOL = [str(ROOT / "tools" / "cluster")]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1200)  # JVMs start slowly on a busy machine
def test_the_spark_lane_on_a_cluster_and_a_worker_that_is_elsewhere(cluster: dict[str, str], tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path / 'db'}"
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), cluster["MASTER"], url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=cluster,
        )
    assert program.stdout is not None
    assert program.stdin is not None
    told: dict[str, str] = {}

    def hear(last: str) -> None:
        for line in program.stdout or ():
            name, _, value = line.strip().partition(" ")
            told[name] = value
            if name == last:
                return
        raise AssertionError(errors.read_text()[-3000:])

    try:
        hear("executors")
        assert told == {"lane": "spark", "read": "2400 True", "executors": "2"}
        with viewkeeper.open(url, mode="r") as db:
            orders, items, kept = db.read("orders"), db.read("items"), db.read("revenue")
        assert orders.num_rows == 2400
        with duckdb.connect() as fresh:
            fresh.register("orders", orders)
            fresh.register("items", items)
            expected = fresh.sql(
                "SELECT category, count(*), sum(quantity * price) FROM orders JOIN items USING (item_id) GROUP BY 1"
            ).fetchall()
        assert sorted(tuple(r.values()) for r in kept.to_pylist()) == sorted(expected)

        subprocess.run([*TOOL, "add", "3"], env=cluster | {MACHINE_VARIABLE: "elsewhere"}, check=True, timeout=400)
        program.stdin.write("go\n")
        program.stdin.flush()
        hear("refused")
        for name in ("late", "refused"):  # in a session that had looked at its workers before, and in a new one
            assert told[name].startswith("0 batches, [VK302]")
            assert "database of one machine" in told[name]
        assert told["rebuilds"] == "0"
        assert program.wait(timeout=120) == 0
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
        program.stdin.close()
        subprocess.run([*TOOL, "drop", "3"], env=cluster, check=True, timeout=60)  # other tests have none elsewhere


SPARK = Path(pyspark.__file__).parent
AS_JAVA = ["--deploy-mode", "cluster", "--class", "org.apache.spark.deploy.PythonRunner"]
"""Spark's own way to start a Python program: by itself spark-submit does not take it on a standalone cluster."""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("deploy", ["client", "cluster"])
def test_a_command_is_a_spark_application(cluster: dict[str, str], tmp_path: Path, deploy: str) -> None:
    """`spark-submit` runs `vk refresh`, whose batch runs on the cluster that it was submitted to."""
    url = f"lmdb:{tmp_path / 'db'}"
    with viewkeeper.open(url) as db:
        db.sql("CREATE TABLE t (id INT, kind INT, PRIMARY KEY (id))")
        db.sql("CREATE INDEX by_kind ON t (kind)")
        db.put("t", [{"id": n, "kind": n % 3} for n in range(100)])
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "500m",
        "spark.executor.memory": "500m",
        "spark.pyspark.python": sys.executable,
        "spark.standalone.submit.waitAppCompletion": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": tmp_path.as_uri(),
    }
    settings = [word for setting in conf.items() for word in ("--conf", "=".join(setting))]
    command = ["refresh", "--db", url, "--lane", "spark"]
    program = [str(Path(viewkeeper.__file__).parent / "__main__.py")]
    if deploy == "cluster":
        settings += AS_JAVA
        program = [next(map(str, (SPARK / "jars").glob("py4j*.jar"))), *program, ""]
    submit = [str(SPARK / "bin" / "spark-submit"), "--master", cluster["MASTER"]]
    done = subprocess.run(
        [*submit, *settings, *program, *command], env=cluster, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert any('"viewkeeper batch ' in log.read_text() for log in tmp_path.rglob("events*")), "a job of the cluster"
    with viewkeeper.open(url, mode="r") as db:
        assert db.status().lag_changes == 0
    with viewkeeper.open(url) as db:
        assert db.audit().differences == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_on_a_port_that_is_taken_is_refused(cluster: dict[str, str], tmp_path: Path) -> None:
    start = [*TOOL, "start"]
    other = cluster | {"CLUSTER_DIR": str(tmp_path)}
    refused = subprocess.run(start, env=other, capture_output=True, text=True, timeout=400)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert f"port {cluster['CLUSTER_PORT']} is taken" in refused.stderr
    assert not list(tmp_path.glob("*.pid"))


def test_machines_and_directories_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = _ensure_marker(str(tmp_path))
    assert mark == _ensure_marker(str(tmp_path))
    anywhere, here = (
        ReachabilityCheck("url", str(tmp_path), mark, None),
        ReachabilityCheck("url", str(tmp_path), mark, machine_name()),
    )
    assert anywhere.is_reachable()
    assert here.is_reachable()
    assert not ReachabilityCheck("url", str(tmp_path / "absent"), None, None).is_reachable()
    (tmp_path / "another").mkdir()
    assert not ReachabilityCheck("url", str(tmp_path / "another"), mark, None).is_reachable(), (
        "a directory of the same name, made elsewhere"
    )
    monkeypatch.setenv(MACHINE_VARIABLE, "elsewhere")
    assert anywhere.is_reachable()
    assert not here.is_reachable()


def test_a_local_master_is_always_in_reach(spark: Any, db: Any) -> None:
    check_reachability(spark, db._store)
