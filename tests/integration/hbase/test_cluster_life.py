"""All of it distributed and real: a Spark cluster whose workers share no disk with it, state in an object store,
an HBase of two region servers on HDFS. Parts are killed, away or new in the middle of batches, attempts are doubled.

VK_TPCH: a directory that keeps TPC-H's files.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("thriftpy2")

from tests import clusters, objects
from tests.hdfs import Hdfs, hdfs
from tests.integration.hbase.distributed import Cluster, started

from viewkeeper.runtime.spark.sessions import MACHINE_VARIABLE

__all__ = ["hdfs"]
pytestmark = [pytest.mark.slow, pytest.mark.hbase, pytest.mark.deep, pytest.mark.timeout(3600)]

PROGRAM = Path(__file__).with_name("cluster_life.py")
SETTINGS = [
    "spark.driver.host=127.0.0.1",
    "spark.driver.memory=600m",
    "spark.ui.enabled=false",
    "spark.executor.memory=600m",
    "spark.viewkeeper.rowsPerTask=100",
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.minTaskRuntime=200ms",
    "spark.speculation.multiplier=1.5",
]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[objects.ObjectStore]:
    with objects.serve(tmp_path, monkeypatch.setenv) as found:
        yield found


@pytest.fixture
def cluster(hdfs: Hdfs, tmp_path: Path) -> Iterator[Cluster]:
    with started(tmp_path / "hbase", f"{hdfs.url}/hbase") as found:
        yield found


def test_parts_come_and_go_in_the_middle_of_batches(
    store: objects.ObjectStore, cluster: Cluster, tmp_path: Path
) -> None:
    elsewhere = {MACHINE_VARIABLE: "workers", "XDG_CACHE_HOME": str(tmp_path / "workers")}
    name = f"life_{secrets.token_hex(4)}"
    url = f"hbase://{cluster.host}:{cluster.port}/{name}?create=true&state=s3://viewkeeper/{name}"
    data = os.environ.get("VK_TPCH") or str(tmp_path / "data")
    struck: list[str] = []

    def object_store_is_away() -> None:
        with store.pause():
            struck.append("object store")
            time.sleep(10)

    def region_server_dies() -> None:
        cluster.kill("server1")
        struck.append("region server")

    def region_server_is_back() -> None:
        struck.append("region server back")
        cluster.run("up", "server1")

    def worker_dies_and_another_joins() -> None:
        worker = int((tmp_path / "spark" / "worker2.pid").read_text())
        executor = subprocess.run(["pgrep", "-P", str(worker)], capture_output=True, text=True, check=True).stdout
        for process in (*map(int, executor.split()), worker):
            os.kill(process, signal.SIGKILL)
        struck.append("worker")
        subprocess.run([str(clusters.TOOL), "add", "3"], env=env, check=True, timeout=400)

    def nothing() -> None:
        struck.append("nothing")

    troubles: list[Callable[[], None]] = [
        nothing,
        region_server_dies,
        object_store_is_away,
        worker_dies_and_another_joins,
        region_server_is_back,
        nothing,
    ]
    with clusters.started(tmp_path / "spark", **elsewhere) as env:
        command = [sys.executable, str(PROGRAM), env["MASTER"], url, data, str(len(troubles)), *SETTINGS]
        program = dict(os.environ) | {"PYSPARK_PYTHON": sys.executable}
        errors = tmp_path / "errors"
        with (
            errors.open("w") as stderr,
            subprocess.Popen(command, env=program, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
        ):
            assert process.stdout is not None
            lines: list[str] = []
            begun: list[threading.Thread] = []
            for line in process.stdout:
                lines.append(line)
                print(line, end="", flush=True)
                if line == "begins\n":
                    time.sleep(0.3)  # into the batch
                    begun.append(threading.Thread(target=troubles[len(begun)]))
                    begun[-1].start()
                elif begun and line.startswith(f"batch {len(begun)}: ") and "changes" in line:
                    assert len(struck) == len(begun), "the batch was over before it was struck"
            for one in begun:
                one.join()
        assert process.returncode == 0, errors.read_text()[-3000:]
        assert len(begun) == len(troubles)
        assert lines[-1] == "3 views equal after each batch\n"
