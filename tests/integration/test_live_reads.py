"""Levels of freshness: what a read may rely on, in the maintaining process and in others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processes import RATIO, SHOP, item, other, url_of

import viewkeeper as vk
from viewkeeper.errors import BadToken, Suspended, Timeout


def test_any_shows_the_published_batch_and_latest_every_finished_write(shop: Any) -> None:
    shop.put("items", [item(1), item(2)])
    assert shop.get("by_category", "toys") is None
    assert shop.get("by_category", "toys", vk.LATEST)["n"] == 2
    assert shop.get("by_category", "toys")["n"] == 2


def test_the_one_row_of_a_view_without_groups_is_replaced_by_the_latest(shop: Any) -> None:
    shop.put("items", item(1))
    shop.sql("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n FROM items")
    shop.put("items", item(2))
    with vk.open(url_of(shop), mode="r") as reader:
        assert reader.read("total").to_pylist() == [{"n": 1}]
        assert reader.read("total", vk.LATEST).to_pylist() == [{"n": 2}]
        assert list(reader.scan("total", level=vk.LATEST)) == [{"n": 2}]
        assert reader.get("total", (), vk.LATEST) == {"n": 2}
        assert reader.get("total", ()) == {"n": 2}, "no read is older than one before it"
        shop.put("items", item(3))
        shop.refresh()
        assert reader.get("total", ()) == {"n": 3}


def test_a_write_is_read_back_by_its_token_or_its_text(shop: Any) -> None:
    token = shop.put("items", item(1))
    assert shop.read("by_category", after=str(token)).num_rows == 1
    token = shop.delete("items", 1)
    assert list(shop.scan("by_category", after=token)) == []


def test_several_tokens_merge_to_the_latest(shop: Any) -> None:
    first, second = shop.put("items", item(1)), shop.put("items", item(2))
    assert shop.get("by_category", "toys", after=[second, str(first)])["n"] == 2
    assert first.merge(second) == second
    assert second.merge(first) == second


def test_a_read_gives_its_batch_as_a_token_so_that_a_session_never_goes_back(shop: Any) -> None:
    shop.put("items", item(1))
    shop.refresh()
    seen = shop.token()
    shop.put("items", item(2))
    assert shop.get("by_category", "toys", after=seen)["n"] == 1, "the batch that was seen is enough"
    assert shop.token("items").position > seen.position


def test_a_refresh_that_only_views_were_behind_for_satisfies_every_token(shop: Any) -> None:
    shop.put("items", item(1))
    shop.refresh()
    # The head is now the commit's own position: nothing is waiting behind it.
    assert shop.get("by_category", "toys", after=shop.token("items"), timeout=0)["n"] == 1


def test_a_token_of_another_database_or_of_no_database_is_refused(shop: Any, make_db: Callable[..., Any]) -> None:
    elsewhere = make_db("elsewhere")
    elsewhere.sql(SHOP)
    foreign = elsewhere.put("items", item(1))
    with pytest.raises(BadToken, match="another database"):
        shop.get("by_category", "toys", after=foreign)
    with pytest.raises(BadToken, match="no token"):
        shop.get("by_category", "toys", after="vk1:nonsense")
    ahead = vk.Token(foreign.database, 99)
    with pytest.raises(BadToken, match="newer than the database"):
        elsewhere.get("items", 1, after=ahead)


def test_one_process_writes_and_keeps_the_token_another_reads_with_it(shop: Any) -> None:
    reader = """
        with vk.open(url, mode="r") as db:
            say("ready")
            while True:
                token = ask()
                say(db.get("by_category", "toys", after=token)["n"])
    """
    with shop.maintain(), other(reader, url_of(shop)) as process:
        assert process.receive() == "ready"
        for n in range(1, 6):
            process.send(str(shop.put("items", item(n))))
            assert process.receive() >= n


JOINED = """CREATE MATERIALIZED VIEW same AS
            SELECT i.category, count(*) AS n FROM items i JOIN kinds k ON i.category = k.kind GROUP BY i.category"""
"""Of two tables: it is waited for."""


def test_a_reader_fails_at_once_when_nobody_maintains(shop: Any) -> None:
    url = url_of(shop)
    shop.sql("CREATE TABLE kinds (kind STRING, PRIMARY KEY (kind))")
    shop.sql(JOINED)
    token = str(shop.put("items", item(1)))
    shop.close()
    reader = """
        with vk.open(url, mode="r") as db:
            for options in ({"level": vk.LATEST}, {"after": args[0]}):
                started = time.monotonic()
                try:
                    db.get("same", "toys", timeout=300, **options)
                except Timeout as error:
                    say([str(error), time.monotonic() - started])
    """
    with other(reader, url, token) as process:
        for _ in range(2):
            message, seconds = process.receive()
            assert "Nobody maintains" in message
            assert "vk run" in message
            assert seconds < 60


def test_a_reader_gives_up_after_its_timeout_while_the_maintainer_does_nothing(shop: Any) -> None:
    shop.sql("CREATE TABLE kinds (kind STRING, PRIMARY KEY (kind))")
    shop.sql(JOINED)
    token = shop.put("items", item(1))
    reader = """
        with vk.open(url, mode="r") as db:
            try:
                db.read("same", after=args[0], timeout=0.3)
            except Timeout as error:
                say(str(error))
    """
    with other(reader, url_of(shop), token) as process:
        assert "did not reach position" in process.receive()


def test_a_writer_that_does_not_maintain_reads_its_writes_from_the_maintainer(shop: Any) -> None:
    writer = """
        with vk.open(url) as db:
            token = db.put("items", {"item_id": 7, "category": "books", "price": "3"})
            say(db.get("by_category", "books", after=token)["n"])
    """
    with shop.maintain(), other(writer, url_of(shop)) as process:
        assert process.receive() == 1


def test_a_suspended_view_says_so_when_it_is_asked_for_more_than_it_has(shop: Any) -> None:
    shop.sql(RATIO)
    old = shop.put("items", item(1, price=4))
    shop.refresh()
    with shop.maintain():
        new = shop.put("items", item(2, price=0))
        assert shop.get("by_category", "toys", after=new)["n"] == 2, "the others go on"
        assert shop.get("ratio", 1, vk.STALE, after=old)["q"] == 25
        for options in ({}, {"after": old}, {"after": new}, {"level": vk.LATEST}, {"level": vk.STALE, "after": new}):
            with pytest.raises(Suspended, match=r"ratio is suspended.*DIVIDE_BY_ZERO"):
                shop.get("ratio", 1, **options)


def test_a_scan_sees_one_batch_while_others_commit(shop: Any) -> None:
    shop.put("items", [item(i, f"c{i:04d}") for i in range(2000)])
    shop.refresh()
    rows = shop.scan("by_category")
    seen = [next(rows)]
    shop.put("items", [item(i, f"c{i:04d}", 2) for i in range(2000)])
    shop.delete("items", list(range(1000)))
    shop.refresh()
    seen += list(rows)
    assert [r["category"] for r in seen] == [f"c{i:04d}" for i in range(2000)]
    assert {r["total"] for r in seen} == {1}


def test_a_wait_ends_soon_after_the_batch(shop: Any) -> None:
    token = shop.put("items", item(1))
    reader = """
        with vk.open(url, mode="r") as db:
            say("ready")
            db.get("by_category", "toys", after=args[0], timeout=300)
            say(time.time())
    """
    with other(reader, url_of(shop), token) as process:
        assert process.receive() == "ready"
        time.sleep(0.5)
        shop.refresh()
        refreshed = time.time()
        assert process.receive() - refreshed < 20, "it did not wait until its time was over"


def test_a_timeout_of_zero_does_not_wait(shop: Any, make_db: Callable[..., Any]) -> None:
    shop.sql("CREATE TABLE kinds (kind STRING, PRIMARY KEY (kind))")
    shop.sql(JOINED)
    reader = make_db("shop", mode="r")
    token = shop.put("items", item(1))
    with pytest.raises(Timeout):
        reader.get("same", "toys", after=token, timeout=0)
    assert reader.get("by_category", "toys", after=token, timeout=0)["n"] == 1  # of one table: it does not wait


def test_what_get_cannot_answer_is_not_waited_for(shop: Any, make_db: Callable[..., Any]) -> None:
    shop.sql("CREATE MATERIALIZED VIEW prices AS SELECT price FROM items")
    token = shop.put("items", item(1))
    reader = make_db("shop", mode="r")
    with pytest.raises(vk.ViewkeeperError, match="no unique key"):
        reader.get("prices", 1, after=token)
    with pytest.raises(vk.ViewkeeperError, match="values were given"):
        reader.get("by_category", ("a", "b"), after=token)
    with pytest.raises(vk.ViewkeeperError, match="limit"):
        reader.scan("prices", limit=-1, after=token)
