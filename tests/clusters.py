"""A Spark cluster for tests: a master and two workers on loopback, from the pip package."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which `tools/cluster` speaks of one running cluster; its URL under MASTER."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = tmp_path_factory.mktemp("cluster")
    env = {**os.environ, "CLUSTER_DIR": str(place), "CLUSTER_PORT": str(port), "PYTHON": sys.executable}
    command = [str(Path(__file__).parents[1] / "tools" / "cluster")]
    try:
        started = subprocess.run(
            [*command, "start", "2"], env=env, check=True, capture_output=True, text=True, timeout=400
        )
        yield env | {"MASTER": started.stdout.strip()}
    finally:
        subprocess.run([*command, "stop"], env=env, check=True, timeout=60)
