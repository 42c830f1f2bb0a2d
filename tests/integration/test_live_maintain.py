"""Continuous maintenance: micro-batches in the background, one maintainer, failures, back-pressure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processes import PATIENCE, RATIO, item, other, url_of

import viewkeeper as vk
from viewkeeper.errors import BadValue, MaintainerBusy, StoreError, Timeout

MAINTAINER = """
    with vk.open(url) as db:
        try:
            with db.maintain(standby="standby" in args) as running:
                say("waiting" if running.waiting else "maintaining")
                while running.waiting:
                    time.sleep(0.01)
                say("maintains")
                running.wait(600)
        except MaintainerBusy as error:
            say(str(error))
            sys.exit(3)
"""


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def test_changes_reach_the_views_without_a_call(shop: Any) -> None:
    with shop.maintain():
        shop.put("items", [item(1), item(2)])
        assert eventually(lambda: (shop.get("by_category", "toys") or {}).get("n") == 2)


def test_changes_of_another_process_reach_the_views(shop: Any) -> None:
    writer = """
        with vk.open(url) as db:
            for n in range(20):
                db.put("items", {"item_id": n, "category": "toys", "price": "1"})
        say("done")
    """
    with shop.maintain(), other(writer, url_of(shop)) as process:
        assert process.receive() == "done"
        assert eventually(lambda: (shop.get("by_category", "toys") or {}).get("n") == 20)


def test_a_backlog_is_worked_off_in_batches_of_limited_size(shop: Any) -> None:
    for call in range(20):
        shop.put("items", [item(100 * call + i) for i in range(100)])
    sizes: list[int] = []
    with shop.maintain(max_changes=500, on_batch=lambda report: sizes.append(report.changes)):
        assert eventually(lambda: (shop.get("by_category", "toys") or {}).get("n") == 2000)
    assert sum(sizes) == 2000
    assert max(sizes) <= 500


def test_max_changes_of_one_makes_each_write_call_its_own_batch(shop: Any) -> None:
    for n in range(5):
        shop.put("items", [item(2 * n), item(2 * n + 1)])
    seen: list[int] = []
    with shop.maintain(max_changes=1):
        for delta in shop.subscribe("by_category", timeout=PATIENCE):
            seen += [c.after["n"] for c in delta.changes()]
            if seen[-1:] == [10]:
                break
    assert seen == sorted(set(seen)), "it may have begun at any of them"
    assert set(seen) <= {2, 4, 6, 8, 10}
    assert shop.status().epoch >= 6, "five batches and the view's creation"


def test_leaving_stops_cleanly_and_the_views_stay_usable(shop: Any) -> None:
    with shop.maintain() as running:
        token = shop.put("items", item(1))
        assert shop.get("by_category", "toys", after=token)["n"] == 1
    assert not running.running
    shop.put("items", item(2))
    time.sleep(0.2)
    assert shop.get("by_category", "toys")["n"] == 1, "nobody maintains any more"
    assert shop.refresh().changes == 1


def test_a_database_is_maintained_once_in_the_background(shop: Any) -> None:
    with shop.maintain(), pytest.raises(BadValue, match="already"):
        shop.maintain()
    with pytest.raises(BadValue, match="priority"):
        shop.maintain(priority="mine")


def test_a_second_maintainer_gets_an_error_that_names_the_first(shop: Any) -> None:
    url = url_of(shop)
    with shop.maintain(), other(MAINTAINER, url) as second:
        assert "is maintained by process" in second.receive()
        assert second.wait() == 3
    shop.close()
    with other(MAINTAINER, url) as first:
        assert first.receive() == "maintaining"
        with vk.open(url) as db, pytest.raises(MaintainerBusy, match=f"process {first.process.pid}"):
            db.maintain()


def test_a_standby_takes_over_when_the_maintainer_is_killed(shop: Any, make_db: Callable[..., Any]) -> None:
    url = url_of(shop)
    shop.close()
    with other(MAINTAINER, url) as first:
        assert first.receive() == "maintaining"
        with other(MAINTAINER, url, "standby") as second, vk.open(url) as writer:
            assert second.receive() == "waiting"
            token = writer.put("items", item(1))
            assert writer.get("by_category", "toys", after=token, timeout=PATIENCE)["n"] == 1
            first.kill()
            token = writer.put("items", item(2))
            assert second.receive() == "maintains"
            assert writer.get("by_category", "toys", after=token, timeout=PATIENCE)["n"] == 2


def test_a_view_that_fails_on_its_rows_is_suspended_and_resumed(shop: Any) -> None:
    shop.sql(RATIO)
    shop.sql("CREATE MATERIALIZED VIEW ratio_count AS SELECT count(*) AS n FROM ratio")
    reports: list[Any] = []
    with shop.maintain(on_batch=reports.append):
        token = shop.put("items", [item(1, price=4), item(2, price=0)])
        assert shop.get("by_category", "toys", after=token)["n"] == 2
        assert eventually(lambda: bool(reports)), "the batch is seen before it is told"
        assert list(reports[0].suspended) == ["ratio"]
        assert shop.get("ratio_count", (), after=token)["n"] == 2, "it does not need what failed"
        views = {v.name: v for v in shop.status().views}
        assert "DIVIDE_BY_ZERO" in views["ratio"].suspended
        assert views["by_category"].suspended is None
        token = shop.put("items", item(2, price=5))
        assert shop.get("ratio", 1, vk.STALE) is None, "it still shows the batch at which it was suspended"
        shop.sql("ALTER MATERIALIZED VIEW ratio RESUME")
        assert shop.get("ratio", 2, after=token)["q"] == 20
        token = shop.put("items", item(3, price=10))
        assert shop.get("ratio", 3, after=token)["q"] == 10


def test_resuming_a_view_whose_rows_still_fail_leaves_it_suspended(shop: Any) -> None:
    shop.sql(RATIO)
    with shop.maintain():
        token = shop.put("items", item(1, price=0))
        shop.get("by_category", "toys", after=token)
        with pytest.raises(vk.ViewkeeperError, match="DIVIDE_BY_ZERO"):
            shop.sql("ALTER MATERIALIZED VIEW ratio RESUME")
        assert next(v for v in shop.status().views if v.name == "ratio").suspended
        shop.sql("DROP MATERIALIZED VIEW ratio")
    assert [v.name for v in shop.status().views] == ["by_category"]


def test_a_suspended_view_stays_so_in_the_next_process(shop: Any, make_db: Callable[..., Any]) -> None:
    shop.sql(RATIO)
    with shop.maintain():
        token = shop.put("items", item(1, price=0))
        shop.get("by_category", "toys", after=token)
    shop.close()
    again = make_db("shop")
    again.put("items", item(2, price=0))
    assert again.refresh().views == {"by_category": 1}
    assert next(v for v in again.status().views if v.name == "ratio").suspended


def test_a_refresh_that_may_suspend_nothing_raises_what_a_view_fails_on_and_publishes_nothing(shop: Any) -> None:
    shop.sql(RATIO)
    shop.put("items", item(1, price=0))
    epoch = shop.status().epoch
    with pytest.raises(vk.ViewkeeperError, match="ratio: DIVIDE_BY_ZERO"):
        shop.refresh(suspend=False)
    assert shop.status().epoch == epoch
    assert shop.get("by_category", "toys") is None
    assert "DIVIDE_BY_ZERO" in shop.refresh().suspended["ratio"]
    assert shop.get("by_category", "toys")["n"] == 1


def test_an_error_is_tried_again_then_ends_the_maintenance_and_shows(
    shop: Any, make_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    maintainer = shop._acquire_maintainer()
    calls = []

    def fails(*args: Any) -> None:
        calls.append(args)
        raise StoreError("The disk of the shop is full.")

    monkeypatch.setattr(maintainer.store, "commit", fails)
    running = shop.maintain(retries=2)
    shop.put("items", item(1))
    assert eventually(lambda: not running.running)
    assert len(calls) == 3
    assert "disk of the shop is full" in shop.status().error
    with pytest.raises(StoreError, match="disk of the shop"):
        running.stop()
    monkeypatch.undo()
    with shop.maintain():
        assert eventually(lambda: (shop.get("by_category", "toys") or {}).get("n") == 1)
        assert eventually(lambda: shop.status().error is None)


def test_writers_wait_when_the_views_are_too_far_behind(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    maintainer = shop._acquire_maintainer()
    go = threading.Event()
    commit = maintainer.store.commit
    monkeypatch.setattr(maintainer.store, "commit", lambda *args: (go.wait(30), commit(*args)))
    monkeypatch.setattr("viewkeeper.read.freshness.TIMEOUT", 0.2)
    with shop.maintain(max_lag=10):
        shop.put("items", [item(i) for i in range(11)])
        with pytest.raises(Timeout, match="more than 10 changes behind"):
            shop.put("items", item(99))
        go.set()
        assert eventually(lambda: (shop.get("by_category", "toys") or {}).get("n") == 11)
        shop.put("items", item(99))


def test_many_threads_write_and_read_while_maintenance_runs(shop: Any) -> None:
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for n in range(25):
                token = shop.put("items", item(1000 * thread + n, f"c{thread}"))
                assert shop.get("by_category", f"c{thread}", after=token)["n"] == n + 1
        except BaseException as error:
            errors.append(error)

    with shop.maintain():
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
