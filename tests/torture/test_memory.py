"""A batch that does not fit into memory is split; one that cannot be split is an error, and the process lives."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import viewkeeper as vk
from viewkeeper.commit import memory
from viewkeeper.commit.stage import Stage
from viewkeeper.errors import BadValue, StoreError
from viewkeeper.store.base import Pending

from . import shop
from .harness import DEEP, Ledger


def test_what_fits() -> None:
    assert memory.fitting(Pending(10, 1_000, 0.0, size=1_000), 1 << 20) is None
    assert memory.fitting(Pending(10, 1_000, 0.0, size=1 << 20), 1 << 20) == 1_000 // memory.EXPANSION
    assert memory.fitting(Pending(1, 1, 0.0, size=1 << 40), 1 << 20) == 1
    assert memory.budget(None) > 1 << 28
    with pytest.raises(BadValue):
        memory.budget(1000)


def test_a_backlog_larger_than_memory_is_several_batches(url: str, ledger: Ledger) -> None:
    with vk.open(url, batch_memory=1 << 20) as db:
        before = db.status().epoch
        rng = random.Random(1)
        for call in range(200):
            db.put("orders", [shop.order(call * 50 + n, rng) for n in range(50)])
        db.refresh("driver")
        after = db.status()
        assert after.epoch - before > 5
        assert after.lag_changes == 0
        ledger.injected("backlog larger than memory")
        ledger.check("backlog larger than memory", db)


def test_memory_that_runs_out_halves_the_batch(url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than so many changed rows at once, and there is no memory left."""
    most = 200
    changes = Stage.changes

    def short(self: Stage, *span: Any) -> Any:
        found = changes(self, *span)
        if sum(delta.num_rows for delta in found.values()) > most:
            raise duckdb.OutOfMemoryException("there is none left")
        return found

    with vk.open(url) as db:
        epoch = db.status().epoch
        for step in range(40):
            shop.change(db, step)
        db._maintain()
        with monkeypatch.context() as patched:
            patched.setattr(Stage, "changes", short)
            db.refresh("driver")  # several batches, each half as long as the one that did not fit
            assert db.status().epoch > epoch + 1
            ledger.check("memory runs out", db)
            epoch, most = db.status().epoch, 1
            shop.change(db, 41)
            with pytest.raises(StoreError, match="Memory ran out"):
                db.refresh("driver")
            assert db.status().epoch == epoch
            ledger.injected("memory runs out")
            ledger.check("memory runs out", db)
        db.refresh("driver")
        assert db.status().lag_changes == 0
        ledger.check("memory runs out", db)


def test_a_huge_group_spills_beside_the_state(url: str, ledger: Ledger) -> None:
    """One customer has every order: its rows are recomputed at each change, under DuckDB's own limit."""
    with vk.open(url) as db:
        db.put("orders", [{**shop.order(n, random.Random(n)), "customer": 1} for n in range(30_000)])
        duck = db._maintain().stage.duck
        place = duck.run("SELECT current_setting('temp_directory') AS d")["d"][0].as_py()
        assert Path(place).parent == Path(url.removeprefix("lmdb:")) / "state"
        db.refresh("driver")
        ledger.injected("huge group")
        ledger.check("huge group", db)
        db.put("orders", {**shop.order(1, random.Random(5)), "customer": 1})
        db.refresh("driver")
        ledger.check("huge group", db)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on a process's data")
@pytest.mark.parametrize("group", ["a huge group", "many groups"])
@pytest.mark.parametrize("megabytes", [200, 350, 500, 700, 1_000, 1_500] if DEEP else [350])
def test_a_process_that_really_has_no_more(
    url: str, victim: Callable[..., Any], ledger: Ledger, group: str, megabytes: int
) -> None:
    """The kernel refuses memory wherever it is next asked for: in Python, Arrow, DuckDB, numpy or LMDB."""
    rows, fault = 200_000, f"kernel gives no more memory, {group}"
    rng = np.random.default_rng(megabytes)
    with vk.open(url, durability="none") as db:
        for first in range(0, rows, 5_000):
            numbers = np.arange(1_000 + first, 6_000 + first)
            db.put(
                "orders",
                pa.table(
                    {
                        "order_id": numbers,
                        "customer": np.ones_like(numbers) if group == "a huge group" else numbers % 20_000,
                        "item": 2 * (numbers % 20),
                        "quantity": rng.integers(1, 6, len(numbers)).astype(np.int32),
                        "price": [f"{cents / 100:.2f}" for cents in rng.integers(100, 99_999, len(numbers))],
                    }
                ),
            )
    out, errors = (process := victim(url, "catch up", first=megabytes)).communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]
    assert out.startswith("done") or "VK503" in out, out
    ledger.injected(fault)
    with vk.open(url, mode="r") as db:
        ledger.check(fault, db)
        assert (db.status().lag_changes == 0) == out.startswith("done")
    with vk.open(url) as db:
        assert db.refresh("driver").mended == ()
        assert db.status().lag_changes == 0
        ledger.check(fault, db)
