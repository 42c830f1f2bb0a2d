"""A real HDFS for tests: a NameNode and a DataNode on loopback, from `tools/hdfs`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "hdfs"


class Hdfs:
    """`settings`: with these in its environment a process reaches `url` with pyarrow."""

    def __init__(self, place: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._place = place
        self._env = {**os.environ, "HDFS_DIR": str(place), "HDFS_PORT": str(self.port)}
        self.url = f"hdfs://127.0.0.1:{self.port}"
        self.settings: dict[str, str] = {}

    def run(self, *arguments: str) -> None:
        done = subprocess.run([str(TOOL), *arguments], env=self._env, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-2000:]
        for name, quoted, plain in re.findall(r"(\w+)=(?:'([^']*)'|(\S+))", done.stdout):
            self.settings[name] = quoted or plain

    @contextmanager
    def pause(self) -> Iterator[None]:
        """It answers nobody for this long."""
        process = int((self._place / "pid").read_text())
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    found = Hdfs(tmp_path_factory.mktemp("hdfs"))
    found.run("start")
    yield found
    found.run("stop")
