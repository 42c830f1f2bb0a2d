"""A Spark session of our own beside the caller's: its settings are ours alone, and the caller's stay what they were.

Two things would mix them. A new session starts with what was configured for the whole context (`spark.sql.*` in the
builder or in spark-defaults), so those settings are taken back to Spark's defaults before ours are made. And parts of
Spark ask the *active* session of the thread, whoever's plan they work on: the parser reads a TIMESTAMP literal in its
time zone. So ours is active while it works, and the caller's again afterwards, in the JVM and in PySpark, which itself
makes a session active with every frame that is made and never takes it back.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import RDD
from pyspark.sql import SparkSession

from viewkeeper.plan.catalyst.living import alive
from viewkeeper.store.inherited import module_lock

_lock = module_lock()
_made: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_theirs: list[SparkSession | None] = [None]
"""The session that was PySpark's active one when last it was none of ours: one for all threads."""


def own_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A session on the same context: Spark's defaults and these settings, whatever the caller configured."""
    with _lock:
        to_frame = getattr(RDD, "toDF", None)
        try:
            session = spark.newSession()
        finally:
            if to_frame is not None:  # PySpark lets it make frames of the newest session
                RDD.toDF = to_frame
        _made.add(session)
    for name in session.conf.getAll:
        if name.startswith("spark.sql.") and name not in settings and session.conf.isModifiable(name):
            session.conf.unset(name)
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


@contextmanager
def at_work(session: SparkSession) -> Iterator[None]:
    """While this lasts the session is the active one; afterwards the caller's is. Its JVM's end is an error of ours."""
    with alive(), _active(session):
        yield


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    sessions: Any = session._jvm.SparkSession
    before = sessions.getActiveSession()
    with _lock:
        if SparkSession._activeSession not in _made:
            _theirs[0] = SparkSession._activeSession
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        with _lock:
            if SparkSession._activeSession in _made:
                SparkSession._activeSession = _theirs[0]
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
