"""The front end's Spark session, and the queries that it analyses.

The settings below are pinned, because the meaning of a stored plan depends on them. The user's own session keeps its
settings: the front end's session is a new one on the same context.

Each table that a query may read is a temporary view over an empty RDD (with an empty local relation the optimiser would
fold the query away). Every column carries its table's id and its own name as metadata, by which the reader identifies
it.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import RDD
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    SparkRuntimeException,
)
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from viewkeeper.errors import BadStatement, EvaluationError, UnknownName, Unsupported
from viewkeeper.model import types
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Table
from viewkeeper.plan.catalyst.jvm import explain_jvm_error, start_local_spark, translate_jvm_errors, use_this_python
from viewkeeper.plan.catalyst.raw_tree import Jvm
from viewkeeper.resources.fork_guard import module_lock

# Isolation of the front end's session from the caller's: neither changes the settings of the other.
#
# Two things could mix them. First, a new session starts with the settings of the whole context (`spark.sql.*` in the
# builder or in spark-defaults), so these are reset to Spark's defaults before the pinned settings are made. Second,
# parts of Spark use the *active* session of the thread, whichever session's plan they process: the parser reads a
# TIMESTAMP literal in its time zone. The front end's session is therefore active while it works, and afterwards the
# caller's again, both in the JVM and in PySpark, which activates a session with every frame that is created and never
# resets it.


_own_session_lock = module_lock()
_own_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_caller_session: list[SparkSession | None] = [None]
"""PySpark's active session when it was last none of the front end's; one for all threads."""


def create_own_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Create a session on the same context with Spark's defaults and these settings, whatever the caller configured."""
    with _own_session_lock:
        to_frame = getattr(RDD, "toDF", None)
        try:
            session = spark.newSession()
        finally:
            if to_frame is not None:  # PySpark sets it to create frames in the newest session
                RDD.toDF = to_frame
        _own_sessions.add(session)
    for name in session.conf.getAll:
        if name.startswith("spark.sql.") and name not in settings and session.conf.isModifiable(name):
            session.conf.unset(name)
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


@contextmanager
def activate_session(session: SparkSession) -> Iterator[None]:
    """Make the session active, and the caller's active again afterwards. Translates errors of a JVM that has ended."""
    with translate_jvm_errors(), _set_active(session):
        yield


@contextmanager
def _set_active(session: SparkSession) -> Iterator[None]:
    sessions: Any = session._jvm.SparkSession
    before = sessions.getActiveSession()
    with _own_session_lock:
        if SparkSession._activeSession not in _own_sessions:
            _caller_session[0] = SparkSession._activeSession
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        with _own_session_lock:
            if SparkSession._activeSession in _own_sessions:
                SparkSession._activeSession = _caller_session[0]
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.cbo.enabled": "false",
    "spark.sql.crossJoin.enabled": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    # ${…} in a text or a name stands for itself, not for a variable of the environment.
    "spark.sql.variable.substitute": "false",
    # IN lists stay lists: a set has no order, and its members are not expressions.
    "spark.sql.optimizer.inSetConversionThreshold": "1000000",
    # Logical nodes that are only hints for execution; the reader would have to recognise and drop them.
    "spark.sql.optimizer.windowGroupLimitThreshold": "-1",
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}"
        for rule in (
            "LimitPushDownThroughWindow",  # adds a second top-k below the window, which the first makes superfluous
            "DecimalAggregates",  # computes avg of a short decimal in floating point
        )
    ),
}

TABLE_KEY, COLUMN_KEY = "viewkeeper.table", "viewkeeper.column"
"""Metadata keys of a registered table's columns."""

_TYPE_NAMES = {types.TINYINT: "byte", types.SMALLINT: "short", types.INT: "integer", types.BIGINT: "long"}
_WORD_PATTERN = re.compile(r"\w+")


@dataclass
class _FrontEnd:
    """Cached for one session: its JVM objects, and the tables registered so far by lower-case name."""

    jvm: Jvm
    commands: tuple[Any, ...]
    registered: dict[str, Table] = field(default_factory=dict)


_lock = module_lock()
_front_ends: weakref.WeakKeyDictionary[SparkSession, _FrontEnd] = weakref.WeakKeyDictionary()


def front_session(spark: SparkSession | None) -> SparkSession:
    """Return a session with pinned settings, on the context of `spark` or on that of a local Spark that is started."""
    with translate_jvm_errors():
        base = start_local_spark() if spark is None else spark
        use_this_python(base.sparkContext)
        return create_own_session(base, SETTINGS)


@dataclass(frozen=True)
class AnalysedQuery:
    """A query as Spark understands it: the live analysed and optimised plans."""

    jvm: Jvm
    analysed_plan: Any
    execution: Any
    optimiser: Any

    @property
    def optimised_plan(self) -> Any:
        with translate_errors():
            return self.execution.optimizedPlan()

    def lateral_plan(self) -> Any:
        """The analysed plan of the query's LATERAL subquery."""
        node = self.analysed_plan
        while node.nodeName() != "LateralJoin":
            node = node.children().head()
        return node.right().plan()

    def optimise(self, plan: Any) -> Any:
        """Optimise a part of the analysed plan separately."""
        with translate_errors():
            return self.optimiser.execute(plan)


def analyse(spark: SparkSession, sql: str, tables: Mapping[str, Table]) -> AnalysedQuery:
    """Parse and analyse one query without running it; a statement that is not a query is refused first."""
    with _lock:
        front = _front_end(spark)
        _register(spark, front, sql, tables)
    state = spark._jsparkSession.sessionState()
    with translate_errors():
        parsed = state.sqlParser().parsePlan(sql)
        if any(kind.isInstance(parsed) for kind in front.commands):
            raise BadStatement("Only a query (SELECT …) can define a view.")
        execution = state.executePlan(parsed, getattr(state, "executePlan$default$2")())
        return AnalysedQuery(front.jvm, execution.analyzed(), execution, state.optimizer())


def _front_end(spark: SparkSession) -> _FrontEnd:
    if spark not in _front_ends:
        package = "org.apache.spark.sql.catalyst.plans.logical."
        class_names = ("Command", "ParsedStatement", "CompoundBody")
        find_class = spark._jvm.java.lang.Class.forName
        _front_ends[spark] = _FrontEnd(Jvm(spark._jvm), tuple(find_class(package + kind) for kind in class_names))
    return _front_ends[spark]


def _register(spark: SparkSession, front_end: _FrontEnd, sql: str, tables: Mapping[str, Table]) -> None:
    """Register the tables that the query may name; unregister those that were dropped or changed."""
    tables_by_name = {name.lower(): table for name, table in tables.items()}
    for name in [n for n, table in front_end.registered.items() if tables_by_name.get(n) != table]:
        spark.catalog.dropTempView(name)
        del front_end.registered[name]
    words = {w.lower() for w in _WORD_PATTERN.findall(sql)}
    for name, table in tables_by_name.items():
        # A name that is not a plain word could be quoted in several ways, so it is always registered.
        if name not in front_end.registered and (name in words or not _WORD_PATTERN.fullmatch(name)):
            schema = spark._jvm.org.apache.spark.sql.types.DataType.fromJson(json.dumps(_schema_json(table)))
            rows = spark._jsparkSession.createDataFrame(spark.sparkContext._jsc.emptyRDD(), schema)
            rows.createOrReplaceTempView(backticked(name))
            front_end.registered[name] = table


def _schema_json(table: Table) -> dict[str, Any]:
    key = {c.name for c in table.key_columns} if not table.is_view else set()
    fields = [
        {
            "name": c.name,
            "type": _TYPE_NAMES.get(c.type, str(c.type)),
            "nullable": c.nullable and c.name not in key,
            "metadata": {TABLE_KEY: table.id, COLUMN_KEY: c.internal_name},
        }
        for c in table.columns
    ]
    return {"type": "struct", "fields": fields}


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate Spark's errors to ours, in a line or two, without PySpark's own report on standard error."""
    with _silence_reports():
        try:
            yield
        except (PySparkException, Py4JJavaError) as error:
            raise explain_jvm_error(error) or _translate(error) from None


class _ThreadLogFilter(logging.Filter):
    """Drops PySpark's log records in threads whose errors are translated; those of other threads are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.local = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.local, "silent", False)


_thread_log_filter = _ThreadLogFilter()


@contextmanager
def _silence_reports() -> Iterator[None]:
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).addFilter(_thread_log_filter)  # adding it a second time has no effect
    before = getattr(_thread_log_filter.local, "silent", False)
    _thread_log_filter.local.silent = True
    try:
        yield
    finally:
        _thread_log_filter.local.silent = before


_EVALUATION_ERRORS = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
"""What Spark raises if an expression fails on its values, as opposed to a query that it cannot read."""


def _translate(error: PySparkException | Py4JJavaError) -> Exception:
    if isinstance(error, PySparkException):
        message, condition = str(error), error.getCondition() or ""
        parameters = error.getMessageParameters() or {}
    else:
        message, condition, parameters = str(error.java_exception.toString()), "", {}
    if "StackOverflowError" in message or condition == "FAILED_TO_PARSE_TOO_COMPLEX":
        return nesting_error()
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        return UnknownName(f"There is no table or view {parameters.get('relationName', '').replace('`', '')}.")
    if condition.startswith("UNRESOLVED_COLUMN"):
        proposal = parameters.get("proposal", "").replace("`", "")
        hint = f"Did you mean one of: {proposal}?" if proposal else "DESCRIBE lists a table's columns."
        return UnknownName(f"There is no column {parameters.get('objectName', '').replace('`', '')}.", hint=hint)
    if isinstance(error, _EVALUATION_ERRORS):
        return EvaluationError(f"The query fails on its values: {first_lines(message)}", hint="")
    kind = Unsupported if condition.startswith("UNSUPPORTED") else BadStatement
    return kind(f"The query is not valid: {first_lines(message)}")


def nesting_error() -> BadStatement:
    """Return the error for a query that exceeds the stack of Spark's parser, or of this package's reader."""
    return BadStatement(
        "The query is nested too deeply, or one expression of it has too many parts.",
        hint="Take superfluous parentheses out, or put parts of it into a WITH or a view of their own.",
    )


def first_lines(message: str, limit: int = 300) -> str:
    """Return Spark's message without its error class, SQLSTATE, plan dump and JVM stack."""
    text = message.split("\nJVM stacktrace")[0].split(";\n")[0].split("\n== SQL")[0]
    text = re.sub(r"\s*SQLSTATE: \w+", "", text)
    text = re.sub(r" If necessary set .* to bypass this error\.", "", text)
    text = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", text.strip())
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
