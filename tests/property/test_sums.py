"""A float sum is the correctly rounded exact sum of the rows that are there, whatever the history and the lane."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.naming import Called, Naming

NASTY = (
    1e16,
    1.0,
    -1e16,
    1e308,
    -1e308,
    5e-324,
    2.2250738585072014e-308,
    0.1,
    -0.3,
    1e-300,
    3.14,
    -0.0,
    0.0,
    123456789.125,
)
ODD = (math.inf, -math.inf, math.nan)


def exact_sum(values: list[float]) -> float | None:
    """Spark's meaning (NULL of nothing, NaN and infinities contagious), rounded once."""
    if not values:
        return None
    odd = {repr(v) for v in values if not math.isfinite(v)}
    if odd:
        return float(odd.pop()) if len(odd) == 1 else math.nan
    try:
        return math.fsum(values) + 0.0
    except OverflowError:  # beyond the largest double
        return math.inf if sum(v / 2**64 for v in values) > 0 else -math.inf


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["driver", "spark"])
@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT"])
def test_float_sums_are_exact_after_any_history(kind: str, lane: str, spark: Any, make_db: Callable[..., Any]) -> None:
    names = Naming(f"{kind} {lane}", {"samples", "sums", "whole"}, {"id", "grp", "x", "total", "mean", "n"})
    db = Called(make_db(spark=spark, durability="none"), names)
    db.sql(f"CREATE TABLE samples (id INT, grp INT, x {kind}, PRIMARY KEY (id))")
    db.sql("CREATE MATERIALIZED VIEW sums AS SELECT grp, sum(x) AS total, avg(x) AS mean FROM samples GROUP BY grp")
    db.sql("CREATE MATERIALIZED VIEW whole AS SELECT sum(x) AS total, count(x) AS n FROM samples")
    rng = random.Random(7)
    there: dict[int, tuple[int, float | None]] = {}
    for batch in range(12 if lane == "driver" else 3):
        pool = NASTY if batch % 4 else (*NASTY, *ODD)  # the odd ones come, and go again
        for _ in range(20):
            key = rng.randrange(40)
            if rng.random() < 0.3:
                there.pop(key, None)
                db.delete("samples", key)
            else:
                x = None if rng.random() < 0.1 else _fit(rng.choice(pool), kind)
                there[key] = (key % 3, x)
                db.put("samples", {"id": key, "grp": key % 3, "x": x})
        if batch % 4 == 3:
            for key, (_, x) in list(there.items()):
                if x is not None and not math.isfinite(x):
                    del there[key]
                    db.delete("samples", key)
        db.refresh(lane=lane, suspend=False)
        groups: dict[int, list[float]] = {}
        for group, x in there.values():
            groups.setdefault(group, []).extend([] if x is None else [x])
        found = {row["grp"]: row for row in db.read("sums").to_pylist()}
        assert found.keys() == groups.keys()
        for group, values in groups.items():
            total = exact_sum(values)
            assert repr(found[group]["total"]) == repr(total), (batch, group, values)
            assert repr(found[group]["mean"]) == repr(None if total is None else total / len(values))
        everything = [x for values in groups.values() for x in values]
        assert repr(db.get("whole", ())) == repr({"total": exact_sum(everything), "n": len(everything)})


def _fit(x: float, kind: str) -> float:
    """A double that fits the column's type without loss."""
    import numpy as np

    if kind == "DOUBLE" or not math.isfinite(x):
        return x
    return float(np.float32(max(min(x, 3.4e38), -3.4e38)))
