"""The anonymous memory of a process and all its children: what no file is behind, so that the kernel cannot drop it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 0.05


@dataclass(frozen=True)
class Peak:
    """The most that was seen, in MB: of all together, of JVMs among them, and of the program by itself."""

    total: int
    java: int
    own: int
    output: str


def watched(
    command: Sequence[str], limit_mb: int, environment: Mapping[str, str] | None = None, timeout: float = 3_000
) -> Peak:
    """Run a program to its end, watching its memory; beyond `most` MB it is killed, and that is the test's failure."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    together = java = own = 0
    deadline = time.monotonic() + timeout
    try:
        while process.poll() is None:
            sizes = [_size(pid) for pid in _tree(process.pid)]
            together = max(together, sum(size for size, _ in sizes))
            java = max(java, sum(size for size, is_java in sizes if is_java))
            own = max(own, sizes[0][0])
            assert together <= limit_mb, f"{together} MB of {limit_mb} MB, {java} MB of them Java's"
            assert time.monotonic() < deadline, f"not done after {timeout} s"
            time.sleep(_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
    assert process.returncode == 0, output[-3_000:]
    return Peak(together, java, own, output)


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _size(pid: int) -> tuple[int, bool]:
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return int(fields["RssAnon"].split()[0]) // 1024 if "RssAnon" in fields else 0, "java" in fields["Name"]
    return 0, False
