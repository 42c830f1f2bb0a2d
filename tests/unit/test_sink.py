"""A view's delta as puts and deletes: against the obvious way, by sums of weights in a dictionary."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from viewkeeper.errors import Contradiction
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.schema import COUNT, Column, KeyPart, Table
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime import upserts
from viewkeeper.runtime.upserts import resolve_upserts
from viewkeeper.store.contract.store import StreamChange, ViewChange


class Little(MemoryBudget):
    """Three rows are a part of their own, where they are not few."""

    piece_bytes = 16  # type: ignore[assignment]

    def piece_rows(self, width: float) -> int:
        return 3


COLUMNS = (Column("k", types.BIGINT), Column("v", types.DOUBLE))
KEYED = Table(1, "v", COLUMNS, (KeyPart("k"),), is_view=True)
STREAM = Table(1, "v", COLUMNS, (KeyPart("k"),), is_view=True, options=(("store", "none"),))
MEMORIES = (MemoryBudget(1 << 28), Little(1 << 28))
VALUES = st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")])


@pytest.fixture(scope="module")
def duck():
    with PreparedStatements(threads=1) as duck:
        yield duck


def rows(*tuples: tuple[int | None, float | None, int]) -> pa.Table:
    schema = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("¤w", pa.int64())])
    return pa.table(list(zip(*tuples, strict=True)) or [[], [], []], schema=schema)


def told(value: Any) -> Any:
    """Values as they can be compared: −0.0 is not 0.0, NaN is NaN."""
    return repr(value)


# For each key a walk from one row to the next, each step a retraction and an insertion, in any order of steps.
WALKS = st.dictionaries(st.none() | st.integers(0, 5), st.lists(st.none() | VALUES.map(lambda v: (v,)), min_size=2))


@pytest.fixture(params=[True, False], ids=["few", "many"])
def _few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows as they are, and as if they were many."""
    if not request.param:
        monkeypatch.setattr(upserts, "_MIN_DIVIDED_ROWS", 0)
        monkeypatch.setattr(upserts, "_MAX_PYTHON_ROWS", 0)


@pytest.mark.usefixtures("_few")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WALKS, st.randoms(), st.sampled_from(MEMORIES))
def test_puts_and_deletes_are_what_is_left_of_each_key(
    duck: PreparedStatements, walks: dict[Any, list[Any]], random: Any, memory: MemoryBudget
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

    change = resolve_upserts(duck, None, KEYED, [rows(*delta)], memory)  # type: ignore[arg-type]
    if change is None:
        assert not expected_puts
        assert not gone
    else:
        assert isinstance(change, ViewChange)
        assert {(told(r["k"]), told(r["v"])) for r in change.puts.to_pylist()} == expected_puts
        assert {told(r["k"]) for r in change.deletes.to_pylist()} == gone

    stream = resolve_upserts(duck, None, STREAM, [rows(*delta)], memory)  # type: ignore[arg-type]
    found = Counter[tuple[str, str]]()
    if stream is not None:
        assert isinstance(stream, StreamChange)
        for r in stream.delta.to_pylist():
            found[told(r["k"]), told(r["v"])] += r["¤w"]
    assert found == Counter({row: weight for row, weight in net.items() if weight})


def test_no_deletes_hold_no_rows(duck: PreparedStatements) -> None:
    """A change waits for the commit, and what it was made of need not."""
    updates = [(n, float(n + turn), 2 * turn - 1) for n in range(1_000) for turn in (0, 1)]
    change = resolve_upserts(duck, None, KEYED, [rows(*updates)], MEMORIES[0])  # type: ignore[arg-type]
    assert isinstance(change, ViewChange)
    assert change.puts.num_rows == 1_000
    assert change.deletes.schema == change.puts.select(["k"]).schema
    assert change.deletes.get_total_buffer_size() == 0


def test_two_rows_of_one_key_are_wrong_state(duck: PreparedStatements) -> None:
    with pytest.raises(Contradiction, match="several rows of one key"):
        resolve_upserts(duck, None, KEYED, [rows((1, 1.0, 1), (1, 2.0, 1))], MEMORIES[0])  # type: ignore[arg-type]


KEYS: dict[Any, list[Any]] = {
    types.BOOLEAN: [None, True, False],
    types.INT: [None, 0, -1, 2**31 - 1],
    types.BIGINT: [None, 0, -1, 2**63 - 1],
    types.STRING: [None, "", "a", "a\0", "A", "ä"],
    types.BINARY: [None, b"", b"a", b"\xff"],
    types.DATE: [None, date(1, 1, 1), date(9999, 12, 31)],
    types.DOUBLE: [None, 0.0, -0.0, 1.5, float("nan")],
    types.decimal(38, 2): [None, Decimal("0.00"), Decimal("-0.01"), Decimal(10**36 - 1)],
}


@pytest.mark.parametrize("kind", KEYS)
def test_few_rows_have_one_key_where_its_bytes_are_the_same(kind: Any) -> None:
    table = Table(1, "v", (Column("s", types.STRING), Column("k", kind)), (KeyPart("k"), KeyPart("s")), is_view=True)
    values = [(s, k) for k in KEYS[kind] for s in (None, "", "x")] * 2
    delta = pa.Table.from_pylist([{"s": s, "k": k} for s, k in values[:32]], table.arrow)
    found, keys = upserts._number_keys(table, delta).tolist(), encode_keys(table, delta).to_pylist()
    assert len(set(found)) == len(set(keys)) == len(set(zip(found, keys, strict=True)))


class Stored:
    """A bag that knows how often its rows are there."""

    def __init__(self, table: Table, rows: Counter[tuple[int, str]]) -> None:
        self.rows = pa.Table.from_pylist([{"k": k, "s": s, COUNT: n} for (k, s), n in rows.items()], table.arrow)

    def get_rows(self, table: Table, keys: pa.Table, columns: Any = None) -> pa.Table:
        asked = {(r["k"], r["s"]) for r in keys.to_pylist()}
        return self.rows.filter(pa.array([(r["k"], r["s"]) in asked for r in self.rows.to_pylist()], pa.bool_()))


BAG_ROWS = st.tuples(st.integers(0, 3), st.sampled_from("ab"))


@given(st.lists(BAG_ROWS), st.lists(BAG_ROWS), st.randoms())
def test_a_bags_rows_are_counted(duck: PreparedStatements, before: list[Any], after: list[Any], random: Any) -> None:
    columns = (Column("k", types.BIGINT), Column("s", types.STRING))
    table = Table(1, "v", columns, (KeyPart("k"), KeyPart("s")), is_view=True, is_bag=True)
    was, now = Counter(before), Counter(after)
    delta = [(*row, -1) for row in before] + [(*row, 1) for row in after]
    random.shuffle(delta)
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("¤w", pa.int64())])
    given = pa.table(list(zip(*delta, strict=True)) or [[], [], []], schema=schema)
    change = resolve_upserts(duck, Stored(table, was), table, [given], MEMORIES[0])
    changed = {row for row in was | now if was[row] != now[row]}
    if change is None:
        assert not changed
        return
    assert isinstance(change, ViewChange)
    assert {(r["k"], r["s"]): r[COUNT] for r in change.puts.to_pylist()} == {r: now[r] for r in changed if now[r]}
    assert {(r["k"], r["s"]) for r in change.deletes.to_pylist()} == {r for r in changed if not now[r]}
    assert change.puts.schema == table.arrow
