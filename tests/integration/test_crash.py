"""A process killed at each named point: the next one finds the last published batch, and goes on from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import viewkeeper as vk

POINTS = ["commit.1.before", "commit.1.after", "commit.2.after", "commit.3.before", "commit.4.after"]

VICTIM = """
import sys, viewkeeper as vk
with vk.open(sys.argv[1]) as db:
    db.put("t", [{"k": k, "g": k % 3, "x": k} for k in range(50, 60)])
    db.delete("t", [0, 1, 2])
    db.refresh("driver")
    db.put("t", {"k": 1000, "g": 1, "x": 7})
    db.refresh("driver")
"""


@pytest.fixture
def url(tmp_path: Path, spark: Any) -> str:
    url = f"lmdb:{tmp_path / 'db'}"
    with vk.open(url, spark=spark) as db:
        db.sql("CREATE TABLE t (k BIGINT, g BIGINT, x BIGINT, PRIMARY KEY (k))")
        db.put("t", [{"k": k, "g": k % 3, "x": k} for k in range(20)])
        db.sql("CREATE MATERIALIZED VIEW sums AS SELECT g, sum(x) AS s, max(x) AS m, count(*) AS n FROM t GROUP BY g")
        db.sql("CREATE MATERIALIZED VIEW pairs AS SELECT a.k, b.k AS other FROM t a JOIN t b ON a.g = b.x")
    return url


def expected(rows: list[dict[str, Any]]) -> tuple[Counter[Any], Counter[Any]]:
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(row["g"], []).append(row["x"])
    sums = Counter((g, sum(xs), max(xs), len(xs)) for g, xs in groups.items())
    pairs = Counter((a["k"], b["k"]) for a in rows for b in rows if a["g"] == b["x"])
    return sums, pairs


def views(db: Any) -> tuple[Counter[Any], Counter[Any]]:
    sums, pairs = (Counter(tuple(r.values()) for r in db.read(v).to_pylist()) for v in ("sums", "pairs"))
    return sums, pairs


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at(url: str, point: str, time: int) -> None:
    with vk.open(url, mode="r") as db:
        before = views(db)
    environment = os.environ | {"VK_CRASH_AT": f"{point}@{time}"}
    ended = subprocess.run([sys.executable, "-c", VICTIM, url], env=environment, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    with vk.open(url) as db:
        found = views(db)
        now = expected(db.read("t").to_pylist())
        if point == "commit.4.after":
            assert found == now
        elif time == 1:
            assert found == before
        db.refresh("driver")
        assert views(db) == now
        db.put("t", {"k": 2000, "g": 2, "x": 1})
        db.refresh("driver")
        assert views(db) == expected(db.read("t").to_pylist())
        state = Path(url.removeprefix("lmdb:")) / "state"
        named = {e[1] for runs in db._store.published().record["manifest"]["runs"].values() for e in runs}
        assert named <= {p.name for p in state.iterdir()}
