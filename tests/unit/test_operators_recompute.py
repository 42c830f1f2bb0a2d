"""Recompute: real SQL over the rows of the touched keys, minus what was emitted for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.errors import Contradiction, Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.kinds import Recompute, recompute
from viewkeeper.operators.segment import Segment
from viewkeeper.plan.logical.nodes import Named, column
from viewkeeper.plan.planner import dry_run_operators
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.run import Arrangement, arrange


@pytest.fixture(scope="module")
def duck() -> Iterator[PreparedStatements]:
    with PreparedStatements(threads=1) as duck:
        yield duck


def port(names: Sequence[str], key: tuple[str, ...]) -> tuple[Segment, ...]:
    return (Segment("source", (), tuple(Named(n, column(n, types.BIGINT)) for n in names), key),)


def delta(names: Sequence[str], *rows: tuple[int | None, int | None, int]) -> pa.Table:
    """(key, value, weight); the key is its own hash"""
    columns = {name: pa.array([r[i] for r in rows], pa.int64()) for i, name in enumerate(names)}
    weights, hashes = pa.array([r[2] for r in rows], pa.int64()), pa.array([r[0] or 0 for r in rows], pa.uint64())
    return pa.table({**columns, "¤w": weights, "¤h": hashes})


LEFT_JOIN = Recompute(
    (port(["l0", "l1"], ("l0",)), port(["r0", "r1"], ("r0",))),
    (None, None),
    "SELECT l0, l1, r1, input0.¤h FROM input0 LEFT JOIN input1 ON l0 = r0",
    (Column("l0", types.BIGINT), Column("l1", types.BIGINT), Column("r1", types.BIGINT)),
    "left join",
)


def advance(
    duck: PreparedStatements, operator: Recompute, states: list[Arrangement], *deltas: pa.Table | None
) -> list[dict[str, Any]]:
    out, added = recompute.run_recompute_step(duck, operator, states, deltas)
    states[:] = [s.with_runs(arrange(d)) for s, d in zip(states, added, strict=True)]
    return sorted(out.to_pylist(), key=str)


def test_an_outer_join_pads_until_a_partner_comes(duck: PreparedStatements) -> None:
    states = [Arrangement() for _ in range(3)]
    assert advance(duck, LEFT_JOIN, states, delta(["l0", "l1"], (1, 10, 1)), None) == [
        {"l0": 1, "l1": 10, "r1": None, "¤w": 1}
    ]
    assert advance(duck, LEFT_JOIN, states, None, delta(["r0", "r1"], (1, 5, 1), (2, 6, 1))) == [
        {"l0": 1, "l1": 10, "r1": 5, "¤w": 1},
        {"l0": 1, "l1": 10, "r1": None, "¤w": -1},
    ]
    assert advance(duck, LEFT_JOIN, states, delta(["l0", "l1"], (1, 10, -1)), None) == [
        {"l0": 1, "l1": 10, "r1": 5, "¤w": -1}
    ]
    assert LEFT_JOIN.full(duck, states).num_rows == 0


def test_duplicates_are_seen_as_often_as_they_occur(duck: PreparedStatements) -> None:
    states = [Arrangement() for _ in range(3)]
    rows = advance(duck, LEFT_JOIN, states, delta(["l0", "l1"], (1, 10, 2)), delta(["r0", "r1"], (1, 5, 3)))
    assert rows == [{"l0": 1, "l1": 10, "r1": 5, "¤w": 6}]


def test_nothing_in_nothing_out(duck: PreparedStatements) -> None:
    states = [Arrangement() for _ in range(3)]
    cancelled = delta(["l0", "l1"], (1, 10, 1), (1, 10, -1))
    assert advance(duck, LEFT_JOIN, states, cancelled, None) == []
    assert advance(duck, LEFT_JOIN, states, None, None) == []


def test_without_keys_the_sql_runs_over_nothing_too(duck: PreparedStatements) -> None:
    top = Recompute(
        (port(["x"], ()),),
        (None,),
        "SELECT max_by(x, x) AS m, 0::UBIGINT AS ¤h FROM input0",
        (Column("m", types.BIGINT),),
        "max_by over all rows",
    )
    states = [Arrangement(), Arrangement()]
    assert advance(duck, top, states, None) == [{"m": None, "¤w": 1}]
    assert advance(duck, top, states, pa.table({"x": [3], "¤w": [1], "¤h": pa.array([0], pa.uint64())})) == [
        {"m": 3, "¤w": 1},
        {"m": None, "¤w": -1},
    ]


def test_a_top_k_sees_no_more_copies_than_it_can_show(duck: PreparedStatements) -> None:
    top = Recompute(
        (port(["x"], ()),),
        (None,),
        "SELECT x, ¤h FROM input0 ORDER BY x LIMIT 2",
        (Column("x", types.BIGINT),),
        "top-k over all rows",
        max_copies=2,
    )
    states = [Arrangement(), Arrangement()]
    many = pa.table({"x": [3, 4], "¤w": [10**12, 1], "¤h": pa.array([0, 0], pa.uint64())})
    assert advance(duck, top, states, many) == [{"x": 3, "¤w": 2}]


def test_ties_are_taken_back_as_they_were_emitted(duck: PreparedStatements) -> None:
    """Whichever of two equal rows was shown first, the view never holds both or neither."""
    first = Recompute(
        (port(["k", "x"], ("k",)),),
        (None,),
        "SELECT k, first(x) AS x, ¤h FROM input0 GROUP BY k, ¤h",
        (Column("k", types.BIGINT), Column("x", types.BIGINT)),
        "first",
    )
    states = [Arrangement(), Arrangement()]
    held: dict[tuple[int, int], int] = {}
    for batch in (((1, 5, 1), (1, 6, 1)), ((1, 7, 1),), ((1, 5, -1),), ((1, 6, -1),)):
        for row in advance(duck, first, states, delta(["k", "x"], *batch)):
            key = row["k"], row["x"]
            held[key] = held.get(key, 0) + row["¤w"]
        assert sorted(held.values())[-1] == 1
        assert sum(held.values()) == 1


def test_a_slice_with_fewer_than_no_rows_is_a_broken_promise(duck: PreparedStatements) -> None:
    with pytest.raises(Contradiction, match="fewer than no copies"):
        advance(duck, LEFT_JOIN, [Arrangement() for _ in range(3)], delta(["l0", "l1"], (1, 10, -1)), None)


def test_sql_that_duckdb_cannot_bind_is_refused_by_name_before_there_is_a_view() -> None:
    dry_run_operators([LEFT_JOIN])
    with pytest.raises(Unsupported, match=r"cannot be computed \(why not\)"):
        dry_run_operators([replace(LEFT_JOIN, sql="SELECT no_such_function(1) FROM input0", kind_reason="why not")])
