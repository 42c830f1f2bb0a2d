"""`vk serve` as a process: SIGTERM ends it in order, SIGKILL loses nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from tests.contract import planned
from tests.integration.server.conftest import Running, filled

import viewkeeper as vk
from viewkeeper.server import process
from viewkeeper.server.hub import Hub

_RUN = """
import sys
sys.path[:0] = [{root!r}]
from tests.contract import planned
planned.install()
from viewkeeper.cli import main
main(sys.argv[1:])
"""
ROOT = str(Path(__file__).parents[3])


class Process:
    """`vk serve --maintain`, started anew where it was."""

    def __init__(self, place: Path, *options: str) -> None:
        self.place, self.options, self.port = place, options, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", _RUN.format(root=ROOT), "serve", "--db", f"lmdb:{self.place}"]
        command += ["--listen", f"127.0.0.1:{self.port}", *self.options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, self.process.stderr.read() if self.process.stderr else ""
        self.address = "http://" + line.partition("http://")[2].partition(";")[0]
        self.port = int(self.address.rpartition(":")[2])

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


@pytest.fixture
def place(tmp_path: Path, planned_views: None) -> Path:
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        filled(db)
    return tmp_path / "db"


def test_sigterm_ends_it_in_order(place: Path) -> None:
    server = Process(place, "--maintain")
    try:
        with httpx.stream("GET", f"{server.address}/v1/totals/changes", timeout=30) as response:
            lines = response.iter_lines()
            next(line for line in lines if line.startswith("id: "))
            httpx.post(f"{server.address}/v1/items/rows", json={"item_id": 1, "category": "c1", "price": 50})
            server.process.send_signal(signal.SIGTERM)
            rest = "\n".join(lines)
        assert "event: end" in rest
        assert "resume" in rest
    finally:
        code = server.end(signal.SIGTERM)
    assert code == 0
    with vk.open(f"lmdb:{place}") as db:
        assert db.status().maintainer is None
        report = db.refresh()
        assert db.get("totals", "c1") is not None
        assert report.epoch >= 1


def test_sigterm_again_and_again_ends_it_in_order(place: Path) -> None:
    """Whenever it comes: while the server stops, while the database is closed, while Python ends."""
    server = Process(place, "--maintain")
    while server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.002)
    assert server.end(signal.SIGTERM) == 0
    with vk.open(f"lmdb:{place}") as db:
        assert db.status().maintainer is None


def test_sigterm_before_the_server_is_ready_ends_it() -> None:
    code = """
import signal
from viewkeeper.cli.run_loop import announce_when_ready
with announce_when_ready("shop", False) as ready:
    signal.raise_signal(signal.SIGTERM)
    ready("http://here", lambda: print("stopped"))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (0, "stopped\n"), found.stderr


def test_signals_are_heard_whatever_the_main_thread_is_at() -> None:
    """Thousands of them, while it begins to wait, waits and has waited: as `vk run` does, five times a second."""
    code = """
import signal, time
from viewkeeper.cli.run_loop import StopFlag
over, heard = [StopFlag()], []
signal.signal(signal.SIGALRM, lambda *_: (heard.append(1), over[0].set()))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
until = time.monotonic() + 2
while time.monotonic() < until:
    over[0] = StopFlag()
    over[0].wait(0.0004)
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(heard) > 100)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (0, "True\n"), found.stderr


def test_sigterm_ends_a_load(tmp_path: Path, planned_views: None) -> None:
    """It does not wait for it: the statement is told, nothing was made, and the next one resumes."""
    place, rows = tmp_path / "db", np.arange(600_000)
    with vk.open(f"lmdb:{place}") as db:
        db.sql(planned.TABLES[0])
        db.put("items", pa.table({"item_id": rows, "category": pa.array(["a"] * len(rows)), "price": rows % 100}))
    server = Process(place, "--maintain")
    create = f"CREATE MATERIALIZED VIEW dear WITH (load_rate = 10000) AS {planned.DEAR}"
    try:
        body = {"sql": create}
        with httpx.stream(
            "POST", f"{server.address}/v1/sql", json=body, headers={"accept": "text/event-stream"}, timeout=60
        ) as response:
            lines = response.iter_lines()
            next(line for line in lines if "scanning items" in line)
            server.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            rest = "\n".join(lines)
        assert "The server is stopping: nothing was done." in rest
        assert server.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < 40, "a minute of the load was left"
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)
    with vk.open(f"lmdb:{place}") as db:
        assert not db.status().views
        db.sql(create.replace("WITH (load_rate = 10000) ", ""))
        assert db.read("dear").num_rows > 0


def test_sigterm_ends_what_has_not_begun(place: Path) -> None:
    """Half a body, and queries: a problem for each, and no waiting for them."""
    with vk.open(f"lmdb:{place}") as db:
        db.put("items", [{"item_id": i, "category": "same", "price": i} for i in range(5_000)])
    server = Process(place)
    joined = "items a JOIN items b ON a.category = b.category JOIN items c ON a.category = c.category"
    found: dict[str, httpx.Response] = {}

    def ask(headers: dict[str, str]) -> None:
        query = f"SELECT count(*) AS n FROM {joined}"
        given = {"content-type": "application/sql", **headers}
        found[str(headers)] = httpx.post(f"{server.address}/v1/sql", content=query, headers=given, timeout=60)

    ways = ({}, {"accept": "text/event-stream"})
    threads = [threading.Thread(target=ask, args=[headers]) for headers in ways]
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            head = "POST /v1/items/rows HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            half.sendall(f'{head}content-length: 100\r\n\r\n[{{"item_id": 77777,'.encode())
            for thread in threads:
                thread.start()
            while 'viewkeeper_reads_total{kind="sql"} 2.0' not in httpx.get(f"{server.address}/metrics").text:
                time.sleep(0.05)
            server.process.send_signal(signal.SIGTERM)
            answer = b"".join(iter(lambda: half.recv(65_536), b"")).decode()
        for thread in threads:
            thread.join(60)
    finally:
        code = server.end(signal.SIGTERM)
    assert code == 0
    problem = "The server is stopping: nothing was done."
    assert answer.startswith("HTTP/1.1 503")
    assert "retry-after: 1\r\n" in answer
    assert problem in answer
    plain, told = (found[str(headers)] for headers in ways)
    assert (plain.status_code, plain.json()["code"], plain.json()["detail"]) == (503, "VK704", problem)
    assert plain.headers["retry-after"] == "1"
    assert "event: error" in told.text
    assert problem in told.text
    with vk.open(f"lmdb:{place}", mode="r") as db:
        assert db.get("items", 77777) is None


def test_what_is_not_written_in_time_is_told_so(
    shop: None, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.5)
    served, begun, go_on = start(), threading.Event(), threading.Event()
    put = served.db.put

    def slowly(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return put(*given)

    monkeypatch.setattr(served.db, "put", slowly)
    answers: list[httpx.Response] = []

    def write() -> None:
        answers.append(served.http.post("/v1/items/rows", json={"item_id": 99, "category": "c1", "price": 1}))
        go_on.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(60)
    try:
        served.stop()
    finally:
        go_on.set()
        writer.join(60)
    [answer] = answers
    assert (answer.status_code, answer.json()["code"]) == (503, "VK704")
    assert answer.json()["hint"] == "It may still be: look before you repeat it."
    assert answer.headers["retry-after"] == "1"


def test_a_read_that_waits_for_a_batch_is_told_so(
    shop: None, start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else maintains, and makes no batch: the server does not wait for it as long as the reads would."""
    waits: Queue[Any] = Queue()
    news = Hub.wait_for_commit

    async def noted(hub: Hub, timeout: float) -> None:
        waits.put(asyncio.current_task())
        await news(hub, timeout)

    monkeypatch.setattr(Hub, "wait_for_commit", noted)
    answers: Queue[httpx.Response] = Queue()
    with vk.open(f"lmdb:{tmp_path / 'db'}") as other:
        other.sql(f"CREATE MATERIALIZED VIEW bosses AS {planned.BOSSES}")  # of two tables: nothing but a batch helps
        served = start()
        token = served.put({"item_id": 1, "category": "c1", "price": 7})
        asked = (f"/v1/bosses/rows/1?after={token}", f"/v1/bosses/rows?after={token}", "/v1/bosses/rows?level=latest")

        def read(path: str) -> None:
            answers.put(served.http.get(path + "&timeout=30"))

        readers = [threading.Thread(target=read, args=[path]) for path in asked]
        for reader in readers:
            reader.start()
        waiting: set[Any] = set()
        while len(waiting) < len(asked):
            waiting.add(waits.get(timeout=60))
        assert answers.empty()
        served.stop()
        for reader in readers:
            reader.join(60)
        found = [answers.get(timeout=60) for _ in asked]
    for answer in found:
        assert (answer.status_code, answer.json()["code"]) == (503, "VK704")
        assert answer.json()["detail"] == "The server is stopping: nothing was done."
        assert answer.headers["retry-after"] == "1"


def test_a_port_that_is_taken_and_a_database_that_is_not_there(place: Path, tmp_path: Path) -> None:
    server = Process(place)
    try:
        for arguments in (
            ["--db", f"lmdb:{place}", "--listen", f"127.0.0.1:{server.port}"],
            ["--db", f"lmdb:{tmp_path / 'nothing'}"],
            ["--db", f"lmdb:{place}", "--listen", "0.0.0.0:0"],
        ):
            found = subprocess.run(
                [sys.executable, "-m", "viewkeeper", "serve", *arguments], capture_output=True, text=True, timeout=60
            )
            assert found.returncode == 1, found.stderr
            assert found.stderr.startswith("error[VK")
            assert found.stderr.count("\n") == 1
    finally:
        server.end(signal.SIGTERM)


def _killed(place: Path, kills: int) -> None:
    """A writer and subscribers go on while their server is killed again and again."""
    server = Process(place, "--maintain")
    acknowledged: list[int] = []
    stop = threading.Event()
    states: list[dict[str, Any]] = []
    problems: list[BaseException] = []

    def write() -> None:
        number = 1000
        with vk.connect(server.address) as client:
            while not stop.is_set():
                number += 1
                try:
                    client.put("items", {"item_id": number, "category": f"c{number % 5}", "price": 1})
                    acknowledged.append(number)
                except vk.ViewkeeperError:  # the server is gone: the row may be there or not
                    acknowledged.append(-number)
                    time.sleep(0.05)

    def follow() -> None:
        state: dict[str, Any] = {}
        try:
            with vk.connect(server.address, retry=120) as client:
                for delta in client.subscribe("totals", timeout=120):
                    for change in delta.changes():
                        if change.before is not None:
                            assert state.pop(change.before["category"]) == change.before
                        if change.after is not None:
                            assert change.after["category"] not in state
                            state[change.after["category"]] = change.after
                    if "last" in state:
                        states.append(state)
                        return
        except BaseException as error:
            problems.append(error)

    followers = [threading.Thread(target=follow) for _ in range(4)]
    writer = threading.Thread(target=write)
    for one in (*followers, writer):
        one.start()
    try:
        for _ in range(kills):
            time.sleep(1.5)
            assert server.end(signal.SIGKILL) == -signal.SIGKILL
            server.start()
        time.sleep(1.0)
        stop.set()
        writer.join(60)
        httpx.post(f"{server.address}/v1/items/rows", json={"item_id": 9, "category": "last", "price": 1})
        for one in followers:
            one.join(120)
        expected = httpx.get(f"{server.address}/v1/totals/rows?level=latest&timeout=30").json()["rows"]
    finally:
        stop.set()
        server.end(signal.SIGTERM)
    assert problems == []
    assert len(states) == 4
    counts = {row["category"]: int(row["n"]) for row in expected}
    assert all({name: row["n"] for name, row in state.items()} == counts for state in states)
    with vk.open(f"lmdb:{place}", mode="r") as db:
        there = set(db.read("items")["item_id"].to_pylist())
    assert {n for n in acknowledged if n > 0} <= there
    assert len(acknowledged) > 10, json.dumps(acknowledged[:20])


def test_killed_under_load_subscribers_lose_and_double_nothing(place: Path) -> None:
    _killed(place, 1)


@pytest.mark.deep
def test_killed_again_and_again(place: Path) -> None:
    _killed(place, 8)
