"""The 22 TPC-H views, live: how long a batch of changes takes, against recomputing and against peers.

    python benchmarks/tpch.py [--small] [--only STAGE,…] [--keep DIR] [--peers DIR] [--json FILE] [--md FILE]

Loads TPC-H through the public API, creates the 22 views, then streams batches: RF1 (new orders with their lines), RF2
(deleted orders), RF3 (updated orders and lines), and changes of the dimensions. After each batch every view is
compared with recompute. Stages, in this order; what a stage finds is added to the JSON file:

    views       load the tables and make the views, at the scale and at a tenth of it; stages that need views which are
                not there make them first
    batch       the batch at both scales against DuckDB's recompute; memory and state
    shared      batches with the views' lookups made together and apart, by turns, against DuckDB's recompute
    q3          freshness and throughput of the Q3 view
    pathway     the same stream through Pathway (with --peers: a directory for its environment)
    lanes       a million changes through the Q3 view in the driver and on Spark, with one core and with two
    first       the first view over a table and a later one, against Spark
    crossover   the share of changed rows at which recomputing is faster
    alone       each view by itself in either lane, at a tenth of the scale
    spark       all views in one refresh of the Spark lane
    recompute   Spark's recompute of each query from Parquet

The bars are in `bars/report.py`; they are ratios measured in one run on the same machine (2 cores, scale factor 1).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bars import batch, crossover, first_load, lanes, peer, q3, report, shared, views
from bars.asked import some_of
from bars.setting import Setting, machine

STAGES: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "views": views.measure,
    "batch": batch.measure,
    "shared": shared.measure,
    "q3": q3.measure,
    "pathway": peer.measure,
    "lanes": q3.measure_lanes,
    "first": first_load.measure,
    "crossover": crossover.measure,
    "alone": lanes.measure,
    "spark": lanes.measure_all,
    "recompute": lanes.measure_recompute,
}
REPORT = "report"
SMALL = ("views", "batch", "shared", "q3", "first", "crossover")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--orders", type=int, default=1500, help="orders made, deleted and updated in a batch")
    parser.add_argument("--batches", type=int, default=7)
    parser.add_argument("--rows", type=int, default=1_000_000, help="changes in a large batch")
    parser.add_argument(
        "--small", action="store_true", help=f"scale 0.1 and only {', '.join(SMALL)}: to see that it runs"
    )
    parser.add_argument(
        "--only", type=some_of([*STAGES, REPORT]), help=f"stages, separated by commas; {REPORT}: only the report"
    )
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "viewkeeper-tpch")
    parser.add_argument("--keep", type=Path, help="a directory for the databases, kept for other stages")
    parser.add_argument("--peers", type=Path, help="a directory for the environments of peers")
    parser.add_argument("--json", type=Path, help="add the results to this file")
    parser.add_argument("--md", type=Path, help="write the tables there")
    options = parser.parse_args()
    stages = SMALL if options.small else tuple(STAGES)
    if options.small:
        options.scale, options.orders, options.batches, options.rows = 0.1, 150, 2, 100_000
    if options.only is not None:
        stages = tuple(name for name in STAGES if name in options.only)
    results: dict[str, Any] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    results |= {"machine": machine(), "scale": options.scale, "orders": options.orders}
    with tempfile.TemporaryDirectory(prefix="vk-tpch-") as scratch:
        keep = options.keep or Path(scratch)
        keep.mkdir(parents=True, exist_ok=True)
        setting = Setting(
            options.scale, options.orders, options.batches, options.rows, options.data, keep, options.peers
        )
        for name in stages:
            print(f"-- {name}", flush=True)
            results |= STAGES[name](setting)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = report.markdown(results)
    print(f"\n{text}")
    if options.md:
        options.md.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
