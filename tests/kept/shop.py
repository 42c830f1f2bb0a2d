"""The shop that is kept: statements and rows, the same for whoever runs them.

`make` is how a kept database came to be: tables, views of every kind of operator, several batches, tables that were
altered, a suspended view, and at last changes that no batch has brought to the views. Only what the public surface had
in version 0.1 is used. To keep one of the version that is checked out:

    python -m tests.kept.shop tests/kept/version_0_1.tar.xz
"""

from __future__ import annotations

import random
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Change = tuple[str, list[Row], list[Any]]
"""A table, rows to put, keys to delete."""

TABLES = {
    "shops": "shop INT, fax STRING, town STRING, opened DATE, PRIMARY KEY (shop)",
    "items": "item BIGINT, kind STRING, price DECIMAL(12,2), weight DOUBLE, tags STRING, PRIMARY KEY (item)",
    "sales": """shop INT, line BIGINT, item BIGINT, pieces INT, at TIMESTAMP, paid BOOLEAN, memo STRING,
                PRIMARY KEY (shop, line)""",
}
COLUMNS = {
    "shops": ["shop", "town", "opened", "country"],
    "items": ["item", "kind", "price", "weight", "tags"],
    "sales": ["shop", "line", "item", "pieces", "at", "paid", "remark"],
}
"""After `ALTERED`."""
ALTERED = [
    "ALTER TABLE shops ADD COLUMN country STRING",
    "ALTER TABLE shops DROP COLUMN fax",
    "ALTER TABLE sales RENAME COLUMN memo TO remark",
]

VIEWS = {
    "dear": "SELECT item, upper(kind) AS kind, price * 2 AS twice FROM items WHERE price > 50",
    "sold": """SELECT s.shop, s.line, i.kind, h.town, i.price * s.pieces AS total FROM sales s
               JOIN items i ON s.item = i.item JOIN shops h ON s.shop = h.shop""",
    "by_kind": """SELECT kind, count(*) AS n, count(weight) AS weighed, sum(price) AS total, avg(price) AS mean,
                  sum(weight) AS heavy FROM items GROUP BY kind""",
    "extremes": """SELECT kind, min(price) AS low, max(price) AS high, min(tags) AS first,
                   max_by(item, price) AS dearest FROM items GROUP BY kind""",
    "spread": """SELECT kind, median(price) AS middle, count(DISTINCT tags) AS tags, stddev(item) AS deviation,
                 listagg(tags, '|') WITHIN GROUP (ORDER BY tags) AS all_tags FROM items GROUP BY kind""",
    "everything": "SELECT count(*) AS n, max(at) AS last, bool_and(paid) AS paid FROM sales",
    "kinds_of_towns": "SELECT DISTINCT town, kind FROM sold",
    "best": "SELECT item, price FROM items ORDER BY price DESC, item LIMIT 7",
    "best_of_kind": """SELECT kind, item, price FROM
                       (SELECT *, row_number() OVER (PARTITION BY kind ORDER BY price DESC, item) AS place FROM items)
                       WHERE place <= 2""",
    "running": """SELECT shop, line, sum(pieces) OVER (PARTITION BY shop ORDER BY line) AS so_far,
                  lag(item) OVER (PARTITION BY shop ORDER BY line) AS before,
                  rank() OVER (PARTITION BY shop ORDER BY pieces DESC) AS place FROM sales""",
    "all_items": """SELECT i.item, i.kind, s.shop, s.line, s.pieces FROM items i
                    LEFT JOIN sales s ON i.item = s.item AND s.pieces > 2""",
    "both_sides": """SELECT coalesce(s.shop, h.shop) AS shop, s.line, h.town FROM sales s
                     FULL JOIN shops h ON s.shop = h.shop AND s.paid""",
    "unsold": "SELECT item, kind FROM items i WHERE NOT EXISTS (SELECT 1 FROM sales s WHERE s.item = i.item)",
    "bought": "SELECT item, kind FROM items WHERE item IN (SELECT item FROM sales WHERE paid)",
    "numbers": "SELECT shop AS n FROM shops UNION ALL SELECT pieces FROM sales",
    "apart": "SELECT kind FROM items EXCEPT SELECT kind FROM sold WHERE total > 900",
    "in_common": "SELECT item FROM items INTERSECT SELECT item FROM sales",
    "rolled": """SELECT town, kind, sum(total) AS total, grouping_id() AS level FROM sold
                 GROUP BY ROLLUP (town, kind)""",
    "above": "SELECT item, price FROM items WHERE price > (SELECT avg(price) FROM items)",
    "busy": "SELECT shop, count(*) AS n FROM sales GROUP BY shop HAVING count(*) > 20",
    "pairs": """SELECT a.shop, b.shop AS later, a.town FROM shops a JOIN shops b
                ON a.town = b.town AND a.opened < b.opened""",
    "months": """SELECT year(at) AS y, month(at) AS m, count_if(paid) AS paid, sum(pieces) AS pieces FROM sales
                 GROUP BY year(at), month(at)""",
    "towns": "SELECT town, sum(total) AS total, max(total) AS top, count(*) AS n FROM sold GROUP BY town",
    "top_towns": "SELECT town, total FROM towns ORDER BY total DESC, town LIMIT 3",
}
"""Each with its query, as it was created, in this order; some over others."""
KEYS = {"sold": "KEY (line, shop)"}
OPTIONS = {"months": "WITH (strategy = 'SN', interval = 3600)", "by_kind": "WITH (strategy = 'IN')"}
SUSPENDED = "pairs"

_TOWNS = ["Bern", "Łódź", "Gent", "", None]
_KINDS = ["book", "toy", "lamp", None, "tool"]
_TAGS = ["a-b", "b", "x-y-z", "", None, "q-a"]
_WEIGHTS = [0.5, -0.0, float("nan"), None, 1e300, 3.25, float("inf")]


def rows_of_phase(phase: int) -> list[Change]:
    """What phase 0 (all rows), 1, 2, … writes, one write call each."""
    chance = random.Random(phase)
    items = range(120) if phase == 0 else sorted(chance.sample(range(150), 15))
    lines = [(s, n) for s in range(12) for n in range(20)]
    sales = lines if phase == 0 else sorted(chance.sample([*lines, *((s, n) for s in range(14) for n in (20, 21))], 20))
    shops = range(12) if phase == 0 else [phase % 12, 11 + phase]
    return [
        ("shops", [_shop(n, chance, phase) for n in shops], [3] if phase == 2 else []),
        ("items", [_item(n, chance) for n in items], sorted(chance.sample(range(120), 4)) if phase else []),
        ("sales", [_sale(s, n, chance, phase) for s, n in sales], sorted(chance.sample(lines, 6)) if phase else []),
    ]


def _shop(number: int, chance: random.Random, phase: int) -> Row:
    row: Row = {"shop": number, "town": chance.choice(_TOWNS), "opened": date(2000, 1, 1) + timedelta(days=37 * number)}
    return row | ({"country": chance.choice(["CH", "PL", None])} if phase >= _ALTERED_AT else {"fax": "none"})


def _item(number: int, chance: random.Random) -> Row:
    price = None if number % 17 == 5 else Decimal(chance.randrange(1, 20_000)).scaleb(-2)
    return {
        "item": number, "kind": chance.choice(_KINDS), "price": price, "weight": chance.choice(_WEIGHTS),
        "tags": chance.choice(_TAGS),
    }  # fmt: skip


def _sale(shop: int, line: int, chance: random.Random, phase: int) -> Row:
    when = datetime(2024, 1, 1) + timedelta(hours=chance.randrange(9_000), microseconds=chance.randrange(10**6))
    return {
        "shop": shop, "line": line, "item": chance.randrange(140), "pieces": chance.randrange(1, 9), "at": when,
        "paid": chance.choice([True, True, False, None]),
        "remark" if phase >= _ALTERED_AT else "memo": f"{shop}:{line}",
    }  # fmt: skip


_ALTERED_AT = 4
LAST_BATCH = 4
"""The last phase that the views of a kept database show."""
WAITING = 5
"""The phase that is in its tables and its log only."""


def tables_after(phase: int) -> dict[str, list[Row]]:
    """All rows after a phase, by what was written alone, with the columns that there are after `ALTERED`."""
    keys = {"shops": ("shop",), "items": ("item",), "sales": ("shop", "line")}
    found: dict[str, dict[Any, Row]] = {table: {} for table in keys}
    for number in range(phase + 1):
        for table, puts, deletes in rows_of_phase(number):
            for row in puts:
                full = {("remark" if k == "memo" else k): v for k, v in row.items()}
                full = {c: full.get(c) for c in COLUMNS[table]}
                found[table][tuple(full[k] for k in keys[table])] = full
            for key in deletes:
                found[table].pop(key if isinstance(key, tuple) else (key,), None)
    return {table: list(rows.values()) for table, rows in found.items()}


def write(db: Any, phase: int) -> None:
    for table, puts, deletes in rows_of_phase(phase):
        db.put(table, puts)
        if deletes:
            db.delete(table, deletes)


def statements() -> Iterator[str]:
    for table, columns in TABLES.items():
        yield f"CREATE TABLE {table} ({columns})"
    for view, query in VIEWS.items():
        yield f"CREATE MATERIALIZED VIEW {view} {KEYS.get(view, '')} {OPTIONS.get(view, '')} AS {query}"


def make(db: Any) -> None:
    """All phases up to `WAITING`, and what lies between them."""
    created = list(statements())
    for statement in created[: len(TABLES)]:
        db.sql(statement)
    write(db, 0)
    for statement in created[len(TABLES) :]:
        db.sql(statement)
    for phase in range(1, _ALTERED_AT):
        write(db, phase)
        db.refresh(lane="spark" if phase == 1 else "driver")
    for statement in ALTERED:
        db.sql(statement)
    write(db, _ALTERED_AT)
    db.refresh()
    db.sql(f"ALTER MATERIALIZED VIEW {SUSPENDED} SUSPEND")
    write(db, WAITING)


if __name__ == "__main__":
    import viewkeeper as vk

    with tempfile.TemporaryDirectory() as scratch:
        with vk.open(f"lmdb:{scratch}/shop") as made:
            make(made)
        with tarfile.open(Path(sys.argv[1]), "w:xz") as kept:
            kept.add(f"{scratch}/shop", "shop")
