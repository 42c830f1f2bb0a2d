"""However little fits into memory, the views are the same: rows go through the operators three at a time, every step is
divided by hash, and all that waits does so in files."""

from __future__ import annotations

import os
from typing import Any

import pytest

from viewkeeper.resources import memory
from viewkeeper.runtime.local import scheduler

from .scenario import generate
from .test_views import assert_views_equal_recompute

DEEP = os.environ.get("VK_PROFILE") == "deep"
SEEDS = range(1, 61) if DEEP else range(1, 3)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_views_made_piece_by_piece_equal_recompute(seed: int, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.MemoryBudget, "piece_rows", lambda *_: 3)
    monkeypatch.setattr(memory.MemoryBudget, "piece_bytes", 16)
    monkeypatch.setattr(memory.MemoryBudget, "buffer_bytes", 1 if seed % 3 else 1 << 20)
    monkeypatch.setattr(memory, "_MIN_SPILL_BYTES", 0)
    monkeypatch.setattr(memory, "_MIN_PIECE_ROWS", 0)
    monkeypatch.setattr(scheduler, "_COMPACTION_ROWS", 4)
    assert_views_equal_recompute(generate(seed, views=5, batches=2), spark)
