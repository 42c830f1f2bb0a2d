"""A lazy view answers as a stored one holds, whole and by every part of its key (`scenario`), after every batch.

The scenarios are those of `test_views`, which compares stored views with Spark's recompute. Each view has a lazy twin;
views read views of either kind. Mostly nothing is remembered, so that what is asked for is looked up.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from .compare import difference
from .reduction import report
from .scenario import Scenario, generate, run

DEEP = os.environ.get("VK_PROFILE") == "deep"
SEEDS = range(1, 201) if DEEP else range(41, 44)


def _with_twins(scenario: Scenario) -> Scenario:
    count = len(scenario.views)
    twins = (replace(view, name=f"view_{count + n}", store="lazy") for n, view in enumerate(scenario.views))
    made = {"made_at": 2 * scenario.made_at, "pending": 2 * scenario.pending}
    return replace(scenario, views=(*scenario.views, *twins), **made)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_lazy_views_equal_stored_ones(seed: int, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 3:
        monkeypatch.setattr("viewkeeper.store.contract.store.Store.lazy_cache_bytes", 0)
    scenario = _with_twins(generate(seed, views=8, batches=3))
    history, problems = run(scenario, spark, "driver" if seed % 2 else "spark")
    assert not problems, report(scenario, problems)
    views = len(scenario.views) // 2
    for number, held in enumerate(history):
        for stored, lazy in zip(scenario.views[:views], scenario.views[views:], strict=True):
            if stored.name in held:
                assert held[stored.name].key == held[lazy.name].key
                wrong = difference(stored, held[stored.name].rows, held[lazy.name].rows, held[stored.name].key)
                assert wrong is None, f"{lazy.name} after batch {number}: {wrong}\n{report(scenario, [])}"
