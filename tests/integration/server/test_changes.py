"""Subscriptions over HTTP: every change once, whoever joins when, and nobody waits for a slow reader."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.integration.server.conftest import Running

import viewkeeper as vk
from viewkeeper.errors import SnapshotGone
from viewkeeper.read import subscribe as following
from viewkeeper.server import hub
from viewkeeper.server.endpoints import changes
from viewkeeper.server.http.event_formats import SSE


class Events:
    """The events of a subscription, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def next(self, kind: str | None = None) -> dict[str, Any]:
        """The next event (of this kind): its name as `event`, its id as `id`, and its data."""
        found: dict[str, Any] = {}
        for line in self._lines:
            if line:
                name, _, value = line.partition(": ")
                found[name] = value
            elif "event" in found:
                if kind in (None, found["event"]):
                    return {**json.loads(found.pop("data")), **found}
                found = {}
            else:
                found = {}
        raise AssertionError("the stream ended")

    def ended(self) -> bool:
        return not list(self._lines)


@contextmanager
def listening(running: Running, name: str = "totals", since: str | None = None, **headers: str) -> Iterator[Events]:
    parameters = {} if since is None else {"since": since}
    with running.http.stream("GET", f"/v1/{name}/changes", params=parameters, headers=headers) as response:
        if response.status_code != 200:
            response.read()
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream"
        yield Events(response)


def test_rows_then_changes_then_resumed(served: Running) -> None:
    with listening(served) as events:
        first = events.next()
        assert first["event"] == "rows"
        assert first["id"] == first["token"]
        assert {row["category"]: row["n"] for row in first["rows"]} == {f"c{i}": "5" for i in range(4)}
        served.put({"item_id": 100, "category": "c1", "price": 3})
        change = events.next("changes")
        (one,) = change["changes"]
        assert (one["kind"], one["before"]["n"], one["after"]["n"]) == ("update", "5", "6")
    served.put({"item_id": 101, "category": "new", "price": 3})
    served.put({"item_id": 100, "category": "c2", "price": 3})
    for how in ({"since": change["id"]}, {"last-event-id": change["id"]}, {"since": change["id"].rpartition(":")[2]}):
        with listening(served, **how) as events:
            kinds: list[str] = []
            while len(kinds) < 3:
                kinds += [c["kind"] for c in events.next("changes")["changes"]]
            assert sorted(kinds) == ["insert", "update", "update"]
    with listening(served, since="now") as events:
        served.put({"item_id": 101, "category": "new", "price": 9})
        assert events.next("changes")["changes"][0]["after"]["total"] == "9"


def test_a_table_can_be_followed_too(served: Running) -> None:
    with listening(served, "items") as events:
        assert len(events.next("rows")["rows"]) == 20
        served.http.delete("/v1/items/rows/3")
        assert events.next("changes")["changes"][0]["before"]["item_id"] == "3"


def test_subscribers_that_join_while_changes_come_miss_nothing(served: Running) -> None:
    """Each applies what it gets to the rows it was given; all end with the view."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            served.db.put("items", {"item_id": number % 40, "category": f"c{number % 9}", "price": number})

    writer = threading.Thread(target=write)
    results: list[Any] = []

    def follow(delay: float) -> None:
        time.sleep(delay)
        state: dict[Any, Any] = {}
        with httpx.stream("GET", f"{served.address}/v1/totals/changes", timeout=60) as response:
            events = Events(response)
            state = {row["category"]: row for row in events.next("rows")["rows"]}
            seen: list[str] = []
            while "last" not in state:
                event = events.next()
                if event["event"] == "end":
                    break
                if event["event"] != "changes":
                    continue
                seen.append(event["id"])
                for change in event["changes"]:
                    if change["before"] is not None:
                        assert state.pop(change["before"]["category"]) == change["before"]
                    if change["after"] is not None:
                        assert change["after"]["category"] not in state
                        state[change["after"]["category"]] = change["after"]
            assert len(set(seen)) == len(seen)
        results.append(state)

    followers = [threading.Thread(target=follow, args=(0.05 * i,)) for i in range(12)]
    writer.start()
    for one in followers:
        one.start()
    time.sleep(1.0)
    stop.set()
    writer.join()
    served.db.put("items", {"item_id": 10_000, "category": "last", "price": 1})
    for one in followers:
        one.join(60)
    assert len(results) == 12
    expected = {row["category"]: row for row in served.http.get("/v1/totals/rows").json()["rows"]}
    assert all(state == expected for state in results)


def test_arrow_streams_say_the_same(served: Running) -> None:
    headers = {"accept": "application/vnd.apache.arrow.stream"}
    with served.http.stream("GET", "/v1/totals/changes", headers=headers) as response:
        assert response.headers["content-type"] == headers["accept"]
        reader = pa.ipc.open_stream(_File(response))
        batch, about = reader.read_next_batch_with_custom_metadata()
        assert (about[b"kind"], batch.num_rows) == (b"rows", 4)
        served.put({"item_id": 1, "category": "c1", "price": 50})
        batch, about = reader.read_next_batch_with_custom_metadata()
        assert about[b"kind"] == b"changes"
        assert sorted(batch.column("_w").to_pylist()) == [-1, 1]
        assert about[b"token"].startswith(b"vk1:")


class _File:
    """A response as a file that Arrow reads from."""

    closed = False

    def __init__(self, response: httpx.Response) -> None:
        self._chunks, self._rest = response.iter_raw(), b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size:
            self._rest += next(self._chunks)
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def readable(self) -> bool:
        return True

    def close(self) -> None: ...


def test_signs_of_life_move_the_id_on(shop: None, start: Callable[..., Running]) -> None:
    running = start(maintain=True, limits={"heartbeat": 0.2})
    with listening(running) as events:
        first = events.next("rows")
        running.http.post("/v1/kinds/rows", json={"category": "c1", "boss": "Ada"})
        position = int(first["id"].rpartition(":")[2])
        deadline = time.monotonic() + 60
        while int(events.next("progress")["id"].rpartition(":")[2]) <= position:
            assert time.monotonic() < deadline


def test_a_slow_reader_is_cut_off_and_told(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_QUEUE_BYTES", 20_000)
    host, port = served.address.removeprefix("http://").split(":")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect((host, int(port)))
    slow.sendall(b"GET /v1/items/changes?since=now HTTP/1.1\r\nhost: localhost\r\n\r\n")
    _until_subscribers(served, 1)  # before the first row, of which it would not hear
    with listening(served, "items", since="now") as quick:
        text = "x" * 300_000
        for number in range(25):  # more than the kernel's buffers take
            served.db.put("items", {"item_id": number, "category": text, "price": 1})
            quick.next("changes")
        data = b""
        slow.settimeout(60)
        while b"event: end" not in data[-4000:]:
            piece = slow.recv(1 << 20)
            assert piece, "the stream ended without a word"
            data += piece
        slow.close()
    told = data.rpartition(b"event: end")[2]
    assert b"more slowly" in told
    last = int(told.partition(b"id: ")[2].partition(b"\n")[0].rpartition(b":")[2])
    seen = data.count(b"event: changes")
    with listening(served, "items", since=str(last)) as events:
        rest = 0
        while seen + rest < 25:
            rest += len(events.next("changes")["changes"])
    assert seen + rest == 25


def test_the_end_of_a_view_ends_its_subscriptions(served: Running) -> None:
    with listening(served) as events:
        events.next("rows")
        assert served.http.post("/v1/sql", json={"sql": "DROP MATERIALIZED VIEW totals"}).status_code == 200
        end = events.next("end")
        assert end["code"] == "VK101"
        assert events.ended()


def test_the_end_of_the_server_says_where_to_resume(shop: None, start: Callable[..., Running]) -> None:
    running = start(maintain=True)
    with listening(running) as events:
        first = events.next("rows")
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        end = events.next("end")
        assert end["resume"] == end["id"]
        assert int(end["resume"].rpartition(":")[2]) >= int(first["id"].rpartition(":")[2])
        assert events.ended()
    stopping.join(30)
    again = start(maintain=True)
    with listening(again, since=end["resume"]) as events:
        again.put({"item_id": 1, "category": "c1", "price": 999})
        assert len(events.next("changes")["changes"]) == 1


def test_a_subscriber_that_takes_its_first_rows_is_told_of_the_end_too(
    shop: None, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, piece = start(), changes._read_next_piece

    def slow(source: Any, table: Any) -> Any:
        time.sleep(1.0)
        return piece(source, table)

    monkeypatch.setattr(changes, "_read_next_piece", slow)
    with listening(running) as events:
        ending = threading.Thread(target=running.stop)
        ending.start()
        rows, end = events.next("rows"), events.next("end")
        assert end["resume"] == rows["id"]
        assert "stopping" in end["detail"]
    ending.join()


def test_what_cannot_be_followed(served: Running) -> None:
    for since, status, code in (("vk1:other:1", 400, "VK602"), ("99999", 400, "VK602"), ("x", 400, "VK602")):
        found = served.http.get("/v1/totals/changes", params={"since": since})
        assert (found.status_code, found.json()["code"]) == (status, code)
    assert served.http.get("/v1/nothing/changes").status_code == 404
    served.db._store.truncate(1)
    gone = served.http.get("/v1/items/changes", params={"since": "0"})
    assert (gone.status_code, gone.json()["code"]) == (410, "VK604")


def test_subscribers_have_a_limit(shop: None, start: Callable[..., Running]) -> None:
    running = start(limits={"subscribers": 1})
    with listening(running) as events:
        events.next("rows")
        found = running.http.get("/v1/totals/changes")
        assert (found.status_code, found.json()["code"]) == (503, "VK704")


def test_one_reader_of_the_log_feeds_many(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred subscribers, and each change of the view is read and written down once."""
    encoded: list[Any] = []
    original = hub.encode_delta
    monkeypatch.setattr(hub, "encode_delta", lambda *args: (encoded.append(args[2].kind), original(*args))[1])
    host, port = served.address.removeprefix("http://").split(":")
    many = [socket.create_connection((host, int(port))) for _ in range(200)]
    for one in many:
        one.settimeout(20)
        one.sendall(b"GET /v1/totals/changes?since=now HTTP/1.1\r\nhost: localhost\r\n\r\n")
    for one in many:
        while b"retry" not in one.recv(65536):
            pass
    threads = threading.active_count()
    for price in range(5):
        token = served.put({"item_id": 1, "category": "c1", "price": price})
        served.http.get("/v1/totals/rows", params={"after": token})
    assert threading.active_count() <= threads + 16  # those of requests
    for one in many:
        data = b""
        while data.count(b"event: changes") < 5:
            data += one.recv(1 << 20)
        assert data.count(b"event: changes") == 5
        one.close()
    assert encoded.count("changes") == 5


def test_looking_at_a_subscription_is_none(served: Running) -> None:
    """A HEAD, and a client that goes at once, leave nobody behind in the hub."""
    for parameters in ({"since": "now"}, {}):
        assert served.http.head("/v1/totals/changes", params=parameters).status_code == 200
    with listening(served, since="now"):
        assert served.http.get("/v1/status").json()["subscribers"] == 1
    _until_subscribers(served, 0)


def _until_subscribers(running: Running, count: int) -> None:
    """Wait until the server has so many."""
    deadline = time.monotonic() + 60
    while running.http.get("/v1/status").json()["subscribers"] != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_reader_of_the_first_rows_is_a_subscriber(shop: None, start: Callable[..., Running]) -> None:
    """Who takes the rows that are there slowly holds a state: those have a limit, too."""
    running = start(limits={"subscribers": 2, "seconds": 20.0})
    running.http.post("/v1/items/rows", json=[{"item_id": i, "category": "x" * 1000, "price": 1} for i in range(5_000)])
    with closing_all([_deaf(running, "/v1/items/changes") for _ in range(2)]):
        _until_subscribers(running, 2)  # one that asks before the second has its place would take it
        assert _asked(running, "/v1/items/changes") == 503


def test_the_end_of_a_table_is_told_at_once(served: Running) -> None:
    """Dropping a table writes no row, so the log does not say it."""
    served.db.sql("CREATE TABLE short (k INT, PRIMARY KEY (k))")
    with listening(served, "short", since="now") as events:
        served.db.sql("DROP TABLE short")
        assert events.next("end")["code"] == "VK101"
        assert events.ended()


def test_a_feed_that_breaks_takes_no_other_along(
    shop: None, tmp_path: Path, planned_views: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its subscriber leaves, and another one joins, while it is read."""

    async def run(db: Any) -> None:
        feeds = hub.Hub(db._store, asyncio.get_running_loop())
        table = db._store.catalog().table("items")
        first, at = feeds.subscribe(table, SSE, 0)
        joined: list[hub.Subscriber] = []

        def breaks(*_: Any) -> Any:
            feeds.unsubscribe(table, first)
            joined.append(feeds.subscribe(table, SSE, at)[0])
            raise SnapshotGone("The log was cut.")

        with monkeypatch.context() as patched:
            patched.setattr(following, "deltas_by_call", breaks)
            db.put("items", {"item_id": 1, "category": "a", "price": 1})
            feeds._read_feeds(False)
        db.put("items", {"item_id": 2, "category": "heard", "price": 1})
        feeds._read_feeds(False)
        async with asyncio.timeout(60):
            assert b"heard" in await joined[0].wait_for_events()

    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        asyncio.run(run(db))


@contextmanager
def closing_all(connections: list[socket.socket]) -> Iterator[None]:
    yield
    for connection in connections:
        connection.close()


def _deaf(running: Running, path: str) -> socket.socket:
    """A client that asks and does not read."""
    host, port = running.address.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
    return connection


def _asked(running: Running, path: str) -> int:
    with running.http.stream("GET", path) as response:
        return response.status_code
