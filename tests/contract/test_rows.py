"""Every store: what is put is read, by key, by range, all of it; what is deleted is gone."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
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
    assert_changed,
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

from viewkeeper.errors import BadValue, ReadOnly, RowAbsent, UnknownName
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_whole_key, key_range, prefix_range
from viewkeeper.model.schema import Column, Table
from viewkeeper.store.contract.store import Store

WHEN = dt.datetime(2024, 2, 29, 12, 30)


def test_get_gives_python_values_of_the_outside_types(store: Store) -> None:
    put(store, items((1, "toys", Decimal("9.90"), WHEN), (2,)))
    assert store.get(ITEMS, (1,)) == {
        "id": 1,
        "category": "toys",
        "price": Decimal("9.90"),
        "seen": WHEN.replace(tzinfo=dt.UTC),
    }
    assert store.get(ITEMS, (2,)) == {"id": 2, "category": None, "price": None, "seen": None}
    assert store.get(ITEMS, (3,)) is None


def test_get_with_a_wrong_key_says_so(store: Store) -> None:
    with pytest.raises(BadValue, match=r"items\.id"):
        store.get(ITEMS, ("one",))
    with pytest.raises(BadValue, match="1 column"):
        store.get(ITEMS, (1, 2))


def test_a_table_never_written_is_empty(store: Store) -> None:
    assert read(store) == []
    assert store.get(ITEMS, (1,)) is None
    assert store.count(ITEMS) == 0
    assert store.get_rows(ITEMS, ids(1)).num_rows == 0
    assert store.split_points(ITEMS, 4) == []


def test_a_put_replaces_the_whole_row(store: Store) -> None:
    put(store, items((1, "toys", Decimal("1.00"))))
    put(store, items((1, "books")))
    assert store.get(ITEMS, (1,)) == {"id": 1, "category": "books", "price": None, "seen": None}
    assert store.count(ITEMS) == 1


def test_puts_and_deletes_of_one_call_happen_together(store: Store) -> None:
    put(store, items((1, "a"), (2, "b"), (3, "c")))
    written = store.write(ITEMS, items((2, "B"), (4, "d")), ids(1, 9))
    assert_changed(store, written, 3, 4)
    assert written.atomic == store.capabilities.atomic_batch
    assert [(row["id"], row["category"]) for row in read(store)] == [(2, "B"), (3, "c"), (4, "d")]
    assert store.count(ITEMS) == 3


def test_a_call_that_changes_nothing_has_the_position_of_the_head(store: Store) -> None:
    if not store.capabilities.before_images:
        pytest.skip("the store does not know what was there before")
    head = put(store, items((1, "a")))
    again = store.write(ITEMS, items((1, "a")), ids(7))
    assert (again.position, again.changed_rows) == (head, 0)
    assert store.head() == head
    assert store.write(ITEMS, items(), ids()).changed_rows == 0


def test_positions_rise_with_every_call(store: Store) -> None:
    before = store.head()
    positions = [put(store, items((n,))) for n in range(3)]
    assert before < positions[0] < positions[1] < positions[2] <= store.head()
    if store.capabilities.atomic_batch:
        assert [*positions, store.head()] == [1, 2, 3, 3]


def test_scan_is_in_key_order_and_by_range(store: Store) -> None:
    put(store, pairs(("b", 1, "x"), ("a", None, "last"), ("a", 1, "low"), ("a", 5, "high"), ("", 0, "first")), PAIRS)
    assert [row["note"] for row in read(store, PAIRS)] == ["first", "high", "low", "last", "x"]
    start, stop = prefix_range(PAIRS, ("a",))
    assert [row["note"] for row in read(store, PAIRS, start=start, stop=stop)] == ["high", "low", "last"]
    start, stop = key_range(PAIRS, ("a", 3), ("b",))
    assert [row["note"] for row in read(store, PAIRS, start=start, stop=stop)] == ["low", "last"]
    assert [row["note"] for row in read(store, PAIRS, limit=2)] == ["first", "high"]
    assert [row["note"] for row in read(store, PAIRS, start=start, limit=1)] == ["low"]
    assert read(store, PAIRS, limit=0) == []


def test_scan_gives_only_the_columns_asked_for(store: Store) -> None:
    put(store, items((1, "a", Decimal(1)), (2, "b", Decimal(2))))
    batches = list(store.scan(ITEMS, ["price", "ID"]))
    assert pa.Table.from_batches(batches).to_pydict() == {"price": [Decimal("1.00"), Decimal("2.00")], "id": [1, 2]}
    assert batches[0].schema.field("price").type == pa.decimal128(12, 2)
    assert sum(batch.num_rows for batch in store.scan(ITEMS, [])) == 2
    with pytest.raises(UnknownName, match="nothing"):
        store.scan(ITEMS, ["nothing"])


def test_get_many_leaves_absent_keys_out(store: Store) -> None:
    put(store, items(*((n, str(n)) for n in range(10))))
    found = store.get_rows(ITEMS, ids(7, 42, 3), ["id", "category"])
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 3, "category": "3"},
        {"id": 7, "category": "7"},
    ]
    assert store.get_rows(ITEMS, ids()).num_rows == 0


def test_update_changes_some_columns_of_one_row(store: Store) -> None:
    put(store, items((1, "a", Decimal(5), WHEN)))
    changed = store.update(ITEMS, ids(1), pa.table({"price": pa.array([Decimal("7.50")], pa.decimal128(12, 2))}))
    assert changed.changed_rows == 1
    row = store.get(ITEMS, (1,))
    assert row == {"id": 1, "category": "a", "price": Decimal("7.50"), "seen": WHEN.replace(tzinfo=dt.UTC)}
    again = store.update(ITEMS, ids(1), pa.table({"category": ["a"]}))
    assert again.changed_rows == 0
    assert again.position >= changed.position


def test_update_refuses_absent_rows_keys_and_unknown_columns(store: Store) -> None:
    head = put(store, items((1, "a")))
    with pytest.raises(RowAbsent, match="no row"):
        store.update(ITEMS, ids(2), pa.table({"category": ["b"]}))
    with pytest.raises(BadValue, match="key"):
        store.update(ITEMS, ids(1), pa.table({"id": [2]}))
    with pytest.raises(UnknownName, match="colour"):
        store.update(ITEMS, ids(1), pa.table({"colour": ["b"]}))
    assert [row["category"] for row in read(store)] == ["a"]
    if store.capabilities.changelog:
        assert store.pending(head, [ITEMS.id]).calls == 0


def test_rows_that_do_not_fit_the_table_are_refused_whole(store: Store) -> None:
    before = store.head()
    with pytest.raises(BadValue, match="price"):
        put(store, items((1, "a")).drop_columns(["price"]))
    with pytest.raises(BadValue):
        put(store, pa.table({"id": ["one"], "category": ["a"], "price": [None], "seen": [None]}))
    with pytest.raises(BadValue, match="twice"):
        put(store, items((2, "a"), (1, "x"), (2, "b")))
    assert store.count(ITEMS) == 0
    if store.capabilities.changelog:
        assert store.pending(before, [ITEMS.id]).calls == 0


def test_split_points_cut_the_table_into_similar_ranges(store: Store) -> None:
    put(store, items(*((n,) for n in range(1000))))
    points = store.split_points(ITEMS, 4)
    assert points == sorted(set(points))
    bounds = [None, *points, None]
    sizes = [len(read(store, start=low, stop=high)) for low, high in itertools.pairwise(bounds)]
    assert sum(sizes) == 1000
    assert len(sizes) == 4
    assert min(sizes) > 150
    assert len(store.split_points(ITEMS, 1)) == 0


def test_more_rows_than_a_batch_holds(store: Store) -> None:
    skip_if_small(store)
    many = 70_000
    rows = pa.table([range(many), [f"c{n % 7}" for n in range(many)], [None] * many, [None] * many], schema=ITEMS.arrow)
    assert_changed(store, store.write(ITEMS, rows.slice(0, 50_000), ids()), 50_000, 50_000)
    assert_changed(store, store.write(ITEMS, rows.slice(40_000), ids()), 20_000, 30_000)
    assert pa.Table.from_batches(store.scan(ITEMS)).equals(rows)
    middle = [encode_whole_key(ITEMS, (n,)) for n in (32_768, 65_536)]
    found = pa.Table.from_batches(store.scan(ITEMS, ["id"], start=middle[0], stop=middle[1]))
    assert found["id"].to_pylist() == list(range(32_768, 65_536))
    assert sum(batch.num_rows for batch in store.scan(ITEMS, limit=40_000)) == 40_000


def test_dropped_rows_are_gone_and_other_tables_stay(store: Store) -> None:
    put(store, items((1, "a")))
    put(store, pairs(("a", 1, "x")), PAIRS)
    store.change_catalog(lambda catalog: catalog.without(ITEMS.id))
    store.drop_rows(ITEMS)
    assert store.count(ITEMS) == 0
    assert read(store, PAIRS) == [{"word": "a", "n": 1, "note": "x"}]


def test_a_table_without_key_columns_holds_one_row(store: Store) -> None:
    total = Table(9, "total", (Column("n", types.BIGINT),), ())
    put(store, pa.table({"n": [1]}), total)
    put(store, pa.table({"n": [2]}), total)
    assert store.get(total, ()) == {"n": 2}
    assert store.count(total) == 1


def test_a_database_keeps_its_rows_when_opened_again(opener: Opener) -> None:
    first = opener()
    first.change_catalog(lambda catalog: catalog.with_table(ITEMS))
    position = put(first, items((1, "a")))
    uuid = first.uuid
    first.close()
    again = opener()
    assert again.uuid == uuid
    assert again.catalog().table("ITEMS") == ITEMS
    assert read(again)[0]["category"] == "a"
    assert put(again, items((2,))) > position


def test_a_reader_sees_what_a_writer_does_and_cannot_write(opener: Opener) -> None:
    writer = opener()
    writer.change_catalog(lambda catalog: catalog.with_table(ITEMS))
    reader = opener("r")
    put(writer, items((1, "a")))
    assert reader.get(ITEMS, (1,)) is not None
    assert reader.catalog().version == 1
    for attempt in (
        lambda: put(reader, items((2,))),
        lambda: reader.update(ITEMS, ids(1), pa.table({"category": ["b"]})),
        lambda: reader.change_catalog(lambda catalog: catalog),
        lambda: reader.drop_rows(ITEMS),
        lambda: reader.truncate(1),
        lambda: reader.acquire_lease(),
    ):
        with pytest.raises(ReadOnly):
            attempt()
    assert [row["id"] for row in read(reader)] == [1]


KEYS = st.tuples(st.sampled_from(["", "a", "a\x00", "b"]), st.none() | st.integers(-2, 2))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, *HealthCheck], max_examples=25)
@given(
    calls=st.lists(st.tuples(st.dictionaries(KEYS, st.sampled_from(["x", "y"]), max_size=4), st.sets(KEYS, max_size=3)))
)
def test_a_store_is_a_sorted_map(store: Store, calls: list[tuple[dict[Any, str], set[Any]]]) -> None:
    """Random calls of puts and deletes, against a dictionary; each example begins with an empty table."""
    table = PAIRS
    emptied(store, table)
    model: dict[tuple[str, int | None], str] = {}
    for puts, deletes in calls:
        deletes = deletes - puts.keys()
        rows = pairs(*((*key, note) for key, note in puts.items()))
        keys = pairs(*((*key, None) for key in deletes)).select(["word", "n"])
        changed = sum(model.get(key) != note for key, note in puts.items()) + sum(key in model for key in deletes)
        assert_changed(store, store.write(table, rows, keys), changed, len(puts) + len(deletes))
        model.update(puts)
        for key in deletes:
            model.pop(key, None)
        ordered = sorted(model, key=lambda key: (key[0].encode(), key[1] is None, -(key[1] or 0)))
        assert [(row["word"], row["n"], row["note"]) for row in read(store, table)] == [
            (*key, model[key]) for key in ordered
        ]
        assert store.count(table) == len(model)
        for key in puts.keys() | deletes:
            found = store.get(table, key)
            assert (found and found["note"]) == model.get(key)


def test_delete_of_absent_keys_is_no_change(store: Store) -> None:
    first = put(store, items((1,)))
    second = delete(store, ids(5, 6))
    assert [row["id"] for row in read(store)] == [1]
    third = delete(store, ids(1))
    assert read(store) == []
    if store.capabilities.before_images:
        assert (second, third) == (first, first + 1)


@pytest.mark.parametrize("same", [(), (1,), (0, 16, 32), range(200)], ids=["none", "one", "those tried", "all"])
def test_of_many_rows_only_those_are_changes_that_become_others(store: Store, same: Sequence[int]) -> None:
    """A store may look at some rows of a large call and write all of them: what is told is what became another row."""
    put(store, items(*((2 * n, "old") for n in range(200))))
    before = store.head()
    there = {2 * n: "old" if n in same else "new" for n in range(200)}
    beside = dict.fromkeys((5, 77, 201, 1000), "new")  # between the others, and behind them
    written = store.write(ITEMS, items(*(there | beside).items()), ids())
    assert_changed(store, written, 204 - len(same), 204)
    assert {row["id"]: row["category"] for row in read(store)} == there | beside
    came = {(n, "new"): 1 for n, kind in (there | beside).items() if kind == "new"}
    went = {(n, "old"): -1 for n, kind in there.items() if kind == "new"}
    if store.capabilities.before_images:
        assert summed(store.changes(ITEMS, ["id", "category"], before, written.position)) == came | went
