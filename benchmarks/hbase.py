"""HBase: what the store adds to the raw client, as ratios measured in one run.

    load        rows a second put into a table made here, beside the raw client's putMultiple of the same cells
    read        a view's row by key, p50, beside a raw get of the same row
    scan        a view to Arrow, beside what thriftpy2's own decoding of the same scan gives
    capture     the changed keys and rows of a window, beside a raw scan of that window plus the gets
    refresh     a batch of TPC-H's Q1 and Q3
    push        changes that HBase pushes beside those that are polled (`bars.push`): freshness, idle CPU, writers

The bars: load at least 0.7, read at most 1.3, scan at least 1.5, capture at most 3; of push those of `bars.push`.

    python benchmarks/hbase.py [--small] [--rows N] [--part PART] [--json FILE] [--into PAGE]

Starts an HBase of its own, or uses that of VK_HBASE (a data directory of `vk hbase start`). What earlier calls of
`--part push` have left in the `--json` file is kept, so that its measurements can be made one by one (`--only`), each
on an HBase that no other has used, and told together.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import viewkeeper as vk
from bars import push
from bars.asked import some_of
from viewkeeper_hbase.devserver.server import Server
from viewkeeper_hbase.push import admin
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway, thrift_interface

BARS = {
    "load": (">=", 0.7),
    "read": ("<=", 1.3),
    "scan": (">=", 1.5),
    "capture": ("<=", 3.0),
    "p50@1000": ("<=", 0.5),
    "idle@100": ("<=", 0.1),
    "writers": (">=", 0.95),
}
BEGIN, END = "<!-- push: written by benchmarks/hbase.py --into -->", "<!-- push: end -->"
MOST = {"p50@1000": 80.0}
"""Bars of the first column itself."""
EVENTS = "CREATE TABLE events (id BIGINT PRIMARY KEY, kind STRING, amount DECIMAL(12,2), note STRING)"
COPIES = "CREATE MATERIALIZED VIEW copies AS SELECT id, kind, amount, note FROM events"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--small", action="store_true", help="a minute in all, to see that it runs")
    options.add_argument("--rows", type=int, default=600_000, help="of the table")
    options.add_argument("--changes", type=int, default=10_000, help="captured")
    options.add_argument("--scale", type=float, default=0.1, help="of TPC-H")
    options.add_argument("--part", choices=("store", "tpch", "push"), default=None, help="only this part")
    options.add_argument("--rates", default="", help="of --part push: changes a second, with commas")
    options.add_argument("--only", type=some_of(push.MEASURES), help="of --part push: these measurements")
    options.add_argument("--json", type=Path, default=None, help="write the results there")
    options.add_argument("--into", type=Path, default=None, help="of --part push: the page whose table is replaced")
    given = options.parse_args()
    if given.only and given.part != "push":
        options.error("--only is of --part push")
    rows, changes = (20_000, 1_000) if given.small else (given.rows, given.changes)
    scale = 0.01 if given.small else given.scale
    with tempfile.TemporaryDirectory(prefix="vk-hbase-") as scratch:
        server = Server(os.environ.get("VK_HBASE") or f"{scratch}/hbase")
        ran = server.status().hbase
        if given.part == "push":
            admin.install_jar(server.data / "ext")
        server.start(timeout=240)
        try:
            results = {}
            if given.part in (None, "store"):
                results |= measure(server, Path(scratch), rows, changes)
            if given.part in (None, "tpch"):
                results |= tpch(server, Path(scratch), scale)
            if given.part == "push":
                results |= earlier(given.json)
                rates = [int(rate) for rate in given.rates.split(",") if rate]
                results |= push.measure(server, Path(scratch), given.small, rates, given.only or push.MEASURES)
        finally:
            if not ran:
                server.stop()
    other = "poll" if given.part == "push" else "raw"
    print(f"{'':10}{'ours':>14}{other:>14}{'ratio':>9}  bar")
    missed, lines = 0, ["| | push | poll | ratio | bar | unit |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for name, (ours, raw, unit) in results.items():
        ratio = ours / raw if raw else float("nan")
        sign, bar = BARS.get(name, ("", 0.0))
        good = not sign or (ratio >= bar if sign == ">=" else ratio <= bar)
        good = good and ours <= MOST.get(name, ours)
        missed += not good
        print(
            f"{name:10}{ours:>14,.2f}{raw:>14,.2f}{ratio:>9.2f}  "
            f"{f'{sign} {bar}' if sign else '':8}{unit}{'' if good else '   MISSED'}"
        )
        limit = f"{sign} {bar}" + (f", <= {MOST[name]:g} ms" if name in MOST else "") if sign else ""
        size = ".2f" if max(ours, raw) < 10 else ",.0f"
        told = f"{limit}{'' if good else ' **missed**'}"
        lines.append(f"| {name} | {ours:{size}} | {raw:{size}} | {ratio:.2f} | {told} | {unit} |")
    if given.into:
        into(given.into, lines)
    if given.json:
        given.json.write_text(
            json.dumps(
                {name: dict(zip(("ours", "raw", "unit"), r, strict=True)) for name, r in results.items()}, indent=1
            )
        )
    sys.exit(1 if missed and not given.small else 0)


def earlier(file: Path | None) -> dict[str, tuple[float, float, str]]:
    """What a file has of other calls."""
    found = json.loads(file.read_text()) if file is not None and file.exists() else {}
    return {name: (told["ours"], told["raw"], told["unit"]) for name, told in found.items()}


def into(page: Path, lines: list[str]) -> None:
    """Replace what is between the page's two marks by these lines, and when that was."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{page} has no {BEGIN} and {END}.")
    when = time.strftime("Measured on %d %B %Y, %H:%M UTC.", time.gmtime())
    page.write_text(f"{before}{BEGIN}\n{when}\n\n" + "\n".join(lines) + f"\n{END}{after}")


def measure(server: Server, scratch: Path, rows: int, changes: int) -> dict[str, tuple[float, float, str]]:
    namespace = f"bench_{secrets.token_hex(4)}"
    url = f"hbase://{server.host}:{server.port}/{namespace}?create=true"
    results: dict[str, tuple[float, float, str]] = {}
    with vk.open(url, state=str(scratch / "state")) as db, HBaseClient(Gateway(server.host, server.port)) as client:
        db.sql(EVENTS)
        store: Any = db._store
        table = store.catalog().table("events")
        layout = store._layouts.layout_of(table)
        data = events(rows)
        results["load"] = load(db, client, layout, namespace, data)
        db.sql(COPIES)
        results["read"] = read(db, client, rows)
        results["scan"] = scan(db, client, rows)
        results["capture"] = capture(db, client, layout, changes, rows)
        report = db.refresh()
        results["copies"] = (report.changes / report.seconds, 0.0, f"changes/s, {report.changes} in one batch")
    return results


def events(rows: int) -> pa.Table:
    ids = np.arange(rows)
    kinds = pa.array(np.array(["created", "paid", "sent", "returned"])[ids % 4])
    amounts = pa.array(ids % 10_000).cast(pa.decimal128(20, 0)).cast(pa.decimal128(22, 2)).cast(pa.decimal128(12, 2))
    notes = pa.array([f"{n:060d}" for n in range(1000)]).take(pa.array(ids % 1000))
    return pa.table({"id": ids, "kind": kinds, "amount": amounts, "note": notes})


def load(db: Any, client: HBaseClient, layout: Any, namespace: str, data: pa.Table) -> tuple[float, float, str]:
    raw = f"{namespace}:raw"
    client.admin.create(raw, [ColumnFamily(b"c", max_versions=100, keep_deleted_cells=True)])
    keys, cells = layout.encode(data.cast(layout.table.arrow))
    half = len(data) // 2  # in turns, so that both meet the same server
    theirs = ours = 0.0
    for at, size in ((0, half), (half, len(data) - half)):
        part = {c: v.slice(at, size) for c, v in cells.items()}
        theirs += clock(client.put_rows, raw, keys.slice(at, size), part)
        ours += clock(db.put, "events", data.slice(at, size))
    return len(data) / ours, len(data) / theirs, "rows/s"


def read(db: Any, client: HBaseClient, rows: int) -> tuple[float, float, str]:
    view = db._store._layouts.layout_of(db._store.catalog().table("copies"))
    names = [int(n) for n in np.random.default_rng(1).integers(0, rows, 400)]
    keys = [view.keys.encode_one((n,)) for n in names]
    span = (0, db.status().epoch + 1)
    ours, raw = [], []
    for name, key in zip(names, keys, strict=True):
        raw.append(clock(client.get, view.name, key, span=span))
        ours.append(clock(db.get, "copies", name))
    return 1000 * statistics.median(ours[50:]), 1000 * statistics.median(raw[50:]), "ms p50"


def scan(db: Any, client: HBaseClient, rows: int) -> tuple[float, float, str]:
    view = db._store._layouts.layout_of(db._store.catalog().table("copies"))
    ours = min(clock(lambda: db.read("copies")) for _ in range(2))
    count = min(rows, 100_000)

    def decoded() -> None:
        hbase = thrift_interface()
        with client.pool.connection() as connection:
            scanner = connection.call("openScanner", table=view.name.encode(), tscan=hbase.TScan())
            left = count
            while left > 0:
                left -= len(connection.call("getScannerRows", scannerId=scanner, numRows=min(left, 5_000)))
            connection.call("closeScanner", scannerId=scanner)

    return rows / ours, count / min(clock(decoded) for _ in range(2)), "rows/s"


def capture(db: Any, client: HBaseClient, layout: Any, changes: int, rows: int) -> tuple[float, float, str]:
    store = db._store
    time.sleep(6)  # out of the load's overlap
    after = store.head()
    chosen = np.sort(np.random.default_rng(2).choice(rows, changes, replace=False))
    db.put("events", events(rows).take(pa.array(chosen)).set_column(1, "kind", pa.array(["changed"] * changes)))
    upto = store.head()

    def raw() -> None:
        keys = [cells.keys for cells in client.scan_changed(layout.name, (after, upto + 1))]
        for _ in client.get_rows(layout.name, pa.concat_arrays(keys), span=(0, upto + 1)):
            pass

    names = [c.name for c in layout.table.columns]
    theirs = min(clock(raw) for _ in range(3))
    ours = min(clock(lambda: store.changed_keys(layout.table, names, after, upto)) for _ in range(3))
    return ours, theirs, "s"


def tpch(server: Server, scratch: Path, scale: float) -> dict[str, tuple[float, float, str]]:
    from viewkeeper.verify.benchmark_check import apply_changes, create_views
    from viewkeeper.verify.benchmark_check import load_tables as load_tables
    from viewkeeper.workloads.tpch import views
    from viewkeeper.workloads.tpch.changes import TpchModel, generate

    results: dict[str, tuple[float, float, str]] = {}
    model = TpchModel(generate(scale, scratch / "tpch"), 1)
    url = f"hbase://{server.host}:{server.port}/bench_{secrets.token_hex(4)}?create=true"
    with vk.open(url, state=str(scratch / "tpch-state")) as db:
        loaded = clock(lambda: load_tables(db, model, ("customer", "orders", "lineitem")))
        results["tpch load"] = (loaded, 0.0, f"s, scale {scale}")
        for number in (1, 3):
            results[f"q{number} create"] = (clock(create_views, db, views([number])), 0.0, "s")
        orders = max(5, model.rows("SELECT count(*) AS n FROM orders")["n"][0].as_py() // 200)
        seconds = []
        for _ in range(3):
            batch = list(model.orders_batch(orders, orders, orders))
            model.apply(batch)
            apply_changes(db, batch)
            report = db.refresh()
            seconds.append(report.seconds)
        results["refresh"] = (statistics.median(seconds), 0.0, f"s, {report.changes} changes, q1 and q3")
    model.close()
    return results


def clock(work: Callable[..., object], *arguments: Any, **options: Any) -> float:
    started = time.perf_counter()
    work(*arguments, **options)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
