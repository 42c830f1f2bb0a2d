"""The Spark lane and the driver lane give the same views after every batch, bit for bit where SQL says which bits."""

from __future__ import annotations

import os
from typing import Any

import pytest

from viewkeeper.plan.dataflow import dataflow
from viewkeeper.runtime.spark import pipelined_commit, placement, sessions

from .compare import difference
from .reduction import report
from .scenario import generate, run

DEEP = os.environ.get("VK_PROFILE") == "deep"
SEEDS = range(1, 61) if DEEP else range(1, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_both_lanes_give_the_same_views(seed: int, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one machine every task reads all of the state; elsewhere probes travel to it, but for broadcast sides.

    Every other seed is run as if the tasks were elsewhere, half of those with no side small enough to broadcast. Every
    fourth is not divided.
    """
    monkeypatch.setattr(placement, "ROWS_PER_TASK", 1 if seed % 4 and seed % 8 != 7 else 1_000_000)
    monkeypatch.setattr(sessions, "is_single_machine", lambda *_: seed % 2 == 0)
    monkeypatch.setattr(dataflow, "BROADCAST_BYTES", 0 if seed % 4 == 1 else dataflow.BROADCAST_BYTES)
    monkeypatch.setattr(placement, "MAX_DRIVER_ROWS", 0 if seed % 4 == 1 else 5)
    monkeypatch.setattr(pipelined_commit, "MIN_REPORTED_ROWS", 1)
    scenario = generate(seed, views=6, batches=3)
    in_driver, refused = run(scenario, spark, "driver")
    on_spark, failed = run(scenario, spark, "spark")
    assert not refused + failed, report(scenario, refused + failed)
    for number, (expected, got) in enumerate(zip(in_driver, on_spark, strict=True)):
        for view in (view for view in scenario.views if view.name in expected):
            name, held = view.name, expected[view.name]
            assert held.key == got[name].key
            wrong = difference(view, held.rows, got[name].rows, held.key)
            assert wrong is None, f"{name} after batch {number}: {wrong}\n{report(scenario, [])}"
