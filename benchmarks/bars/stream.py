"""The stream of the Q3 view: batches of changed lines, written down so that every peer is given the same.

    base-*.arrow    what the view reads of each table before the first batch
    batch-N.arrow   the changed lines, whole rows, as we put them
    peer-N.arrow    the same with only what Q3 reads, money as cents and dates as days: peers need no decimals
    stream.json     each batch's rows, and its probe: an order whose revenue changes, with the new revenue

Every line of a batch has another discount than before; one of them is in the view for certain.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from bars.setting import Q3
from viewkeeper.verify.reference_model import Change
from viewkeeper.workloads.tpch.changes import TpchModel

BASE = {
    "customer": "SELECT c_custkey FROM customer WHERE c_mktsegment = 'BUILDING'",
    "orders": """SELECT o_orderkey, o_custkey, o_orderdate - DATE '1970-01-01' AS o_orderdate, o_shippriority
        FROM orders""",
    "lineitem": "FROM lineitem",
}
LINES = """SELECT l_orderkey, l_linenumber, (l_extendedprice * 100)::BIGINT AS cents,
    (l_discount * 100)::BIGINT AS percent, l_shipdate - DATE '1970-01-01' AS shipped FROM """


@dataclass(frozen=True)
class Batch:
    """Changed lines, and a row of the view (its key, its revenue afterwards) that shows them."""

    rows: pa.Table
    key: tuple[Any, ...]
    revenue: str


def make(model: TpchModel, place: Path, counts: Sequence[int]) -> None:
    """Draw the batches from the model, which has them applied afterwards."""
    place.mkdir(parents=True, exist_ok=True)
    for table, query in BASE.items():
        _write(place / f"base-{table}.arrow", model.rows(query if table != "lineitem" else LINES + "lineitem"))
    told = [_draw(model, place, number, count) for number, count in enumerate(counts)]
    (place / "stream.json").write_text(json.dumps(told, indent=1))


def batches(place: Path) -> list[Batch]:
    told = json.loads((place / "stream.json").read_text())
    return [
        Batch(_read(place / f"batch-{number}.arrow"), tuple(t["key"]), t["revenue"]) for number, t in enumerate(told)
    ]


def _draw(model: TpchModel, place: Path, number: int, count: int) -> dict[str, Any]:
    stamp = int(model.random.integers(1 << 30))
    probe = model.rows(f"SELECT * FROM ({Q3}) USING SAMPLE 1 ROWS (reservoir, {stamp % 10_000})").to_pylist()[0]
    first = f"""SELECT * FROM lineitem WHERE l_orderkey = {probe["l_orderkey"]} AND l_shipdate > DATE '1995-03-15'
        ORDER BY l_linenumber LIMIT 1"""
    rows = model.rows(
        f"""SELECT * REPLACE (
                ((l_discount * 100 + 1 + hash(l_orderkey, l_linenumber, {stamp}) % 10) % 11 / 100)::DECIMAL(15,2)
                AS l_discount)
            FROM (({first}) UNION FROM (FROM lineitem USING SAMPLE {count - 1} ROWS (reservoir, {stamp % 10_000})))"""
    )
    model.apply([Change("lineitem", puts=rows)])
    order = f"{Q3.split('GROUP BY')[0]} AND l_orderkey = {probe['l_orderkey']} GROUP BY {Q3.split('GROUP BY')[1]}"
    after = model.rows(order).to_pylist()[0]
    _write(place / f"batch-{number}.arrow", rows)
    model.connection.register("drawn", rows)
    _write(place / f"peer-{number}.arrow", model.rows(LINES + "drawn"))
    model.connection.unregister("drawn")
    key = [after["l_orderkey"], str(after["o_orderdate"]), after["o_shippriority"]]
    return {"rows": rows.num_rows, "key": key, "revenue": str(after["revenue"])}


def _write(path: Path, rows: pa.Table) -> None:
    with pa.ipc.new_file(path, rows.schema) as writer:
        writer.write_table(rows)


def _read(path: Path) -> pa.Table:
    return pa.ipc.open_file(path).read_all()
