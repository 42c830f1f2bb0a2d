"""The LMDB store alone: opening, processes and threads, long keys, holds, damage, durability."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.conftest import ITEMS, delete, ids, items, put, read, summed

from viewkeeper.errors import (
    BadValue,
    CorruptState,
    FormatTooNew,
    FormatTooOld,
    MaintainerBusy,
    NotADatabase,
    ReadOnly,
    SnapshotGone,
    StoreError,
)
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_whole_key
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store.contract.store import Batch
from viewkeeper.store.lmdb import LmdbStore
from viewkeeper.store.lmdb import table_rows as rows_module
from viewkeeper.store.lmdb.environment import FORMAT
from viewkeeper.store.ordered.log_format import concat_entries, entries, scan_chunks

WORDS = Table(5, "words", (Column("word", types.STRING), Column("n", types.BIGINT)), (KeyPart("word"),))


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore(path)
    opened.change_catalog(lambda catalog: catalog.with_table(ITEMS).with_table(WORDS))
    yield opened
    opened.close()


def words(*rows: tuple[str, int]) -> pa.Table:
    return pa.table([[row[0] for row in rows], [row[1] for row in rows]], schema=WORDS.arrow)


def run(code: str, *arguments: object) -> Any:
    """Run Python in another process; what it prints, as JSON."""
    command = [sys.executable, "-c", f"import json, sys\n{code}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


# -- opening ----------------------------------------------------------------------------------------------------------


def test_a_new_database_is_private(store: LmdbStore, path: Path) -> None:
    store.acquire_lease().release()
    assert path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}
    assert store.url == f"lmdb:{path}"
    assert store.state_path == str(path / "state")


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_directory_with_other_files_is_no_database(path: Path, mode: str) -> None:
    path.mkdir()
    (path / "letter.txt").write_text("dear")
    with pytest.raises(NotADatabase, match="db"):
        LmdbStore(path, mode)
    assert [file.name for file in path.iterdir()] == ["letter.txt"]


def test_a_file_is_no_database(path: Path) -> None:
    path.write_text("dear")
    with pytest.raises(NotADatabase, match="file"):
        LmdbStore(path)
    with pytest.raises(NotADatabase):
        LmdbStore(path / "below", "r")


def test_a_data_file_that_is_not_lmdbs_is_no_database(path: Path) -> None:
    path.mkdir()
    (path / "data.mdb").write_bytes(b"x" * 100_000)
    for mode in ("r", "w"):
        with pytest.raises(NotADatabase):
            LmdbStore(path, mode)
    assert (path / "data.mdb").read_bytes() == b"x" * 100_000


def test_another_programs_environment_is_no_database(path: Path) -> None:
    path.mkdir()
    with lmdb.open(str(path)) as other, other.begin(write=True) as txn:
        txn.put(b"a", b"1")
    for mode in ("r", "w"):
        with pytest.raises(NotADatabase, match="another program"):
            LmdbStore(path, mode)
    with lmdb.open(str(path)) as other, other.begin() as txn:
        assert list(txn.cursor()) == [(b"a", b"1")]


def test_an_absent_database_is_not_made_by_a_reader(path: Path) -> None:
    with pytest.raises(NotADatabase, match="no database"):
        LmdbStore(path, "r")
    assert not path.exists()


def test_an_empty_directory_becomes_a_database(path: Path) -> None:
    path.mkdir()
    LmdbStore(path).close()
    LmdbStore(path, "r").close()


def test_a_newer_format_is_refused(store: LmdbStore, path: Path) -> None:
    store.close()
    with lmdb.open(str(path), max_dbs=4) as raw, raw.begin(write=True) as txn:
        txn.put(b"format", b"%d" % (FORMAT + 1), db=raw.open_db(b"meta", txn=txn))
    for mode in ("r", "w"):
        with pytest.raises(FormatTooNew, match=f"format {FORMAT + 1}"):
            LmdbStore(path, mode)


def test_an_older_format_is_refused(store: LmdbStore, path: Path) -> None:
    store.close()
    with lmdb.open(str(path), max_dbs=4) as raw, raw.begin(write=True) as txn:
        txn.put(b"format", b"%d" % (FORMAT - 1), db=raw.open_db(b"meta", txn=txn))
    for mode in ("r", "w"):
        with pytest.raises(FormatTooOld, match=f"format {FORMAT - 1}.*Load the data again"):
            LmdbStore(path, mode)


def test_wrong_options_are_refused(path: Path) -> None:
    with pytest.raises(BadValue, match="mode"):
        LmdbStore(path, "a")
    with pytest.raises(BadValue, match="durability"):
        LmdbStore(path, durability="maybe")
    assert not path.exists()


def test_a_directory_that_cannot_be_written() -> None:
    """As another user, since root may write anywhere. In a directory of its own, since every pytest that starts closes
    the one of all pytests to others."""
    code = """
import os
from viewkeeper.store.lmdb import LmdbStore
from viewkeeper.errors import ViewkeeperError
if os.getuid() == 0:
    os.setuid(65534)
codes = []
for path, mode in ((sys.argv[1], "w"), (sys.argv[1] + "/below", "w"), (sys.argv[1], "r")):
    try:
        LmdbStore(path, mode)
        codes.append("opened")
    except ViewkeeperError as error:
        codes.append(error.code)
print(json.dumps(codes))
"""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "db"
        LmdbStore(path).close()
        (path / "data.mdb").chmod(0o444)
        (path / "lock.mdb").chmod(0o444)
        path.chmod(0o555)
        path.parent.chmod(0o755)
        try:
            # A reader registers itself in the lock file, so it cannot open the database either.
            assert run(code, path) == ["VK104", "VK104", "VK503"]
        finally:
            path.chmod(0o700)


def test_a_closed_store_says_so(store: LmdbStore) -> None:
    store.close()
    store.close()
    for attempt in (store.head, store.catalog, lambda: put(store, items((1,))), lambda: store.get(ITEMS, (1,))):
        with pytest.raises(StoreError, match="closed"):
            attempt()


def test_a_full_map_fails_whole(path: Path) -> None:
    with_little_room = LmdbStore(path, map_size=1 << 20)
    put(with_little_room, items((1, "a")))
    with pytest.raises(StoreError, match="map size"):
        put(with_little_room, items(*((n, "x" * 1000) for n in range(2, 3000))))
    assert with_little_room.head() == 1
    assert len(read(with_little_room)) == 1
    put(with_little_room, items((2, "b")))
    with_little_room.close()


def test_a_write_inside_a_catalog_change_is_refused_not_stuck(store: LmdbStore) -> None:
    def change(catalog: Any) -> Any:
        put(store, items((1,)))
        return catalog

    with pytest.raises(StoreError, match="inside another write"):
        store.change_catalog(change)
    assert put(store, items((1,))) == 1


# -- one environment per process --------------------------------------------------------------------------------------


def test_stores_of_one_process_share_the_environment(store: LmdbStore, path: Path) -> None:
    second, third = LmdbStore(path), LmdbStore(path, "r")
    put(store, items((1, "a")))
    store.close()
    put(second, items((2, "b")))
    second.close()
    assert [row["id"] for row in read(third)] == [1, 2]
    third.close()


def test_a_reader_first_and_then_a_writer(store: LmdbStore, path: Path) -> None:
    put(store, items((1, "a")))
    store.close()
    reader = LmdbStore(path, "r")
    scan = reader.scan(ITEMS)
    next(scan)
    writer = LmdbStore(path)
    put(writer, items((2, "b")))
    assert list(scan) == [], "a scan that began before does not see it"
    assert len(read(reader)) == 2
    with pytest.raises(ReadOnly):
        put(reader, items((3,)))
    writer.close()
    reader.close()


def test_one_durability_per_process(store: LmdbStore, path: Path) -> None:
    with pytest.raises(StoreError, match="durability"):
        LmdbStore(path, durability="none")
    LmdbStore(path, "r", durability="none").close()


@pytest.mark.parametrize("durability", ["commit", "group", "none"])
def test_every_durability_survives_the_death_of_the_process(path: Path, durability: str) -> None:
    code = """
import os
import pyarrow as pa
from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store.lmdb import LmdbStore
words = Table(5, "words", (Column("word", types.STRING), Column("n", types.BIGINT)), (KeyPart("word"),))
store = LmdbStore(sys.argv[1], durability=sys.argv[2])
for n in range(5):
    store.write(words, pa.table({"word": [str(n)], "n": [n]}), pa.table({"word": pa.array([], pa.string())}))
print(json.dumps(store.head()), flush=True)
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", f"import json, sys\n{code}", str(path), durability]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip() == "5"
    store = LmdbStore(path, "r")
    assert store.head() == 5
    assert [row["word"] for row in read(store, WORDS)] == ["0", "1", "2", "3", "4"]
    store.close()


def test_threads_read_and_write_at_once(store: LmdbStore) -> None:
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def body() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return body

    def write(first: int) -> Callable[[], None]:
        def body() -> None:
            for n in range(first, first + 20):
                put(store, items((n, "a"), (n + 1000, "a")))

        return body

    def look() -> None:
        for _ in range(50):
            low = sum(row["id"] < 1000 for row in read(store))
            total = len(read(store))
            assert low * 2 <= total

    threads = [threading.Thread(target=guarded(work)) for work in (write(0), write(100), look, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert store.head() == 40
    assert store.count(ITEMS) == 80


def test_a_new_table_is_opened_while_another_thread_writes(store: LmdbStore) -> None:
    """Opening a sub-database must not hold the interpreter while it waits for the writer."""
    inside, done = threading.Event(), threading.Event()

    def slow(catalog: Any) -> Any:
        inside.set()
        assert not done.wait(0.3)
        return catalog

    writer = threading.Thread(target=lambda: store.change_catalog(slow))
    writer.start()
    assert inside.wait(60)
    put(store, items((1,)))
    done.set()
    writer.join(60)
    assert not writer.is_alive()
    assert store.head() == 1


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_forked_child_is_refused_opens_another_and_leaves_the_parent_alone(store: LmdbStore, path: Path) -> None:
    put(store, items((1, "a")))
    scan = store.scan_at(ITEMS, ["id"], 1)
    first = next(scan)
    lease = store.acquire_lease()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            scan.close()  # type: ignore[attr-defined]
            with pytest.raises(StoreError, match=f"was opened by process {parent}"):
                store.get(ITEMS, (1,))
            lease.release()
            store.close()
            again = LmdbStore(path)
            put(again, items((2, "child")))
            with pytest.raises(MaintainerBusy):
                again.acquire_lease()
            assert len(read(again)) == 2
            again.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert store.lease_holder() is not None
    put(store, items((3, "parent")))
    assert summed(pa.Table.from_batches([first, *scan])) == {(1,): 1}
    assert [row["category"] for row in read(store)] == ["a", "child", "parent"]
    lease.release()
    assert store.lease_holder() is None


class LmdbReader:
    """A reader as a context manager."""

    def __init__(self, url: str) -> None:
        self.store = LmdbStore(url.partition(":")[2], "r")

    def __enter__(self) -> LmdbStore:
        return self.store

    def __exit__(self, *error: object) -> None:
        self.store.close()


def _read_range(url: str, cut: int, start: bytes | None, stop: bytes | None) -> dict[tuple[Any, ...], int]:
    with LmdbReader(url) as reader:
        batches = list(reader.scan_at(ITEMS, ["id", "category"], cut, start=start, stop=stop))
        return summed(pa.Table.from_batches(batches))


def test_other_processes_scan_ranges_at_one_cut(store: LmdbStore) -> None:
    """As Spark's workers do: by URL, each its range, while the writer goes on."""
    put(store, items(*((n, "old") for n in range(300))))
    cut = store.head()
    put(store, items(*((n, "new") for n in range(0, 400, 3))))
    delete(store, ids(1, 2))
    bounds = [None, *store.split_points(ITEMS, 3), None]
    ranges = [(store.url, cut, low, high) for low, high in itertools.pairwise(bounds)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = pool.starmap(_read_range, ranges)
    assert sum(len(part) for part in parts) == 300
    assert {row: n for part in parts for row, n in part.items()} == {(n, "old"): 1 for n in range(300)}


def test_two_processes_write(store: LmdbStore) -> None:
    put(store, items((1, "a")))
    code = """
import pyarrow as pa
from viewkeeper.store.lmdb import LmdbStore
store = LmdbStore(sys.argv[1])
table = store.catalog().table("words")
store.write(table, pa.table({"word": ["b"], "n": [2]}), pa.table({"word": pa.array([], pa.string())}))
print(json.dumps([store.head(), store.count(store.catalog().table("items")), store.lease_holder()]))
"""
    assert run(code, store.state_path.removesuffix("/state")) == [2, 1, None]
    assert store.get(WORDS, ("b",)) == {"word": "b", "n": 2}
    assert put(store, items((2, "b"))) == 3


def test_the_lease_ends_with_its_process(store: LmdbStore, path: Path) -> None:
    code = """
from viewkeeper.store.lmdb import LmdbStore
store = LmdbStore(sys.argv[1])
lease = store.acquire_lease()
print("held", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", f"import sys\n{code}", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MaintainerBusy, match=f"process {holder.pid} on"):
            store.acquire_lease()
        assert f"process {holder.pid}" in (store.lease_holder() or "")
        holder.kill()
        holder.wait()
    assert store.lease_holder() is None
    store.acquire_lease().release()


# -- long keys --------------------------------------------------------------------------------------------------------

PREFIXES = ["", "a" * 480, "a" * 493, "a" * 494, "a" * 495, "a" * 507, "a" * 508, "b" * 600]
LONG_WORDS = st.tuples(st.sampled_from(PREFIXES), st.text("az", max_size=3), st.sampled_from(["", "z" * 100])).map(
    "".join
)


@pytest.fixture(params=["digest", "collision"])
def digests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with real digests, once with all digests equal."""
    if request.param == "collision":
        monkeypatch.setattr(rows_module, "digest", lambda key: bytes(16))


@pytest.mark.usefixtures("digests")
@settings(suppress_health_check=list(HealthCheck), max_examples=30)
@given(
    calls=st.lists(
        st.tuples(st.dictionaries(LONG_WORDS, st.integers(0, 2), max_size=6), st.sets(LONG_WORDS, max_size=3)),
        max_size=4,
    ),
    bounds=st.tuples(st.none() | LONG_WORDS, st.none() | LONG_WORDS),
)
def test_long_keys_behave_like_short_ones(
    store: LmdbStore, calls: list[tuple[dict[str, int], set[str]]], bounds: tuple[str | None, str | None]
) -> None:
    number = len(store.catalog().tables) + 10
    table = Table(number, f"words{number}", WORDS.columns, WORDS.key)
    store.change_catalog(lambda catalog: catalog.with_table(table))
    model: dict[str, int] = {}
    cut, at_cut = store.head(), dict(model)
    for puts, deletes in calls:
        deletes = deletes - puts.keys()
        written = store.write(table, words(*puts.items()), pa.table({"word": pa.array(sorted(deletes), pa.string())}))
        assert written.changed_rows == sum(model.get(w) != n for w, n in puts.items()) + len(deletes & model.keys())
        model = {word: n for word, n in (model | puts).items() if word not in deletes}
        if len(model) < 3:
            cut, at_cut = store.head(), dict(model)
    assert [(row["word"], row["n"]) for row in read(store, table)] == sorted(model.items())
    assert store.count(table) == len(model)
    keys = pa.table({"word": pa.array([*model, "absent", "c" * 700], pa.string())})
    assert sorted(store.get_rows(table, keys)["word"].to_pylist()) == sorted(model)
    assert all((store.get(table, (word,)) or {}).get("n") == n for word, n in model.items())
    low, high = (None if word is None else encode_whole_key(table, (word,)) for word in bounds)
    inside = [
        w for w in sorted(model) if (bounds[0] is None or w >= bounds[0]) and (bounds[1] is None or w < bounds[1])
    ]
    assert [row["word"] for row in read(store, table, start=low, stop=high)] == inside
    assert [row["word"] for row in read(store, table, start=low, limit=2)] == [
        w for w in sorted(model) if bounds[0] is None or w >= bounds[0]
    ][:2]
    split = [None, *store.split_points(table, 3), None]
    ranges = [read(store, table, start=a, stop=b) for a, b in itertools.pairwise(split)]
    assert [row["word"] for part in ranges for row in part] == sorted(model)
    batches = list(store.scan_at(table, ["word", "n"], cut))
    past = summed(pa.Table.from_batches(batches, pa.schema([*table.arrow, ("¤w", pa.int64())])))
    assert past == dict.fromkeys(at_cut.items(), 1)


def test_dropping_a_table_with_long_keys(store: LmdbStore) -> None:
    put(store, words(("a" * 1000, 1)), WORDS)
    store.drop_rows(WORDS)
    assert store.count(WORDS) == 0
    assert read(store, WORDS) == []


# -- log, holds, damage -----------------------------------------------------------------------------------------------


def test_holds_keep_the_log(store: LmdbStore) -> None:
    for n in range(1, 6):
        put(store, items((n,)))
    store.hold("slow subscriber", 2)
    store.hold("expired", 0, expiry=1.0)
    store.truncate(5)
    assert len(store.changes(ITEMS, ["id"], 2, 5)) == 3
    with pytest.raises(SnapshotGone):
        store.changes(ITEMS, ["id"], 1, 5)
    assert [(hold.name, hold.position) for hold in store.holds()] == [("slow subscriber", 2)]
    store.hold("slow subscriber", 4)
    store.truncate(5)
    assert len(store.changes(ITEMS, ["id"], 4, 5)) == 1
    with pytest.raises(SnapshotGone):
        store.hold("too late", 2)
    store.release_hold("slow subscriber")
    store.release_hold("slow subscriber")
    store.truncate(5)
    assert store.holds() == []
    with pytest.raises(SnapshotGone):
        store.changes(ITEMS, ["id"], 4, 5)


def test_entries_come_call_by_call(store: LmdbStore) -> None:
    put(store, items((1, "a")))
    put(store, words(("w", 1)), WORDS)
    put(store, items((1, "b"), (2, "c")))
    found = list(store.entries(ITEMS, ["id", "category"], 0, 3))
    assert [position for position, _, _ in found] == [1, 3]
    assert summed(found[1][2]) == {(1, "a"): -1, (1, "b"): 1, (2, "c"): 1}
    assert found[0][1] <= found[1][1]


def _corrupt(path: Path, name: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change every record of a sub-database."""
    with lmdb.open(str(path), max_dbs=8, map_size=1 << 30) as raw, raw.begin(write=True) as txn:
        db = raw.open_db(name, txn=txn)
        for key, value in list(txn.cursor(db=db)):
            txn.put(key, change(value), db=db)


def test_a_damaged_log_entry_is_reported(store: LmdbStore, path: Path) -> None:
    put(store, items((1, "a")))
    store.close()
    _corrupt(path, b"log", lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    again = LmdbStore(path)
    with pytest.raises(CorruptState, match="Position 1"):
        again.changes(ITEMS, ["id"], 0, 1)
    assert len(read(again)) == 1
    again.close()


def test_every_damaged_byte_of_an_entry_is_noticed(store: LmdbStore) -> None:
    put(store, items((1, "a"), (2, None)))
    put(store, items((1, "b")))
    with store._handle.read() as state:
        found = list(entries(state.log, 0, 2, [ITEMS.id]))
    assert len(found) == 2
    for entry in found:
        concat_entries([entry])
        body = bytes(entry.body)
        for at in range(len(body)):
            with pytest.raises(CorruptState):
                concat_entries([entry._replace(body=body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :])])


def test_a_damaged_catalog_is_reported(store: LmdbStore, path: Path) -> None:
    store.close()
    _corrupt(path, b"meta", lambda value: value[:-1] + b"?" if len(value) > 100 else value)
    with pytest.raises(CorruptState, match="catalog"):
        LmdbStore(path)
    reader = LmdbStore(path, "r")
    with pytest.raises(CorruptState, match="catalog"):
        reader.catalog()
    reader.close()


def test_dropped_tables_leave_nothing_behind(store: LmdbStore, path: Path) -> None:
    put(store, items((1, "a", Decimal(1))))
    put(store, words(("w", 1)), WORDS)
    store.change_catalog(lambda catalog: catalog.without(ITEMS.id))
    store.drop_rows(ITEMS)
    store.close()
    again = LmdbStore(path)
    assert read(again, WORDS) == [{"word": "w", "n": 1}]
    assert read(again) == []
    again.close()
    with lmdb.open(str(path), max_dbs=8) as raw, raw.begin() as txn:
        assert [key for key, _ in txn.cursor()] == [b"log", b"meta", b"t5"]


def test_a_commit_of_nothing_moves_only_the_batch(store: LmdbStore) -> None:
    store.commit(Batch(1, 0, {"n": 1}), [])
    assert store.head() == 0
    assert store.published_batch() == Batch(1, 0, {"n": 1})


def test_a_database_removed_and_made_again_is_a_new_one(store: LmdbStore, path: Path) -> None:
    put(store, items((1, "a")))
    path.rename(path.with_name("old"))
    new = LmdbStore(path)
    assert new.uuid != store.uuid
    assert new.head() == 0
    assert store.head() == 1
    put(new, items((2, "b")))
    new.close()
    assert [row["id"] for row in read(store)] == [1]


def test_a_writer_killed_inside_a_call_leaves_nothing_and_blocks_nobody(store: LmdbStore, path: Path) -> None:
    put(store, items((1, "a")))
    code = """
import os, sys
import pyarrow as pa
from viewkeeper.store.lmdb import LmdbStore
from viewkeeper.store.ordered import write_call
finish = write_call.WriteCall.finish
def die(call):
    finish(call)
    os.kill(os.getpid(), 9)
write_call.WriteCall.finish = die
store = LmdbStore(sys.argv[1])
table = store.catalog().table("items")
rows = pa.table([[1, 2], ["b", "c"], [None, None], [None, None]], schema=table.arrow)
store.write(table, rows, pa.table({"id": pa.array([], pa.int64())}))
"""
    died = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=60)
    assert died.returncode == -9, died.stderr
    assert store.head() == 1
    assert [(row["id"], row["category"]) for row in read(store)] == [(1, "a")]
    assert put(store, items((2, "b"))) == 2
    assert summed(store.changes(ITEMS, ["id", "category"], 0, 2)) == {(1, "a"): 1, (2, "b"): 1}


# -- large calls ------------------------------------------------------------------------------------------------------


def test_the_log_of_a_large_call_lies_in_pages_that_need_not_stay_in_memory(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same call to whoever reads it: whole, in order, and never cut."""
    put(store, items(*((n, "a") for n in range(10))))
    for name, found in (("MIN_BUDGET", 80_000), ("process_budget", lambda: 160_000)):
        monkeypatch.setattr(f"viewkeeper.store.ordered.write_call.{name}", found)
    put(store, items(*((n, f"b{n}" * 9) for n in range(3_000))))
    put(store, items((1, "c")))
    with store._handle.read() as state:
        sizes = [len(body) for position, body in scan_chunks(state.log) if position == 2]
    assert len(sizes) > 20
    assert max(sizes) <= 2_018, "LMDB's largest value within a page"
    changes = store.changes(ITEMS, ["id", "category"], 1, 2)
    assert (changes.num_rows, changes["¤w"].to_numpy().sum()) == (3_010, 2_990)
    told = list(store.entries(ITEMS, ["id"], 0, 3))
    assert [(position, rows.num_rows) for position, _, rows in told] == [(1, 10), (2, 3_010), (3, 2)]
    assert store.pending(0, [ITEMS.id]).calls == 3
    assert [store.cut_after(0, [ITEMS.id], rows) for rows in (1, 10, 3_009, 3_010, 3_011)] == [1, 1, 1, 2, 3]
    assert store.cut_after(1, [ITEMS.id], 5) == 2, "one call is not cut"


def test_the_log_of_a_call_is_the_same_however_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted after all rows, by two threads; by one; and at once, slice by slice."""
    monkeypatch.setattr("viewkeeper.store.ordered.write_call.time", SimpleNamespace(time=lambda: 5.0))
    monkeypatch.setattr("viewkeeper.store.ordered.write_call._SLICE_ROWS", 40)
    monkeypatch.setattr("viewkeeper.store.ordered.write_call._MIN_PARALLEL_BYTES", 0)
    logs = []
    for number, (least, many) in enumerate([(1 << 40, 4), (1 << 40, 1000), (0, 1000)]):
        monkeypatch.setattr("viewkeeper.store.ordered.write_call.MIN_BUDGET", least)
        monkeypatch.setattr("viewkeeper.store.ordered.write_call.process_budget", lambda: 0)
        monkeypatch.setattr("viewkeeper.store.ordered.write_call._is_large", lambda size: False)
        monkeypatch.setattr("viewkeeper.store.ordered.write_call._MIN_PARALLEL_SLICES", many)
        with closing(LmdbStore(tmp_path / str(number))) as store:
            store.change_catalog(lambda catalog: catalog.with_table(ITEMS))
            put(store, items(*((n, f"a{n}") for n in range(0, 800, 2))))
            put(store, items(*((n, f"b{n}" if n % 6 else f"a{n}") for n in range(799, -1, -1))))
            delete(store, ids(*range(0, 900, 3)))
            with store._handle.read() as state:
                logs.append([(position, bytes(body)) for position, body in scan_chunks(state.log)])
            assert summed(store.changes(ITEMS, ["id"], 0, 3)) == {(n,): 1 for n in range(800) if n % 3}
    assert len(logs[0]) == 10 + 20 + 8
    assert logs[0] == logs[1] == logs[2]
