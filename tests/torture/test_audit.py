"""Audit finds what is wrong, by key; repair makes it right, and writes no other row. Doctor names every ailment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import viewkeeper as vk
from viewkeeper.cli import main
from viewkeeper.read.audit.audit import compare
from viewkeeper.state.manifest import Manifest
from viewkeeper.store.contract.store import ViewChange

from . import shop
from .harness import Ledger
from .test_damage import cut, record, spoil_log

Vk = Callable[..., tuple[int, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], url: str) -> Vk:
    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--db", url])
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().out

    return run


def tamper(db: Any) -> None:
    """Wrong rows in a view, as no batch would leave them: one changed, one gone, one too many."""
    store = db._store
    table = store.catalog().table("customers")
    rows = db.read("customers").to_pylist()[:3]
    puts = [{**rows[0], "items": 999}, {**rows[1], "customer": 12345}]
    batch = store.published_batch()
    change = ViewChange(
        table,
        pa.Table.from_pylist(puts, table.arrow),
        pa.table({"customer": pa.array([rows[2]["customer"]], pa.int64())}),
    )
    store.commit(replace(batch, number=batch.number + 1), [change])


def lose_a_run(db: Any, kind: str = "aggregate") -> None:
    """State that is wrong though every checksum is right: the manifest forgets the aggregates' last runs."""
    store = db._store
    batch = store.published_batch()
    manifest = Manifest.from_json(batch.record["manifest"])
    runs = {s: r[:-1] if s.startswith(kind) else r for s, r in manifest.runs.items()}
    record = {**batch.record, "manifest": replace(manifest, runs=runs).to_json()}
    store.commit(replace(batch, number=batch.number + 1, record=record), [])


def test_audit_of_views_that_are_right(url: str, spark: Any) -> None:
    with vk.open(url, spark=spark) as db:
        shop.change(db, 1)
        db.refresh()
        shop.change(db, 2)  # not in the views yet: the audit is of the published batch
        report = db.audit()
        assert {v.view: v.differences for v in report.views} == dict.fromkeys(shop.VIEWS, 0)
        assert all(v.rows for v in report.views)
        assert db.audit("totals", sample=3).views[0].differences == 0
        assert [v.view for v in db.audit("TOTALS", "bulk").views] == ["bulk", "totals"]
        with pytest.raises(vk.ViewkeeperError, match="is a table, not a materialized view"):
            db.audit("orders")
        with pytest.raises(vk.ViewkeeperError, match="sample"):
            db.audit(sample=0)


def test_audit_finds_and_repairs_exactly_what_differs(url: str, spark: Any, ledger: Ledger) -> None:
    with vk.open(url, spark=spark) as db:
        tamper(db)
        head = db._store.head()
        (found,) = [v for v in db.audit().views if v.differences]
        assert (found.view, found.differences, found.repaired) == ("customers", 3, False)
        kinds = {(d.expected is None, d.found is None) for d in found.examples}
        assert kinds == {(False, False), (True, False), (False, True)}
        assert db._store.head() == head  # looking changes nothing
        report = db.audit("customers", repair=True)
        assert report.views[0].repaired
        table = db._store.catalog().table("customers")
        written = db._store.changes(table, ["customer"], head, db._store.head())
        assert written.num_rows == 4  # an update is two rows of a delta
        ledger.count_injection("wrong rows in a view")
        ledger.check("wrong rows in a view", db)
        shop.change(db, 1)
        db.refresh()
        ledger.check("wrong rows in a view", db)
        assert db.audit().differences == 0


def test_repair_rebuilds_the_state_behind_a_view(url: str, spark: Any, ledger: Ledger) -> None:
    with vk.open(url, spark=spark) as db:
        for step in range(3):
            shop.change(db, step)
            db.refresh()
        lose_a_run(db)
    with vk.open(url, spark=spark) as db:
        for step in range(3, 6):
            shop.change(db, step)
            db.refresh()
        wrong = {v.view for v in db.audit().views if v.differences}
        assert wrong
        db.audit(repair=True)
        ledger.count_injection("state that is wrong")
        ledger.check("state that is wrong", db)
        for step in range(6, 9):
            shop.change(db, step)
            db.refresh()
            ledger.check("state that is wrong", db)


def test_state_that_contradicts_itself_is_an_error_and_can_be_repaired(url: str, spark: Any, ledger: Ledger) -> None:
    with vk.open(url, spark=spark) as db:
        lose_a_run(db, "top_k")
    with vk.open(url, spark=spark) as db:
        db.delete("orders", list(range(shop.ORDERS)))
        with pytest.raises(vk.ViewkeeperError, match="contradicts itself"):
            db.refresh("driver", suspend=False)
        ledger.count_injection("state that is wrong")
        assert any("contradicted itself" in f.message for f in db.doctor().findings)
        assert db.audit(repair=True).differences == 0  # the rows were right, and the state is now
        assert all("contradicted itself" not in f.message for f in db.doctor().findings)
        db.refresh("driver")
        ledger.check("state that is wrong", db)


def test_an_audit_every_so_often(url: str, spark: Any) -> None:
    seen: list[Any] = []
    with vk.open(url, spark=spark) as db:
        tamper(db)
        with db.maintain(audit_every=0.2, on_audit=seen.append):
            deadline = time.monotonic() + 60
            while not seen and time.monotonic() < deadline:
                time.sleep(0.05)
        assert seen[0].differences == 3
        audit = next(f for f in db.doctor().findings if f.check == "audit")
        assert not audit.ok
        assert "customers: 3" in audit.message
        with pytest.raises(vk.ViewkeeperError, match="interval"):
            db.maintain(audit_every=0)


def disagree(db: Any, query: str) -> None:
    """Spark and Viewkeeper are not of one mind about a view: its text says something else than its plan."""

    def change(catalog: Any) -> Any:
        return catalog.with_replaced_view(replace(catalog.view("bulk"), query=query))

    db._store.change_catalog(change)


def test_a_repair_that_does_not_help_is_told(url: str, spark: Any, command: Vk) -> None:
    with vk.open(url, spark=spark) as db:
        disagree(db, "SELECT customer, quantity + 1 FROM orders WHERE quantity > 2")
        tamper(db)
    code, out = command("audit", "--repair")
    assert code == 1
    told = {line.split()[0]: line for line in out.splitlines() if line.split()[0] in ("bulk", "customers")}
    assert told["bulk"].endswith("NOT repaired")
    assert told["customers"].endswith(" repaired")
    code, out = command("doctor")
    assert code == 1
    assert "Making them anew did not help" in out
    with vk.open(url, spark=spark) as db:
        (bulk,) = db.audit("bulk", repair=True).views
        assert (bulk.repaired, bulk.remaining, bulk.is_wrong) == (False, bulk.differences, True)
        assert "do not rely on the view" in bulk.advice
        disagree(db, shop.VIEWS["bulk"])
        assert db.audit("bulk").is_right


def test_a_view_that_spark_cannot_run_does_not_end_the_audit(url: str, spark: Any, caplog: Any) -> None:
    with vk.open(url, spark=spark) as db:
        disagree(db, "SELECT nothing FROM nowhere")
        found = {v.view: v for v in db.audit().views}
        assert "nowhere" in found["bulk"].failed
        assert not any(v.is_wrong for name, v in found.items() if name != "bulk")
        seen: list[Any] = []
        with db.maintain(audit_every=0.1, on_audit=seen.append):
            _wait_for(lambda: seen)
        assert "bulk" in caplog.text
        assert "could not be compared" in db.status().audit
        disagree(db, shop.VIEWS["bulk"])


def test_an_audit_beside_the_batches_that_fails_is_seen(url: str, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("Spark is gone")

    monkeypatch.setattr("viewkeeper.read.audit.background.audit", broken)
    with vk.open(url) as db:
        with db.maintain(audit_every=0.1):
            _wait_for(lambda: db.status().error)
        assert "Spark is gone" in db.status().error
        assert "Spark is gone" in db.status().audit
        assert "Spark is gone" in caplog.text
        audit = next(f for f in db.doctor().findings if f.check == "audit")
        assert not audit.ok
        assert "Spark is gone" in audit.message
    monkeypatch.undo()
    with vk.open(url) as db:
        db._store.put_note("audit", None)


def _wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def test_floats_that_differ_are_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    from viewkeeper.cli.commands.health import _print_audit
    from viewkeeper.read.audit.report import Audit, Difference, ViewAudit

    one, other = {"k": 1, "x": 0.1234567890123}, {"k": 1, "x": 0.1234567890124}
    _print_audit(Audit(7, 0.1, (ViewAudit("v", 1, 1, examples=(Difference({"k": 1}, one, other),)),)))
    told = capsys.readouterr()
    assert "0.1234567890123" in told.out
    assert "0.1234567890124" in told.out
    assert "vk audit --repair" in told.err


def test_orphans_are_no_ailment(url: str, command: Vk) -> None:
    orphan = Path(url.removeprefix("lmdb:")) / "state" / "b99-dead.vkr"
    orphan.write_bytes(b"half")
    orphan.chmod(0o600)
    code, out = command("doctor")
    assert code == 0, out
    assert "1 files" in out
    assert "WRONG" not in out
    orphan.unlink()


def test_floats_count_as_equal_to_nine_digits() -> None:
    def table(*rows: tuple[int, float | None]) -> pa.Table:
        return pa.table(
            {"k": pa.array([r[0] for r in rows], pa.int64()), "x": pa.array([r[1] for r in rows], pa.float64())}
        )

    def found(expected: pa.Table, stored: pa.Table, is_bag: bool = False) -> int:
        return compare(["k", "x"], ["k", "x"] if is_bag else ["k"], is_bag, expected, stored)[0]

    assert found(table((1, 0.1 + 0.2), (2, None)), table((2, None), (1, 0.3))) == 0
    assert found(table((1, float("nan"))), table((1, float("nan")))) == 0
    assert found(table((1, 1.0)), table((1, 1.0001))) == 1
    assert found(table((1, None)), table((1, 0.0))) == 1
    assert found(table((1, 1.0), (1, 1.0)), table((1, 1.0)), is_bag=True) == 1
    assert found(table((1, 1.0), (1, 1.0)), table((1, 1.0), (1, 1.0)), is_bag=True) == 0
    assert found(table((1, 0.1 + 0.2), (1, 9.5), (2, 1.0)), table((2, 1.0), (1, 9.5), (1, 0.3)), is_bag=True) == 0
    assert found(table((1, 0.1 + 0.2), (1, None)), table((1, 0.3), (1, 0.0)), is_bag=True) > 0
    assert found(table((1, 0.3)), table((2, 0.3)), is_bag=True) == 2
    assert found(table((1, 1e300), (1, float("nan"))), table((1, float("nan")), (1, 1e300)), is_bag=True) == 0


def test_vk_audit(url: str, spark: Any, command: Vk) -> None:
    code, out = command("audit", "--output", "json")
    assert (code, json.loads(out)["differences"]) == (0, 0)
    with vk.open(url) as db:
        tamper(db)
    code, out = command("audit", "customers", "--sample", "1000000")
    assert code == 1
    assert "customers  20    3" in out
    assert "found    customer 12345" in out
    code, out = command("audit", "--repair")
    assert code == 0
    assert "repaired" in out
    assert command("audit")[0] == 0


def test_doctor_of_a_healthy_database(url: str, command: Vk) -> None:
    code, out = command("doctor")
    assert code == 0, out
    assert "WRONG" not in out
    code, out = command("doctor", "--output", "json")
    checks = {f["check"] for f in json.loads(out)["findings"]}
    assert {"format", "versions", "state files", "orphaned files", "change log", "disk space", "permissions"} <= checks


def test_doctor_names_every_ailment(url: str, command: Vk) -> None:
    path = Path(url.removeprefix("lmdb:"))
    with vk.open(url) as db:
        shop.change(db, 1)
        db._store.put_note("maintenance", {"error": "the disk is full", "failures": 6, "time": time.time()})
    spoil_log(url)
    hurt = shop.state_files(url)[0]
    import random

    cut(hurt, random.Random(1))
    (path / "state" / "b99-dead.vkr").write_bytes(b"half")
    (path / "state").chmod(0o755)
    path.chmod(0o755)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "lock.mdb"}
    code, out = command("doctor")
    assert code == 1
    for text in (
        "3 damaged: position",
        str(hurt),
        "no batch lists",
        "others may read",
        "the disk is full",
        "Nobody maintains",
    ):
        assert text in out, text
    assert before == {p: p.read_bytes() for p in before}
    record(url, b"batch")
    code, out = command("doctor")
    assert code == 1
    assert "'batch' of the database is damaged" in out
    record(url, b"catalog")
    code, out = command("doctor")
    assert code == 1
    assert "Restore the database from a copy" in out
    os.chmod(path / "state", 0o700)  # noqa: PTH101 - so that the directory can be removed
