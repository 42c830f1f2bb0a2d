"""A local Spark, for when the user brings none: all cores, a task that dies is retried, and nothing on the terminal."""

from __future__ import annotations

import os

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from viewkeeper.plan.catalyst.launch import started
from viewkeeper.plan.catalyst.living import forget_ended

SMALL_HEAP = {
    # Out of memory in one of its own threads Spark lives on and answers nothing: better an end that is seen. (The
    # default options stand beside the extra ones, which are a user's.) But Java also says so of a large array after two
    # tries, while other threads that it waits for hold off its collector: on a busy machine it shall try longer.
    "spark.driver.defaultJavaOptions": "-XX:+ExitOnOutOfMemoryError -XX:+IgnoreUnrecognizedVMOptions"
    " -XX:+UnlockDiagnosticVMOptions -XX:GCLockerRetryAllocationCount=1000",
    # Spark's own choice is 32 MB in one piece for each sort, join and broadcast, of a heap of 1 GB.
    "spark.buffer.pageSize": "4m",
}
"""What lets a Java of a gigabyte live beside a busy machine."""

_SETTINGS = {
    **SMALL_HEAP,
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
    """The session that runs in this process already, or a new local one, also in place of one whose JVM has ended."""
    forget_ended()
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    # `local[n,4]`: plain `local[n]` fails a job as soon as one worker dies.
    settings = {"spark.master": f"local[{os.cpu_count() or 1},4]", **_SETTINGS}
    return started(SparkConf(loadDefaults=False).setAll(list(settings.items())))
