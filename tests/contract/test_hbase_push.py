"""What HBase pushes reaches the views, whatever comes late, twice or not at all; over a small HBase without a JVM."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.contract import planned
from tests.contract.pushing import NAME, PEER, Pushing, pushing

from viewkeeper.database import Database
from viewkeeper.errors import Unsupported
from viewkeeper.model.intake.rows import rows_table
from viewkeeper.store.registry import open_store
from viewkeeper_hbase.capture import time_windows
from viewkeeper_hbase.push import settings

HOUR = 3_600_000


class Shop:
    """A database over a small HBase that pushes, and the table that everybody writes."""

    def __init__(self, directory: Path, server: Pushing) -> None:
        self.directory, self.server = directory, server
        self.db = self.open()
        for statement in planned.TABLES:
            self.db.sql(statement)
        self.put(*range(20))
        self.db.sql(f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR}")
        self.db.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")

    def open(self, **options: Any) -> Database:
        small = self.server.small
        options = {"state": str(self.directory / "state"), "cache": 0, "create": True, "lease": 1, **options}
        store: Any = open_store(f"hbase://{small.host}:{small.port}/small", "w", **options)
        self.server.enable_push(store)
        return Database(store, mode="w", spark=None, progress=None, retention=0.0)

    @property
    def store(self) -> Any:
        return self.db._store

    def put(self, *numbers: int, price: int = 100) -> None:
        self.db.put("items", [item(n, price) for n in numbers])

    def plain(self, number: int, price: int, at: int | None = None) -> None:
        """A put by some client, dated as it likes."""
        table = self.db._catalog().table("items")
        layout = self.store._layouts.layout_of(table)
        keys, cells = layout.encode(rows_table(table, [item(number, price)]))
        self.store._client.put_rows(layout.name, keys, cells, time=at)

    @property
    def name(self) -> str:
        return str(self.store._layouts.layout_of(self.db._catalog().table("items")).name)

    def by(self) -> str:
        return str(self.store.note(settings.STATUS_NOTE)["by"])

    def is_pushed(self) -> bool:
        self.db.refresh()
        return self.by() == "push"

    def check(self) -> None:
        self.db.refresh()
        rows = self.db.read("items").to_pylist()
        dear = {r["item_id"]: r["price"] for r in rows if r["price"] > 3}
        assert {r["item_id"]: r["price"] for r in self.db.read("dear").to_pylist()} == dear
        groups = {c: [r["price"] for r in rows if r["category"] == c] for c in "abc"}
        expected = {c: (len(prices), sum(prices)) for c, prices in groups.items() if prices}
        assert {r["category"]: (r["n"], r["total"]) for r in self.db.read("totals").to_pylist()} == expected


def item(number: int, price: int = 100) -> dict[str, Any]:
    return {"item_id": number, "category": "abc"[number % 3], "price": price}


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    planned.install(monkeypatch.setattr)
    made = Shop(tmp_path, pushing(tmp_path, request))
    made.check()
    yield made
    made.db.close()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that windows were scanned of."""
    original = time_windows.scan_window
    names: list[str] = []

    def look(client: Any, layout: Any, after: int, upto: int, **options: Any) -> time_windows.WindowScan:
        names.append(layout.name)
        return original(client, layout, after, upto, **options)

    monkeypatch.setattr(time_windows, "scan_window", look)
    return names


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_no_window_is_scanned_while_all_has_come(shop: Shop, looked: list[str]) -> None:
    for n in range(5):
        shop.put(n, price=n)
        shop.check()
        assert shop.db.refresh().lane == "none"
    assert shop.by() == "push"
    assert looked == []


def test_batches_that_follow_each_other_miss_nothing(shop: Shop) -> None:
    """A writer that never rests, with cells dated back and several versions; what it wrote last does not wait."""
    eventually(shop.is_pushed)
    with shop.db.maintain() as maintenance:
        written = 0
        until = time.monotonic() + 60
        while (maintenance.batches < 3 or written < 50) and time.monotonic() < until:
            at = None if written % 3 else shop.store.head() - HOUR
            shop.plain(written % 70, written % 11, at)
            written += 1
        shop.plain(500, 77)
        eventually(lambda: shop.db.get("dear", 500) is not None)
        assert maintenance.batches >= 3
    shop.check()
    assert shop.by() == "push"


def test_a_batch_counts_rows_however_often_they_were_written(shop: Shop) -> None:
    eventually(shop.is_pushed)
    cut, tables = shop.store.published_batch().cut, [shop.db._catalog().table("items").id]
    for price in range(4, 10):
        for number in (30, 31, 32):
            shop.put(number, price=price)
    waiting = shop.store.pending(cut, tables)
    assert (waiting.rows, waiting.calls > 3) == (3, True)
    assert shop.store.cut_after(cut, tables, 3) >= waiting.last_position
    some = shop.store.cut_after(cut, tables, 2)
    assert waiting.first_position < some < waiting.last_position
    report = shop.db._acquire_maintainer().refresh(max_changes=2)
    assert (report.changes, report.more) == (2, True)
    report = shop.db._acquire_maintainer().refresh(max_changes=3)
    assert report.more is False
    assert [shop.db.get("dear", number)["price"] for number in (30, 31, 32)] == [9, 9, 9]
    shop.check()


def test_a_backlog_in_one_frame_is_worked_off_in_few_batches(shop: Shop) -> None:
    eventually(shop.is_pushed)
    shop.server.sending.clear()
    for number in range(100, 400):
        shop.plain(number, 7)
    shop.server.sending.set()
    reports: list[Any] = []
    with shop.db.maintain(max_changes=100, on_batch=reports.append):
        eventually(lambda: shop.db.get("dear", 399) is not None)
    assert len([report for report in reports if report.changes]) <= 8
    shop.check()


def test_cells_that_were_dated_back_are_found(shop: Shop) -> None:
    now = shop.store.head()
    shop.plain(50, 7, now - HOUR)
    shop.check()
    assert shop.db.get("dear", 50) is not None
    shop.plain(50, 8, now - 2 * HOUR)  # hidden by the newer one
    shop.check()
    assert shop.db.get("dear", 50)["price"] == 7


def test_a_delete_that_was_compacted_away_is_found(shop: Shop) -> None:
    shop.plain(51, 9)
    shop.check()
    table = shop.server.small.tables[shop.name.encode()]
    layout = shop.store._layouts.layout_of(shop.db._catalog().table("items"))
    key = layout.row_key_encoding.encode_one((51,))
    del table.rows[key]
    assert table.on_add is not None
    table.on_add(key, shop.store.head())
    shop.check()
    assert shop.db.get("dear", 51) is None


def test_a_cell_of_a_time_yet_to_come_keeps_nothing_back(shop: Shop) -> None:
    shop.plain(60, 70, shop.store.head() + HOUR)
    for n in range(4):
        shop.put(61 + n, price=5)
        shop.db.refresh()
    assert shop.db.get("dear", 60) is None
    assert shop.db.get("dear", 64) is not None
    inflow = shop.store._push_attachment.arrivals.inflow
    seen = shop.store.published_batch().capture_marks[shop.db._catalog().table("items").id]
    assert len(inflow.touched_rows(shop.name, seen.push.spool_mark).keys.unique()) == 1


@pytest.mark.parametrize("ahead", [500, 2500], ids=["soon", "far"])
def test_a_cell_of_a_time_yet_to_come_shows_when_it_comes(shop: Shop, ahead: int) -> None:
    due = shop.store.head() + ahead
    shop.plain(60, 70, due)
    shop.put(61, price=5)
    shop.db.refresh()
    assert shop.db.get("dear", 61) is not None
    eventually(lambda: bool(shop.store.head() > due))
    shop.check()
    assert shop.db.get("dear", 60)["price"] == 70


def test_windows_are_scanned_while_nothing_is_shipped(shop: Shop, looked: list[str]) -> None:
    shop.server.sending.clear()
    shop.put(70, price=11)
    shop.check()
    assert looked
    assert shop.by() == "windows"
    assert "has shipped" in shop.store.note(settings.STATUS_NOTE)["reason"]
    shop.server.sending.set()
    eventually(shop.is_pushed)
    shop.check()
    looked.clear()
    shop.put(71)
    shop.check()
    assert looked == []


@pytest.mark.parametrize(
    "line",
    [
        f"queue dead,16020,0 {PEER} dead%2C16020%2C0.1 5",
        f"queue small,16020,1 {PEER}-dead,16020,0 dead%2C16020%2C0.1 5",
        f"queue small,16020,1 {PEER} small%2C16020%2C1.0 5",
        "live another,16020,7",
    ],
    ids=["unclaimed", "claimed", "older", "unconnected"],
)
def test_windows_are_scanned_while_a_queue_is_not_accounted_for(shop: Shop, looked: list[str], line: str) -> None:
    shop.server.extra_queue_lines = [line]
    shop.put(72, price=12)
    shop.check()
    assert looked
    assert shop.by() == "windows"
    shop.server.extra_queue_lines = []
    eventually(shop.is_pushed)
    shop.check()


def test_what_a_dead_server_had_comes_minutes_later(shop: Shop) -> None:
    """A cell older than any window, in a queue that is claimed at last."""
    shop.server.extra_queue_lines = [f"queue dead,16020,0 {PEER} dead%2C16020%2C0.1 5"]
    shop.server.sending.clear()
    shop.plain(73, 13, shop.store.head() - HOUR)
    for n in range(3):
        shop.put(80 + n)
        shop.db.refresh()
    assert shop.db.get("dear", 73) is None
    shop.server.extra_queue_lines = []
    shop.server.sending.set()
    eventually(lambda: bool(shop.server.shipped_count == len(shop.server.entries)))
    shop.check()
    assert shop.db.get("dear", 73) is not None


def test_a_peer_that_was_removed_and_added_again_makes_tables_be_compared(shop: Shop) -> None:
    table = shop.server.small.tables[shop.name.encode()]
    told, table.on_add = table.on_add, None
    shop.plain(74, 14, shop.store.head() - HOUR)  # nobody is told
    table.on_add = told
    shop.put(75)
    shop.db.refresh()
    assert shop.db.get("dear", 74) is None
    shop.server.epoch = "2"
    eventually(lambda: bool(shop.store._push_attachment.arrivals.inflow.spool_life.endswith(".2")))
    shop.check()
    assert shop.db.get("dear", 74) is not None


def test_a_wal_that_was_deleted_makes_tables_be_compared_once(shop: Shop) -> None:
    table = shop.server.small.tables[shop.name.encode()]
    told, table.on_add = table.on_add, None
    shop.plain(74, 14, shop.store.head() - HOUR)  # in a WAL that somebody deletes
    table.on_add = told
    wal = "small%2C16020%2C1.0"
    shop.server.extra_queue_lines, shop.server.lost_wal_lines = (
        [f"queue {NAME} {PEER} {wal} 5"],
        [f"lost {NAME} {PEER} {wal}"],
    )
    shop.check()
    assert shop.db.get("dear", 74) is not None
    note = shop.store.note(settings.STATUS_NOTE)
    assert (note["by"], wal in note["reason"], "enable" in note["reason"]) == ("windows", True, True)
    life = shop.store._push_attachment.arrivals.inflow.spool_life
    shop.put(75, price=15)
    shop.check()
    assert shop.store._push_attachment.arrivals.inflow.spool_life == life
    shop.server.extra_queue_lines, shop.server.lost_wal_lines, shop.server.epoch = [], [], "2"  # the peer is made anew
    eventually(shop.is_pushed)
    shop.check()


@pytest.mark.parametrize("damage", ["removed", "flipped"])
def test_a_spool_that_was_lost_makes_tables_be_compared(shop: Shop, damage: str) -> None:
    shop.db._maintainer_ref.end()
    spool = Path(str(settings.push_directory(shop.store.state_path)))
    shop.plain(76, 16, shop.store.head() - HOUR)
    secret = (spool / "secret").read_text()
    shop.db._acquire_maintainer()
    eventually(lambda: bool(shop.server.shipped_count == len(shop.server.entries)))
    shop.db._maintainer_ref.end()
    files = sorted(spool.glob("*.touched"))
    assert files
    if damage == "removed":
        shutil.rmtree(spool)
        spool.mkdir()
        (spool / "secret").write_text(secret)
    else:
        data = bytearray(files[-1].read_bytes())
        data[-1] ^= 0xFF
        files[-1].write_bytes(data)
    shop.check()
    assert shop.db.get("dear", 76) is not None


def test_what_came_while_nobody_maintained_is_in_the_next_batch(shop: Shop, looked: list[str]) -> None:
    shop.db._maintainer_ref.end()
    for n in range(5):
        shop.plain(90 + n, 19, shop.store.head() - HOUR)
    shop.db._acquire_maintainer()
    eventually(lambda: bool(shop.server.shipped_count == len(shop.server.entries)))
    shop.db._maintainer_ref.end()  # it came, and its batch never did
    looked.clear()
    shop.check()
    assert shop.db.get("dear", 94) is not None
    assert looked == []


def test_files_that_were_bulk_loaded_are_read(shop: Shop) -> None:
    table = shop.server.small.tables[shop.name.encode()]
    told, table.on_add = table.on_add, None
    shop.plain(77, 17, shop.store.head() - HOUR)
    table.on_add = told
    shop.db.refresh()
    assert shop.db.get("dear", 77) is None
    shop.server.loads.append(shop.name)
    eventually(lambda: not shop.server.loads)
    eventually(lambda: shop.db.refresh().lane != "none" or shop.db.get("dear", 77) is not None)
    shop.check()
    assert shop.db.get("dear", 77) is not None


def test_the_spool_forgets_what_batches_have(shop: Shop) -> None:
    for n in range(30):
        shop.put(n, price=n)
        shop.db.refresh()
    time.sleep(0.6)
    shop.put(3)
    shop.check()
    time.sleep(0.6)
    shop.put(4)
    shop.check()
    assert len(list(Path(str(settings.push_directory(shop.store.state_path))).glob("*.touched"))) < 20


def test_status_and_doctor_say_how_changes_are_found(shop: Shop) -> None:
    def found() -> tuple[bool, str]:
        [one] = [f for f in shop.store.examine() if f.check == "push"]
        return one.ok, one.message

    eventually(shop.is_pushed)
    assert shop.db.status().capture == "pushed by HBase"
    assert found()[0]
    shop.server.extra_queue_lines = ["live another,16020,7"]
    shop.db.refresh()
    assert shop.db.status().capture == "windows of time: region server another,16020,7 is not connected"
    ok, text = found()
    assert not ok
    assert "another,16020,7 is not connected" in text


def test_capture_is_as_the_url_says(shop: Shop, looked: list[str]) -> None:
    shop.db.close()
    shop.db = shop.open(capture="poll")
    looked.clear()
    shop.plain(78, 18)
    shop.check()
    assert looked
    assert shop.store.note(settings.STATUS_NOTE) is None
    shop.db.close()
    shop.db = shop.open(capture="push")
    shop.plain(79, 19, shop.store.head() - HOUR)
    shop.check()
    assert shop.by() == "push"
    shop.store.put_note(settings.AGREEMENT_NOTE, None)
    shop.db.close()
    small = shop.server.small
    store = open_store(f"hbase://{small.host}:{small.port}/small?capture=push&state={shop.directory / 'state'}", "w")
    with pytest.raises(Unsupported, match="pushes nothing"):
        store.acquire_lease()
    store.close()


def test_a_receiver_in_another_process_is_asked(shop: Shop, looked: list[str]) -> None:
    """`vk hbase listen` has the address: who maintains reads the spool, and asks there whether all has come."""
    from viewkeeper_hbase.push.inflow import open_receivers
    from viewkeeper_hbase.push.spool import Spool

    shop.db._maintainer_ref.end()
    directory = settings.push_directory(shop.store.state_path)
    agreed = settings.PushAgreement.from_json(shop.store.note(settings.AGREEMENT_NOTE))
    receivers = open_receivers(agreed, Spool(directory), settings.read_secret(directory))
    eventually(lambda: bool(receivers[0].servers))
    shop.db._acquire_maintainer()
    assert not shop.store._push_attachment.arrivals.inflow.receivers
    looked.clear()
    shop.plain(95, 20, shop.store.head() - HOUR)
    shop.check()
    assert shop.db.get("dear", 95) is not None
    assert shop.by() == "push"
    assert looked == []
    for receiver in receivers:
        receiver.close()
    shop.put(96)
    shop.check()
    eventually(shop.is_pushed)  # who maintains receives in its place
    assert shop.store._push_attachment.arrivals.inflow.receivers


def test_the_commands_say_what_is_wrong(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from viewkeeper.cli import main

    url = shop.store.url

    def vk(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["hbase", "push", *arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    assert vk("enable", "--db", url, "--receiver", "nowhere") == (
        1,
        "error[VK201]: nowhere is not the address of a receiver. Write receivers as host:port, as the region servers"
        " reach them.\n",
    )
    assert "TLS needs --ca, --certificate and --key" in vk("enable", "--db", url, "--receiver", "h:1", "--ca", "x")[1]
    code, text = vk("status", "--db", url, "--conf", str(tmp_path))
    assert code == 1
    assert "has no hbase-site.xml" in text
    shop.store.put_note(settings.AGREEMENT_NOTE, None)
    assert "HBase pushes nothing" in vk("status", "--db", url, "--conf", str(tmp_path))[1]
    jar = tmp_path / "made.jar"
    jar.write_bytes(b"jar")
    monkeypatch.setattr("viewkeeper_hbase.push.endpoint_jar.find_jar", lambda: jar)
    assert vk("install", str(tmp_path / "ext"))[0] == 0
    assert (tmp_path / "ext" / "viewkeeper-push.jar").read_bytes() == b"jar"
