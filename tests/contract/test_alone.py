"""A view that shows every write call's state runs by itself: the others take many calls in one batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract import planned

from viewkeeper import STALE
from viewkeeper.errors import BadValue, Suspended, Unsupported

COMPLETE = "CREATE MATERIALIZED VIEW each WITH (strategy = 'IN'{options}) AS " + planned.TOTALS


@pytest.fixture
def shop(open_db: Callable[..., Any]) -> Any:
    db = planned.tables(open_db())
    db.put("items", item(0))
    db.sql(COMPLETE.format(options=""))
    db.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
    return db


def item(number: int, category: str = "toys", price: int = 1) -> dict[str, Any]:
    return {"item_id": number, "category": category, "price": price}


def counts(deltas: Any) -> list[int]:
    return [c.after["n"] for d in deltas for c in d.changes()]


def test_one_view_shows_every_call_and_the_other_one_batch(shop: Any) -> None:
    each, totals = shop.subscribe("each", timeout=0), shop.subscribe("totals", timeout=0)
    assert (next(each).rows.num_rows, next(totals).rows.num_rows) == (1, 1)
    for n in range(1, 21):
        shop.put("items", [item(10 * n), item(10 * n + 1)])
        shop.put("kinds", {"category": f"c{n}", "boss": "b"})  # a table that it does not read
    before = shop.status().epoch
    report = shop.refresh()
    assert report.epoch == before + 1, "one batch for all calls"
    shown, calls = counts(each), [2 * n + 1 for n in range(1, 21)]
    if shop._store.capabilities.atomic_batch:
        assert shown == calls
    else:  # there a row is what is atomic: a call of two rows may show as two
        assert shown == sorted(set(shown))
        assert set(calls) <= set(shown)
    assert counts(totals) == [41]
    with shop.snapshot() as state:
        assert state.read("each").equals(state.read("totals")), "both are at the batch's cut"


def test_it_follows_in_the_background_and_does_not_hold_the_others_up(shop: Any) -> None:
    stop = threading.Event()
    written = [0]

    def write() -> None:
        while not stop.is_set() and written[0] < 150:  # HBase keeps 200 batches
            written[0] += 1
            shop.put("items", item(written[0], category=f"c{written[0] % 3}"))

    seen = shop.subscribe("each", timeout=60)
    next(seen)
    thread = threading.Thread(target=write)
    with shop.maintain():
        thread.start()
        time.sleep(1)
        stop.set()
        thread.join()
        token = shop.put("items", item(0, category="last"))
        assert sum(r["n"] for r in shop.scan("totals", after=token, timeout=60)) == written[0] + 1
        assert sum(r["n"] for r in shop.scan("each", after=token, timeout=120)) == written[0] + 1
        calls = 0
        for delta in seen:
            changed = [(c.kind, c.after) for c in delta.changes()]
            calls += 1
            if any(after is not None and after["category"] == "last" for _, after in changed):
                break
    assert calls == written[0] + 1, "one state for each call"
    assert shop.read("each").equals(shop.read("totals"))


def test_it_survives_a_restart_and_merges_its_runs(shop: Any, open_db: Callable[..., Any]) -> None:
    for n in range(1, 40):
        shop.put("items", item(n, category=f"c{n % 4}"))
    shop.refresh()
    shop.close()
    again = open_db()
    for n in range(20, 60):
        again.put("items", item(n, category=f"c{n % 3}", price=2))
        again.delete("items", n - 10)
    again.refresh()
    assert again.read("each").equals(again.read("totals"))
    each = next(v for v in again._catalog().views if v.table.name == "each")
    runs = again._maintainer.publisher.view_manifests[each.table.id].runs
    assert max(len(r) for r in runs.values()) <= 17
    there = set(again._maintainer.publisher.state.directory.list_names("*.vkr"))
    assert set(again._maintainer.publisher.view_manifests[each.table.id].files()) <= there


def test_it_is_suspended_resumed_dropped_and_cannot_be_replaced(shop: Any) -> None:
    shop.sql("ALTER MATERIALIZED VIEW each SUSPEND")
    for n in range(1, 5):
        shop.put("items", item(n))
    shop.refresh()
    with pytest.raises(Suspended):
        shop.read("each")
    assert shop.read("each", STALE)["n"].to_pylist() == [1]
    shop.sql("ALTER MATERIALIZED VIEW each RESUME")
    assert shop.read("each").equals(shop.read("totals"))
    shop.put("items", item(9))
    shop.refresh()
    assert shop.read("each").equals(shop.read("totals"))
    with pytest.raises(Unsupported, match="Drop it and create"):
        shop.sql(COMPLETE.format(options="").replace("CREATE", "CREATE OR REPLACE"))
    shop.sql("DROP MATERIALIZED VIEW each")
    assert not shop._maintainer.publisher.batch.record.get("sets")
    shop.put("items", item(10))
    assert shop.refresh().changes == 1


def test_one_that_is_not_stored_streams_every_call(shop: Any) -> None:
    shop.sql("DROP MATERIALIZED VIEW each")
    shop.sql(COMPLETE.format(options=", store = 'none'"))
    assert shop.read("each").equals(shop.read("totals"))
    deltas = shop.subscribe("each", timeout=0)
    assert next(deltas).rows.num_rows == 1
    for n in range(1, 6):
        shop.put("items", item(n))
    shop.refresh()
    assert counts(deltas) == [2, 3, 4, 5, 6]
    assert shop.read("each").equals(shop.read("totals"))


def test_a_snapshot_between_its_steps_says_so(shop: Any) -> None:
    shop.put("items", item(1))
    shop._maintainer.refresh()  # the others only
    with shop.snapshot() as state, pytest.raises(BadValue, match="cut of its own"):
        state.read("each")
    shop.refresh()
    with shop.snapshot() as state:
        assert state.read("each").equals(state.read("totals"))
