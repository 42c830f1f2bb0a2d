"""A distributed HBase for tests: two region servers, by `tools/hbase-cluster`.

VK_HBASE_CLUSTER: the directory of one that runs, which is used as it is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from viewkeeper_hbase.devserver.server import HOST

TOOL = Path(__file__).parents[3] / "tools" / "hbase-cluster"


class Cluster:
    """A running one, by its tool."""

    host = HOST

    def __init__(self, data: Path, root: str | None = None) -> None:
        self.data = data
        self._env = {**os.environ, "HBASE_CLUSTER_DIR": str(data)} | ({"HBASE_CLUSTER_ROOT": root} if root else {})

    @property
    def port(self) -> int:
        return int(json.loads((self.data / "ports.json").read_text())["gateway"])

    def run(self, *arguments: str, stdin: str = "") -> str:
        command = [sys.executable, str(TOOL), *arguments]
        done = subprocess.run(
            command, env=self._env, input=stdin, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def kill(self, name: str) -> None:
        """As `run("kill", name)`, at once."""
        os.kill(json.loads((self.data / f"{name}.process").read_text())["pid"], signal.SIGKILL)

    def region_server_of(self, region: str) -> str:
        """The region server that has a region, by the tool's name for it."""
        port = int(region.split(",")[1])
        known: dict[str, int] = json.loads((self.data / "ports.json").read_text())
        return next(name for name, taken in known.items() if taken == port)


@contextmanager
def started(place: Path, root: str | None = None) -> Iterator[Cluster]:
    """Two region servers, whose files are below `root` (a directory in `place` if nothing is said)."""
    given = os.environ.get("VK_HBASE_CLUSTER")
    found = Cluster(Path(given) if given else place, root)
    found.run("start", "2")
    try:
        yield found
    finally:
        if not given:
            found.run("stop")
