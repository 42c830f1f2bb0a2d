"""Rows in over HTTP: three kinds of bodies, one write call each, and nothing written by what is refused."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.contract import planned
from tests.integration.server.conftest import Running

SQL = {"content-type": "application/sql"}


def stream(table: pa.Table, options: Any = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def post(running: Running, body: Any, kind: str, method: str = "POST", path: str = "/v1/items/rows") -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return running.http.request(method, path, content=content, headers={"content-type": kind})


def test_json_lines_and_arrow_are_one_write_each(served: Running) -> None:
    rows = [{"item_id": 50 + i, "category": "n", "price": i} for i in range(3)]
    head = served.db._store.head()
    bodies = (
        (json.dumps(rows).encode(), "application/json"),
        ("\n".join(json.dumps({**row, "price": 7}) for row in rows).encode(), "application/x-ndjson"),
        (
            stream(pa.table({"item_id": [50, 51, 52], "category": ["n"] * 3, "price": pa.array([9] * 3, pa.int32())})),
            "application/vnd.apache.arrow.stream",
        ),
    )
    for price, (body, kind) in zip((0, 7, 9), bodies, strict=True):
        found = post(served, body, kind)
        assert found.json()["rows"] == 3
        assert found.json()["token"] == found.headers["viewkeeper-token"]
        assert served.http.get("/v1/items/rows/50").json()["price"] == price
        total = served.http.get("/v1/totals/rows/n", params={"after": found.json()["token"]}).json()
        assert total["n"] == "3"
    entries = served.db._store.entries(served.db._catalog().table("items"), ["item_id"], head, served.db._store.head())
    assert len({position for position, _, _ in entries}) == 3


def test_packed_bodies(shop: None, start: Callable[..., Running]) -> None:
    """Of one that stands for more than is allowed nothing is unpacked beyond that."""
    running = start(limits={"body": 100_000})
    packed = {"content-encoding": "gzip", "content-type": "application/json"}
    arrow = "application/vnd.apache.arrow.stream"

    def sent(body: bytes, **headers: str) -> tuple[int, str]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        found = running.http.post("/v1/items/rows", content=body, headers={**packed, **given})
        return found.status_code, found.json().get("detail", "")

    two = gzip.compress(b'{"item_id": 60,') + gzip.compress(b'"category": "gz"}')  # files may follow each other
    assert sent(two)[0] == 200
    assert running.db.get("items", 60) == {"item_id": 60, "category": "gz", "price": None}
    rows = pa.table({"item_id": range(1_000), "category": pa.array(["same"] * 1_000).dictionary_encode()})
    assert sent(gzip.compress(stream(rows)), content_type=arrow)[0] == 200
    for how in ("lz4", "zstd"):
        written = stream(rows.slice(0, 10), pa.ipc.IpcWriteOptions(compression=how))
        assert sent(written, content_type=arrow, content_encoding="identity")[0] == 200
    told = running.http.post("/v1/sql", content=gzip.compress(b'{"sql": "SHOW TABLES"}'), headers=packed)
    assert told.json()["rows"] == [{"name": "items"}, {"name": "kinds"}]

    head = running.db._store.head()
    much = pa.table({"item_id": pa.array([0] * 1_000_000, pa.int64())})
    bomb = stream(much, pa.ipc.IpcWriteOptions(compression="zstd"))
    words = stream(
        pa.table({"item_id": [1], "category": pa.array(["x" * 10_000_000]).dictionary_encode()}),
        pa.ipc.IpcWriteOptions(compression="lz4"),
    )
    assert max(len(bomb), len(words)) < 100_000
    nulls = stream(pa.table({"item_id": pa.nulls(10**9)}))
    for body, headers, status, detail in (
        (gzip.compress(b" " * 10_000_000), {}, 413, "more than 100000 bytes"),
        (bomb, {"content_type": arrow, "content_encoding": "identity"}, 413, "Unpacked"),
        (words, {"content_type": arrow, "content_encoding": "identity"}, 413, "Unpacked"),
        (nulls, {"content_type": arrow, "content_encoding": "identity"}, 413, "1000000000 rows"),
        (b'{"item_id": 61}', {}, 400, "no gzip"),
        (two[:-9], {}, 400, "no gzip"),
        (b"x", {"content_encoding": "br"}, 415, "'br'"),
        (bomb[:300], {"content_type": arrow, "content_encoding": "identity"}, 400, "no Arrow stream"),
    ):
        found = sent(body, **headers)
        assert (found[0], detail in found[1]) == (status, True), found
    assert running.db._store.head() == head


def deltas(word: str, count: int) -> bytes:
    """A stream in which every batch brings its dictionary one more word."""
    options, sink = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, compression="zstd"), io.BytesIO()
    schema = pa.schema([("item_id", pa.int64()), ("category", pa.dictionary(pa.int32(), pa.string()))])
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for i in range(count):
            words = pa.array([word, *map(str, range(i + 1))])
            category = pa.DictionaryArray.from_arrays(pa.array([i + 1], pa.int32()), words)
            writer.write_batch(pa.record_batch([pa.array([i], pa.int64()), category], schema=schema))
    return sink.getvalue()


def test_encoded_columns(shop: None, start: Callable[..., Running]) -> None:
    """A value that is sent once and named often is as large as all of it together; no more than allowed is made."""
    running = start(limits={"body": 200_000, "rows": 5_000})
    arrow = "application/vnd.apache.arrow.stream"
    ids = pa.array(range(3_000), pa.int64())
    long = "x" * 50_000
    named = pa.array([0] * 3_000, pa.int8())
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([3_000], pa.int32()), pa.array([long]))
    views = pa.array(["a word of some length", None] * 1_500).cast(pa.string_view())
    few = {"words": pa.array(["a", None] * 1_500).dictionary_encode(), "views": views}
    few["runs"] = pa.RunEndEncodedArray.from_arrays(pa.array([1_000, 3_000], pa.int32()), pa.array(["a", None]))
    for name, category in few.items():
        found = post(running, stream(pa.table({"item_id": ids, "category": category})), arrow)
        assert (name, found.status_code, found.json()["rows"]) == (name, 200, 3_000)
        assert running.db.get("items", 2_999)["category"] is None
    assert post(running, deltas("w", 5), arrow).status_code == 200
    assert running.db.get("items", 4)["category"] == "4"

    head = running.db._store.head()
    length, data = len(long).to_bytes(4, "little"), long.encode()
    repeated = pa.Array.from_buffers(
        pa.string_view(), 3_000, [None, pa.py_buffer((length + data[:4] + bytes(8)) * 3_000), pa.py_buffer(data)]
    )
    nested = pa.DictionaryArray.from_arrays(named, pa.array([[1] * 100]))
    for category, status, detail in (
        (pa.DictionaryArray.from_arrays(named, pa.array([long])), 413, "Decoded"),
        (pa.DictionaryArray.from_arrays(named, pa.array([long.encode()])), 413, "Decoded"),
        (runs, 413, "Decoded"),
        (repeated, 413, "Decoded"),
        (nested, 400, "cannot be encoded"),
    ):
        body = stream(pa.table({"item_id": ids, "category": category}))
        assert len(body) < 200_000
        found = post(running, body, arrow)
        assert (found.status_code, detail in found.json()["detail"]) == (status, True), found.text
    bomb = deltas(long, 50)
    assert len(bomb) < 100_000
    assert post(running, bomb, arrow).status_code == 413
    many = "\n".join(f'{{"item_id": {i}}}' for i in range(5_001))
    for kind, body in ((arrow, stream(pa.table({"item_id": range(5_001)}))), ("application/x-ndjson", many.encode())):
        for method in ("POST", "DELETE", "PATCH"):
            found = post(running, body, kind, method)
            assert (found.status_code, "5001 rows" in found.json()["detail"]) == (413, True), found.text
    assert running.db._store.head() == head


def test_some_columns_of_several_rows(served: Running) -> None:
    found = post(served, [{"item_id": 1, "price": 100}, {"item_id": 2, "price": 200}], "application/json", "PATCH")
    assert found.json()["rows"] == 2
    assert served.db.get("items", 1) == {"item_id": 1, "category": "c1", "price": 100}
    one = served.http.patch("/v1/items/rows/1", json={"category": "changed"})
    assert one.status_code == 200
    assert served.db.get("items", 1) == {"item_id": 1, "category": "changed", "price": 100}
    before = served.db.read("items")
    for body, code in (
        ([{"item_id": 1, "price": 1}, {"item_id": 999, "price": 1}], "VK105"),
        ([{"item_id": 1, "price": 1}, {"item_id": 2, "category": "x"}], "VK201"),
        ([{"item_id": 1}], "VK201"),
        ([{"price": 1}], "VK201"),
        ([{"item_id": 1, "colour": 1}], "VK201"),
        ([], "VK201"),
    ):
        refused = post(served, body, "application/json", "PATCH")
        assert 400 <= refused.status_code < 500, body
        assert refused.json()["code"] == code, body
    assert served.db.read("items").equals(before)


@pytest.mark.parametrize("name", ["if-match", "if-none-match", "if-unmodified-since"])
def test_a_condition_of_a_write_is_refused_and_not_ignored(shared: Running, name: str) -> None:
    head = shared.db._store.head()
    for method, path, body in (
        ("DELETE", "/v1/items/rows/1", None),
        ("PATCH", "/v1/items/rows/1", {"price": 99}),
        ("POST", "/v1/items/rows", {"item_id": 1}),
    ):
        found = shared.http.request(method, path, json=body, headers={name: '"x"'})
        assert (found.status_code, found.json()["code"]) == (400, "VK701"), method
    assert shared.db._store.head() == head


def test_delete(served: Running) -> None:
    assert served.http.delete("/v1/items/rows/1").json()["rows"] == 1
    assert served.http.delete("/v1/items/rows/1").json()["code"] == "VK105"
    for keys, count in (([2, "3"], 2), ([{"item_id": 4}], 1), ([[5]], 1), ([2, 3, 777], 0), ([777, 7, 7, 1], 1)):
        assert post(served, keys, "application/json", "DELETE").json()["rows"] == count
    absent = served.http.patch("/v1/items/rows/777", json={"price": 1})
    assert (absent.status_code, absent.json()["code"]) == (404, "VK105")
    assert [row["item_id"] for row in served.db.scan("items", limit=2)] == [0, 6]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"item_id": 1e999999999}', "application/json", 400),
        (b'{"item_id": ' + b"9" * 5000 + b"}", "application/json", 400),
        (b'{"item_id": NaN}', "application/json", 400),
        (b'{"item_id": 1, "price": "x"}', "application/json", 400),
        (b'{"item_id": 1, "price": 1.5}', "application/json", 400),
        (b'{"item_id": null}', "application/json", 400),
        (b'{"item_id": 1, "ITEM_ID": 2}', "application/json", 400),
        (b'{"category": "no key"}', "application/json", 400),
        (b'{"item_id": 1, "category": "\\ud800"}', "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"item_id=1", "application/x-www-form-urlencoded", 415),
        (b'{"item_id": 1}', "text/plain", 415),
        (b'{"item_id": 1}', "", 415),
        (b"not arrow", "application/vnd.apache.arrow.stream", 400),
        (b"\xff\xff\xff\xff\x10\x00\x00\x00", "application/vnd.apache.arrow.stream", 400),
    ],
)
def test_a_body_that_does_not_fit_changes_nothing(shared: Running, body: bytes, kind: str, status: int) -> None:
    head = shared.db._store.head()
    found = post(shared, body, kind)
    assert (found.status_code, found.headers["content-type"]) == (status, "application/problem+json"), found.text
    assert shared.db._store.head() == head


def test_what_cannot_be_written(served: Running) -> None:
    assert post(served, {"category": "x"}, "application/json", path="/v1/totals/rows").json()["code"] == "VK104"
    assert post(served, {"x": 1}, "application/json", path="/v1/nothing/rows").json()["code"] == "VK101"
    assert served.http.put("/v1/items/rows", json={}).headers["allow"] == "GET, POST, PATCH, DELETE, HEAD"


def test_a_server_that_only_reads(shop: None, start: Callable[..., Running]) -> None:
    running = start(read_only=True)
    assert running.http.get("/v1/items/rows/1").status_code == 200
    for found in (
        post(running, {"item_id": 1}, "application/json"),
        running.http.delete("/v1/items/rows/1"),
        running.http.post("/v1/sql", content="UPSERT INTO items VALUES (1, 'x', 1)", headers=SQL),
        running.http.post("/v1/sql", content="DROP TABLE kinds", headers=SQL),
    ):
        assert (found.status_code, found.json()["code"]) == (403, "VK104")


def test_statements(served: Running) -> None:
    def run(text: str, **headers: str) -> Any:
        return served.http.post("/v1/sql", content=text, headers={**SQL, **headers})

    assert run("UPSERT INTO items VALUES (200, 'sql', 4), (201, 'sql', 5)").json() == {"done": "2 put"}
    assert run("SELECT price FROM items ORDER BY item_id DESC LIMIT 2").json()["rows"] == [{"price": 5}, {"price": 4}]
    as_csv = run("SELECT * FROM kinds", accept="text/csv")
    assert as_csv.text == "category,boss\r\n"
    asked = served.http.post("/v1/sql", json={"sql": "SHOW TABLES"}).json()
    assert [row["name"] for row in asked["rows"]] == ["items", "kinds"]
    assert asked["columns"] == [{"name": "name", "type": "string"}]
    assert run("CREATE TABLE more (k INT, PRIMARY KEY (k))").json() == {"done": "table more created"}
    assert served.http.get("/v1/more").json()["columns"][0]["name"] == "k"
    for text, code in (
        ("SELCT", "VK301"),
        ("", "VK301"),
        ("DESCRIBE nothing", "VK101"),
        ("DROP TABLE items", "VK103"),
    ):
        assert run(text).json()["code"] == code, text
    assert served.http.post("/v1/sql", json={"query": "x"}).json()["code"] == "VK701"
    events = run("SHOW VIEWS", accept="text/event-stream").text
    assert events.startswith("event: done\ndata: {")
    assert '"rows":[{"name":"totals"}]' in events
    wrong = run("SELCT 1", accept="text/event-stream").text
    assert "event: error" in wrong
    assert '"line":1' in wrong


def test_a_server_that_only_serves_defines_and_lets_go(start: Any) -> None:
    running = start()
    for statement in (*planned.TABLES, f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}"):
        found = running.http.post("/v1/sql", json={"sql": statement})
        assert found.status_code == 200, found.text
    assert running.db.status().maintainer is None  # another process can maintain it now
