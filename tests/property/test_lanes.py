"""The Spark lane and the driver lane give the same views, bit for bit, after every batch."""

from __future__ import annotations

import os
from typing import Any

import pytest

from .reduction import report
from .scenario import Held, Scenario, generate, run

DEEP = os.environ.get("VK_PROFILE") == "deep"
SEEDS = range(1, 61) if DEEP else range(1, 7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_both_lanes_give_the_same_views(seed: int, spark: Any) -> None:
    scenario = generate(seed, views=6, batches=3)
    in_driver, refused = run(scenario, spark, "driver")
    on_spark, failed = run(scenario, spark, "spark")
    assert not refused + failed, report(scenario, refused + failed)
    for number, (expected, got) in enumerate(zip(in_driver, on_spark, strict=True)):
        for name in expected:
            assert _bits(expected[name]) == _bits(got[name]), _text(scenario, name, number)


def _bits(held: Held) -> tuple[Any, ...]:
    """Everything about a view; `repr` tells −0.0 from 0.0 and finds NaN equal to itself."""
    return held.key, held.rows.schema, repr(held.rows.to_pylist())


def _text(scenario: Scenario, name: str, number: int) -> str:
    return f"{name} differs after batch {number}\n{report(scenario, [])}"
