"""Queries whose plans were read by Spark once (`plans.json`): views without a JVM, also in a process of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from viewkeeper.plan.compiler import ViewPlan

TABLES = (
    "CREATE TABLE items (item_id BIGINT, category STRING, price INT, PRIMARY KEY (item_id))",
    "CREATE TABLE kinds (category STRING, boss STRING, PRIMARY KEY (category))",
)
PLANS: dict[str, Any] = json.loads((Path(__file__).parent / "plans.json").read_text("utf-8"))
TOTALS, BOSSES, DEAR, WHOLE, KINDS = PLANS


def read_query(_spark: Any, text: str, _tables: Any) -> Any:
    return ViewPlan.from_json(PLANS[text]).query


def install(patch: Any = setattr) -> None:
    """`patch`: a monkeypatch's setattr, or none in a process that ends anyway."""
    from viewkeeper.engine import Database
    from viewkeeper.plan import catalyst

    patch(catalyst, "read_query", read_query)
    patch(Database, "_spark", lambda self: None)
