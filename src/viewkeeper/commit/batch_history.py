"""What the last batches were like: how long, how many rows, how busy. It travels in the batch record, for `status`."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STAGES = ("capture", "rounds", "commit")
"""What a batch goes through, one batch at a time."""

_MAX_BATCHES = 256
_MAX_LISTED = 16
"""Batches that are listed one by one, in the batch record."""
_MAX_TIMED = 32
"""Batches whose operators are remembered."""


@dataclass(frozen=True)
class _BatchTiming:
    ended: float
    seconds: float
    changes: int
    stages: tuple[float, float, float]


class BatchHistory:
    """The last batches of this maintainer."""

    def __init__(self) -> None:
        self._timings: deque[_BatchTiming] = deque(maxlen=_MAX_BATCHES)
        self._listed: deque[dict[str, Any]] = deque(maxlen=_MAX_LISTED)
        self._skipped: dict[int, Mapping[str, int]] = {}
        """By batch."""
        self._lane: str | None = None
        self._operators: deque[tuple[Mapping[str, float], Mapping[str, int]]] = deque(maxlen=_MAX_TIMED)

    def record_skipped(self, number: int, skipped: Mapping[str, int]) -> None:
        """Rows that the lookups of a batch did not make, by operator: they lead nowhere."""
        self._skipped[number] = skipped
        for old in [n for n in self._skipped if n <= number - _MAX_TIMED]:
            del self._skipped[old]

    def record_start(self, number: int, changes: int, lane: str, capture: float, rounds: float, why: str = "") -> None:
        """A batch is about to be committed: all but its last stage is known."""
        at = time.time() - capture - rounds
        one = {"epoch": number, "time": at, "changes": changes, "lane": lane, "capture": capture, "rounds": rounds}
        self._lane = f"{lane}: {why}" if why else lane
        if self._listed and self._listed[-1]["epoch"] == number:  # the commit failed, and the batch is tried again
            self._listed.pop()
        self._listed.append({**one, "commit": None})

    def record_commit(self, seconds: float) -> None:
        self._listed[-1]["commit"] = seconds

    def record_operators(self, seconds: Mapping[str, float], rows: Mapping[str, int]) -> None:
        """What each operator of a batch took and gave."""
        self._operators.append((seconds, rows))

    def operators(self) -> dict[str, dict[str, float]]:
        """Of the last batches, by operator: in how many it ran, its seconds, and the rows that it gave."""
        found: dict[str, dict[str, float]] = {}
        for seconds, rows in list(self._operators):
            for name, took in list(seconds.items()):
                one = found.setdefault(name, {"batches": 0, "seconds": 0.0, "rows": 0})
                one["batches"] += 1
                one["seconds"] += took
                one["rows"] += rows.get(name, 0)
        return found

    def listed_batches(self) -> Sequence[Mapping[str, Any]]:
        """The last batches one by one, with the seconds of their stages."""
        return [dict(batch) for batch in self._listed]

    def record_batch(self, seconds: float, changes: int, stages: tuple[float, float, float]) -> None:
        """`stages`: seconds spent reading changes, running the rounds, and committing."""
        self._timings.append(_BatchTiming(time.time(), seconds, changes, stages))

    def skipped_summary(self) -> dict[str, Any]:
        """The same of the last batches together, as JSON; nothing if none was left out."""
        found: Counter[str] = Counter()
        for skipped in self._skipped.values():
            found.update(skipped)
        return {"rows": dict(found), "batches": len(self._skipped)} if found else {}

    def summary(self) -> dict[str, Any]:
        """Percentiles of batch time, and rates, as JSON."""
        if not self._timings:
            return {}
        seconds = [d.seconds for d in self._timings]
        ordered = sorted(seconds)
        p50, p95, p99 = (round(ordered[math.ceil(len(ordered) * p / 100) - 1], 6) for p in (50, 95, 99))
        busy = sum(seconds)
        changes = sum(d.changes for d in self._timings)
        span = max(time.time() - self._timings[0].ended + self._timings[0].seconds, busy, 1e-9)
        spent = {name: sum(d.stages[i] for d in self._timings) for i, name in enumerate(STAGES)}
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
                for name, total in spent.items()
            },
        }


# What a refresh says of itself.


REPAIR_NOTE = "mended"
"""The store's record of state that was made anew: {time, damage: why, count: how often}."""


@dataclass(frozen=True)
class BatchReport:
    """What a refresh did. `epoch` is the published batch; `views` counts changed rows by view.

    Views that are kept together as a family are counted together: "sales_0 and 999 like it".
    """

    epoch: int
    changes: int
    lane: str
    seconds: float
    views: Mapping[str, int] = field(default_factory=dict)
    suspended: Mapping[str, str] = field(default_factory=dict)
    """Views that failed on their own rows and were suspended since the last report, each with why: it names the row."""
    mended: tuple[str, ...] = ()
    """Why state was made anew, if it was, since the last report: damage that was found, or another version's state."""
    afterwards: tuple[str, ...] = ()
    """What came after publication and failed. The batch is published; this is tried again after a later one."""
    why: str = ""
    """Why this lane was taken."""
    more: bool = False
    """Whether more waited than it could take."""
