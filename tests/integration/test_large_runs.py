"""A large run has a file of its own, written while the rest of a load goes on; the others share one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from viewkeeper.runtime import batch_work


def test_views_are_right_when_runs_are_written_as_they_are_made(
    make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_work, "_SEPARATE_FILE_ROWS", 50)
    db = make_db(spark=spark)
    db.sql("CREATE TABLE t (id INT, g INT, n INT, PRIMARY KEY (id))")
    db.sql("CREATE TABLE names (g INT, name STRING, PRIMARY KEY (g))")
    db.put("t", [{"id": i, "g": i % 7, "n": i} for i in range(200)])
    db.put("names", [{"g": g, "name": f"name {g}"} for g in range(6)])
    db.sql("CREATE MATERIALIZED VIEW sums AS SELECT g, sum(n) AS n, max(n) AS m FROM t GROUP BY g")
    db.sql("CREATE MATERIALIZED VIEW named AS SELECT t.id, name, n FROM t LEFT JOIN names ON t.g = names.g")
    runs = [run for runs in db._acquire_maintainer().publisher.state.manifest.runs.values() for run in runs]
    large = [run.file for run in runs if run.rows >= 50]
    assert large
    assert all([run.file for run in runs].count(file) == 1 for file in large)
    for first in (0, 150):
        db.put("t", [{"id": i, "g": i % 5, "n": -i} for i in range(first, first + 120)])
        db.delete("t", [first + 3, first + 130])
        db.refresh("driver")
        assert db.audit().differences == 0
