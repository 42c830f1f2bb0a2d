"""Spark's JVM and a session in it: quiet, one line if they do not start, and nothing left if the start is broken off.

What the JVM writes to standard error goes to a log file in the temporary directory, which is removed at exit; when
Spark does not start, what it complains of there is in the error.

PySpark's JVM ends by itself when its standard input does, but only once it has told PySpark where it listens. One that
finds nobody to tell that stays for ever: so a launch that is broken off, by Ctrl-C for instance, ends its process.
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
"""The environment's word for the interpreter of Spark's workers."""


def use_this_python(context: Any) -> None:
    """Let the workers of a context run the interpreter of this process, unless its user has named one.

    PySpark's own choice is whatever `python3` the path leads to: in a virtual environment that is not activated,
    another Python without our packages. Workers on other machines keep that choice: this path may not exist there.
    """
    if PYTHON_VARIABLE in os.environ or context.getConf().contains("spark.pyspark.python"):
        return
    if str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def start_session(conf: SparkConf) -> SparkSession:
    """The session that runs in this process already, or a new one with this configuration."""
    if _active_context() is not None:  # with a configuration it would be changed to that
        return SparkSession.builder.getOrCreate()
    # Workers run the Spark lane's levels: they need this very environment.
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
        if (half_made := _active_context()) is not None:
            half_made.stop()  # the next one begins anew
        raise _startup_error(error, log.read_text("utf-8", "replace") if log is not None else "") from error


def _active_context() -> SparkContext | None:
    return SparkContext._active_spark_context


def _startup_error(error: Exception, log: str) -> MissingDependency:
    hint = "Look at the master and the settings."
    if (complaint := _STARTUP_MESSAGE.search(log)) is not None:
        reason = complaint[1] or complaint[2]
    elif isinstance(error, Py4JJavaError):
        reason = str(error.java_exception.getMessage()).partition("\n")[0]
    else:  # no Spark has spoken: its JVM does not run
        reason = next(iter(log.strip().splitlines()), str(error))
        hint = "Install Java 17 or newer and set JAVA_HOME."
    return MissingDependency(f"Spark could not be started: {reason.strip().rstrip('.')}.", hint=hint)


@contextmanager
def _kill_on_interrupt() -> Iterator[None]:
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


# Whether Spark's JVM still lives, and what is said if it does not, or has no memory left.
#
#     it has ended                  the call is refused with VK503; of a Spark that was started here the next call
# starts
#                                   another, and one that was given needs a new session, which is said
#     its memory ran out, it lives  the call is refused with VK503
#
# PySpark tells an end by what its sockets come upon: a refused connection, an answer that is empty or breaks off. That
# it is one is known by the process, and by its exit code whether memory ran out: a JVM that we start ends then
# (`local.SMALL_HEAP`), and Spark's tasks end any other one.


MORE_MEMORY_HINT = (
    "Give Spark's JVM more memory: set SPARK_DRIVER_MEMORY=4g (1g if it is not set) in the environment before the"
    " program starts."
)
_OUT_OF_MEMORY_CODES = (3, 52)
"""Exit codes: Java's own (ExitOnOutOfMemoryError), and that of Spark's tasks."""
_END_TIMEOUT = 10.0
"""Seconds from the first sign that a JVM ends to its end."""
_GATEWAY_MESSAGE = "Exception while sending command."


def has_ended(session: Any) -> bool:
    """Whether this session is stopped or its JVM runs no more; of one that somebody else started that is not known."""
    if getattr(getattr(session, "_sc", None), "_jsc", "there") is None:
        return True
    jvm = getattr(session, "_jvm", None)
    if jvm is not None and jvm is not SparkContext._jvm:
        return True  # it was forgotten, and another one may have been started since
    process = _process()
    return process is not None and process.poll() is not None


def refuse_ended(session: Any) -> None:
    """A session that was given is refused if it has ended, and PySpark is ready for a new one."""
    if has_ended(session):
        forget_ended()
        raise StoreError(
            "The Spark session that the database was opened with was stopped, or its JVM has ended.",
            hint="Make a new one (SparkSession.builder…getOrCreate()) and open the database with that.",
        )


def forget_ended() -> None:
    """Let PySpark forget a JVM that has ended, so that it starts another one when it is next asked."""
    process = _process()
    if process is None or process.poll() is None:
        return
    context: Any = SparkContext._active_spark_context
    if context is not None:
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")
            context._jsc = None  # nobody is there whom it could tell
            context.stop()
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def explain_jvm_error(error: BaseException) -> ViewkeeperError | None:
    """What it means, if it is that the JVM has ended or has no memory left; None of any other error."""
    exhausted = isinstance(error, Py4JJavaError | PySparkException) and "OutOfMemoryError" in _error_text(error)
    cut_off = isinstance(error, ConnectionError | EOFError) or (
        isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    )
    if (exhausted or cut_off) and (code := _exit_code()) is not None:
        if code in _OUT_OF_MEMORY_CODES:
            return OutOfMemory("Spark's JVM has ended: it ran out of memory.", hint=MORE_MEMORY_HINT)
        return StoreError(
            f"Spark's JVM has ended (exit code {code}).",
            hint=f"If the machine has ended it to get memory, let others use less. {MORE_MEMORY_HINT}",
        )
    return OutOfMemory("Spark's JVM ran out of memory.", hint=MORE_MEMORY_HINT) if exhausted else None


@contextmanager
def translate_jvm_errors() -> Iterator[None]:
    """Errors that come of a JVM's end, or of its memory, as ours; and without a traceback on standard error."""
    root = logging.getLogger()
    quiet = _GatewayLogFilter()
    root.addFilter(quiet)
    try:
        yield
    except Exception as error:
        if (ours := explain_jvm_error(error)) is not None:
            raise ours from error
        raise
    finally:
        root.removeFilter(quiet)


class _GatewayLogFilter(logging.Filter):
    """PySpark's gateway reports to the root logger what it also raises."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != _GATEWAY_MESSAGE


def _process() -> Any:
    return getattr(SparkContext._gateway, "proc", None)


def _exit_code() -> int | None:
    """That of the JVM, which may be about to end; None if it goes on, or is none of this process."""
    process = _process()
    if process is None:
        return None
    with suppress(TimeoutExpired):
        process.wait(_END_TIMEOUT)
    code: int | None = process.poll()
    return code


def _error_text(error: BaseException) -> str:
    """An error of Java asks the JVM for its words."""
    try:
        return str(error)
    except Exception:
        return ""


# A local Spark, for when the user brings none: all cores, a task that dies is retried, and nothing on the terminal.


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


def start_local_spark() -> SparkSession:
    """The session that runs in this process already, or a new local one, also in place of one whose JVM has ended."""
    forget_ended()
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    # `local[n,4]`: plain `local[n]` fails a job as soon as one worker dies.
    settings = {"spark.master": f"local[{os.cpu_count() or 1},4]", **_SETTINGS}
    return start_session(SparkConf(loadDefaults=False).setAll(list(settings.items())))
