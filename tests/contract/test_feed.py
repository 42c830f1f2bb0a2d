"""Every store with a change feed: deltas between positions, exact states of the past, and what is forgotten."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.conftest import (
    ITEMS,
    PAIRS,
    Opener,
    delete,
    emptied,
    ids,
    items,
    pairs,
    put,
    read,
    skip_if_small,
    summed,
)

from viewkeeper.errors import SnapshotGone
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_whole_key
from viewkeeper.model.schema import Column, Table
from viewkeeper.store.contract.store import Store


@pytest.fixture(autouse=True)
def _feed(store: Store) -> None:
    if not store.capabilities.changelog:
        pytest.skip("the store has no change feed")
    if not store.can_scan_at(ITEMS):
        pytest.skip("the store shows no past")


def head_before_writes(store: Store) -> int:
    """The head, before all later writes. Where positions are a clock's milliseconds, a write in the
    same millisecond would have the position of the head."""
    position = store.head()
    time.sleep(0.005)
    return position


def state_at(store: Store, table: Table, cut: int, **options: Any) -> dict[tuple[Any, ...], int]:
    batches = list(store.scan_at(table, table.arrow.names, cut, **options))
    schema = table.arrow.append(pa.field("¤w", pa.int64()))
    return summed(pa.Table.from_batches(batches, schema))


def difference(store: Store, table: Table, names: list[str], after: int, upto: int) -> dict[tuple[Any, ...], int]:
    """What happened between two positions. A store without before-images says which keys and how they are then; what
    they were is known, as the table image knows it."""
    if store.capabilities.before_images or store.capabilities.cell_versions:
        found = summed(store.changes(table, names, after, upto))
        net = store.net_changes(table, names, after, upto)
        if net is not None:
            assert summed(net) == found
            if {c.name for c in table.key_columns} <= set(names):
                assert net.num_rows == len(found), "consolidated"
        return found
    changed, _ = store.changed_keys(table, table.arrow.names, after, upto)
    touched = None if changed.keys is None else {tuple(key.values()) for key in changed.keys.to_pylist()}
    total: Counter[tuple[Any, ...]] = Counter()
    for row in changed.rows.to_pylist():
        total[tuple(row[name] for name in names)] += 1
    for values in state_at(store, table, after):
        row = dict(zip(table.arrow.names, values, strict=True))
        if touched is None or tuple(row[c.name] for c in table.key_columns) in touched:
            total[tuple(row[name] for name in names)] -= 1
    return {row: weight for row, weight in total.items() if weight}


def test_a_put_over_a_row_takes_the_old_one_back(store: Store) -> None:
    start = head_before_writes(store)
    first = put(store, items((1, "a"), (2, "b")))
    second = put(store, items((1, "A")))
    third = delete(store, ids(2))
    names = ["id", "category"]
    assert difference(store, ITEMS, names, start, first) == {(1, "a"): 1, (2, "b"): 1}
    assert difference(store, ITEMS, names, first, second) == {(1, "a"): -1, (1, "A"): 1}
    assert difference(store, ITEMS, names, second, third) == {(2, "b"): -1}
    assert difference(store, ITEMS, names, start, third) == {(1, "A"): 1}
    assert difference(store, ITEMS, names, third, third) == {}


def test_changes_have_the_columns_asked_for_and_a_weight(store: Store) -> None:
    if not (store.capabilities.before_images or store.capabilities.cell_versions):
        pytest.skip("the store knows keys, not differences")
    start = head_before_writes(store)
    end = put(store, items((1, "a", Decimal(3))))
    delta = store.changes(ITEMS, ["price"], start, end)
    assert delta.schema == pa.schema([("price", pa.decimal128(12, 2)), ("¤w", pa.int64())])
    nothing = store.changes(ITEMS, ["price"], end, end)
    assert nothing.schema == delta.schema
    assert store.changes(ITEMS, [], start, end).to_pydict() == {"¤w": [1]}


def test_changes_of_another_table_do_not_show(store: Store) -> None:
    start = head_before_writes(store)
    put(store, items((1, "a")))
    end = put(store, pairs(("w", 1, "n")), PAIRS)
    assert difference(store, ITEMS, ["id"], start, end) == {(1,): 1}
    assert difference(store, PAIRS, ["word"], start, end) == {("w",): 1}


def test_an_update_is_in_the_feed(store: Store) -> None:
    first = put(store, items((1, "a", Decimal(1))))
    second = store.update(ITEMS, ids(1), pa.table({"category": ["b"]})).position
    assert difference(store, ITEMS, ["category", "price"], first, second) == {
        ("a", Decimal("1.00")): -1,
        ("b", Decimal("1.00")): 1,
    }


def test_pending_counts_calls_and_rows_of_the_tables_asked_for(store: Store) -> None:
    start = head_before_writes(store)
    first = put(store, items((1,), (2,)))
    time.sleep(0.01)  # or both calls for this table would have one position there
    put(store, pairs(("w", 1, "n")), PAIRS)
    end = put(store, items((3,)))
    both = store.pending(start, [ITEMS.id, PAIRS.id])
    assert (both.calls, both.rows) == (3, 4)
    later = store.pending(first, [ITEMS.id])
    assert (later.calls, later.rows) == (1, 1)
    assert both.oldest_time is not None
    assert later.oldest_time is not None
    assert both.oldest_time <= later.oldest_time
    none = store.pending(end, [ITEMS.id, PAIRS.id])
    assert (none.calls, none.rows, none.oldest_time) == (0, 0, None)


def test_pending_is_counted_on_from_the_last_look(store: Store, opener: Opener) -> None:
    """A handle that looks often counts what one counts that looks for the first time."""
    asked = [(head_before_writes(store), [ITEMS.id, PAIRS.id])]
    for number in range(6):
        at = put(store, items(*((n,) for n in range(number + 1))))
        if number % 2:
            put(store, pairs(("w", number, "n")), PAIRS)
        asked += [(at, [ITEMS.id, PAIRS.id]), (at, [PAIRS.id])]
        time.sleep(0.01)
        fresh = opener("r")
        for after, tables in asked:
            assert store.pending(after, tables) == fresh.pending(after, tables)
        fresh.close()


def test_a_large_call_is_one_position_and_one_pending_call(store: Store) -> None:
    skip_if_small(store)
    many = 60_000
    start = head_before_writes(store)
    rows = pa.table([range(many), ["x" * 100] * many, [None] * many, [None] * many], schema=ITEMS.arrow)
    end = put(store, rows)
    pending = store.pending(start, [ITEMS.id])
    assert pending.rows == many
    if store.capabilities.atomic_batch:
        assert (pending.calls, end) == (1, 1)
    assert difference(store, ITEMS, ["id"], start, end) == {(n,): 1 for n in range(many)}


def test_scan_at_is_the_state_at_its_cut(store: Store) -> None:
    start = head_before_writes(store)
    first = put(store, items((1, "a"), (2, "b")))
    put(store, items((1, "A"), (3, "c")))
    third = delete(store, ids(2))
    assert state_at(store, ITEMS, start) == {}
    assert state_at(store, ITEMS, first) == {(1, "a", None, None): 1, (2, "b", None, None): 1}
    assert state_at(store, ITEMS, third) == {(1, "A", None, None): 1, (3, "c", None, None): 1}
    bound = encode_whole_key(ITEMS, (2,))
    assert state_at(store, ITEMS, first, stop=bound) == {(1, "a", None, None): 1}
    assert state_at(store, ITEMS, first, start=bound) == {(2, "b", None, None): 1}


def test_scan_at_holds_while_writers_go_on(store: Store) -> None:
    put(store, items(*((n, "a") for n in range(100))))
    cut = head_before_writes(store)
    scan = store.scan_at(ITEMS, ["id", "category"], cut)
    first = next(scan)
    put(store, items(*((n, "b") for n in range(0, 200, 2))))
    delete(store, ids(1, 3))
    total = summed(pa.Table.from_batches([first, *scan]))
    assert total == {(n, "a"): 1 for n in range(100)}
    assert summed(pa.Table.from_batches(store.scan_at(ITEMS, ["id", "category"], cut))) == total


def test_truncate_forgets_but_keeps_rows_and_head(store: Store) -> None:
    if store.capabilities.cell_versions:
        pytest.skip("the store has no log: old versions are its feed, and it forgets them by itself")
    put(store, items((1, "a")))
    put(store, items((2, "b")))
    put(store, items((3, "c")))
    store.truncate(2)
    assert store.head() == 3
    assert len(read(store)) == 3
    assert difference(store, ITEMS, ["id"], 2, 3) == {(3,): 1}
    for forgotten in (
        lambda: difference(store, ITEMS, ["id"], 1, 3),
        lambda: list(store.scan_at(ITEMS, ["id"], 1)),
        lambda: store.pending(0, [ITEMS.id]),
    ):
        with pytest.raises(SnapshotGone, match="after position 2"):
            forgotten()
    store.truncate(99)
    assert store.head() == 3
    assert put(store, items((4,))) == 4
    assert difference(store, ITEMS, ["id"], 3, 4) == {(4,): 1}


ROWS = st.dictionaries(st.integers(0, 5), st.sampled_from(["x", "y", None]), max_size=4)


@settings(suppress_health_check=list(HealthCheck), max_examples=25)
@given(calls=st.lists(st.tuples(ROWS, st.sets(st.integers(0, 5), max_size=3)), max_size=6))
def test_every_past_state_can_be_had_back(store: Store, calls: list[tuple[dict[int, str | None], set[int]]]) -> None:
    """For random calls: scan_at(p) is the state after call p, and changes(p, q) is the difference of two states."""
    table = ITEMS
    emptied(store, table)
    state: dict[int, str | None] = {}
    states = {head_before_writes(store): dict(state)}
    for puts, deletes in calls:
        position = store.write(table, items(*puts.items()), ids(*(deletes - puts.keys()))).position
        if not (puts or deletes):  # nothing was written, so the next call may have this position
            position = head_before_writes(store)
        state = {key: note for key, note in (state | puts).items() if key not in deletes - puts.keys()}
        states[position] = state
    bags = {position: {(*row, None, None): 1 for row in rows.items()} for position, rows in states.items()}
    for position, bag in bags.items():
        assert state_at(store, table, position) == bag
    for low, high in itertools.combinations(sorted(bags), 2):
        expected = {
            row: weight
            for row in bags[low].keys() | bags[high].keys()
            if (weight := bags[high].get(row, 0) - bags[low].get(row, 0))
        }
        assert difference(store, table, table.arrow.names, low, high) == expected


def test_a_table_that_was_looked_up_before_a_column_was_added_reads_rows_that_have_it(
    store: Store, opener: Opener
) -> None:
    """Every read: who looked the table up (a batch that has begun, a task of another process) sees its columns."""
    start = head_before_writes(store)
    put(store, items((1, "a")))
    wider = ITEMS.with_column(Column("colour", types.STRING))
    opener().change_catalog(lambda catalog: catalog.with_columns(wider))
    row = items((2, "b")).append_column("colour", pa.array(["red"]))
    upto = put(store, row, wider)
    reader = opener("r")
    names = ITEMS.arrow.names
    expected = {(1, "a", None, None): 1, (2, "b", None, None): 1}
    assert difference(reader, ITEMS, names, start, upto) == expected
    if reader.capabilities.before_images and reader.can_partition_changes:
        shares = [reader.changes_partition(ITEMS, names, upto - 1, upto, part, 2) for part in range(2)]
        assert summed(pa.concat_tables(shares)) == {(2, "b", None, None): 1}
        found = [rows for _, _, rows in reader.entries(ITEMS, names, start, upto)]
        assert summed(pa.concat_tables(found)) == expected
    assert state_at(reader, ITEMS, upto) == expected
    assert [r["id"] for r in read(reader)] == [1, 2]
    assert sorted(reader.get_rows(ITEMS, ids(1, 2))["id"].to_pylist()) == [1, 2]
    assert reader.get(ITEMS, (2,)) == {"id": 2, "category": "b", "price": None, "seen": None}


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_shares_of_several_calls_are_together_what_happened(store: Store, parts: int) -> None:
    """States of a key that lie between two shares are in one as what came, and in the other as what went."""
    if not store.can_partition_changes:
        pytest.skip("the store gives changes only as a whole")
    put(store, items((1, "a"), (2, "b"), (3, "c")))
    start, names = head_before_writes(store), ITEMS.arrow.names
    for turn in range(5):
        put(store, items((1, f"a{turn}"), (3, "c" if turn % 2 else "d"), (10 + turn, "new")))
        delete(store, ids(2, 9 + turn))
        put(store, items((2, f"b{turn % 2}")))
    upto = head_before_writes(store)
    shares = [store.changes_partition(ITEMS, names, start, upto, part, parts) for part in range(parts)]
    assert summed(pa.concat_tables(shares)) == difference(store, ITEMS, names, start, upto)


def test_a_log_says_what_it_takes(store: Store) -> None:
    if store.log_bytes() is None:
        pytest.skip("the store does not know it")
    empty = store.log_bytes()
    sizes = []
    for n in range(3):
        put(store, items(*((n * 100 + k, "x" * 500) for k in range(100))))
        sizes.append(store.log_bytes())
    assert None not in sizes
    assert sizes == sorted(sizes)
    assert sizes[-1] > 100_000
    store.truncate(store.head())
    after = store.log_bytes()
    assert after is not None
    assert empty is not None
    assert after <= max(empty, 0.2 * sizes[-1])
    put(store, items((1, "y")))
    assert (store.log_bytes() or 0) >= after
