"""Views that are made while their tables are written, on stores that can do everything, something, or nothing about it.

Random writes happen between any two pages of any scan. Whatever the strategy, a view shows exactly the state of the
tables at its cut: nothing that the scan saw counts twice, nothing that it missed is lost (dissertation 6.3.2).
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.limited import (
    OnlyKeys,
    OnlyNow,
    OnlyPages,
    OnlyScans,
)
from tests.contract.planned import BOSSES, DEAR, TABLES, TOTALS

from viewkeeper.capture import partitions
from viewkeeper.capture.snapshot import scan_live
from viewkeeper.database import Database
from viewkeeper.errors import Unsupported
from viewkeeper.store.lmdb import LmdbStore

ROWS = 200
HYBRIDS = ("SNI", "SCI", "SNIMB", "SCIMB")
CASES = [
    *((OnlyNow, strategy) for strategy in (*HYBRIDS, "SN")),
    *((kind, "ISN") for kind in (OnlyNow, OnlyPages, OnlyKeys, LmdbStore)),
    (LmdbStore, "SCI"),
]


class Shop:
    """A database, and what its tables held after every write call."""

    def __init__(self, store: Any, seed: int) -> None:
        self.store, self.chance = store, random.Random(seed)
        self.db = Database(store, mode="w", spark=None, progress=None)
        for statement in TABLES:
            self.db.sql(statement)
        self.items: dict[int, Any] = {}
        self.kinds: dict[str, Any] = {}
        self.states: dict[int, Any] = {}
        self.busy = False
        self.put("items", [self.item(n) for n in range(ROWS)])
        self.put("kinds", [{"category": c, "boss": "x"} for c in "abc"])

    def item(self, number: int) -> dict[str, Any]:
        return {"item_id": number, "category": self.chance.choice("abcde"), "price": self.chance.randrange(9)}

    def put(self, table: str, rows: list[dict[str, Any]]) -> None:
        held: dict[Any, Any] = self.items if table == "items" else self.kinds
        position = self.db.put(table, rows).position
        held.update({next(iter(row.values())): row for row in rows})
        self.states[position] = (dict(self.items), dict(self.kinds))

    def write(self) -> None:
        """Some write calls, or none."""
        for _ in range(self.chance.randrange(3)):
            match self.chance.randrange(10):
                case 0 | 1:
                    self.put(
                        "kinds", [{"category": self.chance.choice("abcd"), "boss": self.chance.choice(["x", None])}]
                    )
                case 2 | 3:
                    gone = [self.chance.randrange(ROWS + 30) for _ in range(3)]
                    position = self.db.delete("items", gone).position
                    self.items = {k: v for k, v in self.items.items() if k not in gone}
                    self.states[position] = (dict(self.items), dict(self.kinds))
                case _:
                    self.put("items", [self.item(self.chance.randrange(ROWS + 30)) for _ in range(4)])

    def check(self) -> None:
        """Every view is its query over the tables at its own cut."""
        batch = self.store.published_batch()
        for view in self.store.catalog().views:
            cut = batch.cut if view.own_cut is None else view.own_cut.cut
            state = self.states[max(p for p in self.states if p <= cut)]
            found = [tuple(row.values()) for row in self.db.read(view.table.name).to_pylist()]
            assert sorted(found, key=str) == sorted(truth(view.query, *state), key=str), (view.table.name, cut)


def truth(query: str, items: dict[int, Any], kinds: dict[str, Any]) -> list[tuple[Any, ...]]:
    if query == DEAR:
        return [(row["item_id"], row["price"]) for row in items.values() if row["price"] > 3]
    groups: dict[Any, list[int]] = defaultdict(list)
    for row in items.values():
        if query == TOTALS:
            groups[row["category"]].append(row["price"])
        elif row["category"] in kinds:
            groups[kinds[row["category"]]["boss"]].append(row["price"])
    last = sum if query == TOTALS else max
    return [(key, len(prices), last(prices)) for key, prices in groups.items()]


@pytest.fixture
def make_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(partitions, "PARTITION_ROWS", 50)
    monkeypatch.setattr(partitions, "MIN_PARTITIONS", 2)
    made: list[Shop] = []

    def make(kind: Any, seed: int = 1) -> Shop:
        store = kind(tmp_path / "db")
        store.page = 17
        shop = Shop(store, seed)
        made.append(shop)
        for name in ("scan", "scan_at"):
            monkeypatch.setattr(store, name, interrupted(getattr(store, name), shop))
        return shop

    yield make
    for shop in made:
        shop.db.close()


def interrupted(scan: Any, shop: Shop) -> Any:
    def pages(*args: Any, **options: Any) -> Iterator[Any]:
        for batch in scan(*args, **options):
            if shop.busy:
                shop.write()
            yield batch

    return pages


@pytest.mark.parametrize(("kind", "strategy"), CASES)
def test_a_view_made_in_the_middle_of_writes_is_exact(make_shop: Any, kind: Any, strategy: str) -> None:
    shop = make_shop(kind)
    for number, query in enumerate((TOTALS, BOSSES, DEAR)):
        shop.busy = True
        shop.db.sql(f"CREATE MATERIALIZED VIEW v{number} WITH (strategy = '{strategy}', interval = 3600) AS {query}")
        shop.busy = False
        shop.check()
        shop.write()
        shop.db.refresh()
        shop.check()
    shop.busy = True
    shop.db._acquire_maintainer().state_repair.rebuild()
    shop.busy = False
    shop.check()
    shop.db.sql("DROP MATERIALIZED VIEW v1")
    for _ in range(3):
        shop.write()
        shop.db.refresh()
        shop.check()


@pytest.mark.parametrize("kind", [OnlyNow, OnlyScans, LmdbStore])
def test_views_are_made_while_nobody_writes(make_shop: Any, kind: Any) -> None:
    """The log moves on all the same, by the views' own commits."""
    shop = make_shop(kind)
    for number, query in enumerate((DEAR, BOSSES, TOTALS)):
        shop.db.sql(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
        shop.check()
    shop.db.sql("DROP MATERIALIZED VIEW v1")
    shop.write()
    shop.db.refresh()
    shop.check()


@pytest.mark.parametrize(("kind", "strategy"), [(OnlyNow, "SCI"), (OnlyNow, "SNIMB"), (LmdbStore, "SCIMB")])
def test_beside_batches_of_other_views(make_shop: Any, kind: Any, strategy: str) -> None:
    """The parallel hybrids: writers write and other views are maintained in threads of their own."""
    shop = make_shop(kind)
    shop.db.sql(f"CREATE MATERIALIZED VIEW first AS {TOTALS}")
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.02):  # a pace that batches of one call each can follow
            shop.write()

    writer = threading.Thread(target=write)
    with shop.db.maintain(max_delay=0.0):
        writer.start()
        try:
            shop.db.sql(f"CREATE MATERIALIZED VIEW second WITH (strategy = '{strategy}') AS {BOSSES}")
            shop.db.sql(f"CREATE MATERIALIZED VIEW third WITH (strategy = '{strategy}') AS {DEAR}")
        finally:
            stop.set()
            writer.join()
    shop.check()
    shop.db.refresh()
    shop.check()


def test_a_store_without_a_past_says_so() -> None:
    table: Any = None
    assert not OnlyNow.can_scan_at(OnlyNow.__new__(OnlyNow), table)
    assert not OnlyScans.can_scan_at(OnlyScans.__new__(OnlyScans), table)
    assert OnlyKeys.can_scan_at(OnlyKeys.__new__(OnlyKeys), table)
    with pytest.raises(Unsupported):
        OnlyNow.scan_at(OnlyNow.__new__(OnlyNow), table, [], 0)


def test_a_part_is_brought_to_a_cut_or_to_none(make_shop: Any) -> None:
    shop = make_shop(OnlyNow)
    store, table = shop.store, shop.store.catalog().table("kinds")
    columns = ["category", "boss"]

    def brought(part: partitions.TablePartition, cut: int) -> Any:
        found = partitions.partition_at_cut(store, table, columns, part, cut, lambda delta: delta)
        return None if found is None else sorted(map(tuple, (row.values() for row in found.to_pylist())), key=str)

    before = store.head()
    (part,) = scan_live(store, table, columns, None)
    first = [("a", "x"), ("b", "x"), ("c", "x")]
    shop.db.put("kinds", [{"category": "a", "boss": "y"}])
    changed = store.head()
    shop.db.delete("kinds", "b")
    shop.db.put("items", [shop.item(0)])
    assert brought(part, before) == first
    assert brought(part, changed) == [("a", "y"), *first[1:]]
    assert brought(part, store.head()) == [("a", "y"), ("c", "x")]
    slow = replace(part, end_position=changed)  # it was still being read when the first change came, and may show it
    assert brought(slow, before) is None
    assert brought(slow, changed) == [("a", "y"), *first[1:]]
    late = replace(part, position=store.head() + 1, end_position=store.head() + 1)
    assert brought(late, changed) is None
    assert brought(late, store.head() - 1) == first, "only another table changed since"
    some = replace(part, start=b"\x01b", stop=b"\x01c", rows=part.rows.slice(1, 1))
    assert brought(some, changed) == [("b", "x")]
    assert brought(some, store.head()) == []
