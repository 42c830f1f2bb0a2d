"""Strategies: when a view is made anew, from what, and what it shows meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processes import RATIO, SHOP, item, other, url_of

import viewkeeper as vk
from viewkeeper.errors import BadValue, Timeout, Unsupported

pytestmark = pytest.mark.deep

TOTALS = "SELECT category, count(*) AS n, sum(price) AS total FROM items GROUP BY category"
JOINED = """SELECT a.item_id, b.item_id AS other FROM items a JOIN items b
            ON a.category = b.category WHERE b.item_id < 5"""
SCHEDULED = ["SN", "SC", "ISN", "ISC"]


@pytest.fixture
def shop(make_db: Callable[..., Any], spark: Any) -> Any:
    db = make_db("shop", spark=spark)
    db.sql(SHOP)
    return db


def counts(db: Any, name: str = "v", **options: Any) -> dict[str, int]:
    return {r["category"]: r["n"] for r in db.read(name, **options).to_pylist()}


@pytest.mark.parametrize("strategy", SCHEDULED)
def test_a_scheduled_view_follows_every_kind_of_change(shop: Any, strategy: str) -> None:
    shop.put("items", [item(i, f"c{i % 5}", i) for i in range(1, 300)])
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = '{strategy}', interval = 3600) AS {TOTALS}")
    shop.sql(f"CREATE MATERIALIZED VIEW j WITH (strategy = '{strategy}', interval = 3600) AS {JOINED}")
    shop.sql(f"CREATE MATERIALIZED VIEW fresh AS {TOTALS}")
    shop.sql(f"CREATE MATERIALIZED VIEW fresh_j AS {JOINED}")
    for round_ in range(4):
        shop.put("items", [item(i, f"c{(i + round_) % 7}", i + round_) for i in range(10 * round_ + 1, 60)])
        shop.delete("items", [1 + round_, 100 + round_, 299 - round_])
        shop.put("items", [item(1000 + round_, "new")])
        shop.refresh()
        assert shop.read("v").equals(shop.read("fresh"))
        assert shop.read("j").equals(shop.read("fresh_j"))
    assert {v.name: v.strategy for v in shop.status().views}["v"] == strategy


def test_a_scheduled_view_stays_as_it_is_until_its_interval_is_over(shop: Any) -> None:
    shop.put("items", item(1))
    shop.sql(f"CREATE MATERIALIZED VIEW fresh AS {TOTALS}")
    started = time.monotonic()  # the interval begins later, when the view is made
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = 'SN', interval = 1.5) AS {TOTALS}")
    with shop.maintain():
        token = shop.put("items", item(2))
        while counts(shop, "fresh") != {"toys": 2}:
            time.sleep(0.01)
        found = counts(shop)
        if time.monotonic() - started < 1.5:
            assert found == {"toys": 1}
        while counts(shop) != {"toys": 2}:
            assert time.monotonic() - started < 180
            time.sleep(0.01)
        assert counts(shop, after=token) == {"toys": 2}


def test_a_reader_waits_for_a_scheduled_views_own_cut(shop: Any) -> None:
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = 'ISN', interval = 0.3) AS {TOTALS}")
    reader = """
        with vk.open(url, mode="r") as db:
            say("ready")
            say(db.get("v", "toys", after=ask(), timeout=60)["n"])
    """
    with shop.maintain(), other(reader, url_of(shop)) as process:
        process.receive()
        process.send(str(shop.put("items", [item(1), item(2)])))
        assert process.receive() == 2


def test_the_maintainers_own_process_makes_a_scheduled_view_when_it_is_asked_for_the_latest(shop: Any) -> None:
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = 'SN', interval = 3600) AS {TOTALS}")
    shop.put("items", item(1))
    assert counts(shop) == {}
    assert counts(shop, level=vk.LATEST) == {"toys": 1}


def test_a_snapshot_over_different_cuts_is_refused_with_the_cuts(shop: Any) -> None:
    shop.put("items", item(1))
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = 'SN', interval = 3600) AS {TOTALS}")
    shop.sql(f"CREATE MATERIALIZED VIEW fresh AS {TOTALS}")
    shop.refresh()
    with shop.snapshot() as s:
        assert s.read("v").equals(s.read("fresh")), "the same cut: nothing to refuse"
    shop.put("items", item(2))
    shop._maintainer.refresh()
    with shop.snapshot() as s, pytest.raises(BadValue, match=r"cut of its own: it shows position \d+, the snapshot"):
        s.read("v")
    with shop.snapshot(mixed=True) as s:
        assert counts(s) == {"toys": 1}
        assert counts(s, "fresh") == {"toys": 2}


def test_incremental_snapshots_read_only_the_keys_that_changed(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from viewkeeper.maintain.strategies import scheduled

    shop.put("items", [item(i) for i in range(1000)])
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = 'ISN', interval = 3600) AS {TOTALS}")
    made: list[Any] = []
    remake = scheduled.remake
    monkeypatch.setattr(scheduled, "remake", lambda *args: made.append(remake(*args)) or made[-1])
    shop.put("items", [item(i, "books") for i in (5, 6, 7, 500)])
    shop.refresh()
    assert [(m.whole, m.tracked_keys) for m in made] == [(False, 4)]
    assert counts(shop) == {"toys": 996, "books": 4}


def test_a_scheduled_view_survives_a_restart(shop: Any, make_db: Callable[..., Any]) -> None:
    shop.put("items", [item(i) for i in range(10)])
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = 'ISN', interval = 3600) AS {TOTALS}")
    shop.put("items", item(10))
    shop.refresh()
    shop.close()
    again = make_db("shop")
    again.put("items", item(11, "books"))
    again.delete("items", 3)
    again.refresh()
    assert counts(again) == {"toys": 10, "books": 1}


def test_scans_see_each_row_as_it_is_when_its_turn_comes(shop: Any) -> None:
    shop.put("items", [item(i, price=0) for i in range(2000)])
    shop.sql("CREATE MATERIALIZED VIEW v WITH (strategy = 'SC', interval = 0.1) AS SELECT item_id, price FROM items")
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            written += 1
            shop.put("items", [item(i, price=written) for i in range(0, 2000, 100)])

    thread = threading.Thread(target=write)
    seen: dict[int, Any] = {}
    with shop.maintain():
        thread.start()
        try:
            for _ in range(30):
                for row in shop.scan("v"):
                    assert row["price"] >= seen.get(row["item_id"], 0), "a row never goes back"
                    seen[row["item_id"]] = row["price"]
                time.sleep(0.02)
        finally:
            stop.set()
            thread.join()
    assert len(seen) == 2000
    assert max(seen.values()) <= written


def test_a_scheduled_view_that_fails_is_suspended_and_the_others_go_on(shop: Any) -> None:
    shop.put("items", item(1, price=4))
    shop.sql(RATIO.replace("ratio AS", "ratio WITH (strategy = 'SN', interval = 0.05) AS"))
    shop.sql(f"CREATE MATERIALIZED VIEW fresh AS {TOTALS}")
    with shop.maintain():
        shop.put("items", item(2, price=0))
        deadline = time.monotonic() + 180
        while not next(v for v in shop.status().views if v.name == "ratio").suspended:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        token = shop.put("items", item(2, price=5))
        assert counts(shop, "fresh", after=token) == {"toys": 2}
        shop.sql("ALTER MATERIALIZED VIEW ratio RESUME")
        assert shop.get("ratio", 2)["q"] == 20


@pytest.mark.parametrize("strategy", ["IN", "SNI", "SCI"])
def test_every_write_call_is_a_state_of_its_own(shop: Any, strategy: str) -> None:
    shop.put("items", item(0))
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = '{strategy}') AS {TOTALS}")
    deltas = shop.subscribe("v", timeout=0.2)
    next(deltas)
    for n in range(1, 5):
        shop.put("items", [item(10 * n), item(10 * n + 1)])
    shop.refresh()
    assert [c.after["n"] for d in deltas for c in d.changes()] == [3, 5, 7, 9]


def test_dropping_a_scheduled_view_frees_its_state(shop: Any) -> None:
    shop.put("items", [item(i) for i in range(100)])
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = 'ISN', interval = 3600) AS {TOTALS}")
    assert "sets" in shop._maintainer.publisher.batch.record
    shop.sql("DROP MATERIALIZED VIEW v")
    assert not shop._maintainer.publisher.batch.record.get("sets")
    shop._maintainer.publisher.state.wait_for_collection()  # files are removed in the background
    assert shop._maintainer.publisher.state.directory.list_names("*.vkr") == []


def test_bad_strategies_are_refused(shop: Any) -> None:
    for options, error in (
        ("strategy = 'WEEKLY'", BadValue),
        ("strategy = 'SN', interval = 0", BadValue),
        ("strategy = 'SN', store = 'none'", BadValue),
    ):
        with pytest.raises(error):
            shop.sql(f"CREATE MATERIALIZED VIEW v WITH ({options}) AS {TOTALS}")
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = 'SN') AS {TOTALS}")
    with pytest.raises(Unsupported, match="Drop it and create"):
        shop.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS {TOTALS}")


def test_a_reader_gives_up_on_a_scheduled_view_whose_interval_is_long(shop: Any, make_db: Callable[..., Any]) -> None:
    shop.sql(f"CREATE MATERIALIZED VIEW v WITH (strategy = 'SN', interval = 3600) AS {TOTALS}")
    reader = make_db("shop", mode="r")
    with shop.maintain():
        token = shop.put("items", item(1))
        with pytest.raises(Timeout, match="v did not reach"):
            reader.get("v", "toys", after=token, timeout=0.5)
