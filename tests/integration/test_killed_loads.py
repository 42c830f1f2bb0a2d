"""A first load on Spark whose driver is killed, with its JVM and its workers: what tasks had read is not read again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.load_on_spark import ROWS
from tests.torture.harness import asleep

import viewkeeper as vk

pytestmark = [pytest.mark.deep, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("load_on_spark.py")


def begun(url: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), url],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[2]), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_load_on_spark_that_is_killed_goes_on_with_the_parts_it_had(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path / 'db'}"
    with vk.open(url) as db:
        db.sql("CREATE TABLE items (id BIGINT, kind INT, price INT, PRIMARY KEY (id))")
        db.put("items", [{"id": n, "kind": n % 7, "price": n % 90} for n in range(ROWS)])
    once = tmp_path / "struck"
    killed = begun(url, VK_STOP_AT="load.part.after", VK_CRASH_ONCE=str(once))
    try:
        asleep(once, killed)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    with vk.open(url) as db:
        assert not db.status().views
        db.put("items", [{"id": n, "kind": n % 5, "price": 1} for n in range(0, ROWS + 600, 100)])
        db.delete("items", [5, 6, ROWS - 1])
    again = begun(url)
    said, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors[-3000:]
    had = re.search(r"resuming items: (\d+) of", said)
    assert had is not None, said
    assert 0 < int(had[1]) < ROWS
    assert "differences 0" in said
    with vk.open(url) as db:
        assert sum(row["n"] for row in db.read("totals").to_pylist()) == ROWS + 6 - 3
