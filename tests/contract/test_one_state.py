"""Every store that has snapshots: a read is of one state, whatever is inserted, overwritten and deleted meanwhile."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.conftest import ITEMS, PAIRS, delete, ids, items, pairs, put, read, summed

from viewkeeper.model.encoding.keys import key_range
from viewkeeper.store.contract.store import Store, StoreSnapshot
from viewkeeper.store.ordered.handle import OrderedCatalogStore

ROWS = 600
OLD = {2 * n: "old" for n in range(ROWS)}

Rows = dict[int, str]


@pytest.fixture
def filled(store: Store) -> Store:
    """ITEMS has the rows OLD, PAIRS has one."""
    put(store, items(*OLD.items()))
    put(store, pairs(("a", 1, "old")), PAIRS)
    return store


def _change(store: Store) -> Rows:
    """Rows before, between and after the old ones come, others are overwritten or go; what there is then."""
    came = dict.fromkeys((-1, *range(1, 2 * ROWS, 50), 2 * ROWS, 2 * ROWS + 1), "came")
    written = dict.fromkeys(range(0, 2 * ROWS, 6), "written")
    gone = range(2, 2 * ROWS, 6)
    put(store, items(*came.items()))
    put(store, items(*written.items()))
    delete(store, ids(*gone))
    put(store, pairs(("a", 1, "new"), ("b", 1, "new")), PAIRS)
    return {n: text for n, text in (OLD | came | written).items() if n not in gone}


def _shown(batches: Iterator[pa.RecordBatch]) -> Rows:
    rows = [(row["id"], row["category"]) for batch in batches for row in batch.to_pylist()]
    assert len(dict(rows)) == len(rows), "a key was seen twice"
    return dict(rows)


def _pinned(store: Store) -> StoreSnapshot:
    if not (store.capabilities.snapshot_scan or store.capabilities.cell_versions):
        pytest.skip("it has no snapshots")
    return store.open_snapshot()


def _one_state(store: Store) -> None:
    if not store.capabilities.snapshot_scan:
        pytest.skip("its scans are not of one state")


def test_a_snapshot_stays_as_it_was(filled: Store) -> None:
    pinned = _pinned(filled)
    now = _change(filled)
    assert _shown(pinned.scan(ITEMS)) == OLD
    assert _shown(pinned.scan(ITEMS)) == OLD, "and again"
    assert [row["note"] for batch in pinned.scan(PAIRS) for row in batch.to_pylist()] == ["old"]
    keys = [-1, 0, 1, 2, 4, 6, 8, 2 * ROWS]
    assert {n: row["category"] for n in keys if (row := pinned.get(ITEMS, (n,)))} == dict.fromkeys(
        (0, 2, 4, 6, 8), "old"
    )
    assert sorted(pinned.find(ITEMS, ids(*keys))["id"].to_pylist()) == [0, 2, 4, 6, 8]
    pinned.close()
    assert {row["id"]: row["category"] for row in read(filled)} == now


def test_a_snapshots_ranges_and_limits_are_of_its_state(filled: Store) -> None:
    pinned = _pinned(filled)
    _change(filled)
    if not filled.is_in_key_order(ITEMS):
        pytest.skip("its ranges are not those of keys")
    for low, high in ((0, 13), (3, 4), (101, 700), (-5, 1), (2 * ROWS - 3, 2 * ROWS + 9)):
        start, stop = key_range(ITEMS, (low,), (high,))
        assert _shown(pinned.scan(ITEMS, start=start, stop=stop)) == _between(OLD, low, high)
    for limit in (1, 2, 64, 65, ROWS - 1, ROWS + 1):
        assert list(_shown(pinned.scan(ITEMS, limit=limit))) == list(OLD)[:limit]
    pinned.close()


def test_a_scan_of_a_snapshot_goes_on_as_it_began(filled: Store) -> None:
    pinned = _pinned(filled)
    begun = pinned.scan(ITEMS)
    seen = [next(begun)]
    _change(filled)
    later = pinned.scan(ITEMS)
    between = [next(later)]
    delete(filled, ids(*range(0, 2 * ROWS, 4)))
    for batch in begun:  # by turns: what one has read does not move the other
        seen.append(batch)
        between += [rows for rows in (next(later, None),) if rows is not None]
    assert _shown(iter(seen)) == OLD
    assert _shown(iter([*between, *later])) == OLD
    pinned.close()


def test_snapshots_of_several_states_are_read_side_by_side(filled: Store) -> None:
    pins, model, expected = [_pinned(filled)], dict(OLD), [dict(OLD)]
    for n in range(3):
        put(filled, items((2 * n, f"call {n}"), (5000 + n, f"call {n}")))
        delete(filled, ids(100 + 2 * n))
        model |= {2 * n: f"call {n}", 5000 + n: f"call {n}"}
        del model[100 + 2 * n]
        if filled.capabilities.snapshot_scan:
            pins.append(filled.open_snapshot())
            expected.append(dict(model))
    assert [_shown(pinned.scan(ITEMS)) for pinned in pins] == expected
    for pinned in pins:
        pinned.close()


def test_a_scan_shows_the_state_in_which_it_began(filled: Store) -> None:
    _one_state(filled)
    scan = filled.scan(ITEMS)
    seen = [next(scan)]
    _change(filled)
    assert _shown(iter([*seen, *scan])) == OLD


def test_a_scan_of_a_past_state_is_of_that_cut_while_rows_change(filled: Store) -> None:
    _one_state(filled)
    cut = filled.head()
    put(filled, items((0, "since"), (1, "since")))
    scan = filled.scan_at(ITEMS, ["id", "category"], cut)
    seen = [next(scan)]
    _change(filled)
    seen += scan
    assert summed(pa.Table.from_batches(seen)) == dict.fromkeys(OLD.items(), 1)


@pytest.mark.parametrize("read_by", ["scan_at", "find_at", "scan"])
def test_what_is_written_just_after_a_read_took_its_state_is_not_in_it(
    filled: Store, monkeypatch: pytest.MonkeyPatch, read_by: str
) -> None:
    _one_state(filled)
    cut = filled.head()
    put(filled, items((0, "since"), (1, "since")))
    shown, left = OrderedCatalogStore.catalog_at, [1]

    def write_first(known: OrderedCatalogStore, state: Any) -> Any:
        if left:
            left.clear()
            _change(filled)
        return shown(known, state)

    monkeypatch.setattr(OrderedCatalogStore, "catalog_at", write_first)
    if read_by == "scan_at":
        found = summed(pa.Table.from_batches(filled.scan_at(ITEMS, ["id", "category"], cut)))
        assert found == dict.fromkeys(OLD.items(), 1)
    elif read_by == "find_at":
        rows = filled.find_at(ITEMS, ids(*range(2 * ROWS)), ["id", "category"], cut)
        assert _shown(iter(rows.to_batches())) == OLD
    else:
        assert _shown(filled.scan(ITEMS)) == OLD | {0: "since", 1: "since"}
    assert not left


def test_what_a_snapshot_says_of_its_log_stays_true_when_the_log_is_cut(filled: Store) -> None:
    _one_state(filled)
    pinned = filled.open_snapshot()
    _change(filled)
    filled.truncate(filled.head())
    images = pinned.row_images(ITEMS, 0)
    assert images is not None
    assert len(images) == len(OLD)
    pinned.close()


def test_snapshots_taken_at_random_are_read_at_random(filled: Store) -> None:
    _one_state(filled)
    chance = random.Random(7)
    model: Rows = dict(OLD)
    open_ones: list[tuple[StoreSnapshot, Rows]] = []
    scans: list[tuple[Iterator[Any], Rows, Rows]] = []
    for turn in range(150):
        numbers = [chance.randrange(-10, 2 * ROWS + 10) for _ in range(chance.choice((1, 5, 40)))]
        match chance.randrange(6):
            case 0:
                put(filled, items(*dict.fromkeys(numbers, f"turn {turn}").items()))
                model |= dict.fromkeys(numbers, f"turn {turn}")
            case 1:
                delete(filled, ids(*set(numbers)))
                model = {n: text for n, text in model.items() if n not in numbers}
            case 2:
                open_ones.append((filled.open_snapshot(), dict(model)))
            case 3 if open_ones:
                pinned, then = chance.choice(open_ones)
                low = min(numbers)
                start, stop = key_range(ITEMS, (low,), (low + 300,))
                scans.append((pinned.scan(ITEMS, start=start, stop=stop), {}, _between(then, low, low + 300)))
            case 4 if open_ones:
                pinned, then = chance.choice(open_ones)
                found = {n: row["category"] for n in numbers if (row := pinned.get(ITEMS, (n,)))}
                assert found == {n: then[n] for n in numbers if n in then}
            case _ if scans:
                scan, seen, expected = chance.choice(scans)
                seen |= _shown(iter([batch for batch in (next(scan, None),) if batch is not None]))
                assert seen.items() <= expected.items()
    for scan, seen, expected in scans:
        assert seen | _shown(scan) == expected
    for pinned, then in open_ones:
        assert _shown(pinned.scan(ITEMS)) == then
        pinned.close()


def _between(rows: Rows, low: int, high: int) -> Rows:
    return {n: text for n, text in rows.items() if low <= n < high}


class _Writing:
    """Another thread that gives every third row the text of its call, call after call; what failed, there or here."""

    def __init__(self, store: Store) -> None:
        self.failures: list[BaseException] = []
        self._store, self._done = store, threading.Event()
        self._call(0)
        self._thread = threading.Thread(target=self._write)

    def _call(self, turn: int) -> None:
        put(self._store, items(*((n, f"call {turn}") for n in range(0, 2 * ROWS, 6))))

    def _write(self) -> None:
        try:
            for turn in itertools.takewhile(lambda _: not self._done.is_set(), itertools.count(1)):
                self._call(turn)
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> _Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @staticmethod
    def texts(rows: Rows) -> set[str]:
        assert set(rows) == set(OLD)
        return {rows[n] for n in range(0, 2 * ROWS, 6)}


def test_a_snapshot_is_one_state_to_threads_while_another_writes(filled: Store) -> None:
    _one_state(filled)

    def look(pinned: StoreSnapshot, expected: str) -> None:
        try:
            for _ in range(3):
                assert writing.texts(_shown(pinned.scan(ITEMS))) == {expected}
        except BaseException as error:
            writing.failures.append(error)

    with _Writing(filled) as writing:
        for _ in range(20):
            pinned = filled.open_snapshot()
            row = pinned.get(ITEMS, (0,))
            assert row is not None
            threads = [threading.Thread(target=look, args=(pinned, row["category"])) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            pinned.close()
    assert writing.failures == []
