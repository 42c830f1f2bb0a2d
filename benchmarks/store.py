"""How fast the embedded stores are: TPC-H lineitem, change log on, every commit durable.

    python benchmarks/store.py [--scale 0.1] [--stores lmdb rocksdb] [--json results.json] [--check]

    load       whole table, 50,000 rows a write call, each call flushed to disk             ≥   150,000 rows/s
    scan       to Arrow, one thread: all 16 columns                                         ≥   400,000 rows/s
                                     the 11 of fixed width                                  ≥ 1,000,000 rows/s
    point get  from Python, key encoded and row decoded, the median of random keys          ≤        20 µs

The bars are LMDB's; further lines have none. `cpu` is the same by processor time: what a core does when the machine is
not shared.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from viewkeeper.model import types
from viewkeeper.model.delta import normalize_chunks
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store.registry import open_store

ROWS_A_CALL = 50_000
GETS = 20_000
STORES = ("lmdb", "rocksdb")
TYPES = {"int64": "bigint", "int32": "int", "date32[day]": "date"}


@dataclass(frozen=True)
class Measure:
    """One line of the result. A rate passes at or above its bar, a time at or below."""

    name: str
    value: float
    unit: str
    cpu: float | None = None
    bar: float | None = None

    @property
    def passed(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value >= self.bar if self.unit == "rows/s" else self.value <= self.bar


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1, help="TPC-H scale factor (0.1 is 600,000 rows)")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES, help="a column each")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vk-bench-") as directory:
        table, rows = lineitem(Path(directory), arguments.scale)
        found = {store: measure(f"{store}:{directory}/{store}", table, rows) for store in arguments.stores}
    show(found, rows.num_rows)
    if arguments.json:
        result = {"benchmark": "store", "scale": arguments.scale, "rows": rows.num_rows}
        lines = {s: [{**asdict(line), "passed": line.passed} for line in measures] for s, measures in found.items()}
        arguments.json.write_text(json.dumps({**result, "measures": lines}, indent=2) + "\n")
    return int(arguments.check and any(line.passed is False for lines in found.values() for line in lines))


def lineitem(directory: Path, scale: float) -> tuple[Table, pa.Table]:
    """TPC-H's largest table, made by tpchgen-cli from the same environment."""
    tool = Path(sys.executable).with_name("tpchgen-cli")
    command = [str(tool), "parquet", "-s", str(scale), "--tables", "lineitem", "--output-dir", str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    data = pq.read_table(directory / "lineitem.parquet")
    columns = tuple(
        Column(field.name, types.parse_type(spark_type(field.type)), nullable=False) for field in data.schema
    )
    table = Table(1, "lineitem", columns, (KeyPart("l_orderkey"), KeyPart("l_linenumber")))
    return table, normalize_chunks(data).cast(table.arrow).combine_chunks()


def spark_type(arrow: pa.DataType) -> str:
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    return TYPES.get(str(arrow), "string")


def measure(url: str, table: Table, rows: pa.Table) -> list[Measure]:
    store = open_store(url)
    no_keys = rows.slice(0, 0).select(["l_orderkey", "l_linenumber"])
    fixed = [column.name for column in table.columns if column.type != types.STRING]
    count = rows.num_rows

    def load() -> None:
        for start in range(0, count, ROWS_A_CALL):
            store.write(table, rows.slice(start, ROWS_A_CALL), no_keys)

    def scan(columns: list[str] | None) -> int:
        return sum(batch.num_rows for batch in store.scan(table, columns))

    def update(price: str) -> None:
        some = rows.slice(0, min(count, 10 * ROWS_A_CALL))
        column = some.schema.get_field_index("l_extendedprice")
        raised = pc.add(some["l_extendedprice"], pa.scalar(1, pa.decimal128(4, 2))).cast(table.arrow.field(column).type)
        for start in range(0, some.num_rows, ROWS_A_CALL):
            store.write(table, some.set_column(column, price, raised).slice(start, ROWS_A_CALL), no_keys)

    measures = [
        rate("load", count, load, bar=150_000),
        rate("scan, 16 columns", count, lambda: scan(None), bar=400_000, times=3),
        rate(f"scan, {len(fixed)} fixed-width columns", count, lambda: scan(fixed), bar=1_000_000, times=3),
        point_gets(store, table, rows),
        rate("scan, 1 column", count, lambda: scan(["l_quantity"]), times=3),
        rate(
            "changes from the log, 16 columns", count, lambda: store.changes(table, rows.column_names, 0, store.head())
        ),
        rate("put the same rows again", count, load),
        rate("update", min(count, 10 * ROWS_A_CALL), lambda: update("l_extendedprice")),
        single_puts(store, table, rows),
    ]
    store.close()
    return measures if url.startswith("lmdb:") else [replace(line, bar=None) for line in measures]


def rate(name: str, rows: int, work: Callable[[], Any], bar: float | None = None, times: int = 1) -> Measure:
    """Rows a second, of the best run."""
    seconds = cpu = float("inf")
    for _ in range(times):
        start, start_cpu = time.perf_counter(), time.process_time()
        work()
        seconds = min(seconds, time.perf_counter() - start)
        cpu = min(cpu, time.process_time() - start_cpu)
    return Measure(name, rows / seconds, "rows/s", rows / cpu, bar)


def point_gets(store: Any, table: Table, rows: pa.Table) -> Measure:
    chosen = random.Random(1).sample(range(rows.num_rows), min(GETS, rows.num_rows))
    taken = rows.take(chosen)
    keys = list(zip(taken["l_orderkey"].to_pylist(), taken["l_linenumber"].to_pylist(), strict=True))
    times = []
    for key in keys:
        start = time.perf_counter()
        row = store.get(table, key)
        times.append(time.perf_counter() - start)
        assert row is not None
    start_cpu = time.process_time()
    for key in keys:
        store.get(table, key)
    cpu = (time.process_time() - start_cpu) / len(keys)
    return Measure("point get, median", statistics.median(times) * 1e6, "µs", cpu * 1e6, bar=20)


def single_puts(store: Any, table: Table, rows: pa.Table) -> Measure:
    no_keys = rows.slice(0, 0).select(["l_orderkey", "l_linenumber"])
    times = []
    start_cpu = time.process_time()
    for at in range(100):
        row = rows.slice(at, 1).set_column(15, "l_comment", pa.array([f"put {at}"]))
        start = time.perf_counter()
        store.write(table, row, no_keys)
        times.append(time.perf_counter() - start)
    cpu = (time.process_time() - start_cpu) / len(times)
    return Measure("put of one row, median", statistics.median(times) * 1e6, "µs", cpu * 1e6)


def show(found: dict[str, list[Measure]], rows: int) -> None:
    print(f"lineitem, {rows:,} rows\n")
    print(" " * 36 + "".join(f"{store:>14}{'cpu':>14}" for store in found))
    for lines in zip(*found.values(), strict=True):
        first = lines[0]
        values = "".join(f"{line.value:>14,.0f}{line.cpu or 0:>14,.0f}" for line in lines)
        bar = f"{'≥' if first.unit == 'rows/s' else '≤'} {first.bar:,.0f}" if first.bar is not None else ""
        verdict = {True: "pass", False: "MISS", None: ""}[first.passed]
        print(f"{first.name:36}{values} {first.unit:7}{bar:>12} {verdict}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
