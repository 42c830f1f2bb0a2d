"""Files cut short, flipped or gone: noticed, named, made anew from log and tables, and no wrong answer in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lmdb
import pytest

import viewkeeper as vk
from viewkeeper.errors import CorruptState

from . import shop
from .harness import DEEP, Ledger


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(64, len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(64, path.stat().st_size)])


def lose(path: Path, rng: random.Random) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [flip, cut, lose])
@pytest.mark.parametrize("seed", range(20 if DEEP else 2))
def test_damaged_state_is_mended(url: str, ledger: Ledger, harm: Any, seed: int) -> None:
    rng = random.Random(seed)
    fault = f"state file {harm.__name__}"
    with vk.open(url) as db:
        shop.change(db, 1)
        db.refresh("driver")
        named = sorted(shop.listed(db))
    hurt = rng.sample(named, rng.randrange(1, len(named)))
    for name in hurt:
        harm(Path(url.removeprefix("lmdb:")) / "state" / name, rng)
    ledger.count_injection(fault, len(hurt))
    with vk.open(url) as db:
        ledger.check(fault, db)
        mended: list[str] = []
        for step in range(2, 6):
            shop.change(db, step)
            mended += db.refresh("driver").mended
            ledger.check(fault, db)
        told = " ".join(mended)
        # A flipped bit may lie in the padding between runs, which nobody reads.
        assert harm is flip or all(name in told for name in hurt if name in told or name in shop.listed(db)), told
        assert harm is flip or mended
        note = db._store.note("mended")
        assert note is None or note["damage"]
    with vk.open(url) as db:
        shop.change(db, 9)
        assert db.refresh("driver").mended == ()
        ledger.check(fault, db)


def test_every_file_damaged_at_once_in_the_spark_lane(url: str, ledger: Ledger, spark: Any) -> None:
    rng = random.Random(7)
    for path in shop.state_files(url):
        flip(path, rng)
        cut(path, rng)
        ledger.count_injection("state file, Spark lane")
    with vk.open(url, spark=spark) as db:
        shop.change(db, 1)
        report = db.refresh("spark")
        assert report.mended
        assert report.lane == "spark"
        ledger.check("state file, Spark lane", db)


def test_ddl_mends_too(url: str, ledger: Ledger, spark: Any) -> None:
    for path in shop.state_files(url):
        path.unlink()
        ledger.count_injection("state file, DDL")
    with vk.open(url, spark=spark) as db:
        db.sql("DROP MATERIALIZED VIEW ranked")
        ledger.check("state file, DDL", db)
        for path in shop.state_files(url):
            cut(path, random.Random(1))
        db.sql(f"CREATE MATERIALIZED VIEW spent AS {shop.EXTRA['spent']}")
        ledger.check("state file, DDL", db)
        shop.change(db, 1)
        db.refresh()
        ledger.check("state file, DDL", db)


def spoil_log(url: str, place: int = -1) -> int:
    """Flip one bit in each of the last entries, at a byte of its own; how many."""
    with lmdb.open(url.removeprefix("lmdb:"), map_size=1 << 40, max_dbs=200) as environment:
        name = environment.open_db(b"log")
        with environment.begin(write=True) as txn:
            entries = list(txn.cursor(db=name).iternext())[-3:]
            for key, body in entries:
                spoiled = bytearray(body)
                spoiled[place] ^= 4
                txn.put(key, bytes(spoiled), db=name)
    return len(entries)


@pytest.mark.parametrize("place", [1, 4, 9, 17, -1])  # flags, table, time, rows, an image
def test_a_damaged_log_is_passed_over(url: str, ledger: Ledger, place: int) -> None:
    with vk.open(url) as db:
        shop.change(db, 1)
    ledger.count_injection("log entry", spoil_log(url, place))
    with vk.open(url) as db:
        report = db.refresh("driver")
        assert "change log is damaged" in report.mended[0]
        ledger.check("log entry", db)
        shop.change(db, 2)
        assert db.refresh("driver").mended == ()
        ledger.check("log entry", db)


def test_a_damaged_log_and_damaged_state(url: str, ledger: Ledger) -> None:
    with vk.open(url) as db:
        shop.change(db, 1)
    ledger.count_injection("log entry and state file", spoil_log(url) + len(shop.state_files(url)))
    for path in shop.state_files(url):
        path.unlink()
    with vk.open(url) as db:
        assert db.refresh("driver").mended
        ledger.check("log entry and state file", db)
        shop.change(db, 2)
        db.refresh("driver")
        ledger.check("log entry and state file", db)


def record(url: str, name: bytes) -> None:
    with lmdb.open(url.removeprefix("lmdb:"), map_size=1 << 40, max_dbs=200) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True, db=meta) as txn:
            value = bytearray(txn.get(name))
            value[len(value) // 2] ^= 1
            txn.put(name, bytes(value))


def test_a_damaged_manifest_is_made_anew(url: str, ledger: Ledger) -> None:
    with vk.open(url) as db:
        shop.change(db, 1)
    record(url, b"batch")
    ledger.count_injection("batch record")
    with vk.open(url, mode="r") as db, pytest.raises(CorruptState, match="'batch'"):
        db.status()
    with vk.open(url) as db:
        db.refresh("driver")
        ledger.check("batch record", db)
        shop.change(db, 2)
        db.refresh("driver")
        ledger.check("batch record", db)


def test_a_damaged_catalog_stops_everything(url: str, ledger: Ledger) -> None:
    """Nothing else knows what the bytes in the tables mean: that is an error, and nothing is changed."""
    record(url, b"catalog")
    ledger.count_injection("catalog record")
    with pytest.raises(CorruptState, match="'catalog'"), vk.open(url) as db:
        db.refresh("driver")


def test_state_of_other_operators_is_made_anew(url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that plans otherwise, or names its operators otherwise, must not take missing state for empty state."""
    from viewkeeper.operators.kinds import Aggregate

    with vk.open(url) as db:
        old = shop.listed(db)
    monkeypatch.setattr(Aggregate, "kind", "aggregate2")
    with vk.open(url) as db:
        shop.change(db, 3)
        db.refresh("driver")
        ledger.count_injection("plan changes")
        ledger.check("plan changes", db)
        assert old & shop.listed(db), "what is still used is not loaded again"
        assert shop.listed(db) - old


def test_state_made_with_another_hash_is_made_anew(url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    from viewkeeper import expressions

    monkeypatch.setattr(expressions, "fingerprint", lambda: "renderer 1, duckdb 9.9.9, hash 00000000")
    with vk.open(url) as db:
        for step in range(600):  # more than a load leaves to its last step: nothing may run over half-made state
            db.put("orders", [shop.order(n, random.Random(step)) for n in range(step * 40, step * 40 + 40)])
        old = shop.listed(db)
        db.refresh("driver")
        ledger.count_injection("fingerprint changes")
        ledger.check("fingerprint changes", db)
        assert not old & shop.listed(db)
    with vk.open(url) as db:
        files = shop.listed(db)
        db.refresh("driver")
        assert shop.listed(db) == files
