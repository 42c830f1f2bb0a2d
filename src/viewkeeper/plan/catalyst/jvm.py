"""Spark's JVM: start a local one, detect that it has ended, and translate its errors.

The JVM's standard error goes to a log file in the temporary directory, which is removed at exit. If Spark does not
start, the reason is taken from this file, so the error is one line.

PySpark's JVM ends when its standard input is closed, but only after it has reported its port to PySpark. If the launch
is interrupted before, by Ctrl-C for instance, the JVM would run for ever, so its process is killed.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from viewkeeper.errors import MissingDependency, OutOfMemory, StoreError, ViewkeeperError

_STARTUP_MESSAGE = re.compile(
    r"""Exception\ in\ thread\ "main"\ org\.apache\.spark\.[\w.]+:\ (.+)  # by spark-submit
      | Application\ has\ been\ killed\.\ Reason:\ (.+)                   # by the client of a master
    """,
    re.VERBOSE,
)


PYTHON_VARIABLE = "PYSPARK_PYTHON"
"""Environment variable with the interpreter of Spark's workers."""


def use_this_python(context: Any) -> None:
    """Make the workers of a context run the interpreter of this process, unless the user has configured one.

    By default PySpark runs the first `python3` in the path, which in a virtual environment that is not activated is
    another Python without this package. Workers on other machines keep the default: this interpreter's path may not
    exist there.
    """
    if PYTHON_VARIABLE in os.environ or context.getConf().contains("spark.pyspark.python"):
        return
    if str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def start_session(conf: SparkConf) -> SparkSession:
    """Return the session that already runs in this process, or start one with this configuration."""
    if _active_context() is not None:  # passing the configuration would change the running session
        return SparkSession.builder.getOrCreate()
    # Workers run the rounds of the Spark lane and need this Python environment.
    os.environ.setdefault(PYTHON_VARIABLE, sys.executable)
    log = None
    try:
        if SparkContext._gateway is None:
            descriptor, name = tempfile.mkstemp(prefix="viewkeeper-spark-", suffix=".log")
            log = Path(name)
            atexit.register(log.unlink, missing_ok=True)
            with os.fdopen(descriptor, "wb") as stream, _kill_on_interrupt():
                gateway = java_gateway.launch_gateway(conf, popen_kwargs={"stderr": stream})
            SparkContext._ensure_initialized(gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError) as error:
        if (partial_context := _active_context()) is not None:
            partial_context.stop()  # the next attempt starts from scratch
        raise _startup_error(error, log.read_text("utf-8", "replace") if log is not None else "") from error


def _active_context() -> SparkContext | None:
    return SparkContext._active_spark_context


def _startup_error(error: Exception, log: str) -> MissingDependency:
    hint = "Look at the master and the settings."
    if (startup_message := _STARTUP_MESSAGE.search(log)) is not None:
        reason = startup_message[1] or startup_message[2]
    elif isinstance(error, Py4JJavaError):
        reason = str(error.java_exception.getMessage()).partition("\n")[0]
    else:  # the error is not Spark's: its JVM does not run
        reason = next(iter(log.strip().splitlines()), str(error))
        hint = "Install Java 17 or newer and set JAVA_HOME."
    return MissingDependency(f"Spark could not be started: {reason.strip().rstrip('.')}.", hint=hint)


@contextmanager
def _kill_on_interrupt() -> Iterator[None]:
    """Kill the launched process if the launch is interrupted.

    PySpark does not expose the process before the launch has succeeded, so its `Popen` is replaced meanwhile.
    """
    processes: list[Popen[bytes]] = []

    class Known(Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            processes.append(self)
            super().__init__(*arguments, **options)

    java_gateway.Popen = Known
    try:
        yield
    except BaseException:
        for process in processes:
            if getattr(process, "pid", None) is not None:
                process.kill()
                process.wait()
        raise
    finally:
        java_gateway.Popen = Popen


# Detection of a JVM that has ended or has run out of memory.
#
#     it has ended                          the call is refused with VK503. If Spark was started here, the next call
#                                           starts another one; if the caller passed the session, the error asks for a
#                                           new one
#     it is out of memory but still runs    the call is refused with VK503
#
# PySpark notices the end of a JVM by its sockets: a refused connection, or an answer that is empty or cut off. The
# process confirms that the JVM has ended, and its exit code shows whether it ran out of memory: a JVM that is started
# here then ends (`SMALL_HEAP`), and any other one is ended by Spark's tasks.


MORE_MEMORY_HINT = (
    "Give Spark's JVM more memory: set SPARK_DRIVER_MEMORY=4g (1g if it is not set) in the environment before the"
    " program starts."
)
_OUT_OF_MEMORY_CODES = (3, 52)
"""Exit codes for lack of memory: that of Java (ExitOnOutOfMemoryError), and that of Spark's tasks."""
_END_TIMEOUT = 10.0
"""Seconds to wait for the JVM's end after the first sign of it."""
_GATEWAY_MESSAGE = "Exception while sending command."


def has_ended(session: Any) -> bool:
    """Whether this session is stopped or its JVM has ended.

    For a JVM that another process started, the end is not known.
    """
    if getattr(getattr(session, "_sc", None), "_jsc", "there") is None:
        return True
    jvm = getattr(session, "_jvm", None)
    if jvm is not None and jvm is not SparkContext._jvm:
        return True  # PySpark has forgotten this JVM, and may have started another one since
    process = _process()
    return process is not None and process.poll() is not None


def refuse_ended(session: Any) -> None:
    """Raise StoreError if a session passed by the caller has ended, and prepare PySpark for a new one."""
    if has_ended(session):
        forget_ended()
        raise StoreError(
            "The Spark session that the database was opened with was stopped, or its JVM has ended.",
            hint="Make a new one (SparkSession.builder…getOrCreate()) and open the database with that.",
        )


def forget_ended() -> None:
    """Make PySpark forget a JVM that has ended, so that it starts another one on the next request."""
    process = _process()
    if process is None or process.poll() is None:
        return
    context: Any = SparkContext._active_spark_context
    if context is not None:
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")
            context._jsc = None  # the JVM that it would call has ended
            context.stop()
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def explain_jvm_error(error: BaseException) -> ViewkeeperError | None:
    """Return the error to raise if the JVM has ended or has run out of memory; None for any other error."""
    is_out_of_memory = isinstance(error, Py4JJavaError | PySparkException) and "OutOfMemoryError" in _error_text(error)
    is_cut_off = isinstance(error, ConnectionError | EOFError) or (
        isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    )
    if (is_out_of_memory or is_cut_off) and (code := _exit_code()) is not None:
        if code in _OUT_OF_MEMORY_CODES:
            return OutOfMemory("Spark's JVM has ended: it ran out of memory.", hint=MORE_MEMORY_HINT)
        return StoreError(
            f"Spark's JVM has ended (exit code {code}).",
            hint=f"If the machine has ended it to get memory, let others use less. {MORE_MEMORY_HINT}",
        )
    return OutOfMemory("Spark's JVM ran out of memory.", hint=MORE_MEMORY_HINT) if is_out_of_memory else None


@contextmanager
def translate_jvm_errors() -> Iterator[None]:
    """Translate errors caused by a JVM's end or lack of memory, without a traceback on standard error."""
    root = logging.getLogger()
    log_filter = _GatewayLogFilter()
    root.addFilter(log_filter)
    try:
        yield
    except Exception as error:
        if (translated := explain_jvm_error(error)) is not None:
            raise translated from error
        raise
    finally:
        root.removeFilter(log_filter)


class _GatewayLogFilter(logging.Filter):
    """Drops what PySpark's gateway logs to the root logger, because it also raises it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != _GATEWAY_MESSAGE


def _process() -> Any:
    return getattr(SparkContext._gateway, "proc", None)


def _exit_code() -> int | None:
    """Return the JVM's exit code, waiting if it may be about to end; None if it still runs or is not of this
    process."""
    process = _process()
    if process is None:
        return None
    with suppress(TimeoutExpired):
        process.wait(_END_TIMEOUT)
    code: int | None = process.poll()
    return code


def _error_text(error: BaseException) -> str:
    """Return the error's text, which for a Java error is a call into the JVM and may fail."""
    try:
        return str(error)
    except Exception:
        return ""


# A local Spark, used if the user brings none: all cores, failed tasks are retried, and no output on the terminal.


SMALL_HEAP = {
    # If one of its own threads runs out of memory, Spark stays alive without answering; ending the JVM makes the
    # failure visible. (The default options are combined with the extra ones, which belong to the user.) But Java also
    # reports lack of memory for a large array after two attempts, while other threads hold off the collector: on a busy
    # machine it should try longer.
    "spark.driver.defaultJavaOptions": "-XX:+ExitOnOutOfMemoryError -XX:+IgnoreUnrecognizedVMOptions"
    " -XX:+UnlockDiagnosticVMOptions -XX:GCLockerRetryAllocationCount=1000",
    # Spark's default is 32 MB in one piece for each sort, join and broadcast, of a heap of 1 GB.
    "spark.buffer.pageSize": "4m",
}
"""Settings with which a JVM of one gigabyte runs reliably on a busy machine."""

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


def start_local_spark() -> SparkSession:
    """Return the session that already runs in this process, or start a local one, also if the previous JVM has
    ended."""
    forget_ended()
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    # `local[n,4]`: with plain `local[n]` a job fails as soon as one worker dies.
    settings = {"spark.master": f"local[{os.cpu_count() or 1},4]", **_SETTINGS}
    return start_session(SparkConf(loadDefaults=False).setAll(list(settings.items())))
