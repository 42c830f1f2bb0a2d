"""Viewkeeper as a Spark data source, and Spark sessions for Viewkeeper.

    source.py    the data source `viewkeeper`: its options and schema
    rows.py      spark.read: key ranges of one state, in parallel
    changes.py   spark.readStream: committed changes, exactly once by log position
    writing.py   df.write, writeStream: tasks stage files, the driver writes once

`register` makes the format known to a session; then a table or view is read like any other source:

    spark.read.format("viewkeeper").option("db", "lmdb:./shop").option("table", "by_category").load()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: Any) -> None:
    """Make the format `viewkeeper` known to a session, with filters on key columns pushed down to the store.

    A relative path in the option `db` is relative to the directory in which this was called.
    """
    from viewkeeper.spark.source import ViewkeeperSource

    class Source(ViewkeeperSource):
        """Travels by value: Spark's processes have a working directory of their own."""

        directory = str(Path.cwd())

    spark.dataSource.register(Source)
    spark.conf.set(PUSHDOWN, "true")


def session(master: str | None = None, settings: Mapping[str, str] | None = None) -> Any:
    """A Spark session on a master with these settings, quiet, its workers on this environment's Python."""
    import os
    import sys

    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("viewkeeper").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.ui.enabled", "false")
    if master is not None:
        builder = builder.master(master)
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
