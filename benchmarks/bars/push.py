"""HBase's changes, pushed and polled side by side, in one run on one HBase.

    freshness   a plain client puts at an offered rate; from its acknowledgement until a reader that looks every 3 ms
                has read it in the view: p50, p99
    idle        CPU of HBase and its gateway while tables lie idle and the database is maintained; what they take alone
    writers     rows a second that a plain client puts flat out while the database is maintained, with the push on and
                off; and what each process takes of the processors for a written row

The bars: pushed p50 at most 80 ms at 1,000 changes a second and at most half of polling's; idle CPU with 100 tables at
most a tenth of polling's; writers at least 0.95. The maintainer is `vk run` in a process of its own; writer and watcher
are threads of this one with a connection each. In the seeds (dissertation 4.5) reading the WAL was 1.2 to 3 times
slower than an observer in the region server.
"""

from __future__ import annotations

import os
import secrets
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import viewkeeper as vk
from viewkeeper.errors import StoreError
from viewkeeper_hbase.devserver.server import Server, free_port
from viewkeeper_hbase.layout.layout import MARK_VALUE
from viewkeeper_hbase.push import admin, settings
from viewkeeper_hbase.push.settings import PushAgreement
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway

TABLE = "CREATE TABLE events (id BIGINT PRIMARY KEY, writer INT, number BIGINT)"
NEWEST = "CREATE MATERIALIZED VIEW newest AS SELECT writer, max(number) AS number FROM events GROUP BY writer"
KEYS = 20_000
WAYS = ("poll", "push")
MEASURES = ("freshness", "writers", "idle")
PAUSE = 50
"""What `vk hbase push enable` takes."""


Results = dict[str, tuple[float, float, str]]
"""By name: pushed, polled (or off), and what it is."""

_WHOSE = ("of HBase", "of its gateway", "of the maintainer", "of the writer")


@dataclass
class Setting:
    """A database in a namespace of its own, to which HBase pushes."""

    server: Server
    url: str
    push_settings: PushAgreement
    admin: admin.PushAdmin
    layout: Any
    secret: bytes

    def client(self) -> HBaseClient:
        return HBaseClient(Gateway(self.server.host, self.server.port))

    def enable_push(self) -> None:
        self.admin.enable(self.push_settings, self.secret, None, None, PAUSE)

    def disable_push(self) -> None:
        with suppress(StoreError):
            self.admin.remove(self.push_settings.peer)

    @contextmanager
    def run_maintainer(self, capture: str) -> Iterator[int]:
        """`vk run`, until left; it has made its first batches when this is entered. Gives its process."""
        command = [sys.executable, "-m", "viewkeeper", "run", "--db", f"{self.url}&capture={capture}"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            time.sleep(8)
            yield process.pid
            process.terminate()


@contextmanager
def setting(server: Server, scratch: Path) -> Iterator[Setting]:
    namespace = f"bench_{secrets.token_hex(4)}"
    url = f"hbase://{server.host}:{server.port}/{namespace}?create=true&state={scratch / namespace}"
    agreed = PushAgreement(f"p{namespace}", (f"127.0.0.1:{free_port()}",), (namespace,))
    with vk.open(url) as db:
        db.sql(TABLE)
        db.put("events", pa.table({"id": range(KEYS), "writer": [0] * KEYS, "number": [0] * KEYS}))
        db.sql(NEWEST)
        layout = db._store._layouts.layout_of(db._store.catalog().table("events"))
        secret = settings.read_secret(settings.push_directory(db._store.state_path), create=True)
        made = Setting(server, url, agreed, admin.PushAdmin(server.data / "conf"), layout, secret)
        made.enable_push()
        db._store.put_note(settings.AGREEMENT_NOTE, agreed.to_json())
    try:
        yield made
    finally:
        made.disable_push()


def freshness(push_setting: Setting, capture: str, rate: int, seconds: float) -> tuple[float, float]:
    """p50 and p99, in milliseconds, from a put's acknowledgement until the view shows it."""
    acknowledged: list[tuple[int, float]] = []
    seen: list[tuple[int, float]] = []
    stopped = threading.Event()

    def watch() -> None:
        with vk.open(push_setting.url, "r", cache=0) as db:
            shown = 0
            while not stopped.is_set():
                time.sleep(0.003)
                published = db._store._opened.records.state().published  # one get: the watcher is to disturb little
                if published == shown:
                    continue
                shown = published
                row = db.get("newest", 1)
                now = time.perf_counter()
                if row is not None and (not seen or row["number"] > seen[-1][0]):
                    seen.append((row["number"], now))

    with push_setting.run_maintainer(capture), push_setting.client() as client:
        watcher = threading.Thread(target=watch)
        watcher.start()
        began, number = time.perf_counter(), time.time_ns()
        at_once = max(1, rate // 100)
        for turn in range(int(rate * seconds / at_once)):
            time.sleep(max(0.0, began + turn * at_once / rate - time.perf_counter()))
            put(client, push_setting.layout, np.arange(turn * at_once, (turn + 1) * at_once) % KEYS, number + turn)
            acknowledged.append((number + turn, time.perf_counter()))
        time.sleep(3)
        stopped.set()
        watcher.join()
    numbers, times = np.array([n for n, _ in seen]), np.array([t for _, t in seen])
    sent, done = np.array([n for n, _ in acknowledged]), np.array([t for _, t in acknowledged])
    place = np.searchsorted(numbers, sent)
    late = 1000 * (times[np.minimum(place, len(times) - 1)] - done)[place < len(times)]
    late = late[len(late) // 5 :]  # the first fifth warms it up
    return float(np.percentile(late, 50)), float(np.percentile(late, 99))


def put(client: HBaseClient, layout: Any, ids: Any, number: int) -> None:
    """What a plain client does: it knows the layout of the cells, and no more of us."""
    keys = layout.keys.encode(pa.table({"id": pa.array(ids, pa.int64())}))
    same = len(ids)
    cells = {b"c:": MARK_VALUE, b"c:writer": struct.pack(">i", 1), b"c:number": struct.pack(">q", number)}
    client.put_rows(layout.name, keys, {name: pa.array([value] * same, pa.binary()) for name, value in cells.items()})


def idle(push_setting: Setting, capture: str, seconds: float) -> tuple[float, float]:
    """CPU seconds a second of HBase and of its gateway while nothing is written.

    Polling is what a database without a push does: no peer is there either.
    """
    if capture == "push":
        push_setting.enable_push()
    else:
        push_setting.disable_push()
    with push_setting.run_maintainer(capture):
        time.sleep(seconds)  # what begins with it, and what Java compiles of that
        return rest(push_setting.server, seconds)


def written(push_setting: Setting, seconds: float) -> float:
    """Rows a second of one plain client that puts 500 at a time."""
    with push_setting.client() as client:
        done, began, number = 0, time.perf_counter(), time.time_ns()
        while time.perf_counter() - began < seconds:
            put(client, push_setting.layout, np.arange(done, done + 500) % KEYS, number)
            done += 500
        return done / (time.perf_counter() - began)


def writers(push_setting: Setting, seconds: float, turns: int) -> Results:
    """Both ways by turns, each with a maintainer of its own; a first turn of each is for Java's compiler."""
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    order = [("push", "poll"), ("poll", "push")]  # so that a server that grows warm favours neither
    for turn in range(turns + 1):
        for way in order[turn % 2]:
            if way == "push":
                push_setting.enable_push()
            else:
                push_setting.disable_push()
            with push_setting.run_maintainer(way) as maintainer:
                status = push_setting.server.status()
                asked = [p for p in (status.hbase_pid, status.gateway_pid, maintainer, os.getpid()) if p]
                written(push_setting, seconds / 5)  # until batches are as they will be
                before = [_cpu(process) for process in asked]
                rate = written(push_setting, seconds)
                spent = [_cpu(process) - then for process, then in zip(asked, before, strict=True)]
            if turn:
                found[way].append([rate, *(1e6 * each / (rate * seconds) for each in spent)])
    on, off = (np.median(found[way], axis=0) for way in ("push", "poll"))
    units = ["rows/s of one plain client, the median of turns; second column: push off"]
    units += [f"microseconds of the processor for a row that it writes, {whose}" for whose in _WHOSE]
    names = ["writers", *(f"w {whose.split()[-1]}" for whose in _WHOSE)]
    return {name: (float(a), float(b), unit) for name, a, b, unit in zip(names, on, off, units, strict=True)}


def measure(
    server: Server, scratch: Path, small: bool, rates: Sequence[int] = (), only: Sequence[str] = MEASURES
) -> Results:
    seconds = 5.0 if small else 10.0
    rates = rates or ((1_000,) if small else (10, 1_000, 5_000))
    results: Results = {}
    with setting(server, scratch) as made:
        if "freshness" in only:
            for way in WAYS:  # a Java that has just started spends more on compiling itself than on all the rest
                freshness(made, way, 1_000, 2.0 if small else 40.0 if way == "push" else 20.0)
            for rate in rates:
                (poll50, poll99), (push50, push99) = (freshness(made, way, rate, seconds) for way in WAYS)
                results[f"p50@{rate}"] = (push50, poll50, "ms from a plain client's ack until the view shows it")
                results[f"p99@{rate}"] = (push99, poll99, "ms")
        if "writers" in only:
            results |= writers(made, seconds / 2, 1 if small else 6)
        if "idle" in only:
            results |= resting(made, (1, 10) if small else (1, 10, 100), seconds if small else 2 * seconds)
    return results


def resting(push_setting: Setting, counts: Sequence[int], seconds: float) -> Results:
    """What idle tables cost, and what HBase takes by itself: with no peer, and nobody who maintains."""
    results: Results = {}
    for count in counts:
        with vk.open(push_setting.url) as db:
            for n in range(len(db._store.catalog().tables), count):
                db.sql(f"CREATE TABLE idle{n} (id BIGINT PRIMARY KEY, v STRING)")
        time.sleep(5 + count / 10)  # what making them left to do
        polled, pushed = (idle(push_setting, way, seconds if count == counts[-1] else seconds / 4) for way in WAYS)
        results[f"idle@{count}"] = (sum(pushed), sum(polled), "CPU seconds a second of HBase and gateway, idle tables")
    for which, name in enumerate(("hbase", "gateway")):
        results[name] = (pushed[which], polled[which], f"of these with {counts[-1]} tables, the {name}'s")
    push_setting.disable_push()
    time.sleep(seconds)
    alone = sum(rest(push_setting.server, seconds))
    results["alone"] = (alone, alone, "the same with no peer and while nobody maintains: HBase's own, both columns")
    results["beyond"] = (sum(pushed) - alone, sum(polled) - alone, f"what {counts[-1]} idle tables cost beyond that")
    return results


def rest(server: Server, seconds: float) -> tuple[float, float]:
    """CPU seconds a second of HBase, and of its gateway."""
    status = server.status()
    asked = [process for process in (status.hbase_pid, status.gateway_pid) if process]
    before = [_cpu(process) for process in asked]
    time.sleep(seconds)
    hbase, gateway = ((_cpu(process) - then) / seconds for process, then in zip(asked, before, strict=True))
    return hbase, gateway


def _cpu(process: int) -> float:
    """Seconds of the processor that it has had."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
