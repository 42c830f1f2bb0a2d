"""The Spark session of a handle: for planning and for the Spark lane, started only when needed.

A session that was given may come to run batches. A Python worker takes a second or two to start and to read our code,
which the first batch would wait for; so who maintains has them started in the background, once an application.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from viewkeeper.errors import StoreError
from viewkeeper.store.base import Store

_CODE = ("viewkeeper.rounds.whole", "viewkeeper.rounds.task", "viewkeeper.rounds.sinking")
_started: set[str] = set()
"""Applications whose workers were told to start."""
_parents: list[Any] = []
"""Spark's contexts of the processes of which this one is a fork."""
_log = logging.getLogger("viewkeeper.batch")


@dataclass(frozen=True)
class Cluster:
    """Where a session's tasks run. `is_here`: on this machine, beside the driver."""

    cores: int
    is_here: bool


class Spark(Protocol):
    """Gives a session, and says what it runs on without starting one."""

    def __call__(self) -> Any: ...

    def cluster(self) -> Cluster | None:
        """None if no session was given and none is running."""

    def ready(self) -> None:
        """Somebody begins to maintain, maybe with it."""


class Sessions:
    """Gives the session. It does not refer to the handle, which may be gone while its views are still maintained."""

    def __init__(self, store: Store, given: Any) -> None:
        self._store, self._given = store, given
        self._session: Any = None
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        from viewkeeper.plan.catalyst import front_session, has_ended, refuse_ended

        with self._lock:
            if self._given is not None:
                refuse_ended(self._given)
            if self._session is None or has_ended(self._session):
                from viewkeeper.rounds.reach import check_reach

                refuse_inherited()
                session = front_session(self._given)
                check_reach(session, self._store)
                self._session = session
            return self._session

    def ready(self) -> None:
        if self._given is not None:
            start_workers(self._given)

    def cluster(self) -> Cluster | None:
        session = self._session if self._session is not None else self._given
        if session is None:
            return None
        from viewkeeper.plan.catalyst import has_ended

        if has_ended(session):
            return None  # batches go on without it
        context = session.sparkContext
        return Cluster(max(1, int(context.defaultParallelism)), context.master.startswith("local"))


def refuse_inherited() -> None:
    """A context is a connection to its JVM: the answers to two processes would be mixed up, the parent's too."""
    if _parents and _context() in _parents:
        raise StoreError(
            "Spark was started by the process of which this one is a fork.",
            hint="Let the parent do it, or start this process by multiprocessing's spawn.",
        )


def _context() -> Any:
    """The one that this process has, as far as it has loaded Spark at all."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._active_spark_context


def _after_fork() -> None:
    if (context := _context()) is not None:
        _parents.append(context)


os.register_at_fork(after_in_child=_after_fork)


def start_workers(spark: Any) -> threading.Thread | None:
    """Workers for all slots, in the background: who does so. None if this application's were started before.

    Nobody waits for it but the batch that comes meanwhile; what fails here fails there again, and is told there.
    """
    try:
        context = spark.sparkContext
        if context.applicationId in _started:
            return None
        from viewkeeper.plan.catalyst.launch import use_this_python

        use_this_python(context)
        _started.add(context.applicationId)
    except Exception as error:  # it is stopped, or one of Spark Connect
        _log.debug("Spark's workers are not started ahead: %s", error)
        return None
    thread = threading.Thread(target=_start, args=(context,), name="viewkeeper-workers", daemon=True)
    thread.start()
    return thread


def _start(context: Any) -> None:
    try:
        slots = max(1, int(context.defaultParallelism))
        context.setJobDescription("viewkeeper: workers start")  # of this thread's jobs
        context.parallelize(range(slots), slots).foreachPartition(_read_code)
    except Exception as error:  # it may be stopped by now
        _log.debug("Spark's workers were not started ahead: %s", error)


def _read_code(_: Iterable[Any]) -> None:
    """In a worker: what every task needs of our code, and a DuckDB that was opened once."""
    for name in _CODE:
        importlib.import_module(name)
    importlib.import_module("viewkeeper.store.ducks").connect().close()
