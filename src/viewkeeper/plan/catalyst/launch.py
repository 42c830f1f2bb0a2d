"""Spark's JVM and a session in it: quiet, one line if they do not start, and nothing left if the start is broken off.

What the JVM writes to standard error goes to a log file in the temporary directory, which is removed at exit; when
Spark does not start, what it complains of there is in the error.

PySpark's JVM ends by itself when its standard input does, but only once it has told PySpark where it listens. One that
finds nobody to tell that stays for ever: so a launch that is broken off, by Ctrl-C for instance, ends its process.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from viewkeeper.errors import MissingDependency

_COMPLAINT = re.compile(
    r"""Exception\ in\ thread\ "main"\ org\.apache\.spark\.[\w.]+:\ (.+)  # by spark-submit
      | Application\ has\ been\ killed\.\ Reason:\ (.+)                   # by the client of a master
    """,
    re.VERBOSE,
)


PYTHON = "PYSPARK_PYTHON"
"""The environment's word for the interpreter of Spark's workers."""


def use_this_python(context: Any) -> None:
    """Let the workers of a context run the interpreter of this process, unless its user has named one.

    PySpark's own choice is whatever `python3` the path leads to: in a virtual environment that is not activated,
    another Python without our packages. Workers on other machines keep that choice: this path may not exist there.
    """
    if PYTHON in os.environ or context.getConf().contains("spark.pyspark.python"):
        return
    if str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def started(conf: SparkConf) -> SparkSession:
    """The session that runs in this process already, or a new one with this configuration."""
    if _context() is not None:  # with a configuration it would be changed to that
        return SparkSession.builder.getOrCreate()
    # Workers run the Spark lane's levels: they need this very environment.
    os.environ.setdefault(PYTHON, sys.executable)
    log = None
    try:
        if SparkContext._gateway is None:
            descriptor, name = tempfile.mkstemp(prefix="viewkeeper-spark-", suffix=".log")
            log = Path(name)
            atexit.register(log.unlink, missing_ok=True)
            with os.fdopen(descriptor, "wb") as stream, _ended_if_broken_off():
                gateway = java_gateway.launch_gateway(conf, popen_kwargs={"stderr": stream})
            SparkContext._ensure_initialized(gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError) as error:
        if (half_made := _context()) is not None:
            half_made.stop()  # the next one begins anew
        raise _explained(error, log.read_text("utf-8", "replace") if log is not None else "") from error


def _context() -> SparkContext | None:
    return SparkContext._active_spark_context


def _explained(error: Exception, log: str) -> MissingDependency:
    hint = "Look at the master and the settings."
    if (complaint := _COMPLAINT.search(log)) is not None:
        reason = complaint[1] or complaint[2]
    elif isinstance(error, Py4JJavaError):
        reason = str(error.java_exception.getMessage()).partition("\n")[0]
    else:  # no Spark has spoken: its JVM does not run
        reason = next(iter(log.strip().splitlines()), str(error))
        hint = "Install Java 17 or newer and set JAVA_HOME."
    return MissingDependency(f"Spark could not be started: {reason.strip().rstrip('.')}.", hint=hint)


@contextmanager
def _ended_if_broken_off() -> Iterator[None]:
    """PySpark keeps the process that it launches to itself until all is well; here it is known from the beginning."""
    launched: list[Popen[bytes]] = []

    class Known(Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            launched.append(self)
            super().__init__(*arguments, **options)

    java_gateway.Popen = Known
    try:
        yield
    except BaseException:
        for process in launched:
            if getattr(process, "pid", None) is not None:
                process.kill()
                process.wait()
        raise
    finally:
        java_gateway.Popen = Popen
