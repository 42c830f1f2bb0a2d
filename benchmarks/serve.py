"""The server: point reads, subscribers and puts over HTTP, with server, maintainer and clients on one machine.

    reads         keep-alive connections that GET one row as JSON, while a writer puts rows and batches run: requests a
                  second, p50, p99; and the embedded `get` of the same rows beside it, as the ratio
    subscribers   1,000 readers of one view's changes, 10 batches a second: every reader has every batch, once
    puts          an Arrow stream by POST against `Database.put` of the same rows, by turns: into another database that
                  has its maintainer in the same process, as the server has, and into the same database without. Each
                  from a process of its own: a client has no maintainer that would hold it up

The bars (2 cores, clients included): at least 5,000 requests a second with p99 at most 20 ms while batches run; 1,000
subscribers without loss; a put within 1.3 of the embedded one with a maintainer beside it. Server and clients are
separate processes; the server maintains.

    python benchmarks/serve.py [--small] [--seconds N] [--only reads,subscribers,puts] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bars.asked import some_of

ROWS = 100_000
CONNECTIONS = 16
TABLE = "CREATE TABLE items (item_id BIGINT, category STRING, price DECIMAL(12,2), amount INT, PRIMARY KEY (item_id))"
VIEW = "SELECT category, count(*) AS n, sum(price) AS total FROM items GROUP BY category"
PARTS = {"reads": "point reads by JSON", "subscribers": "subscribers", "puts": "puts by Arrow stream"}
TURNS = {1_000: 241, 10_000: 91, 100_000: 31}
"""Of puts by size: a median of short ones needs more of them to be of the same worth."""
BARS = {"requests_per_second": 5_000, "p99_ms": 20.0, "lost": 0, "doubled": 0, "put_ratio": 1.3}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--small", action="store_true", help="half a minute in all, to see that it runs")
    options.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    options.add_argument(
        "--only", type=some_of(PARTS), default=list(PARTS), help="some of the parts, with commas between"
    )
    options.add_argument("--json", type=Path, default=None, help="write the results there")
    options.add_argument("--role", nargs=2, metavar=("ROLE", "OPTIONS"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.role:
        print(json.dumps(ROLES[given.role[0]](json.loads(given.role[1]))))
        return
    seconds = 3.0 if given.small else given.seconds
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="vk-serve-") as scratch:
        url, beside = prepare(f"{scratch}/db"), prepare(f"{scratch}/beside")
        sizes = (1_000, 10_000) if given.small else (1_000, 10_000, 100_000)
        with server(url) as address:
            parts = {
                "reads": lambda: reads(url, address, seconds),
                "subscribers": lambda: subscribers(address, 100 if given.small else 1_000, seconds),
                "puts": lambda: puts(url, beside, address, sizes),
            }
            for name in given.only:
                results[name] = parts[name]()
                show(PARTS[name], results[name])
    verdict(results)
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def prepare(place: str) -> str:
    import viewkeeper as vk

    url = f"lmdb:{place}"
    with vk.open(url) as db:
        db.sql(TABLE)
        db.put("items", some_items(np.arange(ROWS)))
        db.sql(f"CREATE MATERIALIZED VIEW by_category AS {VIEW}")
    return url


def some_items(ids: Any) -> Any:
    import pyarrow as pa

    amounts = np.random.default_rng().integers(1, 1000, len(ids))
    columns = {
        "item_id": pa.array(ids, pa.int64()),
        "category": pa.array([f"c{i}" for i in ids % 1000]),
        "price": pa.array(amounts, pa.int32()).cast(pa.decimal128(12, 2)),
        "amount": pa.array(amounts, pa.int32()),
    }
    return pa.table(columns)


@contextmanager
def server(url: str) -> Iterator[str]:
    arguments = [sys.executable, "-m", "viewkeeper", "serve", "--maintain", "--db", url, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield line.partition("http://")[2].partition(";")[0].strip()
    finally:
        process.terminate()
        process.wait(30)


# -- the measurements -------------------------------------------------------------------------------------------------


def reads(url: str, address: str, seconds: float) -> list[dict[str, Any]]:
    found = []
    for loaded in (False, True):
        writer = role("writer", {"address": address, "seconds": seconds + 2, "pause": 0.05}) if loaded else None
        got = said(role("reader", {"address": address, "seconds": seconds, "connections": CONNECTIONS}))
        wrote = said(writer) if writer is not None else {"puts": 0, "seconds": 1.0}
        took = np.array(got["seconds_each"]) * 1000
        embedded = said(role("embedded", {"url": url, "seconds": min(seconds, 3.0)}))
        rate = got["requests"] / got["seconds"]
        found.append(
            {
                "batches": "run" if loaded else "rest",
                "requests_per_second": round(rate),
                "p50_ms": round(float(np.percentile(took, 50)), 2),
                "p99_ms": round(float(np.percentile(took, 99)), 2),
                "failed": got["failed"],
                "puts_per_second": round(wrote["puts"] / wrote["seconds"], 1),
                "embedded_per_second": round(embedded["reads"] / embedded["seconds"]),
                "ratio": round(embedded["reads"] / embedded["seconds"] / rate, 1),
            }
        )
    return found


def subscribers(address: str, count: int, seconds: float) -> list[dict[str, Any]]:
    listener = role("listener", {"address": address, "seconds": seconds + 5, "count": count})
    assert listener.stdout is not None
    listener.stdout.readline()  # all have joined
    wrote = said(role("writer", {"address": address, "seconds": seconds, "pause": 0.1}))
    heard = said(listener)
    row = {
        "subscribers": count,
        "batches": heard["most"],
        "per_second": round(wrote["puts"] / wrote["seconds"], 1),
        "events": heard["events"],
        "lost": heard["lost"],
        "doubled": heard["doubled"],
        "late_p50_ms": heard["late_p50_ms"],
        "late_p99_ms": heard["late_p99_ms"],
    }
    return [row]


def puts(url: str, beside: str, address: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Puts by turns, each of other rows and from a process of its own; the medians are compared."""
    ways = {
        "alone": role("putter", {"url": url, "maintains": False}),
        "embedded": role("putter", {"url": beside, "maintains": True}),
        "served": role("putter", {"url": f"http://{address}", "maintains": False}),
    }
    for way in ways.values():
        _heard(way)
    found = []
    for size in sizes:
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(TURNS[size]):
            for name in list(ways)[:: 1 if turn % 2 else -1]:
                for maintained in ("served", "embedded"):  # those who maintain refresh at once: no batch runs meanwhile
                    _told(ways[maintained], 0, 0)
                times[name].append(float(_told(ways[name], size, turn)))
        took = {name: float(np.median(each[2:])) for name, each in times.items()}
        found.append(
            {
                "rows": size,
                "alone_ms": round(took["alone"], 2),
                "embedded_ms": round(took["embedded"], 2),
                "served_ms": round(took["served"], 2),
                "put_ratio": round(took["served"] / took["embedded"], 2),
                "ratio_alone": round(took["served"] / took["alone"], 2),
            }
        )
    for way in ways.values():
        said(way)
    return found


def _told(process: subprocess.Popen[str], size: int, first: int) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{size} {first}\n")
    process.stdin.flush()
    return _heard(process)


def _heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


# -- the processes ----------------------------------------------------------------------------------------------------


def role(name: str, options: dict[str, Any]) -> subprocess.Popen[str]:
    arguments = [sys.executable, __file__, "--role", name, json.dumps(options)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate()
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


class Reader(asyncio.Protocol):
    """One connection that asks for row after row: as little of a client as there can be."""

    def __init__(self, keys: list[int], host: str) -> None:
        self.requests = [f"GET /v1/items/rows/{key} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode() for key in keys]
        self.took: list[float] = []
        self.failed = self.next = 0
        self.stopped = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.at = time.perf_counter()
        self.transport.write(self.requests[self.next % len(self.requests)])
        self.next += 1

    def data_received(self, data: bytes) -> None:
        self.took.append(time.perf_counter() - self.at)  # an answer is smaller than a segment
        self.failed += not data.startswith(b"HTTP/1.1 200")
        if self.stopped:
            self.transport.close()
        else:
            self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def reader(options: dict[str, Any]) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        host, port = options["address"].split(":")
        chance = np.random.default_rng(2)
        loop = asyncio.get_running_loop()
        made = [
            Reader(chance.integers(0, ROWS, 500).tolist(), options["address"]) for _ in range(options["connections"])
        ]
        for one in made:
            await loop.create_connection(lambda one=one: one, host, int(port))  # type: ignore[misc]
        await asyncio.sleep(0.5)
        for one in made:
            one.took.clear()
        started = time.perf_counter()
        await asyncio.sleep(options["seconds"])
        took = [t for one in made for t in one.took]
        seconds = time.perf_counter() - started
        for one in made:
            one.stopped = True
        await asyncio.wait([one.ended for one in made], timeout=5)
        failed = sum(one.failed for one in made)
        return {"requests": len(took), "seconds": seconds, "seconds_each": took[:200_000], "failed": failed}

    return _run(run())


def writer(options: dict[str, Any]) -> dict[str, Any]:
    """Puts 20 rows at a time, each as one request, at a steady pace."""
    import viewkeeper as vk

    count, started = 0, time.time()
    chance = np.random.default_rng(3)
    with vk.connect(f"http://{options['address']}") as db:
        due = started
        while time.time() < started + options["seconds"]:
            db.put("items", some_items(chance.choice(ROWS, 20, replace=False)))
            count += 1
            due += options["pause"]
            time.sleep(max(0.0, due - time.time()))
    return {"puts": count, "seconds": time.time() - started}


def embedded(options: dict[str, Any]) -> dict[str, Any]:
    import viewkeeper as vk

    keys = np.random.default_rng(2).integers(0, ROWS, 5_000).tolist()
    with vk.open(options["url"], mode="r") as db:
        count, started = 0, time.perf_counter()
        while time.perf_counter() < started + options["seconds"]:
            for key in keys[:500]:
                db.get("items", key)
            count += 500
        return {"reads": count, "seconds": time.perf_counter() - started}


class Listener(asyncio.Protocol):
    """One subscriber. Ids of events are looked for in the bytes as they come."""

    def __init__(self, host: str) -> None:
        self.host, self.rest = host, b""
        self.ids: list[int] = []
        self.late: list[float] = []
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(f"GET /v1/by_category/changes?since=now HTTP/1.1\r\nhost: {self.host}\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        if not self.joined.done():
            self.joined.set_result(None)
        now = time.time()
        parts = (self.rest + data).split(b"\n\n")
        self.rest = parts.pop()
        for part in parts:
            if b"event: changes" in part:
                self.ids.append(int(part.partition(b"id: ")[2].partition(b"\n")[0].rpartition(b":")[2]))
                self.late.append(now - float(part.partition(b'"time":')[2].partition(b",")[0]))


def listener(options: dict[str, Any]) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        host, port = options["address"].split(":")
        loop = asyncio.get_running_loop()
        made = [Listener(options["address"]) for _ in range(options["count"])]
        for one in made:
            await loop.create_connection(lambda one=one: one, host, int(port))  # type: ignore[misc]
        await asyncio.gather(*(one.joined for one in made))
        print("ready", flush=True)
        await asyncio.sleep(options["seconds"])
        every = sorted({i for one in made for i in one.ids})
        late = 1000 * np.array([t for one in made for t in one.late] or [0.0])
        return {
            "most": len(every),
            "events": sum(len(one.ids) for one in made),
            "lost": sum(len(every) - len(set(one.ids)) for one in made),
            "doubled": sum(len(one.ids) - len(set(one.ids)) for one in made),
            "late_p50_ms": round(float(np.percentile(late, 50)), 1),
            "late_p99_ms": round(float(np.percentile(late, 99)), 1),
        }

    return _run(run())


def putter(options: dict[str, Any]) -> dict[str, Any]:
    """Puts as it is told, a line for each: how many rows, from which key on. No rows: waits until its view has them."""
    import viewkeeper as vk

    url, maintains = options["url"], options["maintains"]
    with vk.connect(url) if url.startswith("http") else vk.open(url) as db:
        if maintains:
            db.maintain()
        print("ready", flush=True)
        for line in sys.stdin:
            size, first = map(int, line.split())
            if size:
                given = some_items(np.arange(size) + first)
                at = time.perf_counter()
                db.put("items", given)
                print(1000 * (time.perf_counter() - at), flush=True)
            else:
                db.get("by_category", "c0", vk.LATEST, timeout=60)
                print("fresh", flush=True)
    return {}


def _run(work: Any) -> dict[str, Any]:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found: dict[str, Any] = runner.run(work)
        return found


ROLES = {"reader": reader, "writer": writer, "embedded": embedded, "listener": listener, "putter": putter}


# -- what is printed --------------------------------------------------------------------------------------------------


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    names = list(rows[0])
    print("  " + "  ".join(f"{name:>19}" for name in names))
    for row in rows:
        print("  " + "  ".join(f"{row[name]:>19}" for name in names))


def verdict(results: dict[str, Any]) -> None:
    seen: list[tuple[str, float, bool]] = []
    if "reads" in results:
        loaded = results["reads"][1]
        rate, late = loaded["requests_per_second"], loaded["p99_ms"]
        seen += [("requests_per_second", rate, rate >= BARS["requests_per_second"])]
        seen += [("p99_ms", late, late <= BARS["p99_ms"])]
    if "subscribers" in results:
        heard = results["subscribers"][0]
        seen += [(name, heard[name], heard[name] == 0) for name in ("lost", "doubled")]
    for row in results.get("puts", ()):
        seen.append(("put_ratio", row["put_ratio"], row["put_ratio"] <= BARS["put_ratio"]))
    print()
    for name, found, holds in seen:
        print(f"  {name:<20} {found:>8}   bar {BARS[name]:>6}   {'holds' if holds else 'MISSED'}")


if __name__ == "__main__":
    main()
