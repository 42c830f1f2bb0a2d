"""A put that comes in one piece is answered by the thread that wrote it, and nobody can tell from the answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.server.conftest import Running

import viewkeeper as vk
from viewkeeper.client.http import Answer, receive_answer
from viewkeeper.server import process
from viewkeeper.server.auth import TokenFile
from viewkeeper.server.endpoints import write
from viewkeeper.server.fast_path.put import WRITERS, FastPuts

JSON = {"content-type": "application/json"}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each request that was there as a whole: whether it went the short way."""
    found: list[bool] = []
    take = FastPuts.try_start

    def noted(self: FastPuts, *given: Any) -> bool:
        found.append(take(self, *given))
        return found[-1]

    monkeypatch.setattr(FastPuts, "try_start", noted)
    return found


def connected(running: Running) -> socket.socket:
    host, port = running.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 60)


def request(body: Any, path: str = "/v1/items/rows", method: str = "POST", **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"host": "localhost", **JSON, "content-length": str(len(content))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


def asked(running: Running, given: bytes) -> Answer:
    with connected(running) as connection:
        connection.sendall(given)
        return receive_answer(connection, "POST")


def test_the_answer_is_that_of_the_other_way(served: Running, taken: list[bool]) -> None:
    whole = request([{"item_id": 70, "category": "n", "price": 7}])
    short = asked(served, whole)
    long = asked(served, whole.replace(b"content-type", b"x-twice: 1\r\nx-twice: 1\r\ncontent-type"))
    assert taken == [True, False]
    assert served.db.get("items", 70) == {"item_id": 70, "category": "n", "price": 7}
    token = json.loads(short.body)["token"]
    assert json.loads(short.body) == {"token": token, "rows": 1, "atomic": True}
    assert short.headers["viewkeeper-token"] == token
    assert (short.status, short.closes_connection, sorted(short.headers)) == (
        long.status,
        long.closes_connection,
        sorted(long.headers),
    )
    with vk.connect(served.address) as client:
        again = client.put("items", [{"item_id": 71, "category": "n", "price": 1}])
        assert client.get("totals", "n", after=again)["n"] == 2
        metrics = served.http.get("/metrics").text
    assert "viewkeeper_written_rows_total 3.0" in metrics
    assert taken == [True, False, True]


def test_what_is_wrong_or_special_goes_the_other_way(served: Running, taken: list[bool]) -> None:
    head = served.db._store.head()
    row = {"item_id": 80, "category": "n", "price": 7}
    for given, status, code in (
        (request(row, "/v1/nothing/rows"), 404, "VK101"),
        (request(row, "/v1/totals/rows"), 403, "VK104"),
        (request(row, "/v1/items/rows?x=1"), 400, "VK701"),
        (request(row, if_match="*"), 400, "VK701"),
        (request(row, content_encoding="br"), 415, "VK701"),
        (request(row, host="elsewhere.example"), 421, "VK701"),
        (request(row, origin="http://elsewhere.example"), 403, "VK703"),
        (request(row, **{"content-type": "text/plain"}), 415, "VK701"),
    ):
        found = asked(served, given)
        assert (found.status, json.loads(found.body)["code"]) == (status, code), found
    assert not any(taken)
    for given, status, code in (
        (request({"item_id": "x"}), 400, "VK201"),
        (request({"nothing": 1}), 400, "VK201"),
        (request(b"{"), 400, "VK701"),
        (request(b"x", content_type="application/vnd.apache.arrow.stream"), 400, "VK701"),
    ):
        taken.clear()
        found = asked(served, given)
        assert (found.status, json.loads(found.body)["code"], taken) == (status, code, [True]), found
        assert found.headers["content-type"] == "application/problem+json"
    assert served.db._store.head() == head


def test_who_may(shop: None, start: Callable[..., Running], tmp_path: Path, taken: list[bool]) -> None:
    file = TokenFile(tmp_path / "tokens")
    writer, reader = file.create("writer"), file.create("reader")
    running = start(tokens=str(tmp_path / "tokens"))
    row = {"item_id": 80, "category": "n", "price": 7}
    for token, status in ((None, 401), ("vkt_x_y", 401), (reader, 403), (writer, 200)):
        given = {} if token is None else {"authorization": f"Bearer {token}"}
        assert asked(running, request(row, **given)).status == status
    assert taken == [False, False, False, True]
    running.stop()
    reading = start(read_only=True)
    assert asked(reading, request(row)).status == 403


def test_requests_that_follow_each_other_are_answered_in_their_order(served: Running, taken: list[bool]) -> None:
    get = b"GET /v1/items/rows/90 HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = request({"item_id": 90, "category": "c", "price": 3}, connection="close")
    puts = [request({"item_id": 90, "category": "c", "price": price}) for price in (1, 2)]
    with connected(served) as connection:
        connection.sendall(puts[0] + get + request({"item_id": "x"}) + get + puts[1] + get + last)
        heard = b""
        while piece := connection.recv(65_536):
            heard += piece
    answers = heard.split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"200", b"400", b"200", b"200", b"200", b"200"]
    assert [b'"price":1' in answers[i] for i in (1, 3, 5)] == [True, True, False]
    assert b'"price":2' in answers[5]
    assert b"connection: close" in answers[6]
    assert served.db.get("items", 90)["price"] == 3
    assert any(taken)


def test_writers_that_are_busy_and_clients_that_go(
    shop: None, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, taken: list[bool]
) -> None:
    running = start(limits={"seconds": 5.0})
    held, go_on = threading.Semaphore(0), threading.Event()
    put_rows = write.put_rows

    def waiting(*given: Any) -> Any:
        held.release()
        assert go_on.wait(60)
        return put_rows(*given)

    monkeypatch.setattr(write, "put_rows", waiting)
    connections = [connected(running) for _ in range(WRITERS + 2)]
    for number, connection in enumerate(connections):
        connection.sendall(request({"item_id": 100 + number, "category": "w", "price": 1}))
        assert held.acquire(timeout=60)
    assert taken == [True] * WRITERS + [False] * 2
    connections[0].close()
    late = [receive_answer(connection, "POST") for connection in connections[1:]]  # the limit of a request
    assert {answer.status for answer in late} == {503}
    assert all(json.loads(answer.body)["code"] == "VK603" for answer in late)
    assert running.http.get("/v1/items/rows/1").status_code == 200
    go_on.set()
    monkeypatch.setattr(write, "put_rows", put_rows)
    again = asked(running, request({"item_id": 200, "category": "w", "price": 1}))
    assert again.status == 200
    for connection in connections[1:]:  # and each connection goes on
        connection.sendall(request({"item_id": 201, "category": "w", "price": 1}))
        assert receive_answer(connection, "POST").status == 200
        connection.close()
    running.stop()
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:  # what was late was written all the same
        assert db.read("items", where={"category": "w"}).num_rows == WRITERS + 2 + 2


def test_a_server_that_stops_gives_up_what_is_not_done_in_its_time(
    shop: None, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.3)
    running = start()
    held, go_on = threading.Event(), threading.Event()
    put_rows = write.put_rows

    def waiting(*given: Any) -> Any:
        held.set()
        assert go_on.wait(60)
        return put_rows(*given)

    monkeypatch.setattr(write, "put_rows", waiting)
    with connected(running) as connection:
        connection.sendall(request({"item_id": 100, "category": "w", "price": 1}))
        assert held.wait(60)
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        answer = receive_answer(connection, "POST")
        assert (answer.status, json.loads(answer.body)["code"], answer.closes_connection) == (503, "VK704", True)
        go_on.set()
        stopping.join(60)
        assert not stopping.is_alive()
    assert taken == [True]
