"""The breadth of TPC-DS: each view equals Spark's recompute after random batches, deletes and emptied tables included.

Division is Spark's: a query that would divide by zero on these data is guarded, as its author would.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.tpcds import QUERIES, TABLES
from tests.property.changes import Batch, Delete, random_batches, states
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


@dataclass(frozen=True)
class Outcome:
    """What the views held after each batch, what went wrong, and what Spark says."""

    history: History
    problems: list[Problem]
    expected: dict[str, list[pa.Table]]


@pytest.fixture(scope="module")
def outcome(spark: Any) -> Outcome:
    rng = Random(99)
    *most, last = random_batches(rng, TABLES, BATCHES)
    emptied = Delete("web_sales", tuple(states(TABLES, most)[-1]["web_sales"]))
    batches = (*most, (*last, emptied))
    made_at = tuple(i % 2 for i in range(len(VIEWS)))  # over nothing, and over rows that are there already
    scenario = Scenario(99, TABLES, VIEWS, batches, made_at, (False,) * len(VIEWS))
    with ThreadPoolExecutor(1) as pool:
        expected = pool.submit(recomputed, spark, batches)
        history, problems = run(scenario, spark)
        return Outcome(history, problems, expected.result())


def recomputed(spark: Any, batches: Sequence[Batch]) -> dict[str, list[pa.Table]]:
    oracle = SparkOracle(spark, TABLES, states(TABLES, batches))
    return {view.name: oracle.answers(view) for view in VIEWS}


@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.name)
def test_a_view_equals_recompute_after_every_batch(view: View, outcome: Outcome) -> None:
    assert [p for p in outcome.problems if p.view in ("", view.name)] == []
    rows = 0
    for number, found in enumerate(outcome.history):
        if view.name in found:
            want, held = outcome.expected[view.name][number], found[view.name]
            shape = tuple(Typed(f.name, "", loose="near" if pa.types.is_floating(f.type) else "") for f in want.schema)
            assert difference(replace(view, columns=shape), want, held.rows, held.key) is None, f"batch {number}"
            rows += want.num_rows
    assert rows, "a view that never has a row shows nothing"
