"""Views that come and go while writers write and other views are maintained."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.processes import BY_CATEGORY, RATIO, SHOP, item, other, url_of

import viewkeeper as vk
from viewkeeper.errors import BadStatement, BadValue, InUse, NameTaken, UnknownName


@contextmanager
def busy_writer(shop: Any) -> Iterator[None]:
    """Writes all the time: every item moves on to another category, some come, some go."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            n = 0
            while not stop.is_set():
                n += 1
                shop.put("items", [item((37 * n + i) % 3000, f"c{(n + i) % 11}", n % 9 + 1) for i in range(30)])
                shop.delete("items", [(41 * n) % 3000, (43 * n) % 3000])
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failed == []


def counted(shop: Any) -> dict[str, tuple[int, int]]:
    """What the view should show of the items at the same batch."""
    found: dict[str, tuple[int, int]] = {}
    for row in shop.read("items").to_pylist():
        n, total = found.get(row["category"], (0, 0))
        found[row["category"]] = (n + 1, total + row["price"])
    return found


def test_views_are_made_and_dropped_while_writers_and_other_views_go_on(shop: Any) -> None:
    shop.put("items", [item(i, f"c{i % 11}") for i in range(3000)])
    with shop.maintain(max_delay=0.01), busy_writer(shop):
        for _ in range(3):
            before = shop.status().epoch
            shop.sql(f"CREATE MATERIALIZED VIEW second AS {BY_CATEGORY.split('AS', 1)[1]}")
            shop.sql("""CREATE MATERIALIZED VIEW neighbours AS SELECT a.item_id, b.item_id AS other FROM items a
                        JOIN items b ON a.category = b.category AND a.price = b.price WHERE b.item_id < 40""")
            for _ in range(5):
                with shop.snapshot() as s:
                    first, second = s.read("by_category"), s.read("second")
                    assert first.equals(second)
                    assert counted(s) == {r["category"]: (r["n"], r["total"]) for r in second.to_pylist()}
                    items = s.read("items").to_pylist()
                    few = [i for i in items if i["item_id"] < 40]
                    pairs = sorted(
                        (a["item_id"], b["item_id"])
                        for a in items
                        for b in few
                        if (a["category"], a["price"]) == (b["category"], b["price"])
                    )
                    seen = s.read("neighbours").to_pylist()
                    assert sorted((r["item_id"], r["other"]) for r in seen) == pairs
                time.sleep(0.02)
            assert shop.status().epoch > before + 1, "batches went on"
            shop.sql("DROP MATERIALIZED VIEW neighbours")
            shop.sql("DROP MATERIALIZED VIEW second")


def test_a_table_keeps_an_image_when_the_view_goes_whose_arrangement_was_it(shop: Any) -> None:
    """A join's arrangement serves as the table's image; without the join another has to be loaded."""
    join = """CREATE MATERIALIZED VIEW pairs AS SELECT a.item_id, b.item_id AS other FROM items a
              JOIN items b ON a.category = b.category AND a.price = b.price"""

    def expected() -> list[tuple[int, int]]:
        rows = shop.read("items").to_pylist()
        same = [(a, b) for a in rows for b in rows if (a["category"], a["price"]) == (b["category"], b["price"])]
        return sorted((a["item_id"], b["item_id"]) for a, b in same)

    shop.put("items", [item(i, f"c{i % 3}", i % 4) for i in range(60)])
    shop.sql(join)
    for leave in ("DROP MATERIALIZED VIEW pairs", "ALTER MATERIALIZED VIEW pairs SUSPEND"):
        shop.sql(leave)
        shop.put("items", [item(i, f"c{(i + 1) % 3}", i % 5) for i in range(0, 60, 2)])
        shop.delete("items", [3, 5, 7])
        shop.refresh()
        shop.sql(join if leave.startswith("DROP") else "ALTER MATERIALIZED VIEW pairs RESUME")
        assert sorted((r["item_id"], r["other"]) for r in shop.read("pairs").to_pylist()) == expected()


def test_batches_are_published_while_a_view_is_loaded(shop: Any) -> None:
    shop.put("items", [item(i) for i in range(20_000)])
    shop.sql("ALTER TABLE items ADD COLUMN note STRING")
    epochs: list[int] = []
    slow = """CREATE MATERIALIZED VIEW notes WITH (load_rate = 20000) AS
              SELECT note, count(*) AS n FROM items GROUP BY note"""

    def watch(report: Any) -> None:
        epochs.append(report.epoch)

    with shop.maintain(on_batch=watch):
        loading = threading.Thread(target=shop.sql, args=(slow,))
        started = time.monotonic()
        loading.start()
        n = 0
        while loading.is_alive():
            token = shop.put("items", {**item(n), "note": "seen"})
            assert shop.get("by_category", "toys", after=token)["n"] == 20_000
            n += 1
        loading.join()
        assert time.monotonic() - started > 0.9, "it was slowed down as asked"
        assert len(epochs) > 3
        assert {r["note"]: r["n"] for r in shop.read("notes", vk.LATEST).to_pylist()} == {"seen": n, None: 20_000 - n}


def test_loading_reports_its_progress(make_db: Callable[..., Any], spark: Any) -> None:
    said: list[tuple[str, int, int]] = []
    db = make_db("shop", spark=spark, progress=lambda *args: said.append(args))
    db.sql(SHOP)
    db.put("items", [item(i) for i in range(10_000)])
    db.sql(BY_CATEGORY)
    scanned = [told for told in said if told[0] == "scanning items"]
    assert scanned[-1] == ("scanning items", 10_000, 10_000)
    assert said[-1][0] == "working out by_category"
    assert all(done <= expected for _, done, expected in said)


def test_an_interrupted_creation_leaves_nothing_behind(make_db: Callable[..., Any], spark: Any) -> None:
    def interrupt(what: str, done: int, expected: int) -> None:
        raise KeyboardInterrupt

    db = make_db("shop", spark=spark, progress=interrupt)
    db.sql(SHOP)
    db.put("items", [item(i) for i in range(100)])
    with pytest.raises(KeyboardInterrupt):
        db.sql(BY_CATEGORY)
    assert db.status().views == ()
    db._progress = None
    db.sql(BY_CATEGORY)
    assert db.get("by_category", "toys")["n"] == 100


@pytest.mark.parametrize("point", ["load.2.after", "commit.3.before"])
def test_a_creation_that_crashes_leaves_the_database_as_it_was(shop: Any, point: str) -> None:
    url = url_of(shop)
    shop.put("items", [item(i) for i in range(100)])
    shop.refresh()
    shop.close()
    create = """
        with vk.open(url) as db:
            db.sql(args[0])
    """
    with other(create, url, RATIO, env={"VK_CRASH_AT": point}) as process:
        assert process.wait() == -9
    with vk.open(url) as db:
        assert [v.name for v in db.status().views] == ["by_category"]
        db.put("items", item(100))
        assert db.refresh().views == {"by_category": 1}
        named = {r.file for runs in db._maintainer.publisher.state.manifest.runs.values() for r in runs}
        db._maintainer.publisher.state.wait_for_collection()  # files are removed in the background
        files = {p.name for p in Path(db._maintainer.publisher.state.directory).glob("*.vkr")}
        assert len(files - named) <= 1, "what the crash left was collected"


def test_dropping_a_view_frees_its_state(shop: Any) -> None:
    shop.put("items", [item(i) for i in range(1000)])
    shop.refresh()
    before = shop.status().state_bytes
    shop.sql("CREATE MATERIALIZED VIEW by_price AS SELECT price, min(item_id) AS least FROM items GROUP BY price")
    assert shop.status().state_bytes > before
    shop.sql("DROP MATERIALIZED VIEW by_price")
    assert shop.status().state_bytes == before


def test_a_view_shares_what_another_keeps(shop: Any) -> None:
    shop.put("items", [item(i) for i in range(1000)])
    shop.refresh()
    before = shop.status().state_bytes
    shop.sql(f"CREATE MATERIALIZED VIEW again AS {BY_CATEGORY.split('AS', 1)[1]}")
    assert shop.status().state_bytes == before, "the same sub-plan is kept once"


def test_a_column_is_added_while_rows_are_there(shop: Any) -> None:
    shop.put("items", item(1))
    shop.sql("ALTER TABLE items ADD COLUMN stars INT")
    assert shop.get("items", 1)["stars"] is None
    shop.put("items", {**item(2), "stars": 5})
    shop.sql("CREATE MATERIALIZED VIEW stars AS SELECT stars, count(*) AS n FROM items GROUP BY stars")
    assert {r["stars"]: r["n"] for r in shop.read("stars").to_pylist()} == {None: 1, 5: 1}
    shop.update("items", 1, {"stars": 4})
    shop.refresh()
    assert {r["stars"]: r["n"] for r in shop.read("stars").to_pylist()} == {4: 1, 5: 1}
    assert shop.get("by_category", "toys")["n"] == 2
    with pytest.raises(NameTaken):
        shop.sql("ALTER TABLE items ADD COLUMN Stars INT")
    with pytest.raises(BadStatement, match="NOT NULL needs a DEFAULT"):
        shop.sql("ALTER TABLE items ADD COLUMN size INT NOT NULL")
    with pytest.raises(BadValue, match="materialized view"):
        shop.sql("ALTER TABLE by_category ADD COLUMN size INT")


def test_a_column_is_dropped_while_others_read_and_write(shop: Any) -> None:
    shop.sql("ALTER TABLE items ADD COLUMN stars INT")
    shop.put("items", [{**item(n), "stars": n} for n in range(5)])
    shop.refresh()
    url, since = url_of(shop), shop.token()
    reader = """
        with vk.open(url, mode="r") as db, db.snapshot() as s:
            table = db._store.catalog().table("items")
            say(s.get("items", 1))
            ask()
            say(s.get("items", 1))
            say(s.read("items")["stars"].to_pylist())
            say(db.get("items", 1))
            say(db._store.get(table, (7,)))  # as a process has it that looked the table up before
    """
    with other(reader, url) as process:
        assert process.receive()["stars"] == 1
        shop.sql("ALTER TABLE items DROP COLUMN stars")
        shop.put("items", [item(7), item(1, "books")])
        process.send("go on")
        assert process.receive()["stars"] == 1, "the snapshot is of a time when it was there"
        assert process.receive() == [0, 1, 2, 3, 4]
        assert process.receive() == {**item(1, "books"), "price": "1.00"}
        assert process.receive() == {**item(7), "price": "1.00", "stars": None}
    shop.refresh()
    changes = [c for d in shop.subscribe("items", since, timeout=0.1) for c in d.changes()]
    assert sorted(c.after["item_id"] for c in changes) == [1, 7]
    assert all("stars" not in c.after for c in changes)
    shop.sql("ALTER TABLE items DROP COLUMN IF EXISTS stars")
    for wrong, error in (
        ("items DROP COLUMN stars", UnknownName),
        ("items DROP COLUMN item_id", InUse),
        ("by_category DROP COLUMN n", BadValue),
        ("items DROP COLUMN price", InUse),
    ):
        with pytest.raises(error):
            shop.sql(f"ALTER TABLE {wrong}")


def test_a_column_that_only_the_text_of_a_view_names_is_kept_for_it(shop: Any) -> None:
    """Its plan does without; an audit, which runs the text, would not."""
    shop.sql("ALTER TABLE items ADD COLUMN stars INT")
    shop.sql("ALTER TABLE items ADD COLUMN shade INT")
    shop.sql("CREATE MATERIALIZED VIEW sly AS SELECT item_id FROM (SELECT item_id, stars FROM items)")
    shop.sql("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS stars FROM (SELECT * FROM items)")
    with pytest.raises(InUse, match=r"used by sly\."):
        shop.sql("ALTER TABLE items DROP COLUMN stars")
    shop.sql("ALTER TABLE items DROP COLUMN shade")
    shop.sql("DROP MATERIALIZED VIEW sly")
    shop.sql("ALTER TABLE items DROP COLUMN stars")
    shop.put("items", item(1))
    shop.refresh()
    assert not any(v.differences for v in shop.audit().views)


def test_a_column_that_goes_while_a_view_over_it_is_loaded_stops_the_view(
    make_db: Callable[..., Any], spark: Any
) -> None:
    db = make_db("shop", spark=spark)
    db.sql(SHOP)
    db.sql(BY_CATEGORY)
    db.sql("ALTER TABLE items ADD COLUMN stars INT")
    db.put("items", [item(n) for n in range(100)])

    def alter(what: str, done: int, expected: int) -> None:
        if db._progress is None:  # once in a load
            return
        db._progress = None
        db.sql("ALTER TABLE items DROP COLUMN stars")
        db.sql("ALTER TABLE items ADD COLUMN stars STRING")
        db.put("items", [{**item(n), "stars": "*" * n} for n in range(50)])

    db._progress = alter
    with pytest.raises(InUse, match=r"stars of items was dropped while stars was made"):
        db.sql("CREATE MATERIALIZED VIEW stars AS SELECT stars, count(*) AS n FROM items GROUP BY stars")
    db._progress = alter
    with pytest.raises(InUse, match=r"stars"):
        db.sql("CREATE MATERIALIZED VIEW stars AS SELECT stars, count(*) AS n FROM items GROUP BY stars")
    db.sql("CREATE MATERIALIZED VIEW stars AS SELECT stars, count(*) AS n FROM items GROUP BY stars")
    assert {r["stars"]: r["n"] for r in db.read("stars").to_pylist()}[None] == 50
    assert [v.name for v in db.status().views] == ["by_category", "stars"]


def test_columns_that_come_while_a_view_is_loaded_do_not_stop_it(make_db: Callable[..., Any], spark: Any) -> None:
    """Its scan meets rows with more columns than it knows."""
    db = make_db("shop", spark=spark)
    db.sql(SHOP)
    db.put("items", [item(n) for n in range(20_000)])
    seen: list[int] = []

    def alter(what: str, done: int, expected: int) -> None:
        if not seen:
            db.sql("ALTER TABLE items ADD COLUMN stars INT")
            db.put("items", [{**item(n), "stars": 1} for n in (0, 19_999, 20_000)])
        seen.append(done)

    db._progress = alter
    db.sql(BY_CATEGORY)
    db.refresh()
    assert db.get("by_category", "toys")["n"] == 20_001


def test_a_view_is_replaced_in_one_batch(shop: Any) -> None:
    shop.put("items", [item(1), item(2), item(3, "books")])
    shop.refresh()
    deltas = shop.subscribe("by_category", timeout=0.2)
    next(deltas)
    shop.sql("CREATE MATERIALIZED VIEW big AS SELECT category FROM by_category WHERE n > 1")
    shop.sql("""CREATE OR REPLACE MATERIALIZED VIEW by_category AS
                SELECT category, count(*) + 1 AS n, sum(price) AS total FROM items GROUP BY category""")
    assert {r["category"]: r["n"] for r in shop.read("by_category").to_pylist()} == {"toys": 3, "books": 2}
    assert shop.read("big").num_rows == 2, "the view on top followed in the same batch"
    (delta,) = deltas
    assert {(c.before["n"], c.after["n"]) for c in delta.changes()} == {(2, 3), (1, 2)}
    shop.put("items", item(4, "cars"))
    shop.refresh()
    assert shop.get("by_category", "cars")["n"] == 2


def test_a_replacement_with_other_columns_is_refused_while_views_use_it(shop: Any) -> None:
    other_columns = (
        "CREATE OR REPLACE MATERIALIZED VIEW by_category AS SELECT category, count(*) AS n FROM items GROUP BY 1"
    )
    shop.put("items", item(1))
    shop.sql("CREATE MATERIALIZED VIEW big AS SELECT category FROM by_category WHERE n > 0")
    with pytest.raises(InUse, match=r"used by big.*other columns"):
        shop.sql(other_columns)
    shop.sql("DROP MATERIALIZED VIEW big")
    shop.sql(other_columns)
    assert shop.read("by_category").to_pylist() == [{"category": "toys", "n": 1}]
    with pytest.raises(vk.ViewkeeperError):
        shop.sql("CREATE OR REPLACE MATERIALIZED VIEW by_category AS SELECT category, n FROM by_category")


def test_unknown_options_of_a_view_are_refused(shop: Any) -> None:
    for options in ("colour = 'red'", "store = 'moon'", "load_rate = 'fast'"):
        with pytest.raises(vk.ViewkeeperError):
            shop.sql(f"CREATE MATERIALIZED VIEW v WITH ({options}) AS SELECT item_id FROM items")
    assert len(shop.status().views) == 1
