"""A server over HBase answers as one over LMDB does: reads, pages, writes, statements, subscriptions, metrics."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.integration.server.conftest import Running, filled, started

import viewkeeper as vk


@pytest.fixture
def serve(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Running]]:
    """Starts a server that maintains the shop; again and again over the same one."""
    planned.install(monkeypatch.setattr)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    url = f"hbase://{server.host}:{server.port}/vk_{secrets.token_hex(4)}?create=true&lease=2&retries=1"
    with vk.open(url) as db:
        filled(db)
    with ExitStack() as ended:
        yield lambda: ended.enter_context(contextmanager(started)(url, maintain=True))


def test_what_a_team_does_with_it(serve: Callable[[], Running]) -> None:
    running = serve()
    http = running.http
    token = running.put({"item_id": 100, "category": "c1", "price": 1000}, {"item_id": 101, "category": "new"})
    found = http.get("/v1/totals/rows/c1", params={"after": token, "timeout": "30"})
    assert found.json()["n"] == "6", found.text
    assert http.get("/v1/totals/rows/nothing").status_code == 404

    page = http.get("/v1/totals/rows", params={"limit": 3}).json()
    later = running.put({"item_id": 200, "category": "later", "price": 1})
    assert http.get("/v1/totals/rows/later", params={"after": later, "timeout": "30"}).status_code == 200
    rest = http.get("/v1/totals/rows", params={"cursor": page["next"]})
    assert rest.status_code == 200, rest.text
    assert [row["category"] for row in [*page["rows"], *rest.json()["rows"]]] == ["c0", "c1", "c2", "c3", "new"]
    items = http.get("/v1/items/rows", params={"limit": 15}).json()
    rest = http.get("/v1/items/rows", params={"cursor": items["next"]}).json()
    assert [row["item_id"] for row in [*items["rows"], *rest["rows"]]] == [str(i) for i in [*range(20), 100, 101, 200]]

    assert http.patch("/v1/items/rows/100", json={"price": 7}).status_code == 200
    assert http.delete("/v1/items/rows/101").status_code == 200
    assert http.get("/v1/items/rows/100").json()["price"] == 7
    answer = http.post("/v1/sql", json={"sql": "SELECT count(*) AS n FROM items WHERE category = 'c1'"})
    assert answer.json()["rows"] == [{"n": "6"}], answer.text
    assert 'view="totals"' in http.get("/metrics").text
    assert http.get("/v1/views/totals").json()["suspended"] is None
    assert http.get("/readyz").status_code == 200


def test_subscribers_of_a_server_that_comes_again(serve: Callable[[], Running]) -> None:
    running = serve()
    with vk.connect(running.address) as client:
        deltas = client.subscribe("totals", timeout=60)
        first = next(deltas)
        assert (first.kind, first.rows.num_rows) == ("rows", 4)
        client.put("items", {"item_id": 300, "category": "c2", "price": 5})
        delta = next(deltas)
        (change,) = delta.changes()
        assert (change.kind, change.after["n"]) == ("update", 6)
    running.stop()
    again = serve()
    with vk.connect(again.address) as client:
        client.put("items", {"item_id": 301, "category": "c2", "price": 5})
        (change,) = next(client.subscribe("totals", since=delta.token, timeout=60)).changes()
        assert (change.kind, change.before["n"], change.after["n"]) == ("update", 6, 7)
