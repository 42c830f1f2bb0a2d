"""LATEST and `after=` of views over one table: what is there now, without a batch and without anybody who maintains."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned

import viewkeeper as vk
from viewkeeper.errors import BadToken, Timeout
from viewkeeper.operators.aggregation.row_groups import RowAggregate

VIEWS = {"totals": planned.TOTALS, "dear": planned.DEAR, "bosses": planned.BOSSES}
ALONE = ("totals", "dear", "by_category")


@pytest.fixture(params=["lmdb", "rocksdb"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    planned.install(monkeypatch.setattr)
    return f"{request.param}:{tmp_path / 'shop'}"


@pytest.fixture
def db(url: str) -> Iterator[Any]:
    with vk.open(url, durability="none") as found:
        for statement in planned.TABLES:
            found.sql(statement)
        found.put("kinds", [{"category": c, "boss": f"boss {c}"} for c in "abc"])
        found.put("items", [_item(n) for n in range(60)])
        for name, query in VIEWS.items():
            found.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        found.sql("CREATE INDEX by_category ON items (category)")
        found.sql("CREATE INDEX by_total ON totals (total DESC)")
        yield found


def _item(n: int, **other: Any) -> dict[str, Any]:
    return {"item_id": n, "category": "abc"[n % 3], "price": n % 9 if n % 7 else None} | other


def test_the_newest_rows_need_no_batch(db: Any, url: str) -> None:
    chance = random.Random(5)
    with vk.open(url, durability="none") as reader:  # a handle that does not maintain
        for _ in range(6):
            epoch = db.status().epoch
            for _ in range(4):
                n = chance.randrange(80)
                if chance.random() < 0.3:
                    db.delete("items", [n])
                else:
                    db.put("items", [_item(n, category=chance.choice("abcd"), price=chance.randrange(9))])
            latest = {name: reader.read(name, level=vk.LATEST) for name in ALONE}
            scans = {name: list(reader.scan(name, level=vk.LATEST, limit=7)) for name in ALONE}
            ordered = list(reader.scan("totals", order_by="total DESC", limit=2, level=vk.LATEST))
            rows = {c: reader.get("totals", c, vk.LATEST) for c in "abcd"}
            prefix = list(reader.scan("by_category", prefix="a", level=vk.LATEST))
            assert db.status().epoch == epoch
            db.refresh()
            assert db.status().epoch == epoch + 1
            for name in ALONE:
                assert latest[name] == db.read(name), name
                assert scans[name] == list(db.scan(name, limit=7))
            assert rows == {c: db.get("totals", c) for c in "abcd"}
            assert ordered == list(db.scan("totals", order_by="total DESC", limit=2))
            assert prefix == list(db.scan("by_category", prefix="a"))


def test_nobody_has_to_maintain(db: Any, url: str) -> None:
    db.close()
    with vk.open(url, durability="none") as writer:
        token = writer.put("items", [_item(500, category="new", price=8)])
        assert writer.get("totals", "new") is None  # the published batch
        assert writer.get("totals", "new", after=token) == {"category": "new", "n": 1, "total": 8}
        assert writer.get("dear", 500, vk.LATEST) == {"item_id": 500, "price": 8}
        assert writer.get("totals", "new") is not None, "no read is older than one before it"
        assert writer.get("totals", "new", after=writer.token()) is not None
        writer.delete("items", [500])
        assert writer.get("totals", "new", vk.LATEST) is None
        assert writer.status().maintainer is None
        with pytest.raises(Timeout, match="Nobody maintains"):
            writer.get("bosses", "boss a", vk.LATEST)
        with pytest.raises(BadToken):
            writer.get("totals", "a", after=vk.Token(token.database, 10**9))


def test_who_maintains_publishes_what_it_shows(db: Any) -> None:
    epoch = db.status().epoch
    db.put("items", [_item(1, price=2**31 - 1, category="a")])
    total = db.get("totals", "a", vk.LATEST)["total"]
    assert total > 2**31
    assert db.status().epoch == epoch + 1
    assert db.get("totals", "a")["total"] == total


def test_each_waiting_change_is_taken_once(db: Any, url: str) -> None:
    """One read by key after every single call, over a batch in between: groups that come, go and come again."""
    chance = random.Random(8)
    with vk.open(url, durability="none") as reader:
        for turn in range(60):
            n = chance.randrange(12)
            if chance.random() < 0.3:
                db.delete("items", [n, n + 1])
            else:
                price = chance.choice((None, 0, 5, 8))
                db.put(
                    "items", [_item(n, category=chance.choice(("a", "q", None)), price=price), _item(n + 1, price=4)]
                )
            items = db.read("items").to_pylist()
            for category in ("a", "q", None):
                rows = [r for r in items if r["category"] == category]
                prices = [r["price"] for r in rows if r["price"] is not None]
                total = {"category": category, "n": len(rows), "total": sum(prices) if prices else None}
                assert reader.get("totals", (category,), vk.LATEST) == (total if rows else None)
            for item in (n, n + 1):
                row = next((r for r in items if r["item_id"] == item), None)
                dear = row if row is not None and (row["price"] or 0) > 3 else None
                assert (reader.get("dear", item, vk.LATEST) is None) == (dear is None)
                if row is not None:
                    assert reader.get("by_category", (row["category"], item), vk.LATEST) is not None
            if turn % 25 == 24:
                db.refresh()


def test_changes_that_were_not_taken_to_their_end_are_taken_once(
    db: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the batch's state is away when the second group is looked up: it was merged meanwhile."""
    with vk.open(url, durability="none") as reader:
        assert reader.get("totals", "a", vk.LATEST)["n"] == 20
        db.put("items", [_item(n, category="abc"[n % 3], price=1) for n in range(100, 103)])
        in_runs, asked = RowAggregate.encode_sums_from_runs, []

        def away(*given: Any) -> Any:
            asked.append(1)
            if len(asked) == 2:
                raise FileNotFoundError("merged")
            return in_runs(*given)

        monkeypatch.setattr(RowAggregate, "encode_sums_from_runs", away)
        for _ in range(3):
            assert [reader.get("totals", c, vk.LATEST)["n"] for c in "abc"] == [21, 21, 21]
        assert len(asked) >= 4


def test_a_reader_has_one_state_whoever_goes_on(db: Any, url: str) -> None:
    with vk.open(url, durability="none") as reader:
        db.put("items", _item(200, category="a"))
        one = reader._reads.open_latest("totals", vk.LATEST, None, 10.0, by_key=True)
        db.put("items", [_item(201, category="a"), _item(202, category="a")])
        assert reader.get("totals", "a", vk.LATEST)["n"] == 23
        assert one.get(("a",))["n"] == 21
        assert one.position < reader.token("totals").position
