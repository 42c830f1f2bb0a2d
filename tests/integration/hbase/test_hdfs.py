"""State on a real HDFS: batches, successors without copies after SIGKILLs, a file system that is away or is killed.

Who maintains is a process of its own: libhdfs brings a JVM into it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("thriftpy2")

from tests.contract.small_hbase import SmallHBase
from tests.hdfs import Hdfs, hdfs

__all__ = ["hdfs"]
pytestmark = [pytest.mark.deep, pytest.mark.slow, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).with_name("state_elsewhere.py")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def url(hdfs: Hdfs, tmp_path: Path) -> Iterator[str]:
    server = SmallHBase()
    options = f"create=true&lease=1&retries=1&state={hdfs.url}/{tmp_path.name}"
    yield f"hbase://{server.host}:{server.port}/shop?{options}"
    server.close()


def maintainer(hdfs: Hdfs, url: str, first: int, last: int, cache: Path) -> subprocess.Popen[str]:
    env = {**os.environ, **hdfs.settings, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(PROGRAM), url, str(first), str(last)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def done(process: subprocess.Popen[str]) -> list[int]:
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]
    return [int(line) for line in out.split()]


def test_batches_with_state_on_hdfs(hdfs: Hdfs, url: str, tmp_path: Path) -> None:
    assert done(maintainer(hdfs, url, 0, 9, tmp_path / "a")) == list(range(10))
    assert done(maintainer(hdfs, url, 10, 12, tmp_path / "b")) == [10, 11, 12], "a successor that has no copies"


def test_maintainers_are_killed(hdfs: Hdfs, url: str, tmp_path: Path) -> None:
    assert done(maintainer(hdfs, url, 0, 0, tmp_path / "first")) == [0]
    step = 1
    for turn in range(5):
        with maintainer(hdfs, url, step, 1_000, tmp_path / f"cache{turn}") as process:
            assert process.stdout is not None
            for line in process.stdout:
                step = int(line) + 1
                if step % 3 == 0:
                    break
            time.sleep(0.01 * turn)  # somewhere in the next batch
            process.kill()
        step += 1
    assert done(maintainer(hdfs, url, step, step + 1, tmp_path / "last")) == [step, step + 1]


def test_a_file_system_that_is_away_and_one_that_is_killed(hdfs: Hdfs, url: str, tmp_path: Path) -> None:
    assert done(maintainer(hdfs, url, 0, 1, tmp_path / "a")) == [0, 1]
    with maintainer(hdfs, url, 2, 8, tmp_path / "a") as process:
        assert process.stdout is not None
        assert next(iter(process.stdout)) == "2\n"
        with hdfs.pause():
            time.sleep(10)
        assert done(process) == [3, 4, 5, 6, 7, 8]
    hdfs.run("kill")
    failed = maintainer(hdfs, url, 9, 9, tmp_path / "b")
    failed.communicate(timeout=600)
    assert failed.returncode != 0, "there is no state to read"
    hdfs.run("start")
    assert done(maintainer(hdfs, url, 10, 12, tmp_path / "c")) == [10, 11, 12]
