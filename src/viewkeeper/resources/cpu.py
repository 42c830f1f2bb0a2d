"""Idle share of this machine's processors. Continuous maintenance pauses less between batches while they are idle.

The kernel counts in hundredths of a second, so the idle share is computed over windows of at least half a second.
"""

from __future__ import annotations

import time
from pathlib import Path

_WINDOW = 0.5
_COUNTS_FILE = Path("/proc/stat")
"""The file's first line: "cpu", then hundredths of a second: user, nice, system, idle, waiting for disks, ..."""


class CpuUsage:
    """CPU usage of this machine. `idle` is the idle share of its processor time; 0 if the system does not report it."""

    def __init__(self, counts_file: Path = _COUNTS_FILE) -> None:
        self._counts_file = counts_file
        self._sampled_at = time.monotonic()
        self._last_counts = self._read_counts()
        self.idle = 0.0

    def sample_idle(self, *, window: float = _WINDOW) -> float:
        """Update `idle` if the current window has ended, and return it."""
        if time.monotonic() - self._sampled_at >= window:
            self._sampled_at = time.monotonic()
            previous, self._last_counts = self._last_counts, self._read_counts()
            free, total = (now - then for now, then in zip(self._last_counts, previous, strict=True))
            self.idle = free / total if total > 0 else 0.0
        return self.idle

    def _read_counts(self) -> tuple[int, int]:
        """Return the idle and the total processor time, in hundredths of a second."""
        try:
            with self._counts_file.open("rb", buffering=0) as file:
                counts = [int(count) for count in file.read(256).split(b"\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return 0, 0
        return sum(counts[3:5]), sum(counts)
