"""Views that are not stored and tables tell what happened to them, over a store with a log and over one without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned

from viewkeeper.errors import SnapshotGone, StoreError, Unsupported
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.unlisted_files import garbage_collector
from viewkeeper_hbase import commit_steps

STREAM = "CREATE MATERIALIZED VIEW {name} WITH (store = 'none') AS {query}"


@pytest.fixture
def shop(open_db: Callable[..., Any]) -> Any:
    db = planned.tables(open_db())
    db.put("items", [item(0), item(1, "books")])
    return db


def item(number: int, category: str | None = "toys", price: int = 1) -> dict[str, Any]:
    return {"item_id": number, "category": category, "price": price}


def changes(deltas: Iterator[Any]) -> list[list[tuple[Any, Any]]]:
    """What the deltas that are there say, each sorted."""
    return [sorted(((c.before, c.after) for c in delta.changes()), key=str) for delta in deltas]


def test_a_view_that_is_not_stored(shop: Any, open_db: Callable[..., Any]) -> None:
    shop.sql(STREAM.format(name="totals", query=planned.TOTALS))
    deltas = shop.subscribe("totals", timeout=0)
    first = next(deltas)
    assert sorted(first.rows["category"].to_pylist()) == ["books", "toys"]
    shop.put("items", item(2))
    shop.refresh()
    shop.delete("items", 1)
    shop.put("items", item(2, price=5))
    shop.refresh()
    one = {"category": "toys", "n": 1, "total": 1}
    two, more = {**one, "n": 2, "total": 2}, {**one, "n": 2, "total": 6}
    gone = {**one, "category": "books"}
    expected = [[(one, two)], sorted([(gone, None), (two, more)], key=str)]
    assert changes(deltas) == expected
    assert changes(shop.subscribe("totals", first.token, timeout=0)) == expected
    shop.close()
    again = open_db()
    assert changes(again.subscribe("totals", first.token, timeout=0)) == expected
    assert again.read("totals").to_pylist() == [more]


def test_a_bag_that_is_not_stored(shop: Any) -> None:
    shop.sql(STREAM.format(name="kinds_sold", query=planned.KINDS))
    deltas = shop.subscribe("kinds_sold", timeout=0)
    next(deltas)
    shop.put("items", [item(2), item(3), item(4, None)])
    shop.refresh()
    shop.delete("items", [2, 3, 1])
    shop.refresh()
    weights = [dict(zip(*d.rows.to_pydict().values(), strict=True)) for d in deltas]
    assert weights == [{"toys": 2, None: 1}, {"toys": -2, "books": -1}]


def test_a_table_is_told_of(shop: Any) -> None:
    if not shop._store.capabilities.before_images:
        with pytest.raises(Unsupported, match="no log of items") as error:
            shop.subscribe("items")
        assert "WITH (store = 'none') AS SELECT * FROM `items`" in error.value.hint
    shop.sql(STREAM.format(name="items_changes", query=planned.WHOLE))
    deltas = shop.subscribe("items", timeout=0)
    first = next(deltas)
    assert first.name == "items"
    assert first.rows.num_rows == 2
    shop.put("items", item(1, "books", 9))
    shop.refresh()
    shop.delete("items", 0)
    shop.refresh()
    expected = [[(item(1, "books"), item(1, "books", 9))], [(item(0), None)]]
    assert changes(deltas) == expected
    assert changes(shop.subscribe("items", first.token, timeout=0)) == expected


def test_what_a_subscriber_keeps_is_there_until_its_time_is_over(shop: Any, open_db: Callable[..., Any]) -> None:
    shop.close()
    shop = open_db(retention=0.0)
    shop.sql(STREAM.format(name="items_changes", query=planned.WHOLE))
    first = next(shop.subscribe("items", timeout=0, keep=("mailer", 60)))

    def write(number: int) -> None:
        shop.put("items", item(number))
        shop.refresh()
        shop._maintainer.cleanup.after_batch((), force=True)

    for number in range(10, 13):
        write(number)
    told = list(shop.subscribe("items", first.token, timeout=0, keep=("mailer", 60)))
    assert changes(told) == [[(None, item(number))] for number in range(10, 13)]
    assert [hold.name for hold in shop._store.holds()] == ["subscription:mailer"]
    table = shop._catalog().table("items")
    shop._store.hold("subscription:mailer", told[-1].token.position, 1.0, table=table)  # long ago
    assert shop._store.holds() == []
    for number in range(13, 16):
        write(number)
    for keep in (None, ("mailer", 60)):
        with pytest.raises(SnapshotGone):
            list(shop.subscribe("items", first.token, timeout=0, keep=keep))
    shop._store.release_hold("subscription:mailer")


def test_a_stored_view_in_hbase_is_kept_for_nobody(shop: Any) -> None:
    shop.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
    deltas = shop.subscribe("totals", timeout=0, keep=("mailer", 60))
    if shop._store.capabilities.before_images:
        assert next(deltas).rows.num_rows == 2
    else:
        with pytest.raises(Unsupported, match="200 batches") as error:
            next(deltas)
        assert "store = 'none'" in error.value.hint


def test_what_is_older_than_the_retention_is_gone(shop: Any, open_db: Callable[..., Any], tmp_path: Path) -> None:
    shop.close()
    shop = open_db(retention=0.0)
    shop.sql(STREAM.format(name="totals", query=planned.TOTALS))
    first = next(shop.subscribe("totals", timeout=0))
    for number in range(3):
        shop.put("items", item(10 + number))
        shop.refresh()
        shop._maintainer.cleanup.after_batch((), force=True)
    with pytest.raises(SnapshotGone, match="no longer kept"):
        list(shop.subscribe("totals", first.token, timeout=0))
    files = tmp_path / "state" / "streams"
    if files.is_dir():
        assert (
            garbage_collector(StateDirectory(files), "b*.stream").wait() is None
        )  # files are removed in the background
        assert len(list(files.iterdir())) == 2, "the last batch's, and that of the one before, which it did not forget"


def test_a_batch_that_a_successor_finishes_is_told_once(
    shop: Any, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shop._store.capabilities.atomic_batch:
        pytest.skip("a batch is one transaction there")
    shop.sql(STREAM.format(name="totals", query=planned.TOTALS))
    first = next(shop.subscribe("totals", timeout=0))
    shop.put("items", item(2))

    def fail(*_: Any) -> None:
        raise StoreError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(commit_steps, "finish_claimed_batch", fail)
        with pytest.raises(StoreError):
            shop.refresh()
        shop._maintainer_ref.end()
    again = open_db()
    again.refresh()
    one = {"category": "toys", "n": 1, "total": 1}
    assert changes(again.subscribe("totals", first.token, timeout=0)) == [[(one, {**one, "n": 2, "total": 2})]]
