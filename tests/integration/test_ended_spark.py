"""A local Spark that runs out of memory, or is ended in the midst of an audit: one error, and the next call works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

import viewkeeper as vk
from viewkeeper.errors import OutOfMemory, StoreError
from viewkeeper.read.audit import audit

with vk.open(f"lmdb:{sys.argv[1]}/db") as db:
    db.sql("CREATE TABLE t (k BIGINT, s STRING, PRIMARY KEY (k))")
    db.put("t", [{"k": k, "s": "abc"} for k in range(3)])
    try:
        db.sql("SELECT length(repeat(s, 700000000)) AS n FROM t", engine="spark")
    except OutOfMemory as error:
        print(error)
    db.sql("CREATE MATERIALIZED VIEW counts AS SELECT s, count(*) AS n FROM t GROUP BY s")
    assert db.read("counts").to_pylist() == [{"s": "abc", "n": 3}]

    def killed(*_):
        from pyspark import SparkContext

        SparkContext._gateway.proc.kill()
        SparkContext._gateway.proc.wait()
        raise EOFError

    audit._compare_view = killed
    try:
        db.audit()
    except StoreError as error:
        print(error)
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_local_spark_that_ended_is_one_error_and_the_next_call_works(tmp_path: Path) -> None:
    small = {**os.environ, "SPARK_DRIVER_MEMORY": "600m"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ran = subprocess.run(command, env=small, capture_output=True, text=True, timeout=280)
    told = [line for line in ran.stdout.splitlines() if line.startswith("[VK")]
    assert ran.returncode == 0, ran.stderr
    assert told[0].startswith("[VK503] Spark's JVM has ended: it ran out of memory. Give Spark's JVM more memory")
    assert told[1].startswith("[VK503] Spark's JVM has ended (exit code -9).")
    assert "Traceback" not in ran.stderr
