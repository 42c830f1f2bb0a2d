"""The load of a view over HTTP: each statement is told of its own, and an observer of all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from tests.contract import planned
from tests.integration.server.conftest import Running

ROWS = 60_000


def test_two_loads_are_told_apart(start: Callable[..., Running]) -> None:
    served = start(maintain=True)
    for table in planned.TABLES:
        served.db.sql(table)
    ids = np.arange(ROWS)
    served.db.put("items", pa.table({"item_id": ids, "category": pa.array(["c1"] * ROWS), "price": ids % 1000}))
    told: dict[str, list[dict[str, Any]]] = {}

    def create(name: str, query: str) -> None:
        told[name] = events(served, f"CREATE MATERIALIZED VIEW {name} AS {query}")

    threads = [threading.Thread(target=create, args=made) for made in (("one", planned.TOTALS), ("two", planned.DEAR))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for name, other in (("one", "two"), ("two", "one")):
        said = [event.get("what", "") for event in told[name]]
        assert f"working out {name}" in said
        assert f"working out {other}" not in said
        assert "done" in told[name][-1]
    assert served.http.get("/v1/views/one").json()["name"] == "one"


def events(served: Running, sql: str) -> list[dict[str, Any]]:
    """The data of all events of a statement."""
    found = served.http.post("/v1/sql", json={"sql": sql}, headers={"accept": "text/event-stream"}, timeout=60)
    return [json.loads(line[6:]) for line in found.text.splitlines() if line.startswith("data: ")]


def test_titles_are_short_sentences(served: Running) -> None:
    for path, status, title in (
        ("/v1/items/rows/77777", 404, "There is no row with this key"),
        ("/v1/nothing", 404, "A table, view or column that does not exist"),
        ("/v1/items/rows?limit=many", 400, "Bad Request"),
    ):
        found = served.http.get(path)
        assert (found.status_code, found.json()["title"]) == (status, title)
