"""How far back the HBase store looks for what was written, over a small HBase without a JVM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.contract import planned
from tests.contract.conftest import ITEMS, STORES, ids, items, put

from viewkeeper import failpoints
from viewkeeper.database import Database
from viewkeeper.maintain.load import loader
from viewkeeper.model.intake.rows import rows_table
from viewkeeper.store.contract.store import Store
from viewkeeper_hbase.capture import time_windows
from viewkeeper_hbase.thrift.admin import ColumnFamily

NAMES = [column.name for column in ITEMS.columns]


@pytest.fixture(params=[0.2])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    opened = STORES["atomic rows only"](tmp_path, request)(overlap=request.param)
    opened.change_catalog(lambda catalog: catalog.with_table(ITEMS))
    yield opened
    opened.close()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time after which each look asked for cells."""
    original = time_windows.scan_window
    times: list[int] = []

    def look(client: Any, layout: Any, after: int, upto: int, **options: Any) -> time_windows.WindowScan:
        times.append(after)
        return original(client, layout, after, upto, **options)

    monkeypatch.setattr(time_windows, "scan_window", look)
    return times


def test_what_was_loaded_last_is_not_read_again_once_the_overlap_is_over(store: Store, looked: list[int]) -> None:
    cut = put(store, items(*((n, "a") for n in range(50))))
    seen = store.capture_mark(ITEMS, cut)
    assert seen is not None
    time.sleep(0.25)
    seen = store.capture_mark(ITEMS, cut, seen)
    assert seen is not None
    upto = put(store, items((3, "b")))
    looked.clear()
    found, _ = store.changed_keys(ITEMS, NAMES, cut, upto, seen)
    assert found.keys == ids(3)
    assert looked == [cut]


@pytest.mark.parametrize("store", [600], indirect=True)  # a busy machine must not end it
def test_while_the_overlap_is_not_over_it_is_read_again(store: Store, looked: list[int]) -> None:
    cut = put(store, items((1, "a")))
    seen = store.capture_mark(ITEMS, cut, store.capture_mark(ITEMS, cut))
    assert seen is not None
    looked.clear()
    assert store.changed_keys(ITEMS, NAMES, cut, store.head(), seen)[0].keys == ids()
    assert looked == [cut - 600_000]


# -- what becomes visible late, beside a CREATE ------------------------------------------------------------------------


@pytest.fixture(
    params=["atomic rows only", "pushed", pytest.param("hbase", marks=[pytest.mark.hbase, pytest.mark.deep])]
)
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(loader, "_FINAL_ROWS", 0)
    store = STORES[request.param](tmp_path, request)(overlap=600)  # a busy machine must not end it
    with Database(store, mode="w", spark=None, progress=None) as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.put("items", [item(n) for n in range(20)])
        db.sql(f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR}")
        db.refresh()
        yield db


def item(number: int, price: int = 100) -> dict[str, Any]:
    return {"item_id": number, "category": "abc"[number % 3], "price": price}


def appear(db: Database, row: dict[str, Any], time: int) -> None:
    """A row whose cells have this time can be seen from now on: a server was slow to show them."""
    store: Any = db._store
    table = db._catalog().table("items")
    layout = store._layouts.layout_of(table)
    keys, cells = layout.encode(rows_table(table, [row]))
    store._client.put_rows(layout.name, keys, cells, time=time)


def check(db: Database) -> None:
    rows = db.read("items").to_pylist()
    dear = {r["item_id"]: r["price"] for r in rows if r["price"] > 3}
    assert {r["item_id"]: r["price"] for r in db.read("dear").to_pylist()} == dear
    groups = {c: [r["price"] for r in rows if r["category"] == c] for c in "abc"}
    expected = {c: (len(prices), sum(prices)) for c, prices in groups.items() if prices}
    assert {r["category"]: (r["n"], r["total"]) for r in db.read("totals").to_pylist()} == expected


@pytest.mark.parametrize("step", ["load.1.before", "load.1.after", "catch_up.before", "catch_up.after", "load.2.after"])
@pytest.mark.parametrize("number", [3, 77], ids=["changed", "new"])
def test_what_becomes_visible_late_beside_a_create_reaches_every_view(
    shop: Database, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    """A change with a time before the last batch's cut turns up at any step of a CREATE that catches up."""
    maintainer = shop._acquire_maintainer()
    left = [step]

    def passed(name: str) -> None:
        if name == "load.1.after":
            shop.put("items", [item(n) for n in range(40, 50)])
        if left and name == left[0]:
            left.clear()
            appear(shop, item(number, 7), maintainer.publisher.batch.cut)

    original, load, catch_up = failpoints.hit, loader.backfill, loader.catch_up

    def point(name: str) -> None:
        original(name)
        passed(name)

    def watched(name: str, work: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            passed(f"{name}.before")
            done = work(*args, **options)
            passed(f"{name}.after")
            return done

        return call

    monkeypatch.setattr(failpoints, "hit", point)
    monkeypatch.setattr(loader, "backfill", watched("load.1", load))
    monkeypatch.setattr(loader, "catch_up", watched("catch_up", catch_up))
    shop.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
    assert not left, "the step was not reached"
    shop.refresh()
    check(shop)
    shop.put("items", [item(1, 1), item(number, 9)])
    shop.refresh()
    check(shop)


def test_what_becomes_visible_late_beside_damage_reaches_every_view(shop: Database) -> None:
    """State that is made anew at the last batch's cut reads what the views beside it have not seen yet."""
    shop.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
    shop.refresh()
    appear(shop, item(3, 7), shop._acquire_maintainer().publisher.batch.cut)
    shop._maintainer_ref.end()
    maintainer = shop._acquire_maintainer()
    [image] = [slot for slot in maintainer.publisher.state.manifest.runs if slot.startswith("table_image")]
    entry = maintainer.publisher.state.manifest.runs[image][0]
    path = maintainer.publisher.state.directory / entry.file
    data = bytearray(path.read_bytes())
    data[entry.offset + entry.length // 2] ^= 0xFF
    path.write_bytes(data)
    shop.put("items", item(5, 50))
    report = shop.refresh()
    assert any("checksum" in damage for damage in report.mended)
    check(shop)


# -- a table of others that shows no past, beside a CREATE -------------------------------------------------------------


WEAK = """CREATE TABLE items (item_id BIGINT, category STRING, price INT, PRIMARY KEY (item_id))
          WITH (hbase.table = '{name}', hbase.key = 'text', hbase.encoding = 'text',
                hbase.columns = 'd:category d:price')"""


@pytest.fixture(params=["atomic rows only", pytest.param("hbase", marks=[pytest.mark.hbase, pytest.mark.deep])])
def weak(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A view over a table that keeps one version and no deleted cells: a read finds what is there, whatever the cut."""
    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(loader, "_FINAL_ROWS", 5)
    store: Any = STORES[request.param](tmp_path, request)(overlap=0.05)
    name = f"{store._layouts._namespace}:theirs"
    store._client.admin.create(name, [ColumnFamily(b"d", max_versions=1)])
    with Database(store, mode="w", spark=None, progress=None) as db:
        with pytest.warns(UserWarning, match="keep"):
            db.sql(WEAK.format(name=name))
        write(db, *(item(n) for n in range(20)))
        time.sleep(0.1)  # no overlap shows that these cells go
        db.sql(f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR}")
        db.refresh()
        yield db


def write(db: Database, *rows: dict[str, Any]) -> None:
    """What another program writes, now."""
    store: Any = db._store
    table = db._catalog().table("items")
    layout = store._layouts.layout_of(table)
    store._client.put_rows(layout.name, *layout.encode(rows_table(table, list(rows))))


STEPS = ["load.1.before", "load.1.after", "catch_up.before", "catch_up.after", "load.2.after"]


@pytest.mark.parametrize("often", [False, True], ids=["once", "at every step"])
@pytest.mark.parametrize("step", STEPS)
def test_what_is_written_beside_a_create_over_a_table_without_versions_reaches_every_view(
    weak: Database, monkeypatch: pytest.MonkeyPatch, step: str, often: bool
) -> None:
    """The view that is made reads a column more: the image that it makes anew serves the other view too, which has
    seen what was there before."""
    prices = iter(range(10, 10_000))
    reached: list[str] = []

    def passed(name: str) -> None:
        if name == "load.1.after" and step.startswith("catch_up") and name not in reached:
            write(weak, *(item(n) for n in range(40, 50)))
        if name == step and (often or step not in reached):
            write(weak, item(3, next(prices)), item(77, next(prices)))
        reached.append(name)

    original, work = failpoints.hit, {"load.1": loader.backfill, "catch_up": loader.catch_up}

    def point(name: str) -> None:
        original(name)
        passed(name)

    def watched(name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            passed(f"{name}.before")
            done = work[name](*args, **options)
            passed(f"{name}.after")
            return done

        return call

    monkeypatch.setattr(failpoints, "hit", point)
    monkeypatch.setattr(loader, "backfill", watched("load.1"))
    monkeypatch.setattr(loader, "catch_up", watched("catch_up"))
    weak.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
    assert step in reached, "the step was not reached"
    weak.refresh()
    check(weak)
    write(weak, item(1, 1), item(3, 9))
    weak.refresh()
    check(weak)
