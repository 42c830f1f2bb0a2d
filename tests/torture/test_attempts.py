"""Attempts that somebody gave up on: a maintainer that slept while another took over, and what the dead left."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import viewkeeper as vk
from viewkeeper.errors import MaintainerBusy

from . import shop
from .harness import DEEP, Ledger, asleep, wake

Victim = Callable[..., subprocess.Popen[str]]

POINTS = ["commit.1.after", "commit.2.after", "commit.3.before", "commit.4.after", "commit.5.collect"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see that a process has stopped")
@pytest.mark.parametrize("passing", [1, 3] if DEEP else [2])
@pytest.mark.parametrize("point", POINTS if DEEP else POINTS[2:4])
def test_a_maintainer_that_slept_changes_nothing(
    url: str, victim: Victim, ledger: Ledger, tmp_path: Path, point: str, passing: int
) -> None:
    path, once = Path(url.removeprefix("lmdb:")), tmp_path / "struck"
    process = victim(url, steps=50, VK_STOP_AT=f"{point}@{passing}", VK_CRASH_ONCE=str(once))
    assert asleep(once, process) == process.pid
    with vk.open(url) as db, pytest.raises(MaintainerBusy):
        db.refresh("driver")  # it sleeps, but the kernel still holds its lock
    (path / "maintainer.lock").unlink()  # what an operator does who believes it dead
    ledger.count_injection("maintainer stalls, loses its lease")
    with vk.open(url, retention=0) as db:
        for step in range(100, 103):
            shop.change(db, step)
            db.refresh("driver")
        epoch = db.status().epoch
        wake(process.pid, once)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1, errors[-2000:]
        assert "VK601" in errors or "VK604" in errors, errors[-2000:]  # busy, or the log it wanted is gone
        assert db.status().epoch == epoch
        assert shop.listed(db) <= {p.name for p in shop.state_files(url)}
        ledger.check("maintainer stalls, loses its lease", db)
        for step in range(103, 106):
            shop.change(db, step)
            assert db.refresh("driver").mended == ()
            ledger.check("maintainer stalls, loses its lease", db)


def test_what_dead_attempts_left_is_collected_and_never_read(url: str, ledger: Ledger) -> None:
    state = Path(url.removeprefix("lmdb:")) / "state"
    with vk.open(url) as db:
        number = db.status().epoch
    good = shop.state_files(url)[0].read_bytes()
    left = [f"b{number}-dead.vkr", f"b{number + 1}-0-dead.vkr", f"b{number + 7}-mdead.vkr", "b1-half.vkr"]
    for name in left:
        (state / name).write_bytes(good if "half" not in name else good[:100])
    (state / "notes.txt").write_text("not ours")
    ledger.count_injection("files of dead attempts", len(left))
    with vk.open(url) as db:
        shop.change(db, 1)
        db.refresh("driver")
        ledger.check("files of dead attempts", db)
        db._acquire_maintainer().publisher.state.wait_for_collection()  # files are removed in the background
        assert not [name for name in left if (state / name).exists()]
        assert (state / "notes.txt").exists()


def test_a_file_of_a_batch_to_come_is_left_alone(url: str) -> None:
    """A successor that this process does not know of yet writes files before it publishes."""
    state = Path(url.removeprefix("lmdb:")) / "state"
    with vk.open(url, retention=0) as db:
        db._acquire_maintainer()
        (state / "b999-0-successor.vkr").write_bytes(b"")
        old = state / "b1-0-old.vkr"
        old.write_bytes(b"")
        shop.change(db, 1)
        db.refresh("driver")
        db._acquire_maintainer().publisher.state.wait_for_collection()  # files are removed in the background
        assert not old.exists()
        assert (state / "b999-0-successor.vkr").exists()


def test_two_maintainers_never_both_publish(url: str, ledger: Ledger) -> None:
    """The number of a batch decides, whatever the lock says."""
    with vk.open(url) as db:
        shop.change(db, 1)
        maintainer = db._acquire_maintainer()
        batch: Any = db._store.published_batch()
        db._store.commit(type(batch)(batch.number + 1, batch.cut, batch.record), [])  # somebody else
        maintainer.publisher.batch = batch
        with pytest.raises(MaintainerBusy):
            maintainer.publisher.publish(batch.number + 1, batch.cut, maintainer.publisher.state.manifest, [])
        db.refresh("driver")
        ledger.check("maintainer stalls, loses its lease", db)
