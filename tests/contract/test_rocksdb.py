"""What is RocksDB's own: one process writes, others follow; crashes, forks, copies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict
from tests.contract import planned
from tests.contract.conftest import ITEMS, delete, ids, items, put, read, summed

import viewkeeper as vk
from viewkeeper.errors import BadValue, FormatTooNew, FormatTooOld, NotADatabase, ReadOnly, StoreError
from viewkeeper.store.rocksdb import RocksStore, database

OTHER = """
import json, os, sys
import pyarrow as pa
import viewkeeper as vk
from viewkeeper.errors import ViewkeeperError
from viewkeeper.store.rocksdb import RocksStore
def say(what): print(json.dumps(what), flush=True)
def rows(n, text): return pa.table([[n], [text], [None], [None]], schema=table.arrow)
no_keys = pa.table({"id": pa.array([], pa.int64())})
"""


@pytest.fixture
def store(path: Path) -> Iterator[RocksStore]:
    opened = RocksStore(path)
    opened.change_catalog(lambda catalog: catalog.with_table(ITEMS))
    yield opened
    opened.close()


class Process:
    """Python in another process, one line of JSON at a time."""

    def __init__(self, code: str, path: Path) -> None:
        command = [sys.executable, "-c", OTHER + code, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str = "") -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait(60)


# -- opening ----------------------------------------------------------------------------------------------------------


def test_a_new_database_is_private(store: RocksStore, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o700
    assert store.url == f"rocksdb:{path}"
    assert store.state_path == str(path / "state")


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_directory_with_other_files_is_no_database(path: Path, mode: str) -> None:
    path.mkdir()
    (path / "letter.txt").write_text("dear")
    with pytest.raises(NotADatabase, match="db"):
        RocksStore(path, mode)
    assert [file.name for file in path.iterdir()] == ["letter.txt"]


def test_another_programs_rocksdb_is_no_database(path: Path) -> None:
    other = Rdict(str(path), Options(raw_mode=True))
    other[b"a"] = b"1"
    other.close()
    for mode in ("r", "w"):
        with pytest.raises(NotADatabase, match="another program"):
            RocksStore(path, mode)


def test_a_newer_format_is_refused(store: RocksStore, path: Path) -> None:
    store.close()
    other = Rdict(str(path), Options(raw_mode=True))
    other[b"mformat"] = b"%d" % (database.FORMAT + 1)
    other.close()
    for mode in ("r", "w"):
        with pytest.raises(FormatTooNew):
            RocksStore(path, mode)


def test_an_older_format_is_refused(store: RocksStore, path: Path) -> None:
    store.close()
    other = Rdict(str(path), Options(raw_mode=True))
    other[b"mformat"] = b"%d" % (database.FORMAT - 1)
    other.close()
    for mode in ("r", "w"):
        with pytest.raises(FormatTooOld, match="Load the data again"):
            RocksStore(path, mode)


def test_what_cannot_be_meant_is_refused(path: Path) -> None:
    with pytest.raises(BadValue, match="durability"):
        RocksStore(path, durability="often")
    with pytest.raises(BadValue, match="mode"):
        RocksStore(path, "rw")
    assert not path.exists()


def test_stores_of_one_process_share_it(store: RocksStore, path: Path) -> None:
    second, third = RocksStore(path), RocksStore(path, "r")
    with pytest.raises(StoreError, match="durability"):
        RocksStore(path, durability="none")
    put(store, items((1, "a")))
    store.close()
    put(second, items((2, "b")))
    second.close()
    assert [row["id"] for row in read(third)] == [1, 2]
    with pytest.raises(ReadOnly):
        put(third, items((3,)))
    third.close()


def test_a_reader_first_and_then_a_writer(store: RocksStore, path: Path) -> None:
    put(store, items(*((n,) for n in range(200))))
    store.close()
    reader = RocksStore(path, "r")
    scan = reader.scan(ITEMS)
    first = next(scan)
    writer = RocksStore(path)
    put(writer, items((1000, "b")))
    assert first.num_rows + sum(batch.num_rows for batch in scan) == 200, "a scan that began before does not see it"
    assert len(read(reader)) == 201
    writer.close()
    reader.close()


def test_an_abandoned_snapshot_does_not_keep_it_open(store: RocksStore, path: Path) -> None:
    put(store, items(*((n,) for n in range(200))))
    scan = store.scan(ITEMS)
    next(scan)
    store.close()
    threading.Timer(0.2, scan.close).start()
    RocksStore(path).close()


# -- other processes --------------------------------------------------------------------------------------------------


def test_another_process_cannot_write_and_is_told_so(store: RocksStore, path: Path) -> None:
    other = Process(
        "sys.stdin.readline()\ntry: RocksStore(sys.argv[1])\nexcept ViewkeeperError as e: say(str(e))", path
    )
    said = other.ask()
    other.end()
    assert "one writer" in said
    assert "mode='r'" in said


def test_another_process_follows_every_write(store: RocksStore, path: Path) -> None:
    code = """
store = RocksStore(sys.argv[1], "r")
table = store.catalog().table("items")
for line in sys.stdin:
    rows = [r["category"] for b in store.scan(table) for r in b.to_pylist()]
    say([store.head(), rows, store.get(table, (1,))["category"], store.count(table)])
store.close()
"""
    put(store, items((1, "a")))
    other = Process(code, path)
    for n in range(30):
        position = put(store, items((1, f"v{n}"), (2, f"w{n}")))
        if n == 10:
            store._handle.require_open()._db.flush()  # type: ignore[attr-defined]  # its files change under the reader
        if n == 20:
            store._handle.require_open()._db.compact_range(None, None)  # type: ignore[attr-defined]
        assert other.ask() == [position, [f"v{n}", f"w{n}"], f"v{n}", 2]
    delete(store, ids(1))
    put(store, items((1, "again")))
    assert other.ask() == [33, ["again", "w29"], "again", 2]
    assert other.end() == 0


def test_a_followers_long_read_is_one_state(store: RocksStore, path: Path) -> None:
    code = """
store = RocksStore(sys.argv[1], "r")
table = store.catalog().table("items")
pinned, scan = store.open_snapshot(), store.scan(table)
found = [r["category"] for r in next(scan).to_pylist()]
for line in sys.stdin:
    if line.strip() == "now":
        say([len([r for b in store.scan(table) for r in b.to_pylist()]), pinned.head])
    elif line.strip() == "then":
        kept = [r["category"] for b in pinned.scan(table, at_cut=False) for r in b.to_pylist()]
        texts = found + [r["category"] for b in scan for r in b.to_pylist()]
        say([len(texts), len(kept), sorted({*texts, *kept, pinned.get(table, (1,))["category"]})])
pinned.close()
store.close()
"""
    put(store, items(*((n, "old") for n in range(500))))
    other = Process(code, path)
    assert other.ask("now") == [500, 1]
    for n in range(5):
        put(store, items((1, f"new {n}"), *((1000 * n + i, "more") for i in range(2, 300))))
        delete(store, ids(*range(100, 120)))
        store._handle.require_open()._db.flush()  # type: ignore[attr-defined]
    store._handle.require_open()._db.compact_range(None, None)  # type: ignore[attr-defined]
    assert other.ask("now")[0] == len(read(store))
    assert other.ask("then") == [500, 500, ["old"]]
    assert other.end() == 0


@pytest.mark.parametrize("durability", ["commit", "group", "none"])
def test_every_durability_survives_the_death_of_the_process(store: RocksStore, path: Path, durability: str) -> None:
    store.close()
    code = """
store = RocksStore(sys.argv[1], durability=sys.stdin.readline().strip())
table = store.catalog().table("items")
for n in range(5):
    store.write(table, rows(n, "x"), no_keys)
say(store.head())
os.kill(os.getpid(), 9)
"""
    other = Process(code, path)
    assert other.ask(durability) == 5
    assert other.end() == -9
    again = RocksStore(path)
    assert [row["id"] for row in read(again)] == [0, 1, 2, 3, 4]
    assert again.count(ITEMS) == 5
    assert put(again, items((5, "y"))) == 6
    again.close()


def test_a_writer_killed_inside_a_call_leaves_nothing(store: RocksStore, path: Path) -> None:
    put(store, items((1, "a")))
    store.close()
    code = """
from viewkeeper.store.ordered import write_call
write_call.WriteCall.finish = lambda call: os.kill(os.getpid(), 9)
store = RocksStore(sys.argv[1])
table = store.catalog().table("items")
store.write(table, rows(2, "b"), no_keys)
"""
    assert Process(code, path).end() == -9
    again = RocksStore(path)
    assert again.head() == 1
    assert put(again, items((2, "b"))) == 2
    assert summed(again.changes(ITEMS, ["id", "category"], 0, 2)) == {(1, "a"): 1, (2, "b"): 1}
    again.close()


def test_a_forked_child_opens_another_that_reads_and_does_not_write(store: RocksStore, path: Path) -> None:
    put(store, items((1, "a")))
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = [row["id"] for row in read(RocksStore(path, "r"))]
            try:
                RocksStore(path)
                found.append(-1)
            except StoreError:
                found.append(0)
            os.write(into, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(into)
    assert json.loads(os.read(out, 1000)) == [1, 0]
    os.waitpid(child, 0)
    assert put(store, items((3, "c"))) == 2
    assert [row["id"] for row in read(store)] == [1, 3]


# -- threads, sizes ---------------------------------------------------------------------------------------------------


def test_threads_read_whole_calls_while_others_write(store: RocksStore) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def readers() -> None:
        try:
            while not done.is_set():
                texts = {row["category"] for row in read(store)}
                assert len(texts) <= 1, "a call is seen whole or not at all"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=readers) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(40):
        put(store, items(*((i, f"v{n}") for i in range(150))))
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_rows_are_counted(store: RocksStore) -> None:
    put(store, items(*((n,) for n in range(10))))
    put(store, items((3, "again"), (11, "new")))
    delete(store, ids(1, 2, 77))
    assert store.count(ITEMS) == 9 == len(read(store))
    store.drop_rows(ITEMS)
    assert store.count(ITEMS) == 0 == len(read(store))


def test_a_write_inside_a_catalog_change_is_refused_not_stuck(store: RocksStore) -> None:
    def change(catalog: Any) -> Any:
        put(store, items((1,)))
        return catalog

    with pytest.raises(StoreError, match="inside another write"):
        store.change_catalog(change)
    assert put(store, items((1,))) == 1


# -- a whole database -------------------------------------------------------------------------------------------------


def test_it_is_backed_up_restored_and_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned.install(monkeypatch.setattr)
    url = f"rocksdb:{tmp_path / 'shop'}"
    with vk.open(url, durability="none") as shop:
        for statement in planned.TABLES:
            shop.sql(statement)
        shop.put("kinds", [{"category": c, "boss": c.upper()} for c in "abc"])
        shop.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
        shop.put("items", [{"item_id": n, "category": "abc"[n % 3], "price": n} for n in range(9)])
        shop.refresh()
        assert shop.backup(tmp_path / "monday") > 0
        shop.put("items", {"item_id": 100, "category": "a", "price": 1})
        with pytest.raises(BadValue, match="rocksdb:PATH"):
            vk.restore(tmp_path / "monday", f"lmdb:{tmp_path / 'other'}")
        shop.refresh()
    with vk.open(url, mode="r") as reader:
        assert reader.backup(tmp_path / "tuesday") > 0, "nobody writes: a reader may"
        assert [f for f in reader.doctor().findings if not f.ok] == []
    vk.restore(tmp_path / "monday", f"rocksdb:{tmp_path / 'again'}")
    with vk.open(f"rocksdb:{tmp_path / 'again'}") as again:
        assert sum(row["n"] for row in again.scan("totals")) == 9
        again.put("items", {"item_id": 9, "category": "a", "price": 1})
        again.refresh()
        assert sum(row["n"] for row in again.scan("totals")) == 10
        assert [f for f in again.doctor().findings if not f.ok] == []
        with vk.open(f"rocksdb:{tmp_path / 'tuesday'}", mode="r") as tuesday:
            assert tuesday.read("items").num_rows == 10
