"""Queries whose plans were read by Spark once (`plans.json`): views without a JVM, also in a process of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from viewkeeper.plan.compile.compiler import ViewPlan

TABLES = (
    "CREATE TABLE items (item_id BIGINT, category STRING, price INT, PRIMARY KEY (item_id))",
    "CREATE TABLE kinds (category STRING, boss STRING, PRIMARY KEY (category))",
)
PLANS: dict[str, Any] = json.loads((Path(__file__).parent / "plans.json").read_text("utf-8"))
TOTALS, BOSSES, DEAR, WHOLE, KINDS = PLANS
QUERIES = {"totals": TOTALS, "bosses": BOSSES, "dear": DEAR}


def read_query(_spark: Any, text: str, _tables: Any) -> Any:
    return ViewPlan.from_json(PLANS[text]).query


def install(patch: Any = setattr) -> None:
    """`patch`: a monkeypatch's setattr, or none in a process that ends anyway."""
    from viewkeeper.database import Database
    from viewkeeper.plan import catalyst

    patch(catalyst, "read_query", read_query)
    patch(Database, "_spark", lambda self: None)


def tables(db: Any, *views: str) -> Any:
    """The two tables, without rows, and views by what they are called here: `tables(db, "totals", "dear")`."""
    for statement in TABLES:
        db.sql(statement)
    create(db, *views)
    return db


def create(db: Any, *views: str) -> None:
    for name in views:
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {QUERIES[name]}")


def item(number: int, price: int = 5) -> dict[str, Any]:
    return {"item_id": number, "category": "abc"[number % 3], "price": price}


def fill(db: Any, items: int, *views: str) -> None:
    """The tables with rows in three categories, and views of them."""
    tables(db)
    db.put("items", [item(n) for n in range(items)])
    db.put("kinds", [{"category": c, "boss": c.upper()} for c in "abc"])
    create(db, *views)


def check(db: Any) -> None:
    """The view totals is what its table's rows say."""
    groups: dict[str, list[int]] = {}
    for row in db.read("items").to_pylist():
        groups.setdefault(row["category"], []).append(row["price"])
    expected = {category: (len(prices), sum(prices)) for category, prices in groups.items()}
    assert {r["category"]: (r["n"], r["total"]) for r in db.read("totals").to_pylist()} == expected
