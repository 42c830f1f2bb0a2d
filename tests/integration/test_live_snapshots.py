"""Snapshots and subscriptions: one state for many reads; every change exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processes import BY_CATEGORY, PATIENCE, RATIO, SHOP, item, other, url_of

import viewkeeper as vk
from viewkeeper.errors import BadValue, SnapshotGone, Suspended, UnknownName

STREAM = """CREATE MATERIALIZED VIEW pairs WITH (store = 'none') AS
            SELECT i.item_id, i.price, c.n FROM items i JOIN by_category c ON i.category = c.category"""


def test_a_snapshot_shows_tables_and_views_at_one_batch(shop: Any) -> None:
    shop.put("items", [item(1), item(2), item(3, "books")])
    shop.refresh()
    shop.put("items", [item(4), item(1, "books")])  # not in any batch yet
    shop.delete("items", 2)
    with shop.snapshot() as s:
        shop.put("items", item(5))
        shop.refresh()
        assert [r["item_id"] for r in s.scan("items")] == [1, 2, 3]
        assert s.read("items").num_rows == 3
        assert s.get("items", 1)["category"] == "toys"
        assert s.get("items", 2) is not None
        assert s.get("items", 4) is None
        assert [r["item_id"] for r in s.scan("items", start=2, limit=1)] == [2]
        assert {r["category"]: r["n"] for r in s.scan("by_category")} == {"books": 1, "toys": 2}
        assert s.token.position < shop.token().position
    assert [r["item_id"] for r in shop.scan("items")] == [1, 3, 4, 5]


def test_a_snapshot_ends_with_its_block_or_its_age(shop: Any) -> None:
    shop.put("items", [item(i) for i in range(20_000)])
    shop.refresh()
    with shop.snapshot() as s:
        pass
    with pytest.raises(SnapshotGone, match="closed"):
        s.get("items", 1)
    aged = shop.snapshot(max_age=2)  # enough to begin a scan, also on a busy machine
    rows = aged.scan("items")
    next(rows)
    aged._timer.join()
    with pytest.raises(SnapshotGone, match=r"ended after 2 s.*max_age"):
        list(rows)
    with pytest.raises(SnapshotGone, match="ended after"):
        aged.read("by_category")


def test_a_reader_process_takes_snapshots_while_batches_go_on(shop: Any) -> None:
    shop.put("items", [item(i, f"c{i % 7}") for i in range(100)])
    shop.refresh()
    reader = """
        with vk.open(url, mode="r") as db:
            epochs = []
            while len(epochs) < 60 or (len(set(epochs)) < 2 and len(epochs) < 10_000):  # until a batch came between
                with db.snapshot() as s:
                    rows = s.read("items").num_rows
                    time.sleep(0.002)
                    say([s.epoch, rows, sum(r["n"] for r in s.scan("by_category"))])
                    epochs.append(s.epoch)
    """
    with shop.maintain(max_delay=0.0, priority="views"), other(reader, url_of(shop)) as process:
        seen = [process.receive()]  # or else the last batch might be made before the first look
        for n in range(100, 400, 3):
            shop.put("items", [item(n + i, f"c{n % 7}") for i in range(3)])
        seen += process.receive_all()
    assert all(rows == counted for _, rows, counted in seen), seen
    assert [epoch for epoch, _, _ in seen] == sorted(epoch for epoch, _, _ in seen)
    assert len({epoch for epoch, _, _ in seen}) > 1


def test_a_suspended_view_is_refused_in_a_snapshot_unless_asked_for(shop: Any) -> None:
    shop.sql(RATIO)
    shop.put("items", item(1, price=4))
    shop.refresh()
    with shop.maintain():
        shop.get("by_category", "toys", after=shop.put("items", item(2, price=0)))
    with shop.snapshot() as s:
        assert s.get("by_category", "toys")["n"] == 2
        with pytest.raises(Suspended, match=r"suspended since .* at batch \d+ \(position \d+\): .*DIVIDE_BY_ZERO"):
            s.get("ratio", 1)
    with shop.snapshot(mixed=True) as s:
        assert s.get("ratio", 1)["q"] == 25


# -- subscriptions -----------------------------------------------------------------------------------------------------


def test_a_subscription_gives_the_rows_then_each_change(shop: Any) -> None:
    shop.put("items", [item(1), item(2, "books")])
    shop.refresh()
    deltas = shop.subscribe("by_category", timeout=0.2)
    first = next(deltas)
    assert first.kind == "rows"
    assert [(r["category"], r["n"], r["_w"]) for r in first.rows.to_pylist()] == [("books", 1, 1), ("toys", 1, 1)]
    shop.put("items", item(3))
    shop.delete("items", 2)
    shop.refresh()
    shop.put("items", item(4, "cars"))
    shop.refresh()
    second, third = deltas
    assert [(c.kind, (c.after or c.before)["category"]) for c in second.changes()] == [
        ("update", "toys"),
        ("delete", "books"),
    ] or {(c.kind, (c.after or c.before)["category"]) for c in second.changes()} == {
        ("update", "toys"),
        ("delete", "books"),
    }
    assert [(c.kind, c.after["n"]) for c in third.changes()] == [("insert", 1)]


def test_a_subscription_resumes_after_a_delta_and_never_repeats_one(shop: Any) -> None:
    token = None
    state: dict[str, int] = {}
    for n in range(6):
        shop.put("items", item(n, f"c{n % 2}"))
        shop.refresh()
        for delta in shop.subscribe("by_category", since=token, timeout=0):
            for change in delta.changes():
                assert change.before is None or state.get(change.before["category"]) == change.before["n"]
                if change.after is not None:
                    state[change.after["category"]] = change.after["n"]
            token = str(delta.token)
    assert state == {"c0": 3, "c1": 3}


def test_progress_marks_come_while_nothing_happens(shop: Any) -> None:
    shop.sql("CREATE TABLE notes (id BIGINT, PRIMARY KEY (id))")
    deltas = shop.subscribe("by_category", timeout=1, progress=0.05)
    assert next(deltas).kind == "rows"
    token = shop.put("notes", {"id": 1})
    shop.refresh()
    marks = list(deltas)
    assert {d.kind for d in marks} == {"progress"}
    assert marks[-1].token.position >= token.position
    assert all(d.rows.num_rows == 0 for d in marks)


def test_a_position_that_is_no_longer_kept_says_how_to_start_over(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db("short", spark=spark, retention=0)
    db.sql(SHOP)
    db.sql(BY_CATEGORY)
    db.put("items", item(1))
    db.refresh()
    token = next(db.subscribe("by_category")).token
    for n in range(2, 5):
        db.put("items", item(n))
        db.refresh()
        time.sleep(0.6)  # the log is cleaned up once in a while
    with pytest.raises(SnapshotGone, match="without a position"):
        list(db.subscribe("by_category", since=token, timeout=0))
    assert next(db.subscribe("by_category")).rows["n"].to_pylist() == [4]


def test_a_subscriber_that_is_kept_for_finds_its_changes_again(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db("kept", spark=spark, retention=0)
    db.sql(SHOP)
    db.sql(BY_CATEGORY)
    token = next(db.subscribe("by_category", keep=("mailer", 60))).token
    for n in range(3):
        db.put("items", item(n))
        db.refresh()
        time.sleep(0.6)
    found = [c.after["n"] for d in db.subscribe("by_category", since=token, timeout=0) for c in d.changes()]
    assert found == [1, 2, 3]


def test_the_changes_of_a_bag_are_weights(shop: Any) -> None:
    shop.sql("CREATE MATERIALIZED VIEW prices AS SELECT price FROM items")
    shop.put("items", [item(1), item(2)])
    shop.refresh()
    deltas = shop.subscribe("prices", timeout=0.1)
    assert [r["_w"] for r in next(deltas).rows.to_pylist()] == [1, 1]
    shop.put("items", [item(3), item(4, price=9), item(1, price=9)])
    shop.refresh()
    (delta,) = deltas
    assert {(str(r["price"]), r["_w"]) for r in delta.rows.to_pylist()} == {("9.00", 2)}, "one came, one went: 1.00"


def test_a_dropped_view_ends_its_subscriptions(shop: Any) -> None:
    deltas = shop.subscribe("by_category", timeout=60)
    next(deltas)
    shop.sql("DROP MATERIALIZED VIEW by_category")
    shop.put("items", item(1))
    with pytest.raises(UnknownName, match="dropped or replaced"):
        next(deltas)


def test_a_view_that_is_not_stored_streams_its_changes_and_is_read_on_request(shop: Any) -> None:
    shop.put("items", [item(1), item(2), item(3, "books")])
    shop.sql(STREAM)
    assert [(r["item_id"], r["n"]) for r in shop.read("pairs").to_pylist()] == [(1, 2), (2, 2), (3, 1)]
    deltas = shop.subscribe("pairs", timeout=0.2)
    assert next(deltas).rows.num_rows == 3
    shop.put("items", item(4, "books"))
    shop.refresh()
    (delta,) = deltas
    assert {(c.kind, c.after["item_id"], c.after["n"]) for c in delta.changes()} == {
        ("update", 3, 2),
        ("insert", 4, 2),
    }
    assert shop.read("pairs", vk.LATEST).num_rows == 4
    assert next(v for v in shop.status().views if v.name == "pairs").rows is None
    with pytest.raises(BadValue, match="not stored"):
        shop.get("pairs", 1)
    with shop.snapshot() as s:
        shop.put("items", item(5))
        shop.refresh()
        assert s.read("pairs").num_rows == 4


def test_a_reader_process_reads_a_view_that_is_not_stored(shop: Any) -> None:
    shop.put("items", [item(1), item(2)])
    shop.sql(STREAM)
    reader = """
        with vk.open(url, mode="r") as db:
            say(db.read("pairs").num_rows)
            say(next(db.subscribe("pairs")).rows.num_rows)
    """
    with other(reader, url_of(shop)) as process:
        assert process.receive() == 2
        assert process.receive() == 2


SUBSCRIBER = """
    import pathlib
    kept = pathlib.Path(args[0])
    with vk.open(url, mode="r") as db:
        lines = kept.read_text().splitlines() if kept.exists() else []
        since = json.loads(lines[-1])["token"] if lines else None
        for delta in db.subscribe("by_category", since=since):
            changes = [[c.before and c.before["n"], c.after and c.after["n"]] for c in delta.changes()]
            with kept.open("a") as file:   # the effect and the position in one line: both or none
                file.write(json.dumps({"token": str(delta.token), "changes": changes}) + chr(10))
            say(changes)
"""
MAINTAINER = """
    with vk.open(url) as db, db.maintain(max_delay=0.0, max_changes=1) as running:
        say("maintaining")
        running.wait(120)
"""


def test_each_change_is_seen_once_though_subscriber_and_maintainer_are_killed(shop: Any, tmp_path: Any) -> None:
    import json

    url, kept = url_of(shop), tmp_path / "kept"
    shop.close()
    with vk.open(url) as writer:
        for n in range(3):
            with other(MAINTAINER, url) as maintainer, other(SUBSCRIBER, url, kept) as subscriber:
                assert maintainer.receive() == "maintaining"
                subscriber.receive()
                for i in range(20):
                    writer.put("items", item(100 * n + i))
                subscriber.receive()
                (subscriber if n % 2 else maintainer).kill()
        with other(MAINTAINER, url) as maintainer, other(SUBSCRIBER, url, kept) as subscriber:
            maintainer.receive()
            token = writer.put("items", item(999))
            assert writer.get("by_category", "toys", after=token, timeout=60)["n"] == 61
            deadline = time.monotonic() + PATIENCE
            while "61]" not in kept.read_text() and time.monotonic() < deadline:
                time.sleep(0.05)
    counts = [after for line in kept.read_text().splitlines() for _, after in json.loads(line)["changes"]]
    befores = [before for line in kept.read_text().splitlines() for before, _ in json.loads(line)["changes"]]
    assert counts[-1] == 61
    assert befores == [None, *counts[:-1]], "each change begins where the one before it ended"
