"""Planning takes at most two seconds beyond Catalyst's, for the generator's queries of up to twelve joins.

What is measured is this process's processor time in CREATE over empty tables: Catalyst has a process of its own, so the
figure is what we add to it, and a busy machine does not change it much. It used to double with every outer join, so a
plan that explodes misses the bar by far.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.conftest import databases

from viewkeeper.errors import BadStatement, Unsupported

from .nesting import Series
from .shapes import JOINS, SHAPES

DEEP = os.environ.get("VK_PROFILE") == "deep"
SECONDS = 2.0
CHAINS = Series("planned chains", JOINS, (2,), (10, 11, 12), views=4)
NESTED = Series("planned", (*(shape for shape in SHAPES if shape != "explode"), *JOINS), (3, 4))
"""Without the shape that is always refused, and with it every query around it."""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(30 if DEEP else 1))
@pytest.mark.parametrize("series", [CHAINS, NESTED], ids=lambda series: series.name)
def test_planning_adds_little_to_catalysts(series: Series, number: int, spark: Any, tmp_path: Path) -> None:
    scenario, taken = series.scenario(number), {}
    refused: list[str] = []
    with databases("lmdb", tmp_path) as make:
        db = make(spark=spark)
        for table in scenario.tables:
            db.sql(table.ddl)
        db.sql(f"CREATE MATERIALIZED VIEW first AS SELECT * FROM {scenario.tables[0].name}")  # what starts once
        for view in scenario.views:
            if any(f"{name} " in view.sql for name in refused):
                refused.append(view.name)
                continue
            started = time.process_time()
            try:
                db.sql(view.ddl)
            except (BadStatement, Unsupported):
                refused.append(view.name)
            taken[view.ddl] = time.process_time() - started
    print([round(seconds, 2) for seconds in taken.values()])
    assert len(taken) > len(refused)
    assert {ddl: seconds for ddl, seconds in taken.items() if seconds > SECONDS} == {}
