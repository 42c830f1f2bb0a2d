"""The ledger of faults, and how a victim's end is read.

`VK_PROFILE=deep` (`make torture`) injects every fault many times; without it each is injected at least once.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from . import shop

DEEP = os.environ.get("VK_PROFILE") == "deep"


@dataclass
class Ledger:
    """Fault → [times injected, batches checked, differences]."""

    rows: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))

    def injected(self, fault: str, times: int = 1) -> None:
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
