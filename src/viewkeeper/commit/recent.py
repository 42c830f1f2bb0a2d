"""What the last batches were like: how long, how many rows, how busy. It travels in the batch record, for `status`."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

STAGES = ("capture", "rounds", "commit")
"""What a batch goes through, one batch at a time."""

_KEPT = 256


@dataclass(frozen=True)
class _Done:
    at: float
    seconds: float
    changes: int
    stages: tuple[float, float, float]


class Recent:
    """The last batches of this maintainer."""

    def __init__(self) -> None:
        self._done: deque[_Done] = deque(maxlen=_KEPT)

    def add(self, seconds: float, changes: int, stages: tuple[float, float, float]) -> None:
        """`stages`: seconds spent reading changes, running the rounds, and committing."""
        self._done.append(_Done(time.time(), seconds, changes, stages))

    def summary(self) -> dict[str, Any]:
        """Percentiles of batch time, and rates, as JSON."""
        if not self._done:
            return {}
        seconds = [d.seconds for d in self._done]
        ordered = sorted(seconds)
        p50, p95, p99 = (round(ordered[math.ceil(len(ordered) * p / 100) - 1], 6) for p in (50, 95, 99))
        busy = sum(seconds)
        changes = sum(d.changes for d in self._done)
        span = max(time.time() - self._done[0].at + self._done[0].seconds, busy, 1e-9)
        spent = {name: sum(d.stages[i] for d in self._done) for i, name in enumerate(STAGES)}
        return {
            "batches": len(self._done),
            "p50_seconds": p50,
            "p95_seconds": p95,
            "p99_seconds": p99,
            "changes_per_second": round(changes / span, 1),
            "capacity_per_second": round(changes / max(busy, 1e-9), 1),
            "busy_share": round(busy / span, 4),
            "stages": {
                name: {
                    "seconds": round(total / len(self._done), 6),
                    "rows_per_second": round(changes / max(total, 1e-9), 1),
                    "busy_share": round(total / span, 4),
                }
                for name, total in spent.items()
            },
        }
