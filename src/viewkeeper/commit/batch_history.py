"""Statistics of the last batches: times, rows, load. The batch record contains them, so that `status` can show them."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STAGES = ("capture", "rounds", "commit")
"""The stages of a batch, in order; only one batch runs at a time."""

_MAX_BATCHES = 256
_MAX_LISTED = 16
"""Batches that the batch record lists individually."""
_MAX_TIMED = 32
"""Batches whose times by operator are kept."""


@dataclass(frozen=True)
class _BatchTiming:
    ended: float
    seconds: float
    changes: int
    stages: tuple[float, float, float]


class BatchHistory:
    """Statistics of this maintainer's last batches."""

    def __init__(self) -> None:
        self._timings: deque[_BatchTiming] = deque(maxlen=_MAX_BATCHES)
        self._listed: deque[dict[str, Any]] = deque(maxlen=_MAX_LISTED)
        self._skipped: dict[int, Mapping[str, int]] = {}
        """Skipped rows by operator, by batch number."""
        self._lane: str | None = None
        self._operators: deque[tuple[Mapping[str, float], Mapping[str, int]]] = deque(maxlen=_MAX_TIMED)

    def record_skipped(self, number: int, skipped: Mapping[str, int]) -> None:
        """Record the rows, by operator, that lookups of a batch skipped by semijoin reduction."""
        self._skipped[number] = skipped
        for old in [batch for batch in self._skipped if batch <= number - _MAX_TIMED]:
            del self._skipped[old]

    def record_start(self, number: int, changes: int, lane: str, capture: float, rounds: float, why: str = "") -> None:
        """Record a batch that is about to be committed; the time of its commit is not known yet."""
        started = time.time() - capture - rounds
        batch = {
            "epoch": number,
            "time": started,
            "changes": changes,
            "lane": lane,
            "capture": capture,
            "rounds": rounds,
        }
        self._lane = f"{lane}: {why}" if why else lane
        if self._listed and self._listed[-1]["epoch"] == number:  # the commit failed, and the batch is tried again
            self._listed.pop()
        self._listed.append({**batch, "commit": None})

    def record_commit(self, seconds: float) -> None:
        self._listed[-1]["commit"] = seconds

    def record_operators(self, seconds: Mapping[str, float], rows: Mapping[str, int]) -> None:
        """Record the seconds and output rows of a batch's operators."""
        self._operators.append((seconds, rows))

    def operators(self) -> dict[str, dict[str, float]]:
        """Return by operator, over the last batches: the batches in which it ran, its seconds, and its output rows."""
        totals: dict[str, dict[str, float]] = {}
        for seconds, rows in list(self._operators):
            for name, operator_seconds in list(seconds.items()):
                total = totals.setdefault(name, {"batches": 0, "seconds": 0.0, "rows": 0})
                total["batches"] += 1
                total["seconds"] += operator_seconds
                total["rows"] += rows.get(name, 0)
        return totals

    def listed_batches(self) -> Sequence[Mapping[str, Any]]:
        """Return the last batches individually, with the seconds of their stages."""
        return [dict(batch) for batch in self._listed]

    def record_batch(self, seconds: float, changes: int, stages: tuple[float, float, float]) -> None:
        """Record a finished batch. `stages`: seconds of capture, of the rounds, and of the commit."""
        self._timings.append(_BatchTiming(time.time(), seconds, changes, stages))

    def skipped_summary(self) -> dict[str, Any]:
        """Return the skipped rows of the last batches, added up, as JSON; an empty dict if none were skipped."""
        rows: Counter[str] = Counter()
        for skipped in self._skipped.values():
            rows.update(skipped)
        return {"rows": dict(rows), "batches": len(self._skipped)} if rows else {}

    def summary(self) -> dict[str, Any]:
        """Return percentiles of batch time, and rates, as JSON."""
        if not self._timings:
            return {}
        seconds = [timing.seconds for timing in self._timings]
        ordered = sorted(seconds)
        p50, p95, p99 = (round(ordered[math.ceil(len(ordered) * p / 100) - 1], 6) for p in (50, 95, 99))
        busy = sum(seconds)
        changes = sum(timing.changes for timing in self._timings)
        span = max(time.time() - self._timings[0].ended + self._timings[0].seconds, busy, 1e-9)
        stage_seconds = {name: sum(timing.stages[i] for timing in self._timings) for i, name in enumerate(STAGES)}
        return {
            "batches": len(self._timings),
            "p50_seconds": p50,
            "p95_seconds": p95,
            "p99_seconds": p99,
            "changes_per_second": round(changes / span, 1),
            "capacity_per_second": round(changes / max(busy, 1e-9), 1),
            "busy_share": round(busy / span, 4),
            "lane": self._lane,
            "stages": {
                name: {
                    "seconds": round(total / len(self._timings), 6),
                    "rows_per_second": round(changes / max(total, 1e-9), 1),
                    "busy_share": round(total / span, 4),
                }
                for name, total in stage_seconds.items()
            },
        }


# The report of a refresh.


REPAIR_NOTE = "mended"
"""Name of the store's note about rebuilt state: {time, damage: the reason, count: how often}."""


@dataclass(frozen=True)
class BatchReport:
    """The result of a refresh. `epoch` is the number of the published batch; `views` counts changed rows by view.

    The views of a family are counted together: "sales_0 and 999 like it".
    """

    epoch: int
    changes: int
    lane: str
    seconds: float
    views: Mapping[str, int] = field(default_factory=dict)
    suspended: Mapping[str, str] = field(default_factory=dict)
    """Views suspended since the last report because they failed on their own rows; the error names the row."""
    mended: tuple[str, ...] = ()
    """Reasons why state was rebuilt since the last report: damage that was found, or state of another version."""
    afterwards: tuple[str, ...] = ()
    """Deferred cleanup that failed. The batch is published; the cleanup is tried again after a later one."""
    why: str = ""
    """The reason for the lane."""
    more: bool = False
    """Whether there were more pending changes than the batch could take."""
