"""Arrangements: rows by hash in a few sorted runs, lookups, merges, and when to merge."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.errors import Contradiction
from viewkeeper.operators.chunked_execution import estimate_read_bytes
from viewkeeper.operators.kinds.lookup import lookup_rows
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state import hash_index
from viewkeeper.state.compaction import choose_merges
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Arrangement, Run, arrange, concat_ordered_runs, merge


@pytest.fixture(scope="module")
def duck() -> Iterator[PreparedStatements]:
    with PreparedStatements(threads=1) as duck:
        yield duck


def delta(*rows: tuple[int, str | None, int]) -> pa.Table:
    """(hash, value, weight)"""
    hashes, values, weights = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "v": pa.array(values, pa.string()),
            "¤w": pa.array(weights, pa.int64()),
            "¤h": pa.array(hashes, pa.uint64()),
        }
    )


def test_a_run_is_sorted_by_hash_and_keeps_the_order_of_equal_ones() -> None:
    run = arrange(delta((9, "a", 1), (2**63, "b", -1), (3, "c", 1), (9, "d", 1)))
    assert run.rows["v"].to_pylist() == ["c", "a", "d", "b"]
    assert (run.low, run.high, run.num_rows) == (3, 2**63, 4)


def test_weights_that_are_all_one_are_left_out_and_come_back() -> None:
    run = arrange(delta((1, "a", 1), (2, "b", 1)))
    assert "¤w" not in run.rows.column_names
    assert Arrangement((run,)).rows(["v"]).to_pylist() == [{"v": "a", "¤w": 1}, {"v": "b", "¤w": 1}]


def test_hashes_that_differ_only_in_the_lowest_bit_are_told_apart() -> None:
    """As doubles 2^63 and 2^63 + 1 would be the same number."""
    state = Arrangement((arrange(delta((2**63, "a", 1), (2**63 + 1, "b", 1))),))
    asked, rows = state.probe(np.array([2**63 + 1, 2**63], np.uint64), ["v"])
    assert dict(zip(asked.tolist(), rows["v"].to_pylist(), strict=True)) == {0: "b", 1: "a"}


def test_signed_hashes_are_refused() -> None:
    with pytest.raises(Contradiction):
        Arrangement((arrange(delta((1, "a", 1))),)).probe(np.array([1], np.int64), ["v"])


def test_a_lookup_multiplies_weights_over_all_runs() -> None:
    state = Arrangement((arrange(delta((5, "old", 2), (6, "x", 1))),)).with_runs(arrange(delta((5, "new", -1))))
    probe = pa.table({"p": ["p"], "¤w": pa.array([3]), "¤h": pa.array([5], pa.uint64())})
    (found,) = lookup_rows(probe, state, ["v"], 100)
    found = found.sort_by("v")
    assert found.to_pylist() == [{"p": "p", "v": "new", "¤w": -3}, {"p": "p", "v": "old", "¤w": 6}]


def test_a_lookup_that_finds_nothing_gives_nothing() -> None:
    state = Arrangement((arrange(delta((5, "a", 1))),))
    probe = pa.table({"p": ["p"], "¤w": pa.array([1]), "¤h": pa.array([7], pa.uint64())})
    assert list(lookup_rows(probe, state, ["v"], 100)) == []
    asked, rows = state.probe(np.array([7], np.uint64), ["v"])
    assert (len(asked), rows.schema.types) == (0, [pa.string(), pa.int64()])


@pytest.mark.parametrize("most", [1, 2, 3, 7, 1000])
def test_a_lookup_in_pieces_is_the_same_lookup(most: int) -> None:
    """Also where one probe row meets more rows than a piece has."""
    rng = np.random.default_rng(most)
    runs = [arrange(delta(*((int(h), f"{n}-{i}", 1) for i, h in enumerate(rng.integers(0, 4, 20))))) for n in range(3)]
    state = Arrangement(tuple(runs))
    probe = pa.table({"p": range(6), "¤w": [1, -1, 2, 1, 1, 1], "¤h": pa.array([1, 9, 1, 3, 0, 1], pa.uint64())})
    pieces = list(lookup_rows(probe, state, ["v"], most))
    assert max(p.num_rows for p in pieces) <= most or len(pieces) == 1
    (whole,) = lookup_rows(probe, state, ["v"], 10**6)
    order = [("p", "ascending"), ("v", "ascending")]
    assert pa.concat_tables(pieces).sort_by(order).equals(whole.sort_by(order))


def test_runs_that_follow_each_other_are_one() -> None:
    first, last = arrange(delta((1, "a", 1), (2, "b", 1))), arrange(delta((7, "c", -1), (9, "d", 1)))
    columns: list[pa.Table] = []
    run = concat_ordered_runs([first, last], lambda table: columns.append(table) or table)
    assert run.rows.to_pylist() == [*first.weighted_rows.to_pylist(), *last.rows.to_pylist()]
    assert [t.num_columns for t in columns] == [1, 1, 1]


def test_rows_are_counted_when_no_column_is_wanted() -> None:
    state = Arrangement((arrange(delta((5, "a", 1), (5, "b", 1))), arrange(delta((5, "c", -1)))))
    probe = pa.table({"p": ["p"], "¤w": pa.array([1]), "¤h": pa.array([5], pa.uint64())})
    assert pa.concat_tables(lookup_rows(probe, state, [], 100)).to_pylist() == [
        {"p": "p", "¤w": 1},
        {"p": "p", "¤w": 1},
        {"p": "p", "¤w": -1},
    ]


def test_an_arrangement_has_the_columns_that_all_its_runs_have(duck: PreparedStatements) -> None:
    """Views come and go: an older run may hold more columns than a newer one."""
    wide = delta((5, "a", 1), (6, "b", 1)).append_column("more", pa.array([1, 2]))
    runs = [arrange(wide), arrange(delta((5, "a", -1))), arrange(delta((5, "c", 1)))]
    state = Arrangement(tuple(runs))
    left = [{"v": "b", "¤w": 1}, {"v": "c", "¤w": 1}]
    for rows in (state.slice(np.array([5, 6], np.uint64)), state.rows(), merge(duck, runs).weighted_rows):
        assert consolidate(duck, rows.drop_columns(["¤h"])).sort_by("v").to_pylist() == left


def test_a_column_that_a_run_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        Arrangement((arrange(delta((5, "a", 1))),)).probe(np.array([5], np.uint64), ["missing"])


def test_slices_hold_every_row_of_the_hashes_asked_for() -> None:
    state = Arrangement(
        (arrange(delta((1, "a", 1), (2, "b", 1), (2, "c", 1), (3, "d", 1))), arrange(delta((2, "e", -1))))
    )
    assert sorted(state.slice(np.array([2, 4], np.uint64))["v"].to_pylist()) == ["b", "c", "e"]
    assert state.slice(np.zeros(0, np.uint64)).num_rows == 0


def test_rows_are_met_with_whose_they_are() -> None:
    hashes = np.array([2, 4, 9], np.uint64)
    state = Arrangement(
        tuple(Run(pa.table({"¤h": pa.array(h, pa.uint64())})) for h in ([1, 2, 2, 9], [2, 4, 9], [3], [4]))
    )
    found = [(run.hashes[places].tolist(), hashes[mine].tolist()) for run, places, mine in state.slice_row_ids(hashes)]
    assert found == [([2, 2, 9], [2, 2, 9]), ([2, 4, 9], [2, 4, 9]), ([4], [4])]


def test_merging_cancels_and_keeps_untouched_rows(duck: PreparedStatements) -> None:
    old = arrange(delta((1, "a", 1), (2, "b", 1), (3, None, 1), (4, "d", 1)))
    new = arrange(delta((2, "b", -1), (3, None, 1), (9, "z", 1)))
    run = merge(duck, [old, new])
    assert run.weighted_rows.select(["v", "¤w", "¤h"]).to_pylist() == [
        {"v": "a", "¤w": 1, "¤h": 1},
        {"v": None, "¤w": 2, "¤h": 3},
        {"v": "d", "¤w": 1, "¤h": 4},
        {"v": "z", "¤w": 1, "¤h": 9},
    ]


def test_merging_additive_rows_adds_their_columns(duck: PreparedStatements) -> None:
    def vectors(*rows: tuple[int, int, int]) -> pa.Table:
        k, n, h = zip(*rows, strict=True)
        return pa.table({"k": pa.array(k), "n": pa.array(n, pa.int64()), "¤h": pa.array(h, pa.uint64())})

    runs = [arrange(vectors((7, 2, 1), (8, 1, 2))), arrange(vectors((7, 3, 1), (8, -1, 2)))]
    assert merge(duck, runs, ["n"]).rows.to_pylist() == [{"k": 7, "n": 5, "¤h": 1}]
    assert merge(duck, runs, ["n"], keep_zero=True).num_rows == 2


@pytest.mark.parametrize("how", ["bisected", "guessed", "directory", "flagged"])
def test_hashes_are_found_where_bisection_finds_them(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(hash_index, "_MIN_INTERPOLATED_ROWS", 10**9 if how == "bisected" else 1)
    monkeypatch.setattr(hash_index, "_MIN_INTERPOLATED_PROBES", 1)
    monkeypatch.setattr(hash_index, "_ROWS_PER_PROBE", 10**9 if how == "directory" else 0)
    monkeypatch.setattr(hash_index, "_MIN_FILTER_PROBES", 1 if how == "flagged" else 10**9)
    rng = np.random.default_rng(0)
    spread = rng.integers(0, 2**64, 30_000, dtype=np.uint64)
    crowded = np.repeat(rng.integers(0, 2**64, 10, dtype=np.uint64), 3_000)
    together = rng.integers(2**62, 2**62 + 10**6, 20_000, dtype=np.uint64)
    one_side = np.concatenate([spread[:100], spread >> np.uint64(40)])
    ends = np.array([0, 0, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 1], np.uint64)
    none, same = np.zeros(500, np.uint64), np.full(3, 2**64 - 1, np.uint64)
    for keys in (spread, crowded, together, one_side, ends, none, same, spread[:1]):
        run = arrange(pa.table({"¤h": keys}))
        beside = np.concatenate([keys[::7] + np.uint64(1), keys[::7] - np.uint64(1)])
        probes = np.sort(np.concatenate([keys[::7], beside, rng.integers(0, 2**64, 200, dtype=np.uint64), ends]))
        for _ in range(3):  # a window that did not do is not tried again
            start, stop = run.ranges(probes)
            left, right = (np.searchsorted(run.hashes, probes, side) for side in ("left", "right"))
            there = left < right if how == "flagged" else np.ones(len(probes), np.bool_)  # else it lies anywhere
            assert (run.starts(probes[::-1])[::-1][there] == left[there]).all()
            assert (start[there] == left[there]).all()
            assert (stop - start == right - left).all()
        assert ("_directory" in run._hash_index.__dict__) == (how == "directory")
        assert ("_existence_filter" in run._hash_index.__dict__) == (how == "flagged")


def test_a_directory_is_made_when_lookups_were_worth_it() -> None:
    keys = np.sort(np.random.default_rng(0).integers(0, 2**64, 1 << 14, dtype=np.uint64))
    column = hash_index.HashIndex(keys)
    for _ in range(4):
        column.ranges(keys[:500])
        assert "_directory" not in column.__dict__
    column.ranges(keys[:500])
    assert "_directory" in column.__dict__


class TestChoosingMerges:
    def test_few_runs_are_left_alone(self) -> None:
        assert choose_merges([]) == 0
        assert choose_merges([6_000_000, 1, 1, 1, 1]) == 0

    def test_small_runs_merge_among_themselves(self) -> None:
        assert choose_merges([6_000_000, 1_000, 1_000, 1_000, 1_000, 1_000]) == 5

    def test_a_long_run_joins_when_its_successors_measure_up(self) -> None:
        assert choose_merges([3_000, 500, 400, 300, 200, 100]) == 6

    def test_the_two_newest_merge_when_nothing_fits(self) -> None:
        assert choose_merges([10**9, 10**7, 10**5, 10**3, 10, 1]) == 2

    @pytest.mark.parametrize("start", [0, 6_000])
    def test_a_row_is_rewritten_a_few_times_in_thousands_of_batches(self, start: int) -> None:
        sizes, written, most = [start] if start else [], 0, 0
        for _ in range(6_000):
            sizes.append(1)
            if newest := choose_merges(sizes):
                merged = sum(sizes[-newest:])
                sizes[-newest:] = [merged]
                written += merged
            most = max(most, len(sizes))
        assert most <= 5
        assert written / 6_000 < 16
        assert sum(sizes) == start + 6_000


class TestConsolidation:
    def test_equal_rows_add_up_and_zeros_vanish(self, duck: PreparedStatements) -> None:
        found = consolidate(duck, delta((1, "a", 1), (1, "a", 2), (2, None, 1), (2, None, -1), (3, "c", -1)))
        assert sorted(found.to_pylist(), key=lambda r: r["¤h"]) == [
            {"v": "a", "¤w": 3, "¤h": 1},
            {"v": "c", "¤w": -1, "¤h": 3},
        ]

    def test_nan_equals_nan(self, duck: PreparedStatements) -> None:
        table = pa.table({"x": [float("nan"), -float("nan")], "¤w": pa.array([1, -1])})
        assert consolidate(duck, table).num_rows == 0

    def test_minus_zero_is_another_value_than_zero(self, duck: PreparedStatements) -> None:
        table = pa.table({"x": [0.0, -0.0], "¤w": pa.array([-1, 1])})
        assert sorted(map(str, consolidate(duck, table)["x"].to_pylist())) == ["-0.0", "0.0"]

    def test_a_single_row_of_no_weight_vanishes(self, duck: PreparedStatements) -> None:
        assert consolidate(duck, delta((1, "a", 0))).num_rows == 0
        assert consolidate(duck, delta()).num_rows == 0
        assert consolidate(duck, delta((1, "a", -2))).num_rows == 1

    def test_rows_without_columns_are_counted(self, duck: PreparedStatements) -> None:
        assert consolidate(duck, pa.table({"¤w": pa.array([2, -1, 3])})).to_pylist() == [{"¤w": 4}]
        assert consolidate(duck, pa.table({"¤w": pa.array([2, -2])})).num_rows == 0


def test_what_runs_are_together_is_remembered_and_holds_none_of_them() -> None:
    def run(*hashes: int) -> Run:
        return Run(pa.table({"¤h": pa.array(hashes, pa.uint64())}))

    one, two, three = run(1), run(2), run(3)
    Arrangement((one, two)).cache_result("sum", 3)
    assert Arrangement((one, two)).cached_result("sum") == 3
    assert Arrangement((run(1), two)).cached_result("sum") is None
    assert Arrangement((two,)).cached_result("sum") is None
    assert Arrangement(()).cached_result("sum") is None
    Arrangement((one, two, three)).cache_result("sum", 6)
    assert Arrangement((one, two)).cached_result("sum") is None
    merged = weakref.ref(one)
    del one
    gc.collect()
    assert merged() is None
    assert Arrangement((run(1), two, three)).cached_result("sum") is None


def test_how_much_is_read_is_not_guessed_where_a_hash_has_many_rows() -> None:
    """Sums of doubles have up to 256 rows of a group."""
    hashes = np.repeat(np.arange(100, dtype=np.uint64) << np.uint64(50), 256)
    state = Arrangement((Run(pa.table({"¤x": pa.array(np.zeros(25_600, np.int64)), "¤h": pa.array(hashes)})),))
    came = pa.table({"¤h": pa.array(np.unique(hashes))})
    site: Any = SimpleNamespace(memory=SimpleNamespace(piece_bytes=100_000))
    assert estimate_read_bytes(site, [state], [[came]]) == state.num_bytes
    assert estimate_read_bytes(site, [state], [[came]], is_single_row=True) == 0
