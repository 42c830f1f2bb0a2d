"""Viewkeeper as a Spark data source, and Spark sessions for Viewkeeper.

    source.py          the data source `viewkeeper`: its options and schema
    batch_reader.py    spark.read: key ranges of one state, in parallel
    stream_reader.py   spark.readStream: committed changes, exactly once by log position
    writer.py          df.write, writeStream: tasks stage files, the driver writes once

`register` makes the format known to a session; then a table or view is read like any other source:

    spark.read.format("viewkeeper").option("db", "lmdb:./shop").option("table", "by_category").load()
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from viewkeeper.errors import MissingDependency

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: Any) -> None:
    """Make the format `viewkeeper` known to a session, with filters on key columns pushed down to the store.

    A relative path in the option `db` is relative to the directory in which this was called.
    """
    from viewkeeper.spark.source import ViewkeeperSource

    class Source(ViewkeeperSource):
        """Defined here so that Spark sends the class by value: its processes have another working directory."""

        directory = str(Path.cwd())

    _use_this_python(spark)  # a format keeps the interpreter that it was registered with
    spark.dataSource.register(Source)
    spark.conf.set(PUSHDOWN, "true")


def _use_this_python(spark: Any) -> None:
    from pyspark.errors import PySparkException

    from viewkeeper.plan.catalyst.jvm import use_this_python

    try:
        context = spark.sparkContext
    except PySparkException:  # one of Spark Connect: its workers are the server's
        return
    use_this_python(context)


def session(master: str | None = None, settings: Mapping[str, str] | None = None) -> Any:
    """A Spark session on a master with these settings, quiet, its workers on this environment's Python."""
    from pyspark import SparkConf

    from viewkeeper.plan.catalyst.jvm import start_session

    conf = SparkConf(loadDefaults=False).setAppName("viewkeeper").set("spark.ui.showConsoleProgress", "false")
    conf.set("spark.log.level", "ERROR").set("spark.ui.enabled", "false")
    if master is not None:
        _check_master(master)
        conf.setMaster(master)
    return start_session(conf.setAll(list((settings or {}).items())))


def _check_master(master: str) -> None:
    """Raise if a standalone master's address refuses connections; Spark itself would retry for a minute."""
    if not master.startswith("spark://"):
        return
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except (OSError, OverflowError, ValueError):
            continue
    raise MissingDependency(f"No Spark master answers at {master}.", hint="Start it, or name it as spark://HOST:PORT.")
