"""Reads over HTTP: rows by key, pages of one state, formats, exactness, tags and levels."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.contract import planned
from tests.integration.server.conftest import Running

import viewkeeper as vk

ARROW = {"accept": "application/vnd.apache.arrow.stream"}
WIDE = """CREATE TABLE wide (k STRING, n INT, big BIGINT, price DECIMAL(20,4), ratio DOUBLE, raw BINARY, day DATE,
          at TIMESTAMP, local TIMESTAMP_NTZ, yes BOOLEAN, PRIMARY KEY (k, n))"""
ROW = {
    "k": "a/b ü",
    "n": 1,
    "big": "9007199254740993",
    "price": "1234567890123456.7890",
    "ratio": "NaN",
    "raw": base64.b64encode(b"\x00\xff").decode(),
    "day": "2024-02-29",
    "at": "2024-02-29T12:30:00.000001Z",
    "local": "2024-02-29T12:30:00.000000",
    "yes": True,
}
PATH = "/v1/wide/rows/a%2Fb%20%C3%BC/1"


@pytest.fixture
def wide(start: Callable[..., Running], tmp_path: Path) -> Running:
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        db.sql(WIDE)
    running = start()
    assert running.http.post("/v1/wide/rows", json=ROW).status_code == 200
    return running


def test_a_row_by_its_key_is_exact(wide: Running) -> None:
    found = wide.http.get(PATH)
    assert found.headers["content-type"] == "application/json"
    assert found.json() == ROW
    native = wide.http.get(PATH + "?numbers=native")
    assert '"big":9007199254740993' in native.text
    assert '"price":1234567890123456.7890' in native.text
    # What comes out goes in again.
    assert wide.http.post("/v1/wide/rows", json=found.json()).status_code == 200
    assert wide.db.get("wide", ("a/b ü", 1))["big"] == 9007199254740993


def test_formats_agree(wide: Running) -> None:
    for path in (PATH, "/v1/wide/rows"):
        lines = wide.http.get(path, headers={"accept": "application/x-ndjson"})
        assert json.loads(lines.text) == ROW
        found = wide.http.get(path, headers={"accept": "text/csv"})
        assert found.headers["content-type"] == "text/csv"
        (row,) = csv.DictReader(io.StringIO(found.text))
        assert row == {name: str(value).lower() if value is True else str(value) for name, value in ROW.items()}
        arrow = pa.ipc.open_stream(wide.http.get(path, headers=ARROW).content).read_all()
        assert arrow.schema == wide.db.read("wide").schema
        assert arrow["price"][0].as_py() == Decimal("1234567890123456.7890")
        assert (
            wide.http.get(path, headers={"accept": "image/png, text/csv;q=0.5"}).headers["content-type"] == "text/csv"
        )
        assert wide.http.get(path, headers={"accept": "image/png"}).status_code == 406


def test_keys_that_a_path_has_no_plain_word_for(start: Callable[..., Running], tmp_path: Path) -> None:
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        db.sql("CREATE TABLE views (k STRING, PRIMARY KEY (k))")
        db.sql("CREATE TABLE bytes (k BINARY, PRIMARY KEY (k))")
        keys = ["", ".", "..", "~", "~null", "null", "a/b", "%2F", "é", "?x=1", "#"]
        db.put("views", [{"k": k} for k in keys])
        db.put("bytes", {"k": b"\xfb\xff/"})
    running = start()
    from viewkeeper.model.intake.text import path_segment

    for key in keys:
        found = running.http.get(f"/v1/~views/rows/{path_segment(key)}")
        assert (found.status_code, found.json()) == (200, {"k": key}), key
    segment = path_segment(b"\xfb\xff/")
    assert running.http.get(f"/v1/bytes/rows/{segment}").json() == {"k": "+/8v"}
    assert running.http.get("/v1/bytes/rows/%2B%2F8v").status_code == 200
    assert running.http.get("/v1/bytes/rows/!").json()["code"] == "VK201"


def test_a_group_whose_key_is_null(served: Running) -> None:
    token = served.put({"item_id": 100, "category": None, "price": 7})
    found = served.http.get("/v1/totals/rows/~null", params={"after": token})
    assert found.json() == {"category": None, "n": "1", "total": "7"}


def test_what_is_not_there_has_a_code(served: Running) -> None:
    for path, status, code in (
        ("/v1/items/rows/999", 404, "VK105"),
        ("/v1/nothing/rows/1", 404, "VK101"),
        ("/v1/nothing/rows", 404, "VK101"),
        ("/v1/items/rows/x", 400, "VK201"),
        ("/v1/items/rows/1_0", 400, "VK201"),
        ("/v1/items/rows/%201", 400, "VK201"),
        ("/v1/items/rows?start=1_0", 400, "VK201"),
        ("/v1/items/rows/1?level=latest&timeout=soon", 400, "VK701"),
        ("/v1/items/rows?timeout=1e3", 400, "VK701"),
        ("/v1/items/rows?where=price%20%3D", 400, "VK301"),
        ("/v1/items/rows?where=colour%20%3D%201", 404, "VK101"),
        ("/v1/items/rows/1/2", 400, "VK201"),
        ("/v1/items/rows?limit=0", 400, "VK701"),
        ("/v1/items/rows?limt=1", 400, "VK701"),
        ("/v1/items/rows?cursor=x", 400, "VK701"),
        ("/v1/views/items", 404, "VK101"),
        ("/nothing", 404, "VK101"),
    ):
        found = served.http.get(path)
        problem = found.json()
        assert (found.status_code, problem["code"], problem["status"]) == (status, code, status), path
        assert found.headers["content-type"] == "application/problem+json"
        assert problem["detail"]


def test_pages_are_of_one_state(served: Running) -> None:
    first = served.http.get("/v1/items/rows", params={"limit": 7})
    seen, following = first.json()["rows"], first.json()["next"]
    assert first.headers["viewkeeper-cursor"] == following
    while following is not None:
        served.put({"item_id": 3, "category": "new", "price": 0}, {"item_id": 1000 + len(seen), "category": "new"})
        found = served.http.get("/v1/items/rows", params={"limit": 7, "cursor": following}).json()
        seen += found["rows"]
        following = found["next"]
    assert [int(row["item_id"]) for row in seen] == list(range(20))
    assert all(row["category"] != "new" for row in seen)


def test_a_cursor_of_a_state_that_is_gone(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from viewkeeper.server import pinned_snapshots

    cursor = served.http.get("/v1/items/rows", params={"limit": 7}).json()["next"]
    other = served.http.get("/v1/totals/rows", params={"cursor": cursor})
    assert (other.status_code, other.json()["code"]) == (400, "VK701")
    monkeypatch.setattr(pinned_snapshots, "IDLE_SECONDS", -1.0)
    gone = served.http.get("/v1/items/rows", params={"cursor": cursor})
    assert (gone.status_code, gone.json()["code"]) == (410, "VK604")


def test_ranges(served: Running) -> None:
    def keys(**given: Any) -> list[int]:
        return [int(row["item_id"]) for row in served.http.get("/v1/items/rows", params=given).json()["rows"]]

    assert keys(start="3", stop="6") == [3, 4, 5]
    assert keys(prefix="3") == [3]
    assert keys(start="17") == [17, 18, 19]
    assert served.http.get("/v1/items/rows", params={"prefix": "3", "start": "1"}).status_code == 400


def test_a_tag_changes_with_the_view_and_only_then(served: Running) -> None:
    def tag(path: str, **headers: str) -> httpx.Response:
        return served.http.get(path, headers=headers)

    for path in ("/v1/totals/rows/nothing", "/v1/items/rows/999"):
        assert tag(path, **{"if-none-match": "*"}).status_code == 404
    for path in ("/v1/totals/rows/c1", "/v1/totals/rows"):
        first = tag(path)
        for known in ("*", f"W/{first.headers['etag']}", f'"other", {first.headers["etag"]}'):
            assert tag(path, **{"if-none-match": known}).status_code == 304, known
        again = tag(path, **{"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    assert served.http.post("/v1/kinds/rows", json={"category": "c1", "boss": "Ada"}).status_code == 200
    assert tag("/v1/totals/rows", **{"if-none-match": first.headers["etag"]}).status_code == 304
    token = served.put({"item_id": 1, "category": "c1", "price": 1000})
    served.http.get("/v1/totals/rows", params={"after": token})
    changed = tag("/v1/totals/rows", **{"if-none-match": first.headers["etag"]})
    assert changed.status_code == 200
    assert changed.headers["etag"] != first.headers["etag"]
    arrow = served.http.get("/v1/totals/rows", headers={**ARROW, "if-none-match": changed.headers["etag"]})
    assert arrow.status_code == 200


def test_a_write_is_seen_by_a_tagged_read_at_once(served: Running) -> None:
    for price in range(50):
        served.put({"item_id": 1, "category": "c1", "price": price})
        found = served.http.get("/v1/items/rows/1", headers={"if-none-match": '"old"'})
        again = served.http.get("/v1/items/rows/1", headers={"if-none-match": found.headers["etag"]})
        assert found.json()["price"] == price
        assert again.status_code == 304


def test_levels(served: Running) -> None:
    for price in range(5):
        token = served.put({"item_id": 0, "category": "z", "price": price})
        assert served.http.get("/v1/totals/rows/z", params={"after": token}).json()["total"] == str(price)
    served.put({"item_id": 0, "category": "z", "price": 77})
    assert served.http.get("/v1/totals/rows/z", params={"level": "latest"}).json()["total"] == "77"
    wrong = served.http.get("/v1/totals/rows/z", params={"after": "vk1:x:9"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "VK602")
    assert served.http.get("/v1/totals/rows/z", params={"level": "newest"}).status_code == 400


def test_a_wait_that_is_in_vain_says_how_far_the_view_is(shop: None, start: Callable[..., Running]) -> None:
    running = start()
    running.db.sql(f"CREATE MATERIALIZED VIEW bosses AS {planned.BOSSES}")  # of two tables: nobody works it out alone
    running.stop()
    running = start()
    token = running.put({"item_id": 0, "category": "z", "price": 1})
    found = running.http.get("/v1/bosses/rows", params={"after": token})
    assert (found.status_code, found.json()["code"], found.headers["retry-after"]) == (503, "VK603", "1")
    assert "is at position" in found.json()["detail"]
    assert "nobody maintains" in found.json()["detail"]


def test_the_latest_of_a_view_of_one_table_waits_for_nobody(shop: None, start: Callable[..., Running]) -> None:
    running = start()
    for price in (7, 8):
        token = running.put({"item_id": 0, "category": "z", "price": price})
        for asked in ({"level": "latest"}, {"after": token}):
            found = running.http.get("/v1/totals/rows/z", params=asked)
            assert (found.status_code, found.json()["total"]) == (200, str(price))
            assert found.headers["viewkeeper-token"] == token
            rows = running.http.get("/v1/totals/rows", params={**asked, "where": "category = 'z'"}).json()["rows"]
            assert [row["total"] for row in rows] == [str(price)]
        # What was shown once is not taken back: neither by the short way, nor by pages, nor for other clients.
        assert running.http.get("/v1/totals/rows/z").json()["total"] == str(price)
        assert running.http.get("/v1/totals/rows").json()["rows"][-1]["total"] == str(price)
    assert running.http.get("/v1/totals/rows/none", params={"level": "latest"}).status_code == 404
    # More than a page has only a batch's state, which nobody makes here.
    assert running.http.get("/v1/totals/rows", params={"level": "latest", "limit": "1"}).status_code == 503


def test_tables_views_plan_and_status(served: Running) -> None:
    tables = {t["name"]: t for t in served.http.get("/v1/tables").json()["tables"]}
    assert tables["items"]["rows"] == 20
    assert tables["items"]["key"] == [{"column": "item_id", "descending": False, "nulls_last": False}]
    (listed,) = served.http.get("/v1/views").json()["views"]
    view = served.http.get("/v1/views/totals").json()
    assert view["definition"].startswith("SELECT category")
    assert view["sql"] == served.db.sql("SHOW CREATE VIEW totals").rows[0]["statement"]
    for name in ("strategy", "epoch", "lag_changes", "lag_seconds", "state_bytes", "suspended", "columns", "rows"):
        assert name in view
        assert listed[name] == view[name]
    served.http.get("/v1/totals/rows/c1", params={"after": served.put({"item_id": 1, "category": "c1", "price": 5})})
    plan = served.http.get("/v1/views/totals/plan").json()
    assert {box["kind"] for box in plan["boxes"]} >= {"input", "aggregate", "sink"}
    assert any(box["last"] and box["last"]["batches"] >= 1 for box in plan["boxes"])
    assert served.http.get("/v1/status").json()["views"][0]["name"] == "totals"
    assert served.http.get("/healthz").json() == {"status": "ok"}
    assert served.http.get("/readyz").status_code == 200


def test_not_ready_when_too_far_behind(shop: None, start: Callable[..., Running]) -> None:
    running = start(max_lag=0.0)
    assert running.http.get("/readyz").status_code == 200
    running.put({"item_id": 0, "category": "z", "price": 1})
    assert running.http.get("/readyz").status_code == 503


def test_head_says_what_get_would(served: Running) -> None:
    for path in ("/v1/items/rows/1", "/v1/items/rows", "/v1/totals/changes"):
        got = served.http.head(path)
        assert (got.status_code, got.content) == (200, b""), path


def test_a_lazy_view_is_read_as_others_are(served: Running) -> None:
    served.db.sql(f"CREATE MATERIALIZED VIEW lazily WITH (store = 'lazy') AS {planned.TOTALS}")
    rows = served.http.get("/v1/lazily/rows").json()["rows"]
    assert rows == served.http.get("/v1/totals/rows").json()["rows"]
    key = rows[0]["category"]
    assert served.http.get(f"/v1/lazily/rows/{key}").json() == rows[0]
    token = served.put({"item_id": 900, "category": key, "price": 1})
    served.db.refresh()
    n = int(rows[0]["n"]) + 1
    assert served.http.get(f"/v1/lazily/rows/{key}?after={token}").json()["n"] == str(n)
    with vk.connect(served.address) as client:
        assert client.get("lazily", key)["n"] == n
        assert client.read("lazily").equals(served.db.read("totals"))
        assert [r["n"] for r in client.scan("lazily", where={"category": key})] == [n]
    refused = served.http.get("/v1/lazily/changes")
    assert refused.status_code == 422
    assert "lazy" in refused.json()["detail"]
