"""After every batch each view equals Spark SQL's recompute, and DuckDB's where both mean the same.

A seed makes a database: a schema, ten views, four batches; even ones draw from the whole breadth of SQL. CI runs fixed
seeds, so a failure is the same for everyone; hypothesis draws a few more. `VK_PROFILE=deep` runs more of both. A seed
that once failed is kept in REGRESSIONS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .reduction import only, reduce, report
from .scenario import Problem, Refused, Scenario, check, generate

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


def assert_views_equal_recompute(
    scenario: Scenario, spark: Any, lane: str = "driver", store: str = "lmdb", refused: Refused | None = None
) -> None:
    """Views may be refused by name if there is a place to note that."""

    def problems_of(candidate: Scenario) -> list[Problem]:
        return check(candidate, spark, lane, store, None if refused is None else {})

    problems = check(scenario, spark, lane, store, refused)
    if problems:
        small = _least(scenario, problems[0], problems_of)
        pytest.fail(report(small, [*problems_of(small), *problems]), pytrace=False)


def _least(scenario: Scenario, problem: Problem, problems_of: Callable[[Scenario], list[Problem]]) -> Scenario:
    def fails(candidate: Scenario) -> bool:
        return any(p.view == problem.view and p.text[:12] == problem.text[:12] for p in problems_of(candidate))

    start = only(scenario, problem.view) if problem.view.startswith("view") else scenario
    return reduce(start if fails(start) else scenario, fails)
