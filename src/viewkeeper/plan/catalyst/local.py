"""A local Spark, for when the user brings none: all cores, a task that dies is retried, and nothing on the terminal.

What the JVM writes to standard error goes to a log file in the temporary directory, which is removed at exit; when
Spark does not start, its first line is in the error.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from viewkeeper.errors import MissingDependency

_SETTINGS = {
    "spark.app.name": "viewkeeper",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
}


def local_spark() -> SparkSession:
    """The session that runs in this process already, or a new local one."""
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    # Workers run the Spark lane's levels: they need this very environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # `local[n,4]`: plain `local[n]` fails a job as soon as one worker dies.
    settings = {"spark.master": f"local[{os.cpu_count() or 1},4]", **_SETTINGS}
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    log = Path(tempfile.gettempdir()) / f"viewkeeper-spark-{os.getpid()}.log"
    try:
        if SparkContext._gateway is None:
            atexit.register(log.unlink, missing_ok=True)
            with log.open("wb") as stream:
                gateway = launch_gateway(conf, popen_kwargs={"stderr": stream})
            SparkContext._ensure_initialized(gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except PySparkException as error:
        said = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
        raise MissingDependency(
            f"Spark could not be started: {said[0] if said else error}",
            hint="Install Java 17 or newer and set JAVA_HOME.",
        ) from error
