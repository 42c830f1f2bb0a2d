"""A benchmark's views, a step in a process, so that the memory of each can be watched: make the tables, make the views,
change the tables, bring the views up to date."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import viewkeeper as vk
from viewkeeper.verify.benchmark_check import apply_changes, create_views, load_tables, mentioned_tables
from viewkeeper.verify.reference_model import ReferenceModel
from viewkeeper.workloads import tpcds, tpch
from viewkeeper.workloads.tpcds.changes import TpcdsModel
from viewkeeper.workloads.tpch.changes import TpchModel

SHARE, MOST, SEED = 0.015, 1_000_000, 5


def chosen(benchmark: str, numbers: str | None = None) -> Mapping[str, str]:
    """The benchmark's views, or those of these queries."""
    if benchmark == "tpch":
        return tpch.views(map(int, numbers.split(","))) if numbers else tpch.views()
    return tpcds.views(numbers.split(",")) if numbers else tpcds.views()


def model_of(benchmark: str, files: Path) -> ReferenceModel:
    """The tables, and changes on a good part of each."""
    return TpchModel(files, SEED) if benchmark == "tpch" else TpcdsModel(files, SEED, share=SHARE, max_rows=MOST)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["load", "create", "change", "refresh"])
    parser.add_argument("benchmark", choices=["tpch", "tpcds"])
    parser.add_argument("files", type=Path)
    parser.add_argument("url")
    parser.add_argument("--views")
    parser.add_argument("--batch", type=int, default=1, help="which one `change` makes")
    parser.add_argument("--memory")
    asked = parser.parse_args()
    views = chosen(asked.benchmark, asked.views)
    with vk.open(asked.url, memory=asked.memory, durability="none") as db:
        if asked.what == "create":
            create_views(db, views, lambda line: print(line, flush=True))
        elif asked.what == "refresh":
            report = db.refresh("driver")
            print(report.changes, "changes in the lane", report.lane, "in", report.seconds, "s")
        else:
            model = model_of(asked.benchmark, asked.files)
            tables = mentioned_tables(model.schemas, views)
            if asked.what == "load":
                load_tables(db, model, tables)
            for batch in range(1, asked.batch + 1) if asked.what == "change" else ():
                changes = [change for change in model.batch() if change.table in tables]
                model.apply(changes)
                if batch == asked.batch:
                    apply_changes(db, changes)
            model.close()


if __name__ == "__main__":
    main()
