"""What it costs to keep the state in an object store: a batch over HBase with its state in a directory, in MinIO on
this machine, and in MinIO with something added to every request, as from far away.

    python benchmarks/objects.py [--batches 40] [--delay 30] [--small] [--json results.json] [--check]

    batch      median wall time of a refresh of 100 changed rows, two views
    added      to the batch with the state in a directory                        at most 0.4 s with 30 ms a request
    requests   that a batch waits for (removals and merges run beside it)        at most 4 and one for each writing task

HBase is the tests' small one (its gateway's calls, in memory), so that nothing but the state differs; MinIO is real,
and is built on first use (tools/minio: Go, some minutes). All in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.contract import planned
from tests.contract.small_hbase import SmallHBase
from tests.objects import ObjectStore, serve

from viewkeeper.database import Database
from viewkeeper.store.registry import open_store

BAR = 0.4
MOST_REQUESTS = 5


@dataclass(frozen=True)
class Line:
    state: str
    batch: float
    added: float
    requests: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--delay", type=float, default=30.0, help="milliseconds added to every request")
    parser.add_argument("--small", action="store_true", help="8 batches")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    arguments = parser.parse_args()
    batches = 8 if arguments.small else arguments.batches
    with tempfile.TemporaryDirectory(prefix="vk-bench-") as directory:
        lines = measure(Path(directory), batches, arguments.delay / 1000)
    print(f"{'state':<24}{'batch':>10}{'added':>10}{'requests':>10}")
    for line in lines:
        print(f"{line.state:<24}{line.batch:>8.3f} s{line.added:>8.3f} s{line.requests:>10.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    missed = [line for line in lines if line.added > BAR or line.requests > MOST_REQUESTS]
    return 1 if arguments.check and missed else 0


def measure(directory: Path, batches: int, delay: float) -> list[Line]:
    planned.install()
    near, _ = run(f"{directory / 'state'}", None, batches)
    lines = [Line("a directory", near, 0.0, 0.0)]
    with pytest.MonkeyPatch.context() as patch, serve(directory, patch.setenv) as objects:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        for name, held in (("MinIO", 0.0), (f"MinIO, {delay * 1000:.0f} ms a request", delay)):
            objects.delay = held
            batch, requests = run(f"s3://viewkeeper/state{held}", objects, batches)
            lines.append(Line(name, batch, batch - near, requests))
    return lines


def run(state: str, objects: ObjectStore | None, batches: int) -> tuple[float, float]:
    """Median seconds of a batch, and of the requests that it waits for."""
    seconds, requests = [], []
    with _shop(state) as db:
        for step in range(batches):
            db.put("items", [_item(n, n * step % 50) for n in range(100)])
            began = time.monotonic()
            db.refresh("driver")
            ended = time.monotonic()
            asked = [] if objects is None else [r for r in objects.requests if began <= r[0] <= ended]
            seconds.append(ended - began)
            requests.append(len([r for r in asked if r[1] in ("PUT", "GET", "POST") and _is_waited_for(r[2])]))
    return statistics.median(seconds[1:]), statistics.median(requests[1:])


def _is_waited_for(path: str) -> bool:
    """Merges write beside the batch; a path that ends like a directory is what a removal leaves."""
    return "-m" not in path.rpartition("/")[2] and not path.endswith("/")


@contextmanager
def _shop(state: str) -> Iterator[Database]:
    server = SmallHBase()
    store = open_store(f"hbase://{server.host}:{server.port}/shop?create=true&lease=30&state={state}", "w")
    try:
        with Database(store, mode="w", spark=None, progress=None, retention=0.0) as db:
            for statement in planned.TABLES:
                db.sql(statement)
            db.put("items", [_item(n, n % 50) for n in range(2_000)])
            db.put("kinds", [{"category": c, "boss": c.upper()} for c in "abc"])
            db.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
            db.sql(f"CREATE MATERIALIZED VIEW bosses AS {planned.BOSSES}")
            yield db
    finally:
        server.close()


def _item(number: int, price: int) -> dict[str, object]:
    return {"item_id": number, "category": "abc"[number % 3], "price": price}


if __name__ == "__main__":
    sys.exit(main())
