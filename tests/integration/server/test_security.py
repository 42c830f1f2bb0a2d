"""Who may do what, and what a server takes from strangers: always an answer below 500, and nothing written."""

from __future__ import annotations

import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.server.conftest import Running

from viewkeeper.errors import BadValue, UnknownName
from viewkeeper.server import auth as server_tokens
from viewkeeper.server.auth import TokenFile, parse_span

SQL = {"content-type": "application/sql"}
JSON = {"content-type": "application/json"}
POST = b"POST /v1/items/rows HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    file = TokenFile(tmp_path / "tokens")
    return {
        **{role: file.create(role) for role in ("reader", "writer", "admin")},
        "expired": file.create("admin", expires=-1.0),
    }


@pytest.fixture
def guarded(shop: None, tokens: dict[str, str], start: Callable[..., Running], tmp_path: Path) -> Running:
    return start(tokens=str(tmp_path / "tokens"))


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def raw(running: Running, data: bytes, *, wait: float = 10.0) -> bytes:
    """What the server says to bytes that no client would send."""
    host, port = running.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


def test_without_tokens_only_this_machine(shop: None, start: Callable[..., Running]) -> None:
    with pytest.raises(BadValue, match="listens on this machine only"):
        start(host="0.0.0.0")


def test_every_endpoint_wants_a_token_but_those_for_anybody(guarded: Running, tokens: dict[str, str]) -> None:
    document = guarded.http.get("/v1/openapi.json").json()
    checked = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            there = path.replace("{name}", "items").replace("{key}", "1")
            for headers in ({}, bearer("vkt_x_y"), bearer(tokens["reader"][:-1] + "x"), bearer(tokens["expired"])):
                found = guarded.http.request(method, there, headers=headers)
                if operation["x-role"] is not None:
                    assert (found.status_code, found.json()["code"]) == (401, "VK702"), (method, path, headers)
                    assert "Bearer" in found.headers["www-authenticate"]
                    checked += 1
    assert checked > 40
    assert guarded.http.get("/healthz").status_code == 200
    assert guarded.http.get("/v1/items/rows/1", headers={"authorization": "Basic eDp5"}).status_code == 401


def test_roles(guarded: Running, tokens: dict[str, str]) -> None:
    row = {"item_id": 1, "category": "c1", "price": 1}

    def sql(text: str, headers: dict[str, str]) -> Any:
        return guarded.http.post("/v1/sql", content=text, headers={**headers, **SQL})

    attempts: list[tuple[str, Callable[[dict[str, str]], Any]]] = [
        ("reader", lambda h: guarded.http.get("/v1/items/rows/1", headers=h)),
        ("reader", lambda h: guarded.http.get("/v1/items/rows", headers=h)),
        ("reader", lambda h: guarded.http.get("/metrics", headers=h)),
        ("reader", lambda h: sql("SELECT * FROM items", h)),
        ("reader", lambda h: sql("SHOW TABLES", h)),
        ("writer", lambda h: guarded.http.post("/v1/items/rows", json=row, headers=h)),
        ("writer", lambda h: guarded.http.patch("/v1/items/rows", json=row, headers=h)),
        (
            "writer",
            lambda h: sql("UPSERT INTO items VALUES (1, 'a', 1)", h),
        ),
        ("writer", lambda h: guarded.http.request("DELETE", "/v1/items/rows", json=[999], headers=h)),
        ("admin", lambda h: sql("DROP TABLE IF EXISTS nothing", h)),
        (
            "admin",
            lambda h: sql("ALTER TABLE items ADD COLUMN", h),
        ),
        (
            "admin",
            lambda h: sql("SHOW TABLES; DROP TABLE items", h),
        ),
    ]
    order = ("reader", "writer", "admin")
    for needed, attempt in attempts:
        for role in order:
            found = attempt(bearer(tokens[role]))
            allowed = order.index(role) >= order.index(needed)
            assert (found.status_code == 403) is not allowed, (needed, role, found.text)
            if not allowed:
                assert found.json()["code"] == "VK703"


def test_a_token_is_made_once_and_revoked_while_the_server_runs(
    guarded: Running, tokens: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_tokens, "_CHECK_SECONDS", 0.0)
    file = TokenFile(tmp_path / "tokens")
    text = file.path.read_text()
    assert all(token not in text and token.split("_", 2)[2] not in text for token in tokens.values())
    assert file.path.stat().st_mode & 0o077 == 0
    new = file.create("reader", parse_span("1h"), "Ada")
    assert guarded.http.get("/v1/items/rows/1", headers=bearer(new)).status_code == 200
    file.revoke(new.split("_")[1])
    assert guarded.http.get("/v1/items/rows/1", headers=bearer(new)).status_code == 401
    assert guarded.http.get("/v1/items/rows/1", headers=bearer(tokens["reader"])).status_code == 200
    with pytest.raises(UnknownName):
        file.revoke("nothing")
    file.path.unlink()
    assert guarded.http.get("/v1/items/rows/1", headers=bearer(tokens["admin"])).status_code == 401
    with pytest.raises(BadValue):
        parse_span("soon")


def test_changes_of_the_token_file_at_once_are_all_there(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens")
    old = [file.create("reader") for _ in range(5)]

    def change(place: int) -> None:
        file.revoke(old[place].split("_")[1])
        file.create("writer")

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(change, range(5)))
    assert [entry.role for entry in file.entries()] == ["writer"] * 5
    with pytest.raises(BadValue, match="no span"):
        parse_span("0m")
    (tmp_path / "tokens").write_text('{"id": "a", "role": "king", "hash": "", "created": 0}\n', encoding="utf-8")
    with pytest.raises(BadValue, match="king"):
        file.entries()


def test_names_of_other_hosts_and_pages_of_other_sites(served: Running) -> None:
    def status(**headers: str) -> tuple[int, int]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        read = served.http.get("/v1/items/rows/1", headers=given)
        write = served.http.post("/v1/items/rows", json={"item_id": 1}, headers=given)
        assert "access-control-allow-origin" not in read.headers
        return read.status_code, write.status_code

    head = served.db._store.head()
    assert status(host="evil.example") == (421, 421)
    assert status(host="evil.example:80") == (421, 421)
    assert status(origin="http://evil.example") == (403, 403)
    assert status(origin="null") == (403, 403)
    assert status(origin="http://127.0.0.1:1") == (403, 403)
    assert status(sec_fetch_site="cross-site") == (403, 403)
    assert served.db._store.head() == head
    assert status(origin=served.address) == (200, 200)
    assert status(host="localhost") == (200, 200)
    asked = served.http.options("/v1/items/rows", headers={"origin": served.address})
    assert asked.status_code == 405


def test_limits(shop: None, start: Callable[..., Running]) -> None:
    running = start(limits={"body": 1000, "page": 5, "url": 300, "headers": 2000, "receive_seconds": 1.0})
    head = running.db._store.head()
    for found in (
        running.http.post("/v1/items/rows", json=[{"item_id": i} for i in range(1000)]),
        running.http.post(
            "/v1/items/rows", content=iter([b"[" * 600] * 4), headers={"content-type": "application/json"}
        ),
    ):
        assert (found.status_code, found.json()["code"]) == (413, "VK202")
    assert running.http.get("/v1/items/rows", params={"limit": 6}).status_code == 400
    assert len(running.http.get("/v1/items/rows").json()["rows"]) == 5
    assert running.http.get("/v1/items/rows/" + "1" * 400).status_code == 414
    assert b" 431 " in raw(running, b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 5000)
    assert running.db._store.head() == head


def test_slow_clients_are_let_go(shop: None, start: Callable[..., Running]) -> None:
    running = start(limits={"receive_seconds": 0.5})
    host, port = running.address.removeprefix("http://").split(":")
    begun = b"GET /v1/items/rows/1 HTTP/1.1\r\nhost: loc"
    for data in (b"", begun, POST + b"content-length: 50\r\n\r\n[{"):
        started = time.monotonic()
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            for byte in data:
                connection.sendall(bytes([byte]))
            answer = connection.recv(65536)
            assert b" 408 " in answer
            while connection.recv(65536):
                pass
        assert time.monotonic() - started < 19, "without the limit it would be 20 seconds"
    assert running.http.get("/v1/items/rows/1").status_code == 200


@pytest.mark.parametrize("asked", [b"GET /v1/tables", b"POST /v1/nothing/of/this", b"POST /v1/items/rows"])
def test_a_body_that_nobody_wanted_ends_too(shop: None, start: Callable[..., Running], asked: bytes) -> None:
    running = start(limits={"receive_seconds": 0.5})
    host, port = running.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(asked + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        assert _closed_within(connection, 10.0)


def test_a_token_that_is_taken_back_ends_its_subscription(
    guarded: Running, tokens: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_tokens, "_CHECK_SECONDS", 0.0)
    with guarded.http.stream("GET", "/v1/items/changes", headers=bearer(tokens["reader"])) as response:
        lines = response.iter_lines()
        while next(lines) != "event: rows":
            pass
        TokenFile(tmp_path / "tokens").revoke(tokens["reader"].split("_")[1])
        row = {"item_id": 77, "category": "secret", "price": 1}
        assert guarded.http.post("/v1/items/rows", json=row, headers=bearer(tokens["writer"])).status_code == 200
        rest = list(lines)
        assert not any("secret" in line for line in rest)
        assert rest[-3] == "event: end"
        assert '"code":"VK702"' in rest[-2]
    assert guarded.http.get("/v1/items/changes", headers=bearer(tokens["reader"])).status_code == 401


def test_as_many_requests_as_it_takes(shop: None, start: Callable[..., Running]) -> None:
    running = start(limits={"requests": 0})
    found = running.http.get("/v1/items/rows")
    assert (found.status_code, found.json()["code"], found.headers["retry-after"]) == (503, "VK704", "1")
    assert running.http.get("/v1/items/rows/1").status_code == 200  # answered at once


@pytest.mark.parametrize(
    "data",
    [
        b"GET /../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /page/../../../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /page/%2e%2e%2f%2e%2e%2fetc%2fpasswd HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/..%2f..%2fetc/rows/1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/items'%3B%20DROP%20TABLE%20items%3B--/rows/1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/items/rows/1%20OR%201%3D1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/items/rows/%00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/items/rows/%ff%fe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/items/rows/%zz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/items/rows?limit=%ff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET //v1//items//rows HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET http://evil.example/v1/items HTTP/1.1\r\nhost: evil.example\r\n\r\n",
        b"GET /v1/items/rows/\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"BREW /v1/items HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/items HTTP/1.1\r\n\r\n",
        b"GET /v1/items/rows/1 HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        b"GET /v1/items/rows HTTP/1.1\r\nhost: localhost\r\nHost: evil.example\r\n\r\n",
        b"\x16\x03\x01\x00\xff",
        b"GET /v1/items/rows/1 HTTP/1.1\r\n\r\n",
        POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"content-length: -5\r\n\r\n",
    ],
)
def test_tricks(shared: Running, data: bytes) -> None:
    head = shared.db._store.head()
    answer = raw(shared, data)
    assert answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert b"application/problem+json" in answer
    assert b"root:" not in answer
    assert b"Traceback" not in answer
    assert shared.db._store.head() == head


def test_an_error_that_nobody_thought_of_says_nothing(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(served.db._store), "open_snapshot", lambda self: 1 / 0)
    found = served.http.get("/v1/items/rows")
    assert (found.status_code, found.json()["code"]) == (500, "VK706")
    assert "division" not in found.text
    assert "Traceback" not in found.text


def test_an_answer_without_end_is_not_made(served: Running) -> None:
    """The product of a table with itself three times: refused while it is made, in memory that does not grow."""
    served.put(*({"item_id": i, "category": "same", "price": i} for i in range(2_000)))
    text = (
        "SELECT a.item_id FROM items a JOIN items b ON a.category = b.category JOIN items c ON a.category = c.category"
    )
    before = peak()
    found = served.http.post("/v1/sql", content=text, headers=SQL)
    assert (found.status_code, found.json()["code"]) == (413, "VK202")
    assert peak() - before < 1 << 30


def test_a_query_ends_with_its_client(served: Running) -> None:
    served.put(*({"item_id": i, "category": "same", "price": i} for i in range(5_000)))
    joined = "items a JOIN items b ON a.category = b.category JOIN items c ON a.category = c.category"
    text = f"SELECT count(*) AS n FROM {joined}"
    for headers in (SQL, {**SQL, "accept": "text/event-stream"}):
        with pytest.raises(httpx.TimeoutException):
            served.http.post("/v1/sql", content=text, headers=headers, timeout=1.0)
        deadline = time.monotonic() + 60
        while any(t.name.startswith("viewkeeper-request") and _is_busy(t) for t in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert served.http.post("/v1/sql", content="SELECT count(*) AS n FROM items", headers=SQL).status_code == 200


def _closed_within(connection: socket.socket, seconds: float) -> bool:
    """Whether a client that goes on sending a little is let go."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            connection.sendall(b"x")
        except OSError:
            return True
        time.sleep(0.05)
    return False


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _is_busy(thread: threading.Thread) -> bool:
    """Whether a query runs in it."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_filename.endswith("duck.py"):
            return True
        frame = frame.f_back
    return False
