"""How Spark starts for a command, and how it does not: a wrong master, a start that is broken off, no executors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from viewkeeper.cli import progress
from viewkeeper.errors import MissingDependency
from viewkeeper.spark import session

VK = [sys.executable, "-m", "viewkeeper"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A database with a table, and a mark by which processes are known again."""
    env = {**os.environ, "VIEWKEEPER_DB": f"lmdb:{tmp_path / 'db'}", "VK_TEST_MARK": str(tmp_path)}
    create = "CREATE TABLE t (id BIGINT, x INT, PRIMARY KEY (id))"
    subprocess.run([*VK, "sql", create], env=env, check=True, timeout=60)
    return env


def test_an_address_where_no_master_listens_is_refused_at_once() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(MissingDependency, match=address):
            session(address)
    with pytest.raises(MissingDependency, match="spark://HOST:PORT"):
        session("spark://nowhere")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("master", "said"), [("foo", "Master must either be"), ("local[foo]", "Could not parse Master URL")]
)
def test_a_master_that_is_none_is_one_line(env: dict[str, str], master: str, said: str) -> None:
    command = [*VK, "refresh", "--master", master]
    refused = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert refused.stderr.startswith("error[VK505]: Spark could not be started: ")
    assert said in refused.stderr


def marked(mark: str) -> list[str]:
    """The command lines of this test's processes that run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"VK_TEST_MARK={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:  # ended meanwhile
            continue
    return found


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_ctrl_c_while_the_jvm_is_launched_leaves_none(env: dict[str, str]) -> None:
    create = "CREATE MATERIALIZED VIEW v AS SELECT x, count(*) AS n FROM t GROUP BY x"
    process = subprocess.Popen([*VK, "sql", create], env=env, start_new_session=True)
    try:
        deadline = time.monotonic() + 180
        while not any("SparkSubmit" in line for line in marked(env["VK_TEST_MARK"])):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=180) == 130
        deadline = time.monotonic() + 180
        while left := marked(env["VK_TEST_MARK"]):
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()


class Cluster:
    """A session's context on a cluster that has so many executors and runs jobs."""

    def __init__(self, workers: int) -> None:
        self.master = "spark://somewhere:7077"
        status = SimpleNamespace(size=lambda: 1 + workers)
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: status))

    def statusTracker(self) -> Any:
        return SimpleNamespace(getActiveJobsIds=lambda: [1])


@pytest.mark.parametrize(("workers", "lines"), [(0, 1), (2, 0)])
def test_who_waits_for_executors_is_told_so_once(workers: int, lines: int, tmp_path: Path) -> None:
    told = tmp_path / "told"
    screen = os.open(told, os.O_WRONLY | os.O_CREAT)
    progress._watch_executors(Cluster(workers), screen, 0.002, 0.001)
    assert told.read_text().count("\n") == lines
    assert ("spark://somewhere:7077" in told.read_text()) == bool(lines)
