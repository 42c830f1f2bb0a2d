"""After every batch each view equals Spark SQL's recompute, and DuckDB's where both mean the same.

A seed makes a database: a schema, ten views, four batches; even ones draw from the whole breadth of SQL. CI runs fixed
seeds, so a failure is the same for everyone; hypothesis draws a few more. `VK_PROFILE=deep` runs more of both. A seed
that once failed is kept in REGRESSIONS.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .reduction import only, reduce, report
from .scenario import Problem, Scenario, check, generate

DEEP = os.environ.get("VK_PROFILE") == "deep"
SEEDS = range(1, 301) if DEEP else range(1, 7)
DRAWN = 100 if DEEP else 2
REGRESSIONS: tuple[int, ...] = ()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*SEEDS, *REGRESSIONS])
def test_views_equal_recompute(seed: int, spark: Any) -> None:
    assert_views_equal_recompute(generate(seed), spark)


@pytest.mark.spark
@pytest.mark.slow
@settings(
    max_examples=DRAWN,
    derandomize=not DEEP,
    deadline=None,
    database=None,
    phases=(Phase.generate,),  # a seed does not shrink; the scenario does
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(1_000, 2**32))
def test_views_of_drawn_seeds_equal_recompute(seed: int, spark: Any) -> None:
    assert_views_equal_recompute(generate(seed), spark)


def assert_views_equal_recompute(scenario: Scenario, spark: Any, lane: str = "driver") -> None:
    problems = check(scenario, spark, lane)
    if problems:
        small = _least(scenario, problems[0], spark, lane)
        pytest.fail(report(small, [*check(small, spark, lane), *problems]), pytrace=False)


def _least(scenario: Scenario, problem: Problem, spark: Any, lane: str) -> Scenario:
    def fails(candidate: Scenario) -> bool:
        found = check(candidate, spark, lane)
        return any(p.view == problem.view and p.text[:12] == problem.text[:12] for p in found)

    start = only(scenario, problem.view) if problem.view.startswith("view") else scenario
    return reduce(start if fails(start) else scenario, fails)
