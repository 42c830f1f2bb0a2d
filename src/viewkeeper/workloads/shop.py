"""The demo's shop: three tables, three views over them, and a stream of ordinary changes.

    items ───┬──▶ order_lines    a join: the ordered items, at their current prices
    orders ──┼──▶ by_category    join and aggregate: orders, pieces and revenue
    reviews ─┴──▶ ratings        join and aggregate: the ratings of an item

A change is one call of the public API, and returns the line that describes it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

TABLES = (
    "CREATE TABLE items (item_id BIGINT, name STRING, category STRING, price DECIMAL(10,2), PRIMARY KEY (item_id))",
    "CREATE TABLE orders (order_id BIGINT, item_id BIGINT, quantity INT, PRIMARY KEY (order_id))",
    "CREATE TABLE reviews (review_id BIGINT, item_id BIGINT, stars INT, PRIMARY KEY (review_id))",
)

VIEWS: Mapping[str, str] = {
    "order_lines": """SELECT o.order_id, i.name AS item, o.quantity, o.quantity * i.price AS amount
FROM orders o JOIN items i ON o.item_id = i.item_id""",
    "by_category": """SELECT i.category, count(*) AS orders, sum(o.quantity) AS pieces,
       sum(o.quantity * i.price) AS revenue
FROM orders o JOIN items i ON o.item_id = i.item_id
GROUP BY i.category""",
    "ratings": """SELECT i.name AS item, count(*) AS reviews, min(r.stars) AS worst, sum(r.stars) AS stars
FROM reviews r JOIN items i ON r.item_id = i.item_id
GROUP BY i.name""",
}
"""Each query means the same in Spark SQL and in DuckDB, so the demo can recompute it at the end."""

_STOCK = {
    "toys": ("Kite", "Yo-yo", "Puzzle", "Robot"),
    "books": ("Atlas", "Cookbook", "Novel"),
    "garden": ("Spade", "Hose", "Seeds"),
    "kitchen": ("Teapot", "Whisk", "Pan"),
}


class Shop:
    """The shop's own record of items and orders, so that its changes make sense without reading the database."""

    def __init__(self, db: Any, seed: int = 7) -> None:
        self.db = db
        self.random = random.Random(seed)
        self.names: dict[int, str] = {}
        self.prices: dict[int, Decimal] = {}
        self.open_orders: list[int] = []
        self.next_order = 1001
        self.next_review = 1

    def open(self) -> None:
        """Create the tables and put the items and some orders and reviews."""
        for statement in TABLES:
            self.db.sql(statement)
        pairs = [(category, name) for category, names in _STOCK.items() for name in names]
        for item_id, (_, name) in enumerate(pairs, start=1):
            self.names[item_id] = name
            self.prices[item_id] = self._price()
        self.db.put(
            "items",
            [
                {"item_id": i, "name": name, "category": category, "price": self.prices[i]}
                for i, (category, name) in enumerate(pairs, start=1)
            ],
        )
        self.db.put("orders", [self._order() for _ in range(60)])
        self.db.put("reviews", [self._review() for _ in range(40)])

    def change(self) -> str:
        """Make one change and return the line that describes it."""
        kinds: list[Callable[[], str]] = [self._sell, self._rate, self._reprice, self._cancel]
        (kind,) = self.random.choices(kinds, weights=[50, 25, 15, 10])
        return kind()

    def _sell(self) -> str:
        order = self._order()
        self.db.put("orders", order)
        return f"order {order['order_id']}: {order['quantity']} × {self.names[order['item_id']]}"

    def _rate(self) -> str:
        review = self._review()
        self.db.put("reviews", review)
        return f"review of {self.names[review['item_id']]}: {'★' * review['stars']}{'☆' * (5 - review['stars'])}"

    def _reprice(self) -> str:
        item_id = self.random.choice(list(self.names))
        before, self.prices[item_id] = self.prices[item_id], self._price()
        self.db.update("items", item_id, {"price": self.prices[item_id]})
        return f"price of {self.names[item_id]}: {before} → {self.prices[item_id]}"

    def _cancel(self) -> str:
        if not self.open_orders:
            return self._sell()
        order_id = self.open_orders.pop(self.random.randrange(len(self.open_orders)))
        self.db.delete("orders", order_id)
        return f"order {order_id} cancelled"

    def _order(self) -> dict[str, Any]:
        order_id, self.next_order = self.next_order, self.next_order + 1
        self.open_orders.append(order_id)
        return {
            "order_id": order_id,
            "item_id": self.random.choice(list(self.names)),
            "quantity": self.random.randint(1, 5),
        }

    def _review(self) -> dict[str, Any]:
        review_id, self.next_review = self.next_review, self.next_review + 1
        return {
            "review_id": review_id,
            "item_id": self.random.choice(list(self.names)),
            "stars": self.random.choices((1, 2, 3, 4, 5), weights=(1, 1, 2, 4, 4))[0],
        }

    def _price(self) -> Decimal:
        return Decimal(self.random.randint(300, 4999)).scaleb(-2)
