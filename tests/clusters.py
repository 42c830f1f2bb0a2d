"""A Spark cluster for tests: a master and two workers on loopback, from the pip package."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "cluster"


@contextmanager
def started(place: Path, **extra_environment: str) -> Iterator[dict[str, str]]:
    """The environment in which `tools/cluster` speaks of one running cluster; its URL under MASTER. `more` variables
    reach its workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "CLUSTER_DIR": str(place),
        "CLUSTER_PORT": str(port),
        "PYTHON": sys.executable,
        **extra_environment,
    }
    try:
        begun = subprocess.run(
            [str(TOOL), "start", "2"], env=env, check=True, capture_output=True, text=True, timeout=400
        )
        yield env | {"MASTER": begun.stdout.strip()}
    finally:
        subprocess.run([str(TOOL), "stop"], env=env, check=True, timeout=60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with started(tmp_path_factory.mktemp("cluster")) as env:
        yield env
