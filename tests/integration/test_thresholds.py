"""Rows compared with a scalar subquery follow it when it moves, a little or a lot, to NULL and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.operators.kinds import lookup as kinds_lookup

_SCALARS = {
    "avg": "SELECT avg(d) FROM levels",
    "sum": "SELECT 0.1 * sum(d) FROM levels",
    "max": "SELECT max(x) FROM levels WHERE kind = 1",
    "day": "SELECT min(t) FROM levels",
    "many": "SELECT count(*) FROM levels",
}
VIEWS = {
    "above_avg": f"SELECT id, g FROM facts WHERE d > ({_SCALARS['avg']})",
    "below_max": f"SELECT id FROM facts WHERE ({_SCALARS['max']}) >= x",
    "not_below": f"SELECT g, count(*) AS n FROM facts WHERE x >= ({_SCALARS['max']}) GROUP BY g",
    "early": f"SELECT id, t FROM facts WHERE t < ({_SCALARS['day']})",
    "large_groups": f"SELECT g, sum(d) AS total FROM facts GROUP BY g HAVING sum(d) > ({_SCALARS['sum']})",
    "joined": f"SELECT f.id, o.id AS other FROM facts f JOIN facts o ON f.g = o.id WHERE o.n <= ({_SCALARS['many']})",
    "shown": f"SELECT id, ({_SCALARS['avg']}) AS limit FROM facts WHERE d > ({_SCALARS['avg']})",
    "same": f"SELECT id FROM facts WHERE x = ({_SCALARS['max']})",
}
_DOUBLES = (None, 0.0, -0.0, 1.5, -1.5, 1e300, -1e300, 5e-324, float("inf"), float("-inf"), float("nan"), 7.25)


def fact(rng: Random, number: int) -> dict[str, Any]:
    day = None if rng.random() < 0.1 else f"2024-0{rng.randrange(1, 8)}-1{rng.randrange(10)}"
    money = None if rng.random() < 0.1 else f"{rng.randrange(-900, 900)}.{rng.randrange(10, 100)}"
    return {
        "id": number,
        "g": rng.randrange(9),
        "n": rng.randrange(12),
        "d": money,
        "x": rng.choice(_DOUBLES),
        "t": day,
    }


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_views_follow_a_threshold(lane: str, make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark, durability="none")
    db.sql("CREATE TABLE facts (id INT, g INT, n INT, d DECIMAL(9,2), x DOUBLE, t DATE, PRIMARY KEY (id))")
    db.sql("CREATE TABLE levels (id INT, kind INT, d DECIMAL(9,2), x DOUBLE, t DATE, PRIMARY KEY (id))")
    rng = Random(7)
    db.put("facts", [fact(rng, i) for i in range(60)])
    for name, query in VIEWS.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    ordered = {n for n in VIEWS if "in the order of" in db.explain(n)}
    assert ordered == set(VIEWS) - {"same"}
    for number in range(8 if lane == "driver" else 4):
        if number % 4 != 3:  # the scalars were NULL over nothing at first
            for i in rng.sample(range(6), 2):
                row = fact(rng, i)
                db.put("levels", [{"id": i, "kind": rng.randrange(2), "d": row["d"], "x": row["x"], "t": row["t"]}])
        else:
            db.delete("levels", list(range(6)))
        if number % 2:
            db.put("facts", [fact(rng, rng.randrange(70)) for _ in range(8)])
            db.delete("facts", [rng.randrange(70)])
        db.refresh(lane=lane)
        found = db.audit()
        assert found.differences == 0, (number, found)


def test_a_small_move_reads_few_rows(make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    db = make_db(spark=spark, durability="none")
    db.sql("CREATE TABLE facts (id INT, v BIGINT, PRIMARY KEY (id))")
    db.sql("CREATE TABLE levels (id INT, v BIGINT, PRIMARY KEY (id))")
    db.put("facts", [{"id": i, "v": i} for i in range(5_000)])
    db.put("levels", [{"id": 1, "v": 3_000}])
    db.sql("CREATE MATERIALIZED VIEW above AS SELECT id FROM facts WHERE v > (SELECT max(v) FROM levels)")
    db.refresh()
    read: list[int] = []
    lookup = kinds_lookup.range_lookup

    def watched(*given: Any) -> Iterator[pa.Table]:
        for found in lookup(*given):
            read.append(found.num_rows)
            yield found

    monkeypatch.setattr(kinds_lookup, "range_lookup", watched)
    db.put("levels", [{"id": 1, "v": 3_004}])
    assert db.refresh(lane="driver").views == {"above": 4}
    assert 0 < sum(read) < 20
