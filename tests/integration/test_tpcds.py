"""The breadth of TPC-DS: each view equals Spark's recompute after random batches, deletes and emptied tables included.

Division is Spark's: a query that would divide by zero on these data is guarded, as its author would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.tpcds import QUERIES, TABLES
from tests.property.changes import Delete, random_batches, states
from tests.property.compare import difference
from tests.property.oracle import SparkOracle
from tests.property.query import View
from tests.property.scenario import History, Problem, Scenario, run
from tests.property.typed import Typed

BATCHES = 4
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Text:
    """A query that is only text."""

    sql: str


VIEWS = tuple(View(f"view_{name}", Text(" ".join(sql.split())), ()) for name, sql in QUERIES.items())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    rng = Random(99)
    *most, last = random_batches(rng, TABLES, BATCHES)
    emptied = Delete("web_sales", tuple(states(TABLES, most)[-1]["web_sales"]))
    made_at = tuple(i % 2 for i in range(len(VIEWS)))  # over nothing, and over rows that are there already
    return Scenario(99, TABLES, VIEWS, (*most, (*last, emptied)), made_at, (False,) * len(VIEWS))


@pytest.fixture(scope="module")
def expected(scenario: Scenario, spark: Any) -> dict[str, list[pa.Table]]:
    oracle = SparkOracle(spark, TABLES, states(TABLES, scenario.batches))
    return {view.name: oracle.answers(view) for view in VIEWS}


@pytest.fixture(scope="module")
def driver(scenario: Scenario, spark: Any) -> tuple[History, list[Problem]]:
    return run(scenario, spark, "driver")


@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.name)
def test_a_view_equals_recompute_after_every_batch(
    view: View, driver: tuple[History, list[Problem]], expected: dict[str, list[pa.Table]]
) -> None:
    history, problems = driver
    assert [p for p in problems if p.view in ("", view.name)] == []
    seen = 0
    for number, found in enumerate(history):
        if view.name in found:
            want, held = expected[view.name][number], found[view.name]
            columns = tuple(
                Typed(f.name, "", loose="near" if pa.types.is_floating(f.type) else "") for f in want.schema
            )
            assert difference(replace(view, columns=columns), want, held.rows, held.key) is None, f"batch {number}"
            seen += want.num_rows
    assert seen, "a view that never has a row shows nothing"
