"""Whether the processors of this machine are all needed: a batch takes nothing from writers that wait for none.

The kernel counts in hundredths of a second, so a share is told of half a second at least.
"""

from __future__ import annotations

import time
from pathlib import Path

_WINDOW = 0.5
_COUNTS_FILE = Path("/proc/stat")
"""Its first line: "cpu", then hundredths of a second: user, nice, system, idle, waiting for disks, ..."""


class CpuUsage:
    """Those of this machine. `idle`: the share of their time that nobody needed; 0 where the system does not tell."""

    def __init__(self, counts_file: Path = _COUNTS_FILE) -> None:
        self._counts_file = counts_file
        self._sampled_at = time.monotonic()
        self._last_counts = self._read_counts()
        self.idle = 0.0

    def sample_idle(self, *, window: float = _WINDOW) -> float:
        """`idle` as of the last window of time that is over."""
        if time.monotonic() - self._sampled_at >= window:
            self._sampled_at = time.monotonic()
            before, self._last_counts = self._last_counts, self._read_counts()
            free, all_of_it = (now - then for now, then in zip(self._last_counts, before, strict=True))
            self.idle = free / all_of_it if all_of_it > 0 else 0.0
        return self.idle

    def _read_counts(self) -> tuple[int, int]:
        """Hundredths of a second without work, and all."""
        try:
            with self._counts_file.open("rb", buffering=0) as file:
                spent = [int(count) for count in file.read(256).split(b"\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return 0, 0
        return sum(spent[3:5]), sum(spent)
