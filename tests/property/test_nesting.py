"""Every shape of query nested in every other: made and equal to Spark's recompute after every batch, or refused.

There is no third outcome: a CREATE that fails in another way, a batch that fails, a row that differs is a failure. The
scenarios of the series draw every pair of shapes; CI runs the first of them, `VK_PROFILE=deep` all.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from .nesting import Series
from .scenario import Refused
from .shapes import JOINS, SHAPES
from .test_views import assert_views_equal_recompute

DEEP = os.environ.get("VK_PROFILE") == "deep"
COMPLETE = 270
"""So many scenarios draw every pair."""
RUN = COMPLETE if DEEP else 3
SERIES = Series("nested", (*SHAPES, *JOINS), (2, 3, 3))


def test_every_pair_of_shapes_is_drawn() -> None:
    SERIES.scenario(COMPLETE - 1)
    print(SERIES.coverage.table())
    assert not SERIES.coverage.missing()
    assert not SERIES.coverage.missing_conditions()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUN))
def test_nested_views_equal_recompute_or_are_refused(number: int, spark: Any) -> None:
    scenario, refused = SERIES.scenario(number), Refused()
    assert_views_equal_recompute(scenario, spark, "spark" if number % 3 == 1 else "driver", refused=refused)
    assert len(refused) <= len(scenario.views) // 2, refused


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("nestedB", 1)])
def test_nested_views_that_once_failed_equal_recompute(name: str, number: int, spark: Any) -> None:
    """Of other seeds. nestedB 1: a full join's changed keys, where the key is empty, had no column to select."""
    scenario = Series(name, (*SHAPES, *JOINS), (2, 3, 3)).scenario(number)
    assert_views_equal_recompute(scenario, spark, refused=Refused())
