"""Q3 in Pathway's Table API, on the recorded stream. Runs in Pathway's environment: nothing of ours is imported.

Lines come through a Python connector that takes rows by key, each batch as one commit. A batch is done when the view
has shown its probe's new revenue and that moment of Pathway's time is closed. Customers and orders do not change and
are read from CSV files.
"""

import json
import sys
import threading
import time
from pathlib import Path

import pathway as pw
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

PLACE = Path(sys.argv[1])
DAY = 9204  # 1995-03-15, in days
TOLD = json.loads((PLACE / "stream.json").read_text())
COLUMNS = ("l_orderkey", "l_linenumber", "cents", "percent", "shipped")


class Customer(pw.Schema):
    c_custkey: int


class Order(pw.Schema):
    o_orderkey: int
    o_custkey: int
    o_orderdate: int
    o_shippriority: int


class Line(pw.Schema):
    l_orderkey: int = pw.column_definition(primary_key=True)
    l_linenumber: int = pw.column_definition(primary_key=True)
    cents: int
    percent: int
    shipped: int


class View:
    """What the view has shown, and who waits for it."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.awaited: tuple[int, int] | None = None
        self.found = False
        self.closed = threading.Event()
        self.changed_at = time.perf_counter()

    def on_change(self, key, row, time, is_addition) -> None:
        order = row["l_orderkey"]
        if is_addition:
            self.rows[order] = row["revenue"]
            self.found = self.found or (order, row["revenue"]) == self.awaited
        elif self.rows.get(order) == row["revenue"]:
            del self.rows[order]

    def on_time_end(self, moment: int) -> None:
        self.changed_at = time.perf_counter()
        if self.found:
            self.closed.set()

    def expect(self, order: int, revenue: int) -> None:
        self.closed.clear()
        self.found = False
        self.awaited = (order, revenue)


class Lines(pw.io.python.ConnectorSubject):
    """The base rows, then each batch as one commit, each after the one before is shown."""

    def __init__(self, view: View) -> None:
        super().__init__(session_type="upsert")
        self.view = view
        self.told: dict[str, object] = {}

    def run(self) -> None:
        started = time.perf_counter()
        self.push(read(PLACE / "base-lineitem.arrow"))
        self.commit()
        while not self.view.rows or time.perf_counter() - self.view.changed_at < 5:
            time.sleep(0.1)  # nothing tells that all three inputs are through: wait until it is calm
        load = self.view.changed_at - started
        small, large = [], []
        for number, batch in enumerate(TOLD):
            rows = read(PLACE / f"peer-{number}.arrow")
            self.view.expect(batch["key"][0], round(float(batch["revenue"]) * 10_000))
            started = time.perf_counter()
            self.push(rows)
            self.commit()
            given = time.perf_counter()
            if not self.view.closed.wait(600):
                raise RuntimeError(f"batch {number} was not shown")
            done = time.perf_counter()
            entry = {"rows": len(rows), "given": given - started, "seconds": done - started}
            (small if len(rows) <= 1_000 else large).append(entry)
        self.told = {"version": pw.__version__, "load_seconds": load, "small": small, "large": large}

    def push(self, rows: list[dict[str, int]]) -> None:
        for row in rows:
            self.next(**row)


def read(path: Path) -> list[dict[str, int]]:
    """Rows as dicts, made before the clock runs."""
    table = pa.ipc.open_file(path).read_all()
    columns = [table[c].to_pylist() for c in COLUMNS]
    return [dict(zip(COLUMNS, values, strict=True)) for values in zip(*columns, strict=True)]


def static(table: str, schema: type[pw.Schema]) -> pw.Table:
    path = PLACE / f"base-{table}.csv"
    pa.csv.write_csv(pa.ipc.open_file(PLACE / f"base-{table}.arrow").read_all(), path)
    return pw.io.csv.read(str(path), schema=schema, mode="static")


def main() -> None:
    view = View()
    subject = Lines(view)
    lines = pw.io.python.read(subject, schema=Line, autocommit_duration_ms=None).filter(pw.this.shipped > DAY)
    orders = static("orders", Order).filter(pw.this.o_orderdate < DAY)
    customers = static("customer", Customer)
    wanted = orders.join(customers, orders.o_custkey == customers.c_custkey).select(
        orders.o_orderkey, orders.o_orderdate, orders.o_shippriority
    )
    q3 = (
        lines.join(wanted, lines.l_orderkey == wanted.o_orderkey)
        .select(
            lines.l_orderkey,
            wanted.o_orderdate,
            wanted.o_shippriority,
            price=lines.cents * (100 - lines.percent),
        )
        .groupby(pw.this.l_orderkey, pw.this.o_orderdate, pw.this.o_shippriority)
        .reduce(pw.this.l_orderkey, pw.this.o_orderdate, pw.this.o_shippriority, revenue=pw.reducers.sum(pw.this.price))
    )
    pw.io.subscribe(q3, on_change=view.on_change, on_time_end=view.on_time_end)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    answer = {"l_orderkey": list(view.rows), "revenue": list(view.rows.values())}
    pa.parquet.write_table(pa.table(answer), PLACE / "answer.parquet")
    print(json.dumps(subject.told))


if __name__ == "__main__":
    main()
