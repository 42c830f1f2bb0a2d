"""A small shop in HBase, and what its view should be."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import viewkeeper as vk
from viewkeeper_hbase.devserver.server import Server

ITEMS = "CREATE TABLE items (id BIGINT PRIMARY KEY, category STRING, price DECIMAL(12,2))"
TOTALS = """CREATE MATERIALIZED VIEW totals AS
            SELECT category, count(*) AS n, sum(price) AS total FROM items GROUP BY category"""

Totals = dict[str | None, tuple[int, Decimal | None]]


def fill(db: Any) -> Any:
    """Ten items and a view of them."""
    db.sql(ITEMS)
    db.put("items", [{"id": n, "category": "ab"[n % 2], "price": n} for n in range(10)])
    db.sql(TOTALS)
    return db


@contextmanager
def opened(server: Server, state: Path, spark: Any) -> Iterator[Any]:
    """A shop in a namespace of its own."""
    url = f"hbase://{server.host}:{server.port}/vk_{secrets.token_hex(4)}?create=true&lease=1&retries=1"
    with vk.open(url, spark=spark, state=str(state)) as db:
        yield fill(db)


def totals(db: Any) -> Totals:
    return {row["category"]: (row["n"], row["total"]) for row in db.read("totals").to_pylist()}


def expected(db: Any) -> Totals:
    """What the view should be, from the base table itself."""
    found: Totals = {}
    for row in db.read("items").to_pylist():
        n, total = found.get(row["category"], (0, None))
        price = row["price"]
        found[row["category"]] = (n + 1, total if price is None else price + (total or 0))
    return found
