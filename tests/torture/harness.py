"""The ledger of faults, how a victim's end is read, and how a sleeping Spark worker is found.

`VK_PROFILE=deep` (`make torture`) injects every fault many times; without it each is injected at least once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import shop

DEEP = os.environ.get("VK_PROFILE") == "deep"


@dataclass
class Ledger:
    """Fault → [times injected, batches checked, differences]."""

    rows: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))

    def count_injection(self, fault: str, times: int = 1) -> None:
        self.rows[fault][0] += times

    def check(self, fault: str, db: Any) -> None:
        """Every view of the database against recompute, at its published batch."""
        wrong = shop.differences(db)
        self.rows[fault][1] += 1
        self.rows[fault][2] += len(wrong)
        assert wrong == [], f"{fault}: {wrong} differ from recompute"


def killed(process: subprocess.Popen[str], timeout: float = 240) -> bool:
    """Wait for its end: whether it was killed. Any other end than that and success is an error of the test."""
    _, errors = process.communicate(timeout=timeout)
    assert process.returncode in (0, -signal.SIGKILL), errors[-3000:]
    return process.returncode != 0


def asleep(marker: Path, running: subprocess.Popen[str] | None = None, seconds: float = 240) -> int:
    """The process that stopped itself at its armed point, having made the file `once`.

    The file tells it from one that somebody else has stopped, and keeps it asleep when somebody else continues it.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if marker.exists():
            for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()):
                if state(pid) == "T" and f"VK_CRASH_ONCE={marker}\0".encode() in _seen(pid, "environ"):
                    return pid
        elif running is not None and running.poll() is not None:
            raise AssertionError(f"it ended, and nobody slept: {running.communicate()[1][-3000:]}")
        time.sleep(0.02)
    raise AssertionError("nobody went to sleep")


def state(pid: int) -> str:
    """The letter that the kernel has for what a process does; none if there is no such process."""
    return (_seen(pid, "stat").decode(errors="replace").rpartition(")")[2].split() or [""])[0]


def executor_of(pid: int) -> int:
    """The JVM of the executor to which a Python worker belongs."""
    while pid > 1:
        if b"CoarseGrainedExecutorBackend" in _seen(pid, "cmdline"):
            return pid
        pid = int(_seen(pid, "stat").decode(errors="replace").rpartition(")")[2].split()[1])
    raise AssertionError("no executor above it")


def wake(pid: int, marker: Path, seconds: float = 60) -> None:
    """Let a sleeper go on, and wait until it is gone or idle (Spark keeps its workers)."""
    marker.write_text("awake")
    deadline = time.monotonic() + seconds
    while state(pid) not in ("", "Z", "S") and time.monotonic() < deadline:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.02)


def _seen(pid: int, what: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{what}").read_bytes()
    return b""
