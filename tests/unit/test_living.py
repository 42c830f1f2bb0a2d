"""A Spark whose JVM has ended or has no memory left is an error with a code, and the next call may begin anew."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from viewkeeper.errors import OutOfMemory, StoreError
from viewkeeper.plan.catalyst import jvm as catalyst_jvm
from viewkeeper.plan.catalyst.session import translate_errors
from viewkeeper.runtime.spark.sessions import SparkSessions


class Process:
    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def wait(self, _seconds: float) -> int | None:
        return self.code


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Process:
    """The JVM as PySpark knows it: it runs, until `code` is set."""
    process = Process(None)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    monkeypatch.setattr(SparkContext, "_jvm", object())
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr(SparkSession, "_activeSession", None)
    return process


def a_session() -> Any:
    return SimpleNamespace(_jvm=SparkContext._jvm, _sc=SimpleNamespace(_jsc=object()))


@pytest.mark.parametrize("error", [Py4JNetworkError("cut"), ConnectionRefusedError(111, "refused"), EOFError()])
@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [(3, OutOfMemory, "ran out of memory"), (52, OutOfMemory, "ran out of memory"), (-9, StoreError, "exit code -9")],
)
def test_a_jvm_that_ended_is_told_with_a_code_and_what_to_do(
    jvm: Process, error: Exception, code: int, kind: type[StoreError], said: str
) -> None:
    jvm.code = code
    with pytest.raises(kind, match=said) as told, catalyst_jvm.translate_jvm_errors():
        raise error
    assert told.value.code == "VK503"
    assert "SPARK_DRIVER_MEMORY=4g" in str(told.value)


def test_memory_that_ran_out_in_a_jvm_that_lives_on_is_told_too(jvm: Process) -> None:
    with pytest.raises(OutOfMemory, match="SPARK_DRIVER_MEMORY"), catalyst_jvm.translate_jvm_errors():
        raise PySparkException("java.lang.OutOfMemoryError: Java heap space")


def test_other_errors_are_what_they_are(jvm: Process) -> None:
    with pytest.raises(PySparkException, match="no such table"), catalyst_jvm.translate_jvm_errors():
        raise PySparkException("no such table")
    with pytest.raises(ConnectionResetError), catalyst_jvm.translate_jvm_errors():  # of a JVM that goes on
        raise ConnectionResetError


def test_what_pyspark_reports_beside_the_error_is_not_printed(jvm: Process, caplog: pytest.LogCaptureFixture) -> None:
    with catalyst_jvm.translate_jvm_errors():
        logging.error("Exception while sending command.")
    assert not caplog.records
    logging.error("Exception while sending command.")
    assert caplog.records, "outside, it is what it was"


def test_a_given_session_that_ended_is_refused_and_batches_go_on_without(jvm: Process) -> None:
    session = a_session()
    sessions = SparkSessions(SimpleNamespace(), session)  # type: ignore[arg-type]
    jvm.code = 3
    assert sessions.cluster() is None
    for _ in range(2):
        with pytest.raises(StoreError, match="Make a new one") as told:
            sessions()
        assert told.value.code == "VK503"
        assert SparkContext._gateway is None, "PySpark starts another JVM when it is asked"
    assert sessions.cluster() is None


def test_a_session_that_was_stopped_has_ended(jvm: Process) -> None:
    session = a_session()
    assert not catalyst_jvm.has_ended(session)
    session._sc._jsc = None
    assert catalyst_jvm.has_ended(session)


def test_an_error_that_is_translated_is_not_reported_whatever_other_threads_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark's report has the JVM's trace; a thread that is done must not switch it on for one that still works."""
    reported: list[str] = []
    collector = logging.Handler()
    monkeypatch.setattr(collector, "emit", lambda record: reported.append(record.getMessage()))
    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    for logger in loggers:
        monkeypatch.setattr(logger, "handlers", [collector])

    def report(text: str) -> None:
        for logger in loggers:
            logger.error(text)

    def pass_through() -> None:
        with translate_errors():
            report("of another thread")

    with translate_errors():
        other = threading.Thread(target=pass_through)
        other.start()
        other.join()
        report("of this thread")
    assert reported == []
    report("of the user")
    assert reported == ["of the user"] * 2
