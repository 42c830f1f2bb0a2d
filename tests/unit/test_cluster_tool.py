"""`tools/cluster` and the processes that its pid files name: those of a cluster, and others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "cluster"


def cluster(place: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Without a Python: whatever gets as far as to need one fails."""
    env = {**os.environ, "CLUSTER_DIR": str(place), "PYTHON": "/bin/false"}
    return subprocess.run([str(TOOL), command], env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """One that waits, under the given name."""
    with subprocess.Popen(["bash", "-c", f"exec -a {request.param} sleep 600"]) as waits:
        try:
            yield waits
        finally:
            waits.kill()


@pytest.mark.parametrize("process", ["org.apache.spark.deploy.master.Master"], indirect=True)
def test_a_second_start_is_refused_and_changes_nothing(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "master.pid").write_text(f"{process.pid}\n")
    while b"deploy" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
        assert process.poll() is None
    refused = cluster(tmp_path, "start")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert "runs already" in refused.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["master.pid"]
    assert process.poll() is None
    assert cluster(tmp_path, "stop").returncode == 0
    process.wait(timeout=60)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("process", ["somebody-else"], indirect=True)
def test_the_pid_of_a_cluster_that_is_gone_is_no_obstacle(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    for command in ("start", "stop"):
        (tmp_path / "master.pid").write_text(f"{process.pid}\n")
        (tmp_path / "worker1.pid").write_text("99999999\n")
        assert "runs already" not in cluster(tmp_path, command).stderr
        assert not list(tmp_path.glob("*.pid"))
    assert process.poll() is None
