"""A batch that does not fit into memory is split; one that cannot be split is an error, and the process lives."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import viewkeeper as vk
from viewkeeper.capture import changes
from viewkeeper.errors import BadValue, StoreError
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements, connect
from viewkeeper.resources.process_budget import default_budget, parse_size, process_budget
from viewkeeper.runtime import cost_model
from viewkeeper.store.contract.store import PendingChanges
from viewkeeper.store.lmdb import LmdbStore

from . import shop
from .harness import DEEP, Ledger


def test_what_fits() -> None:
    assert cost_model.fitting_rows(PendingChanges(10, 1_000, 0.0, size=1_000), 1 << 20) is None
    assert (
        cost_model.fitting_rows(PendingChanges(10, 1_000, 0.0, size=1 << 20), 1 << 20)
        == 1_000 // cost_model.MEMORY_EXPANSION
    )
    assert cost_model.fitting_rows(PendingChanges(1, 1, 0.0, size=1 << 40), 1 << 20) == 1


@pytest.mark.parametrize(
    ("given", "size"),
    [("2GB", 2 * 10**9), ("1.5 GiB", 3 << 29), ("512m", 512 * 10**6), ("64MiB", 1 << 26), (1 << 30, 1 << 30)],
)
def test_a_budget_as_it_is_given(given: int | str, size: int) -> None:
    assert parse_size(given) == size


@pytest.mark.parametrize("given", ["", "much", "1000", 1000, "-2GB", 1.5, True, "10 apples", "1e9"])
def test_no_budget(given: object) -> None:
    with pytest.raises(BadValue, match="memory is"):
        vk.open("lmdb:nowhere", memory=given)
    assert not Path("nowhere").exists()


def test_where_the_budget_comes_from(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIEWKEEPER_MEMORY", raising=False)
    assert process_budget() == default_budget() > 1 << 28
    monkeypatch.setenv("VIEWKEEPER_MEMORY", "300MB")
    assert process_budget() == 300 * 10**6
    with vk.open(url, memory="200MB") as db:
        shop.change(db, 1)
        db.refresh("driver")
        assert db.status().memory == 200 * 10**6
        stage = db._acquire_maintainer().executor
        settings = "current_setting('memory_limit') AS m, current_setting('temp_directory') AS d"
        limit, place = stage.pool.use_primary().run(f"SELECT {settings}")
        assert limit[0].as_py() == "76.2 MiB"
        assert Path(place[0].as_py()).parents[1] == Path(stage.state.directory)
    with pytest.warns(DeprecationWarning, match="batch_memory"):
        db = vk.open(url, batch_memory=1 << 27)
    with db:
        shop.change(db, 2)
        db.refresh("driver")
        assert db.status().memory == 1 << 27


def test_databases_that_are_maintained_in_one_process_share_its_budget(make_db: Callable[..., Any]) -> None:
    def limit(db: Any) -> str:
        duck = db._acquire_maintainer().executor.pool.use_primary()
        return str(duck.run("SELECT current_setting('memory_limit') AS m")["m"][0].as_py())

    with make_db("one", memory="1GB") as one:
        assert limit(one) == "381.4 MiB", "two fifths"
        with make_db("two") as two:
            assert process_budget() == two._acquire_maintainer().publisher.memory.process_limit == 10**9, (
                "what the process may take"
            )
            assert limit(one) == limit(two) == "190.7 MiB"
        with make_db("reader", memory="2GB"):
            assert process_budget() == 2 * 10**9, "the most that was given"
            assert limit(one) == "381.4 MiB", "who does not maintain has no share"
        assert limit(one) == "381.4 MiB"
        assert one.status().memory in (None, 10**9)


def test_every_duckdb_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one module makes them, and it gives each its part of the budget."""
    source = Path(vk.__file__).parent
    assert [p.name for p in source.rglob("*.py") if "duckdb.connect(" in p.read_text()] == ["prepared_statements.py"]
    monkeypatch.setenv("VIEWKEEPER_MEMORY", "4GiB")
    with connect() as alone, connect(MemoryBudget(1 << 30)) as owned, PreparedStatements() as small:
        told = [
            c.sql("SELECT current_setting('memory_limit')").fetchall()[0][0] for c in (alone, owned, small._connection)
        ]
    assert told == ["512.0 MiB", "409.5 MiB", "512.0 MiB"]


def test_an_audit_keeps_large_tables_in_files(
    make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBudget, "buffer_bytes", 1)
    with make_db("audited", spark=spark, memory="64MiB") as db:
        db.sql("CREATE TABLE t (k BIGINT, v DECIMAL(5, 2), PRIMARY KEY (k))")
        db.sql("CREATE MATERIALIZED VIEW bag AS SELECT v FROM t")
        db.put("t", [{"k": k, "v": k % 7} for k in range(1_000)])
        db.refresh("driver")
        assert db.audit().differences == 0
        assert db.sql("SELECT v, count(*) AS n FROM t GROUP BY v", engine="embedded").num_rows == 7


def test_rows_put_aside_are_the_same_and_leave_nothing(tmp_path: Path) -> None:
    memory = MemoryBudget(1 << 28).with_spill_directory(tmp_path)
    rows = pa.table({"k": np.arange(400_000), "t": [f"row {n}" for n in range(400_000)]}).slice(7)
    before = pa.total_allocated_bytes()
    aside = memory.spill(rows)
    assert aside.equals(rows)
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert list((tmp_path / "spill").rglob("*.arrow")) == [], "nobody can find it"
    gathered = memory.collect(iter(rows.to_batches(10_000)), rows.schema)
    assert gathered.equals(rows)
    memory.close()
    assert not (tmp_path / "spill").exists()


def test_what_a_killed_process_spilled_is_removed(make_db: Callable[..., Any]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with make_db("shop") as db:
        spill = Path(db._store.state_path) / "spill"
        for owner in (f"{socket.gethostname()}-{gone.pid}", f"elsewhere-{gone.pid}", f"{socket.gethostname()}-1"):
            (spill / owner).mkdir(parents=True)
            (spill / owner / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"rows")
        db.sql("CREATE TABLE t (k BIGINT, PRIMARY KEY (k))")
        db.refresh("driver")
        assert sorted(p.name for p in spill.iterdir()) == [f"elsewhere-{gone.pid}", f"{socket.gethostname()}-1"]


def test_a_backlog_larger_than_memory_is_several_batches(
    url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_model, "MEMORY_EXPANSION", 1_000)  # as if every row took kilobytes
    with vk.open(url, memory="64MiB") as db:
        before = db.status().epoch
        rng = random.Random(1)
        for call in range(200):
            db.put("orders", [shop.order(call * 50 + n, rng) for n in range(50)])
        db.refresh("driver")
        after = db.status()
        assert after.epoch - before > 5
        assert after.lag_changes == 0
        ledger.count_injection("backlog larger than memory")
        ledger.check("backlog larger than memory", db)


def test_one_call_that_is_more_than_fits_is_read_in_parts(
    url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be cut, so it is a batch of its own, whatever waits after it."""
    read: list[int] = []
    part_of_changes = LmdbStore.changes_partition

    def counted(self: LmdbStore, *span: Any) -> pa.Table:
        read.append(span[-1])
        return part_of_changes(self, *span)

    monkeypatch.setattr(cost_model, "MEMORY_EXPANSION", 1_000_000)
    for name in ("_MIN_PARTITIONED_ROWS", "_MIN_SPILL_ROWS", "MIN_PARALLEL_ROWS"):
        monkeypatch.setattr(changes, name, 100)  # by several threads, each part in a file
    monkeypatch.setattr(MemoryBudget, "piece_bytes", 4_000)
    monkeypatch.setattr(LmdbStore, "changes_partition", counted)
    rng = random.Random(2)
    with vk.open(url, memory="64MiB") as db:
        db.put("orders", [shop.order(n, rng) for n in range(700)])
        db.put("orders", [shop.order(n, rng) for n in range(5)])
        before = db.status().epoch
        db.refresh("driver")
        assert db.status().epoch == before + 2
        assert max(read) > 1
        ledger.check("one call larger than memory", db)


def test_memory_that_runs_out_halves_the_batch(url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than so many changed rows at once, and there is no memory left."""
    most = 200
    whole = changes.Capture.read_changes

    def short(self: changes.Capture, *span: Any) -> Any:
        found = whole(self, *span)
        if sum(delta.num_rows for delta in found[0].values()) > most:
            raise duckdb.OutOfMemoryException("there is none left")
        return found

    with vk.open(url) as db:
        epoch = db.status().epoch
        for step in range(40):
            shop.change(db, step)
        db._acquire_maintainer()
        with monkeypatch.context() as patched:
            patched.setattr(changes.Capture, "read_changes", short)
            db.refresh("driver")  # several batches, each half as long as the one that did not fit
            assert db.status().epoch > epoch + 1
            ledger.check("memory runs out", db)
            epoch, most = db.status().epoch, 1
            shop.change(db, 41)
            with pytest.raises(StoreError, match="Memory ran out"):
                db.refresh("driver")
            assert db.status().epoch == epoch
            ledger.count_injection("memory runs out")
            ledger.check("memory runs out", db)
        db.refresh("driver")
        assert db.status().lag_changes == 0
        ledger.check("memory runs out", db)


def test_a_huge_group_spills_beside_the_state(url: str, ledger: Ledger) -> None:
    """One customer has every order: its rows are recomputed at each change, under DuckDB's own limit."""
    with vk.open(url) as db:
        db.put("orders", [{**shop.order(n, random.Random(n)), "customer": 1} for n in range(30_000)])
        duck = db._acquire_maintainer().executor.statements
        place = duck.run("SELECT current_setting('temp_directory') AS d")["d"][0].as_py()
        assert Path(place).parents[1] == Path(url.removeprefix("lmdb:")) / "state"
        db.refresh("driver")
        ledger.count_injection("huge group")
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
    ledger.count_injection(fault)
    with vk.open(url, mode="r") as db:
        ledger.check(fault, db)
        assert (db.status().lag_changes == 0) == out.startswith("done")
    with vk.open(url) as db:
        assert db.refresh("driver").mended == ()
        assert db.status().lag_changes == 0
        ledger.check(fault, db)
