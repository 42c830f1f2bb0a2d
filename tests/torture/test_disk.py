"""A disk that is full, read-only, or fails to flush; a stale lock; a clock that jumps.

Each is one clear error with nothing half done, and when the cause is gone work goes on. Full and read-only disks are
real ones (a small tmpfs) where the tests may mount one; a failing flush is a library put before the system's.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import viewkeeper as vk
from viewkeeper import failpoints
from viewkeeper.errors import ReadOnly, StoreError
from viewkeeper.runtime import batch_work
from viewkeeper.runtime.local import scheduler

from . import shop
from .harness import DEEP, Ledger


class Disk:
    """A small file system of its own, with a copy of the template."""

    def __init__(self, place: Path, template: Path) -> None:
        self.place = place
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "none", str(place)], capture_output=True, text=True
        )
        if mounted.returncode:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
        shutil.copytree(template / "db", place / "db")
        self.url = f"lmdb:{place / 'db'}"

    def fill(self, leave: int = 0) -> None:
        """Write until the disk is full, but for some bytes."""
        with (self.place / "filler").open("wb", buffering=0) as file:
            with suppress(OSError):
                while True:
                    file.write(b"x" * 4096)
            if leave:
                file.truncate(file.tell() - leave)

    def free(self) -> None:
        (self.place / "filler").unlink()

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.place)], check=True)


@pytest.fixture
def disk(template: Path, tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    place.mkdir()
    try:
        yield Disk(place, template)
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


def attempted(act: Callable[[], object]) -> StoreError | None:
    """What went wrong, if it is the store's fault."""
    try:
        act()
    except StoreError as error:
        return error
    return None


@pytest.mark.parametrize("leave", [0, 8 << 10, 40 << 10, 96 << 10] if DEEP else [0, 40 << 10])
def test_a_full_disk(disk: Disk, ledger: Ledger, leave: int) -> None:
    fault = "disk full"
    with vk.open(disk.url) as db:
        shop.change(db, 1)
        disk.fill(leave)
        failed = 0
        for step in range(2, 12):
            failed += isinstance(attempted(lambda: shop.change(db, step)), StoreError)  # noqa: B023
            epoch = db.status().epoch
            error = attempted(lambda: db.refresh("driver"))
            failed += error is not None
            assert error is None or (error.hint and db.status().epoch == epoch)
            ledger.check(fault, db)
        assert failed
        ledger.count_injection(fault, failed)
        disk.free()
        shop.change(db, 20)
        db.refresh("driver")
        ledger.check(fault, db)
    with vk.open(disk.url) as db:
        shop.change(db, 21)
        db.refresh("driver")
        ledger.check(fault, db)
        assert {p.name for p in shop.state_files(disk.url)} >= shop.listed(db)


def test_a_full_disk_under_continuous_maintenance(disk: Disk, ledger: Ledger) -> None:
    with vk.open(disk.url) as db:
        disk.fill()
        with suppress(StoreError), db.maintain(retries=2) as kept:
            for step in range(30):
                with suppress(StoreError):
                    shop.change(db, step)
                time.sleep(0.01)
            kept.stop()
        ledger.count_injection("disk full, maintaining")
        ledger.check("disk full, maintaining", db)
        disk.free()
        with db.maintain():
            for step in range(30, 35):
                shop.change(db, step)
            token = db.put("items", {"item": 1, "category": "last", "cost": "1"})
            db.read("by_category", after=token)
        ledger.check("disk full, maintaining", db)


def test_a_read_only_disk(disk: Disk, ledger: Ledger) -> None:
    disk.remount("ro")
    ledger.count_injection("disk read-only")
    with pytest.raises((ReadOnly, StoreError)) as refused:
        vk.open(disk.url)
    assert refused.value.code in ("VK104", "VK503")
    with vk.open(disk.url, mode="r") as db:
        ledger.check("disk read-only", db)
    disk.remount("rw")
    with vk.open(disk.url) as db:
        shop.change(db, 1)
        db.refresh("driver")
        ledger.check("disk read-only", db)


def test_a_database_without_room_in_its_map(url: str, ledger: Ledger) -> None:
    size = (Path(url.removeprefix("lmdb:")) / "data.mdb").stat().st_size
    with vk.open(url, map_size=size + (64 << 10)) as db:
        failed = 0
        for step in range(40):
            for attempt in (lambda: shop.change(db, step), lambda: db.refresh("driver")):  # noqa: B023
                error = attempted(attempt)
                failed += error is not None
                assert error is None or "map" in str(error)
            ledger.check("map full", db)
        assert failed
        ledger.count_injection("map full", failed)
    with vk.open(url) as db:
        db.refresh("driver")
        ledger.check("map full", db)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, *((errno.EDQUOT, errno.EROFS) if DEEP else ())])
@pytest.mark.parametrize("point", ["run.write.before", "run.write.middle", "run.sync", "run.write.after"])
def test_a_file_that_cannot_be_written(url: str, ledger: Ledger, point: str, number: int) -> None:
    fault = f"{errno.errorcode[number]} writing state"
    with vk.open(url) as db:
        shop.change(db, 1)
        epoch, files = db.status().epoch, shop.state_files(url)
        with failpoints.fail_at(point, number):
            for _ in range(2):
                with pytest.raises(StoreError, match=os.strerror(number)):
                    db.refresh("driver")
        ledger.count_injection(fault, 2)
        assert db.status().epoch == epoch
        assert shop.state_files(url) == files
        ledger.check(fault, db)
        db.refresh("driver")
        ledger.check(fault, db)


def test_a_file_that_cannot_be_written_beside_the_batch(
    url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a large batch of many views, whose rows are resolved meanwhile."""
    monkeypatch.setattr(scheduler, "_MIN_THREADED_OPERATORS", 0)
    monkeypatch.setattr(batch_work, "MIN_PARALLEL_ROWS", 0)
    test_a_file_that_cannot_be_written(url, ledger, "run.write.middle", errno.ENOSPC)


def test_a_merge_that_cannot_be_written(url: str, ledger: Ledger) -> None:
    """The runs that were to be merged still count; a later batch merges them."""
    with vk.open(url) as db:
        failed = 0
        for step in range(40 if DEEP else 15):
            shop.change(db, step)
            db.refresh("driver")
            work = db._maintainer.publisher.compactor._future
            if failed < 2 and work is not None:
                with failpoints.fail_at("run.write.before", errno.ENOSPC):
                    shop.change(db, 1000 + step)
                    with pytest.raises(StoreError):
                        db.refresh("driver")
                    failed += isinstance(work.exception(), StoreError)
            ledger.check("disk full, merging", db)
        ledger.count_injection("disk full, merging", failed)
        assert max(len(r) for r in db._maintainer.publisher.state.manifest.runs.values()) <= 17


_FLUSH = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include <dlfcn.h>
static int fails(void) { const char *flag = getenv("FLUSH_FAILS"); return flag && access(flag, F_OK) == 0; }
#define FLUSH(name) int name(int fd) { \
    if (fails()) { errno = EIO; return -1; } \
    int (*next)(int) = dlsym(RTLD_NEXT, #name); return next(fd); }
FLUSH(fsync)
FLUSH(fdatasync)
"""

_FLUSHER = """
import sys, pathlib
import viewkeeper as vk
from viewkeeper.errors import StoreError
from tests.torture import shop
url, flag = sys.argv[1], pathlib.Path(sys.argv[2])
with vk.open(url) as db:
    for what in (lambda: shop.change(db, 1), lambda: db.refresh("driver")):
        head, epoch = db._store.head(), db.status().epoch
        flag.touch()
        try:
            what()
        except StoreError as error:
            print(error.code)
        else:
            raise SystemExit("a failed flush went unnoticed")
        assert (db._store.head(), db.status().epoch) == (head, epoch)
        assert shop.differences(db) == []
        flag.unlink()
        what()
        assert shop.differences(db) == []
    shop.change(db, 2)
    db.refresh("driver")
    assert shop.differences(db) == []
"""


def test_a_flush_that_fails(url: str, ledger: Ledger, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a failing fsync with")
    (tmp_path / "flush.c").write_text(_FLUSH)
    library = tmp_path / "flush.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "flush.c", "-ldl"], check=True)
    flag = tmp_path / "fail"
    root = str(Path(__file__).parents[2])
    env = os.environ | {"LD_PRELOAD": str(library), "FLUSH_FAILS": str(flag), "PYTHONPATH": root}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_FLUSHER), url, str(flag)],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.split() == ["VK503", "VK503"]
    ledger.count_injection("fsync fails", 2)
    with vk.open(url) as db:
        ledger.check("fsync fails", db)


def test_a_stale_lock(url: str, ledger: Ledger) -> None:
    """A lock file that somebody left, naming a process that lives: only the kernel's lock counts."""
    (Path(url.removeprefix("lmdb:")) / "maintainer.lock").write_text(f"process {os.getpid()} on elsewhere\n")
    ledger.count_injection("stale lock")
    with vk.open(url) as db:
        assert db.status().maintainer is None
        shop.change(db, 1)
        db.refresh("driver")
        ledger.check("stale lock", db)


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0, -4e9])
def test_a_clock_that_jumps(url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    with vk.open(url) as db:
        shop.change(db, 1)
        db.refresh("driver")
        changes = db.subscribe("by_category", timeout=0.5)
        next(changes)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        ledger.count_injection("clock jumps")
        for step in range(2, 5):
            shop.change(db, step)
            assert db.status().lag_seconds >= 0
            db.refresh("driver")
            ledger.check("clock jumps", db)
        assert sum(1 for _ in changes) == 3
        with db.snapshot() as state:
            assert state.read("totals").num_rows == 1
        with db.maintain():
            token = db.put("items", {"item": 1, "category": "last", "cost": "1"})
            db.read("by_category", after=token)
        ledger.check("clock jumps", db)


def test_a_scheduled_view_does_not_wait_for_a_clock_that_was_put_back() -> None:
    from dataclasses import replace

    from viewkeeper.maintain.strategies.remake import due_views
    from viewkeeper.model.catalog.catalog import View
    from viewkeeper.model.catalog.view import OwnCut
    from viewkeeper.model.schema import Table

    view = View(Table(1, "v", (), ()), "", {}, {"strategy": "SN", "interval": "10"}, own_cut=OwnCut(1, 0, 0, 1000.0))
    assert due_views([view], 1005.0) == []
    assert due_views([view], 1010.0) == [view]
    assert due_views([view], 500.0) == [view]
    assert due_views([replace(view, own_cut=None)], 500.0) != []


def test_files_are_private(url: str) -> None:
    old = os.umask(0)
    try:
        with vk.open(url) as db:
            for step in range(3):
                shop.change(db, step)
                db.refresh("driver")
        with vk.open(f"{url}-new") as db:
            db.sql("CREATE TABLE t (k INT, PRIMARY KEY (k))")
            db.refresh("driver")
    finally:
        os.umask(old)
    for root in (Path(url.removeprefix("lmdb:")), Path(f"{url}-new".removeprefix("lmdb:"))):
        made = [root, *(p for p in root.rglob("*") if root.name.endswith("-new") or p.name.startswith("b"))]
        assert [p for p in made if p.stat().st_mode & 0o077] == []
