"""A view's delta as puts and deletes: against the obvious way, by sums of weights in a dictionary."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.errors import Contradiction
from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.operators.duck import Duck
from viewkeeper.rounds.sink import resolve
from viewkeeper.store.base import StreamChange, ViewChange
from viewkeeper.store.memory import Memory


class Little(Memory):
    """Three rows are a part of their own."""

    piece = 16  # type: ignore[assignment]

    def rows(self, width: float) -> int:
        return 3


COLUMNS = (Column("k", types.BIGINT), Column("v", types.DOUBLE))
KEYED = Table(1, "v", COLUMNS, (KeyPart("k"),), is_view=True)
STREAM = Table(1, "v", COLUMNS, (KeyPart("k"),), is_view=True, options=(("store", "none"),))
MEMORIES = (Memory(1 << 28), Little(1 << 28))
VALUES = st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")])


@pytest.fixture(scope="module")
def duck():
    with Duck(threads=1) as duck:
        yield duck


def rows(*tuples: tuple[int | None, float | None, int]) -> pa.Table:
    schema = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("_w", pa.int64())])
    return pa.table(list(zip(*tuples, strict=True)) or [[], [], []], schema=schema)


def told(value: Any) -> Any:
    """Values as they can be compared: −0.0 is not 0.0, NaN is NaN."""
    return repr(value)


# For each key a walk from one row to the next, each step a retraction and an insertion, in any order of steps.
WALKS = st.dictionaries(st.none() | st.integers(0, 5), st.lists(st.none() | VALUES.map(lambda v: (v,)), min_size=2))


@given(WALKS, st.randoms(), st.sampled_from(MEMORIES))
def test_puts_and_deletes_are_what_is_left_of_each_key(
    duck: Duck, walks: dict[Any, list[Any]], random: Any, memory: Memory
) -> None:
    delta = []
    for key, states in walks.items():
        for before, after in itertools.pairwise(states):
            delta += [(key, before[0], -1)] if before is not None else []
            delta += [(key, after[0], 1)] if after is not None else []
    random.shuffle(delta)
    net = Counter[tuple[str, str]]()
    for key, value, weight in delta:
        net[told(key), told(value)] += weight
    expected_puts = {row for row, weight in net.items() if weight > 0}
    gone = {row[0] for row, weight in net.items() if weight < 0} - {row[0] for row in expected_puts}

    change = resolve(duck, None, KEYED, [rows(*delta)], memory)  # type: ignore[arg-type]
    if change is None:
        assert not expected_puts
        assert not gone
    else:
        assert isinstance(change, ViewChange)
        assert {(told(r["k"]), told(r["v"])) for r in change.puts.to_pylist()} == expected_puts
        assert {told(r["k"]) for r in change.deletes.to_pylist()} == gone

    stream = resolve(duck, None, STREAM, [rows(*delta)], memory)  # type: ignore[arg-type]
    found = Counter[tuple[str, str]]()
    if stream is not None:
        assert isinstance(stream, StreamChange)
        for r in stream.delta.to_pylist():
            found[told(r["k"]), told(r["v"])] += r["_w"]
    assert found == Counter({row: weight for row, weight in net.items() if weight})


def test_no_deletes_hold_no_rows(duck: Duck) -> None:
    """A change waits for the commit, and what it was made of need not."""
    updates = [(n, float(n + turn), 2 * turn - 1) for n in range(1_000) for turn in (0, 1)]
    change = resolve(duck, None, KEYED, [rows(*updates)], MEMORIES[0])  # type: ignore[arg-type]
    assert isinstance(change, ViewChange)
    assert change.puts.num_rows == 1_000
    assert change.deletes.schema == change.puts.select(["k"]).schema
    assert change.deletes.get_total_buffer_size() == 0


def test_two_rows_of_one_key_are_wrong_state(duck: Duck) -> None:
    with pytest.raises(Contradiction, match="several rows of one key"):
        resolve(duck, None, KEYED, [rows((1, 1.0, 1), (1, 2.0, 1))], MEMORIES[0])  # type: ignore[arg-type]
