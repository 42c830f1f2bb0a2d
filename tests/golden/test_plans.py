"""The maintenance plans of TPC-H's queries, as EXPLAIN prints them, are those that were last read and committed.

A change of the planner shows here as a difference of text, to be judged: more rounds, more state, a lookup by another
key. `VK_GOLDEN=write` makes the files anew. Each query stands alone in its database, so that the plans do not depend on
each other, and over empty tables, so that they do not depend on data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from viewkeeper.workloads.tpch import QUERIES, SCHEMAS


@pytest.mark.parametrize("number", QUERIES)
def test_tpch_is_planned_as_before(number: int, spark: Any, make_db: Callable[..., Any]) -> None:
    db = make_db(spark=spark, durability="none")
    for ddl in SCHEMAS.values():
        db.sql(ddl)
    db.sql(f"CREATE MATERIALIZED VIEW q{number:02} AS {QUERIES[number]}")
    found = _steady(db.explain(f"q{number:02}"))
    golden = Path(__file__).parent / "maintenance" / f"q{number:02}.txt"
    if os.environ.get("VK_GOLDEN") == "write":
        golden.write_text(found, "utf-8")
    assert found == golden.read_text("utf-8")


def _steady(text: str) -> str:
    """Without what measures data or time."""
    text = re.sub(r" *state [\d,.]+ rows?, [\d,.]+ [kKMGT]?i?B", "  state", text)
    return text.rstrip() + "\n"
