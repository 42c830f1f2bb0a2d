"""TPC-H on a cluster whose parts come and go: what fails is tried again, each batch is compared with Spark's answer.

    cluster_life.py MASTER URL DATA BATCHES [NAME=VALUE …]        settings of Spark

Says "begins" before each batch, and at the end how many views were equal.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import viewkeeper as vk
from viewkeeper.errors import StoreError
from viewkeeper.verify.benchmark_check import verify
from viewkeeper.workloads.tpch.changes import TPCH

VIEWS = ("q1", "q3", "q12")
_PATIENCE = 400.0

say = partial(print, flush=True)


class Patient:
    """A database whose calls are made again while a part of it is away. Puts and deletes are the same a second time."""

    def __init__(self, db: vk.Database) -> None:
        self._db = db

    def refresh(self, lane: str, **options: Any) -> Any:
        say("begins")
        return self._retry(self._db.refresh, lane, **options)

    def __getattr__(self, name: str) -> Any:
        return partial(self._retry, getattr(self._db, name))

    def _retry(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return call(*args, **kwargs)
            except StoreError as error:
                say(f"again: {error.message}")
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)


def main(master: str, url: str, data: str, batches: str, *settings: str) -> None:
    builder = SparkSession.builder.master(master).config(map=dict(s.split("=", 1) for s in settings))
    spark = builder.getOrCreate()
    with vk.open(url, spark=spark) as db:
        sizes: dict[str, Any] = {"batches": int(batches), "seed": 7, "lane": "spark"}
        views = {name: TPCH.views[name] for name in VIEWS}
        files = TPCH.generate(0.01, Path(data))
        found = verify(Patient(db), files, spark, TPCH, views=views, log=say, **sizes)  # type: ignore[arg-type]
    spark.stop()
    say(found[:3] if found else f"{len(views)} views equal after each batch")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
