"""Whether Spark's JVM still lives, and what is said if it does not, or has no memory left.

    it has ended                  the call is refused with VK503; of a Spark that was started here the next call starts
                                  another, and one that was given needs a new session, which is said
    its memory ran out, it lives  the call is refused with VK503

PySpark tells an end by what its sockets come upon: a refused connection, an answer that is empty or breaks off. That it
is one is known by the process, and by its exit code whether memory ran out: a JVM that we start ends then
(`local.SMALL_HEAP`), and Spark's tasks end any other one.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from viewkeeper.errors import OutOfMemory, StoreError, ViewkeeperError

MORE = (
    "Give Spark's JVM more memory: set SPARK_DRIVER_MEMORY=4g (1g if it is not set) in the environment before the"
    " program starts."
)
_NO_MEMORY = (3, 52)
"""Exit codes: Java's own (ExitOnOutOfMemoryError), and that of Spark's tasks."""
_TO_END = 10.0
"""Seconds from the first sign that a JVM ends to its end."""
_NOISE = "Exception while sending command."


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


def explained(error: BaseException) -> ViewkeeperError | None:
    """What it means, if it is that the JVM has ended or has no memory left; None of any other error."""
    exhausted = isinstance(error, Py4JJavaError | PySparkException) and "OutOfMemoryError" in _said(error)
    cut_off = isinstance(error, ConnectionError | EOFError) or (
        isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    )
    if (exhausted or cut_off) and (code := _exit_code()) is not None:
        if code in _NO_MEMORY:
            return OutOfMemory("Spark's JVM has ended: it ran out of memory.", hint=MORE)
        return StoreError(
            f"Spark's JVM has ended (exit code {code}).",
            hint=f"If the machine has ended it to get memory, let others use less. {MORE}",
        )
    return OutOfMemory("Spark's JVM ran out of memory.", hint=MORE) if exhausted else None


@contextmanager
def alive() -> Iterator[None]:
    """Errors that come of a JVM's end, or of its memory, as ours; and without a traceback on standard error."""
    root = logging.getLogger()
    quiet = _Quiet()
    root.addFilter(quiet)
    try:
        yield
    except Exception as error:
        if (ours := explained(error)) is not None:
            raise ours from error
        raise
    finally:
        root.removeFilter(quiet)


class _Quiet(logging.Filter):
    """PySpark's gateway reports to the root logger what it also raises."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != _NOISE


def _process() -> Any:
    return getattr(SparkContext._gateway, "proc", None)


def _exit_code() -> int | None:
    """That of the JVM, which may be about to end; None if it goes on, or is none of this process."""
    process = _process()
    if process is None:
        return None
    with suppress(TimeoutExpired):
        process.wait(_TO_END)
    code: int | None = process.poll()
    return code


def _said(error: BaseException) -> str:
    """An error of Java asks the JVM for its words."""
    try:
        return str(error)
    except Exception:
        return ""
