"""Run files: what was written comes back, and damage is noticed and named."""

from __future__ import annotations

import json
import pickle
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.errors import CorruptRun, CorruptState, FormatTooNew, StoreError
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state import open_state as commit_state
from viewkeeper.state import run_file as module
from viewkeeper.state.cursor import LookupCursor, Probe
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.state.run import Arrangement, Run, arrange
from viewkeeper.state.run_file import LazyRun, RunEntry, VerificationLog, group_pieces, open_run, write_run_file


def run(rows: int, first: int = 0) -> Run:
    return arrange(
        pa.table(
            {
                "s": pa.array([None if i % 3 == 0 else f"é{i}" for i in range(rows)], pa.string()),
                "d": pa.array(range(rows), pa.int64()).cast(pa.decimal128(38, 4)),
                "¤w": pa.array([1 + i % 2 for i in range(rows)], pa.int64()),
                "¤h": pa.array([first + 7 * (rows - i) for i in range(rows)], pa.uint64()),
            }
        )
    )


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[RunEntry], dict[str, Run]]:
    runs = {"join-1/0": run(1000), "empty/0": run(0), "agg-2/1": run(3, 2**63)}
    return tmp_path, write_run_file(tmp_path, "b1-t0.vkr", runs, fsync=True), runs


def test_runs_come_back_as_they_were(written: tuple[Path, list[RunEntry], dict[str, Run]]) -> None:
    directory, entries, runs = written
    assert [e.slot for e in entries] == list(runs)
    for entry in entries:
        again = open_run(directory, RunEntry.from_json(json.loads(json.dumps(entry.to_json()))), verify=True)
        assert again.rows.equals(runs[entry.slot].rows)
        assert (again.low, again.high, again.num_rows) == (entry.low, entry.high, entry.rows)


def test_a_run_has_the_same_bytes_whether_written_by_one_call_or_by_many(
    written: tuple[Path, list[RunEntry], dict[str, Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, entries, runs = written
    monkeypatch.setattr(module, "_MAX_BUFFERED_BYTES", -1)
    again = write_run_file(directory, "many", runs, fsync=False)
    assert (directory / "many").read_bytes() == (directory / "b1-t0.vkr").read_bytes()
    assert [replace(e, file="b1-t0.vkr") for e in again] == entries


def test_reading_copies_nothing(tmp_path: Path) -> None:
    (entry,) = write_run_file(tmp_path, "f", {"s": run(100_000)}, fsync=False)
    before = pa.total_allocated_bytes()
    opened = open_run(tmp_path, entry, verify=True)
    assert opened.hashes[0] == entry.low
    assert pa.total_allocated_bytes() - before < 10_000


def test_only_the_owner_may_read_it(written: tuple[Path, list[RunEntry], dict[str, Run]]) -> None:
    assert stat.S_IMODE((written[0] / "b1-t0.vkr").stat().st_mode) == 0o600


def test_a_leftover_of_a_dead_attempt_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "b1-t0.vkr"
    path.write_bytes(b"half")
    (entry,) = write_run_file(path.parent, path.name, {"s": run(5)}, fsync=False)
    assert open_run(tmp_path, entry, verify=True).num_rows == 5


@pytest.mark.parametrize("place", [0, 70, 500])
def test_a_flipped_byte_is_found_and_the_file_named(
    written: tuple[Path, list[RunEntry], dict[str, Run]], place: int
) -> None:
    directory, entries, _ = written
    path = directory / "b1-t0.vkr"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptState, match=r"b1-t0\.vkr"):
        open_run(directory, entries[0], verify=True)


def test_a_cut_file_is_found_without_reading_it(written: tuple[Path, list[RunEntry], dict[str, Run]]) -> None:
    directory, entries, _ = written
    path = directory / "b1-t0.vkr"
    path.write_bytes(path.read_bytes()[: entries[2].offset + 10])
    assert open_run(directory, entries[0], verify=True).num_rows == 1000
    with pytest.raises(CorruptState, match="bytes where"):
        open_run(directory, entries[2], verify=False)


def test_missing_empty_and_foreign_files_are_corrupt_state(
    written: tuple[Path, list[RunEntry], dict[str, Run]],
) -> None:
    directory, entries, _ = written
    with pytest.raises(CorruptState, match="gone"):
        open_run(directory, replace(entries[0], file="gone.vkr"), verify=False)
    for content in (b"", b"x", b"PAR1" + bytes(5000)):
        (directory / "other").write_bytes(content)
        with pytest.raises(CorruptState, match="other"):
            open_run(directory, replace(entries[0], file="other"), verify=False)


def test_an_entry_that_points_elsewhere_is_corrupt_state(written: tuple[Path, list[RunEntry], dict[str, Run]]) -> None:
    directory, entries, _ = written
    with pytest.raises(CorruptState):
        open_run(directory, replace(entries[0], rows=999), verify=False)
    with pytest.raises(CorruptState):
        open_run(directory, replace(entries[0], offset=entries[0].offset + 64), verify=False)


def test_a_newer_format_says_upgrade(written: tuple[Path, list[RunEntry], dict[str, Run]]) -> None:
    directory, entries, _ = written
    path = directory / "b1-t0.vkr"
    data = bytearray(path.read_bytes())
    data[8] = 99
    path.write_bytes(bytes(data))
    with pytest.raises(FormatTooNew, match="Upgrade"):
        open_run(directory, entries[0], verify=False)


def test_a_directory_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        write_run_file(tmp_path / "missing", "f", {"s": run(1)}, fsync=False)


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("viewkeeper.state.run_file.os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        write_run_file(tmp_path, "f", {"s": run(1)}, fsync=True)
    assert list(tmp_path.iterdir()) == []


def test_a_long_run_behind_a_url_is_written_in_pieces_that_are_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "PIECE_ROWS", 100)
    hashes = np.sort(np.random.default_rng(1).integers(0, 2**64, 1000, np.uint64))
    long = Run(pa.table({"k": np.arange(1000), "¤h": hashes}))
    few = Run(long.rows.slice(0, 50))
    there = StateDirectory((tmp_path / "there").as_uri())
    there.create()
    entries = write_run_file(there, "b1-a.vkr", {"x/0": few, "y/0": long}, fsync=False)
    assert [e.slot for e in entries[:2]] == ["x/0", "y/0"]
    assert len(entries) == 1 + 16
    assert [tuple(e.slot for e in pieces) for pieces in group_pieces(entries[1:])] == [("y/0",) * 16]
    assert [e.rows for e in write_run_file(tmp_path, "b1-b.vkr", {"y/0": long}, fsync=False)] == [1000]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    back = [open_run(there, e, verify=True) for e in entries[1:]]
    assert pa.concat_tables(r.rows for r in back).equals(long.rows)
    low, high = 2**63, 2**63 + 2**60
    some = [e for e in entries[1:] if e.overlaps(low, high)]
    assert 1 <= len(some) <= 3
    within = np.concatenate([open_run(there, e, verify=True).hashes for e in some])
    assert set(hashes[(hashes >= low) & (hashes <= high)]) <= set(within)


def test_a_lookup_opens_the_pieces_that_its_hashes_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "PIECE_ROWS", 100)
    hashes = np.sort(np.random.default_rng(2).integers(0, 2**64, 1000, np.uint64))
    there = StateDirectory((tmp_path / "there").as_uri())
    there.create()
    long = Run(pa.table({"k": np.arange(1000), "¤h": hashes}))
    entries = write_run_file(there, "b1-a.vkr", {"y/0": long}, fsync=False)
    closed = Arrangement(tuple(LazyRun(e, partial(open_run, there, e, True)) for e in entries))
    assert (closed.num_rows, closed.runs[0].low, closed.runs[-1].high) == (1000, hashes[0], hashes[-1])
    for asked in (hashes[500:504], hashes[:0], np.array([hashes[7] + np.uint64(1)]), hashes[[1, 2, 998]]):
        before = sum(run.is_open for run in closed.runs)
        index, rows = closed.probe(asked, ["k"])
        expected = Arrangement((long,)).probe(asked, ["k"])
        assert (index.tolist(), rows) == (expected[0].tolist(), expected[1])
        assert closed.slice(asked).equals(Arrangement((long,)).slice(asked))
        with PreparedStatements(threads=1) as duck:
            places = LookupCursor(closed.runs).unique(Probe(duck, [pa.array(asked)], asked), ["¤h"])
        assert places.tolist() == [int(np.searchsorted(hashes, h)) if h in hashes else -1 for h in asked]
        assert sum(run.is_open for run in closed.runs) <= before + 2
    assert closed.rows(["k"]).num_rows == 1000


def test_processes_tell_each_other_what_they_have_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [entry] = write_run_file(tmp_path, "b1-a.vkr", {"a/0": run(3)}, fsync=False)
    digests: list[int] = []
    digest = module.xxhash.xxh3_64_intdigest
    monkeypatch.setattr(module.xxhash, "xxh3_64_intdigest", lambda data: digests.append(1) or digest(data))
    one, other = VerificationLog(tmp_path / "verified"), VerificationLog(tmp_path / "verified")
    for known in (one, other, one):
        assert open_run(tmp_path, entry, True, known).num_rows == 3
    assert len(digests) == 1
    path = tmp_path / entry.file
    damaged = bytearray(path.read_bytes())
    damaged[entry.offset + entry.length - 40] ^= 1
    path.unlink()
    path.write_bytes(damaged)
    with pytest.raises(CorruptRun):
        open_run(tmp_path, entry, True, other)
    path.unlink()
    write_run_file(tmp_path, entry.file, {"a/0": run(3)}, fsync=False)
    nobody = VerificationLog(tmp_path / "none" / "such")  # each for itself
    assert [open_run(tmp_path, entry, True, nobody).num_rows for _ in range(2)] == [3, 3]


def test_state_lets_go_of_the_runs_that_no_batch_lists(tmp_path: Path) -> None:
    state = OpenState(str(tmp_path), Manifest())
    first = state.write(1, {"a/0": run(3), "b/0": run(4)}, durable=False)
    state.adopt(Manifest().with_entries(first))
    assert set(state._open_runs) == set(first)
    state.write(2, {"a/0": run(5)}, durable=False)  # of a batch that fails
    second = state.write(2, {"a/0": run(5)}, durable=False)
    state.adopt(state.manifest.with_entries(second))
    assert set(state._open_runs) == {*first, *second}
    state.adopt(state.manifest.with_replaced("a/0", [first[0]], []).restricted_to({"a/0"}))
    assert set(state._open_runs) == set(second)
    assert state.arrangement("b/0").runs == ()


def test_a_merge_checks_the_file_that_a_batch_has_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged, damaged rows would have a right checksum."""
    monkeypatch.setattr(commit_state, "MAX_IN_MEMORY_ROWS", 3)
    state = OpenState(str(tmp_path), Manifest())
    small, large = state.write(1, {"a/0": run(3), "b/0": run(4)}, durable=False)
    state.adopt(Manifest().with_entries([small, large]))
    assert [r.num_rows for slot in ("a/0", "b/0") for r in state.arrangement(slot).runs] == [3, 4]
    path = tmp_path / large.file
    damaged = bytearray(path.read_bytes())
    damaged[large.offset + large.length - 40] ^= 1
    path.write_bytes(damaged)
    assert state.run_opener(small)().num_rows == 3
    with pytest.raises(CorruptRun):
        state.run_opener(large)()


def test_an_entry_travels_as_its_values(written: tuple[Path, list[RunEntry], dict[str, Run]]) -> None:
    for entry in written[1]:
        assert RunEntry.from_json(json.loads(json.dumps(entry.to_json()))) == entry
        assert pickle.loads(pickle.dumps(entry)) == entry
