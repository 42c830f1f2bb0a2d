"""The client's connections, against a server and against sockets that do what servers and proxies may do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.server.conftest import Running

import viewkeeper as vk
from viewkeeper.client.async_client import connect_async
from viewkeeper.client.http import ConnectionPool, receive_answer
from viewkeeper.errors import BadValue, StoreError, TooLarge, Unreachable

ALIVE = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"tables":[]}'


@contextmanager
def fake(*connections: list[bytes]) -> Iterator[tuple[str, Queue[bytes]]]:
    """Accepts as many connections, answers the requests of each with these bytes in turn, then closes it."""
    heard: Queue[bytes] = Queue()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answers in connections:
                connection, _ = listening.accept()
                with connection:
                    for answer in answers:
                        asked = b""
                        while b"\r\n\r\n" not in asked:
                            if not (piece := connection.recv(65_536)):
                                return
                            asked += piece
                        heard.put(asked)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", heard
        thread.join(60)
        assert not thread.is_alive()


def test_a_connection_is_kept_and_one_that_was_closed_is_not_used(served: Running) -> None:
    with fake([ALIVE, ALIVE], [ALIVE]) as (address, heard), vk.connect(f"http://{address}") as client:
        for _ in range(3):
            assert client.tables() == []
        assert heard.qsize() == 3
    with vk.connect(served.address) as client:
        found = []
        threads = [threading.Thread(target=lambda: found.append(client.get("items", 3))) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [served.db.get("items", 3)] * 24
    with pytest.raises(StoreError, match="closed"):
        client.tables()


def test_a_connection_that_is_closed_while_a_call_is_on_its_way() -> None:
    """The server hears the second call of its connection and closes it: the answer to a read comes over another one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        heard: list[bytes] = []

        def serve() -> None:
            for answers in (1, 2, 0):
                connection, _ = listening.accept()
                with connection:
                    for _ in range(answers):
                        heard.append(connection.recv(65_536).split(b" ")[0])
                        connection.sendall(ALIVE)
                    heard.append(connection.recv(65_536).split(b" ")[0])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        connections = ConnectionPool(f"http://{address}", None, True)
        assert connections.request("GET", "/a", None, {}, 10).status == 200
        assert connections.request("GET", "/b", None, {}, 10).status == 200  # closed, and asked again
        assert connections.request("GET", "/c", None, {}, 10).status == 200
        with pytest.raises(ConnectionError):
            connections.request("POST", "/d", b"rows", {}, 10)  # who knows whether they were written
        with pytest.raises(ConnectionError):
            connections.request("GET", "/e", None, {}, 10)  # on a new connection: the server does not answer
        thread.join(60)
        connections.close()
    assert heard == [b"GET", b"GET", b"GET", b"GET", b"POST", b"GET"]


def test_an_asyncio_client_asks_a_read_again_too() -> None:
    with fake([ALIVE], [ALIVE, b""], [ALIVE]) as (address, heard):

        async def ask() -> list[object]:
            async with connect_async(f"http://{address}") as client:
                return [await client.tables() for _ in range(3)]

        assert asyncio.run(ask()) == [[], [], []]
        assert heard.qsize() == 4


def test_answers_that_end_otherwise(served: Running) -> None:
    chunked = ALIVE.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
    pieces = b'5\r\n{"tab\r\n7\r\nles":[]\r\n1\r\n}\r\n0\r\n\r\n'
    until_closed = ALIVE.replace(b"Content-Length", b"X-Length")
    with (
        fake([chunked + pieces, ALIVE], [until_closed], [ALIVE]) as (address, _),
        vk.connect(f"http://{address}") as db,
    ):
        for _ in range(4):
            assert db.tables() == []
    early = b"HTTP/1.1 100 Continue\r\n\r\n" + ALIVE
    old = ALIVE.replace(b"HTTP/1.1", b"HTTP/1.0")
    last = ALIVE.replace(b"Content-Type", b"Connection: Close\r\nContent-Type")
    twice = ALIVE.replace(b"Content-Type", b"Content-Type: a/b\r\nContent-Type")
    with (
        fake([early, twice, ALIVE + b"x"], [old], [last], [ALIVE]) as (address, _),
        vk.connect(f"http://{address}") as db,
    ):
        for _ in range(6):
            assert db.tables() == []
    for broken in (b"", ALIVE[:-4], b"SSH-2.0-x\r\n\r\n", chunked + pieces[:9]):
        with (
            fake([broken]) as (address, _),
            vk.connect(f"http://{address}") as db,
            pytest.raises(Unreachable, match="cannot be reached"),
        ):
            db.tables()


@pytest.mark.parametrize("size", [1, 7, 40, len(ALIVE)])
def test_an_answer_that_comes_in_parts(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def say() -> None:
            for at in range(0, len(ALIVE), size):
                theirs.sendall(ALIVE[at : at + size])

        thread = threading.Thread(target=say)
        thread.start()
        found = receive_answer(ours, "GET")
        thread.join(60)
    assert (found.status, found.body, found.closes_connection) == (200, b'{"tables":[]}', False)
    assert found.headers == {"content-type": "application/json", "content-length": "13"}


def test_what_an_address_may_say() -> None:
    with fake([ALIVE], [ALIVE]) as (address, heard):
        with vk.connect(f"http://me:p%40ss@{address}/behind/") as client:
            client.tables()
        with vk.connect(f"http://me:p%40ss@{address}", token="secret") as client:
            client.tables()
        head = heard.get(timeout=60).decode()
        assert head.startswith(f"GET /behind/v1/tables HTTP/1.1\r\nhost: {address}\r\n")
        assert "authorization: Basic bWU6cEBzcw==\r\n" in head
        assert "authorization: Bearer secret\r\n" in heard.get(timeout=60).decode()
    for wrong in ("http://", "http://host:port", "http:///v1", "host:80"):
        with pytest.raises(BadValue):
            vk.connect(wrong)
    for token in ("a\r\nx: y", "tök"):
        with pytest.raises(BadValue, match="token"):
            vk.connect("http://127.0.0.1:9", token=token)
    for gone in ("http://127.0.0.1:9", "http://[::1]:9", "http://no.such.host.invalid", f"http://{'x' * 70}.y"):
        with vk.connect(gone) as client, pytest.raises(Unreachable, match="cannot be reached"):
            client.tables()


def test_a_body_that_is_refused_unread(shop: None, start: Callable[..., Running]) -> None:
    running = start(limits={"body": 100_000})
    rows: Any = pa.table({"item_id": range(2_000_000), "category": ["c"] * 2_000_000})
    with vk.connect(running.address) as client:
        client.put("items", rows.slice(0, 1_000))
        for size in (20_000, 2_000_000):
            with pytest.raises(TooLarge, match="more than 100000 bytes"):
                client.put("items", rows.slice(0, size))
        assert client.put("items", rows.slice(0, 10)).atomic
    assert running.db.read("items").num_rows == 1_000
