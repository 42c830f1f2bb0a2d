"""Many handles of one database in one process: they share what they must, and none stands in another's way."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned

import viewkeeper as vk
from viewkeeper.errors import MaintainerBusy, StoreError, ViewkeeperError
from viewkeeper.maintain.continuous import Maintenance

SECONDS = 5.0


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    planned.install(monkeypatch.setattr)
    url = f"lmdb:{tmp_path / 'shop'}"
    with vk.open(url, durability="none") as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.put("items", [item(i) for i in range(50)])
        db.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
    yield url
    gc.collect()


def item(number: int, price: int = 1) -> dict[str, Any]:
    return {"item_id": number, "category": f"c{number % 5}", "price": price}


def totals(db: Any) -> int:
    return sum(db.read("totals").column(1).to_pylist())


def until(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def lease_is_free(url: str) -> bool:
    """Whether another process could maintain the database."""
    with vk.open(url, mode="r") as db:
        return db.status().maintainer is None


def test_a_read_that_goes_on_is_not_disturbed_by_an_open_for_writing(url: str) -> None:
    reader = vk.open(url, mode="r")
    scan = reader.scan("items")
    first = next(scan)
    with reader.snapshot() as state, vk.open(url, durability="none") as writer:
        for round_ in range(20):  # the pages of the old rows would be used again
            writer.put("items", [item(i, price=round_ + 2) for i in range(50)])
        writer.refresh()
        assert [first, *scan] == [item(i) for i in range(50)]
        assert {r["price"] for r in state.read("items").to_pylist()} == {1}
        assert reader.get("items", 3) == item(3, price=21), "a new read sees what was written"
        writer.close()
        assert reader.get("items", 3) == item(3, price=21)
    reader.close()
    assert lease_is_free(url)


def test_what_reads_beside_a_writer_is_seen_by_other_processes(url: str) -> None:
    """Its place in the table of readers must not be lost: another process would use its pages again."""
    reader = vk.open(url, mode="r")
    scan = reader.scan("items")
    first = next(scan)
    with vk.open(url, durability="none"):
        code = """if True:
            import sys, viewkeeper as vk
            with vk.open(sys.argv[1], durability="none") as db:
                for price in range(100):
                    db.put("items", [{"item_id": i, "category": "x", "price": price} for i in range(50)])
        """
        subprocess.run([sys.executable, "-c", code, url], check=True, timeout=120)
    assert [first, *scan] == [item(i) for i in range(50)]
    reader.close()


def test_all_handles_of_a_process_can_refresh(url: str) -> None:
    first, second = vk.open(url, durability="none"), vk.open(url, durability="none")
    first.put("items", item(50))
    first.refresh()
    second.put("items", item(51))
    second.refresh()
    first.close()
    with pytest.raises(StoreError, match="closed"):
        first.get("items", 1)
    second.put("items", item(52))
    second.refresh()
    assert totals(second) == 53
    assert not lease_is_free(url)
    second.close()
    assert lease_is_free(url)


def test_a_handle_that_is_lost_gives_up_its_lease(url: str) -> None:
    db = vk.open(url, durability="none")
    db.refresh()
    assert not lease_is_free(url)
    del db
    gc.collect()
    until(lambda: lease_is_free(url), "the lease is still held")


def test_a_cell_that_is_run_twice_takes_over_from_itself(url: str) -> None:
    for round_ in range(3):
        db = vk.open(url, durability="none")
        db.put("items", item(50 + round_))
        db.refresh()
        assert totals(db) == 51 + round_
    for round_ in range(3):
        db = vk.open(url, durability="none")
        maintenance = db.maintain()
        token = db.put("items", item(60 + round_))
        assert sum(r["n"] for r in db.scan("totals", after=token, timeout=60)) == 54 + round_
        assert maintenance.running
    db.close()
    assert lease_is_free(url)


def test_what_is_maintained_in_the_background_goes_on_without_its_handle(url: str) -> None:
    vk.open(url, durability="none").maintain()
    gc.collect()
    with vk.open(url, durability="none") as db:
        token = db.put("items", item(50))
        with vk.open(url, mode="r") as reader:
            assert sum(r["n"] for r in reader.scan("totals", after=token, timeout=60)) == 51
        with db.maintain():  # the one that nobody has a hold on ends
            token = db.put("items", item(51))
            assert sum(r["n"] for r in db.scan("totals", after=token, timeout=60)) == 52
    until(lambda: lease_is_free(url), "the lease is still held")


def test_two_handles_do_not_both_maintain_in_the_background(url: str) -> None:
    with vk.open(url, durability="none") as first, vk.open(url, durability="none") as second:
        with first.maintain():
            with pytest.raises(MaintainerBusy, match="another handle of this process"):
                second.maintain()
            second.refresh()  # by the same maintainer
        with second.maintain():
            pass


def test_the_first_batch_is_told_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read makes it where the thread of the maintenance has not begun yet."""
    begin, run, told = threading.Event(), Maintenance._run, list[int]()
    monkeypatch.setattr(Maintenance, "_run", lambda self: (begin.wait(60), run(self)))
    with vk.open(url, durability="none") as db:
        with db.maintain(on_batch=lambda report: told.append(report.changes)) as maintenance:
            token = db.put("items", item(50))
            assert sum(r["n"] for r in db.scan("totals", after=token, timeout=60)) == 51
            begin.set()
        assert told == [1]
        assert maintenance.batches == 1


class Crowd:
    """Threads that each do one thing with a handle of their own, again and again, until the time is over."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url, self.until = url, time.monotonic() + seconds
        self.errors: list[str] = []
        self.done: dict[str, int] = {}
        self.numbers = iter(range(1000, 1_000_000))

    def run(self, *work: Callable[[random.Random], None]) -> None:
        threads = [threading.Thread(target=self._repeat, args=(w, i)) for i, w in enumerate(work)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a thread hangs"

    def _repeat(self, work: Callable[[random.Random], None], number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < self.until and len(self.errors) < 5:
            try:
                work(draw)
                self.done[work.__name__] = self.done.get(work.__name__, 0) + 1
            except Exception as error:
                self.errors.append(f"{work.__name__}: {type(error).__name__}: {error}")

    def write(self, draw: random.Random) -> None:
        with vk.open(self.url, durability="none") as db:
            for _ in range(draw.randint(1, 20)):
                db.put("items", [item(next(self.numbers)) for _ in range(draw.randint(1, 5))])

    def read(self, draw: random.Random) -> None:
        with vk.open(self.url, mode="r") as db:
            for _ in range(draw.randint(1, 10)):
                with db.snapshot() as state:
                    rows = state.read("totals").to_pylist()
                    assert len(rows) == 5
                    assert sum(r["n"] for r in rows) >= 50
                assert db.get("items", 1) == item(1)

    def scan(self, draw: random.Random) -> None:
        db = vk.open(self.url, mode="r")  # never closed
        rows = db.scan("items")
        del db
        assert len([next(rows) for _ in range(draw.randint(1, 50))]) >= 1

    def subscribe(self, draw: random.Random) -> None:
        with vk.open(self.url, mode=draw.choice(["r", "w"]), **({"durability": "none"})) as db:
            seen = 0
            for delta in db.subscribe("totals", timeout=0.2):
                seen += 1
                assert delta.token is not None
                if seen >= draw.randint(1, 5):
                    break
            assert seen

    def refresh(self, draw: random.Random) -> None:
        db = vk.open(self.url, durability="none")
        db.refresh()
        if draw.random() < 0.5:
            db.close()  # else it is lost

    def maintain(self, draw: random.Random) -> None:
        db = vk.open(self.url, durability="none")
        try:
            with db.maintain():
                time.sleep(draw.random() / 5)
        except MaintainerBusy:  # of another handle, which is not lost
            time.sleep(0.05)
        finally:
            db.close()


@pytest.mark.parametrize("seconds", [SECONDS, pytest.param(60.0, marks=pytest.mark.deep)])
def test_handles_opened_and_closed_at_random_do_not_break_each_other(url: str, seconds: float) -> None:
    crowd = Crowd(url, seconds)
    crowd.run(
        *(crowd.write, crowd.write, crowd.read, crowd.read, crowd.scan, crowd.subscribe, crowd.subscribe),
        *(crowd.refresh, crowd.refresh, crowd.maintain, crowd.maintain),
    )
    assert crowd.errors == []
    assert all(crowd.done.get(w) for w in ("write", "read", "scan", "subscribe", "refresh", "maintain")), crowd.done
    gc.collect()
    with vk.open(url, durability="none") as db:
        db.refresh()
        assert totals(db) == db.read("items").num_rows
    until(lambda: lease_is_free(url), "the lease is still held")


def test_an_error_of_one_handle_is_its_own(url: str) -> None:
    with vk.open(url, durability="none") as first, vk.open(url, durability="none") as second:
        first.refresh()
        with pytest.raises(ViewkeeperError):
            second.sql("CREATE MATERIALIZED VIEW totals AS SELECT 1")
        second.close()
        first.put("items", item(50))
        first.refresh()
        assert totals(first) == 51
