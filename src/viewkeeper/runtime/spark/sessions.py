"""The Spark session of a handle, for planning and for the Spark lane; it is started only when needed.

A user's session may later run batches. A Python worker takes a second or two to start and to import the code, and the
first batch would wait for that. The maintainer therefore starts the workers in the background, once for each Spark
application.

This module also checks that the session's workers can reach the store and its state.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from viewkeeper.errors import StoreError, Unsupported
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.contract.store import Store

_TASK_MODULES = (
    "viewkeeper.runtime.spark.single_task",
    "viewkeeper.runtime.spark.round_tasks",
    "viewkeeper.runtime.spark.sink_tasks",
)
_started_applications: set[str] = set()
"""Ids of applications whose workers were started."""
_inherited_contexts: list[Any] = []
"""Spark contexts inherited from parent processes by fork."""
_log = logging.getLogger("viewkeeper.batch")


@dataclass(frozen=True)
class Cluster:
    """The cores of a session's cluster. `is_local`: tasks run on the driver's machine."""

    cores: int
    is_local: bool


class SparkProvider(Protocol):
    """Provides a Spark session, and describes its cluster without starting a session."""

    def __call__(self) -> Any: ...

    def cluster(self) -> Cluster | None:
        """Return the cluster; None if the user gave no session and none is running."""

    def prepare(self) -> None:
        """Called when a maintainer begins, which may use the session later."""


class SparkSessions:
    """Provides the session. It does not refer to the handle, which may be lost while its views are still maintained."""

    def __init__(self, store: Store, user_session: Any) -> None:
        self._store, self._user_session = store, user_session
        self._session: Any = None
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        from viewkeeper.plan.catalyst import front_session, has_ended, refuse_ended

        with self._lock:
            if self._user_session is not None:
                refuse_ended(self._user_session)
            if self._session is None or has_ended(self._session):
                refuse_inherited()
                session = front_session(self._user_session)
                check_reachability(session, self._store)
                self._session = session
            return self._session

    def prepare(self) -> None:
        if self._user_session is not None:
            start_workers(self._user_session)

    def cluster(self) -> Cluster | None:
        session = self._session if self._session is not None else self._user_session
        if session is None:
            return None
        from viewkeeper.plan.catalyst import has_ended

        if has_ended(session):
            return None  # batches continue without it
        context = session.sparkContext
        return Cluster(max(1, int(context.defaultParallelism)), context.master.startswith("local"))


def refuse_inherited() -> None:
    """Raise StoreError if the Spark context is inherited by fork.

    A context is a connection to its JVM; with two processes, responses would reach the wrong one.
    """
    if _inherited_contexts and _active_context() in _inherited_contexts:
        raise StoreError(
            "Spark was started by the process of which this one is a fork.",
            hint="Let the parent do it, or start this process by multiprocessing's spawn.",
        )


def _active_context() -> Any:
    """Return the process's active Spark context; None if it has not imported Spark."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._active_spark_context


def _after_fork() -> None:
    if (context := _active_context()) is not None:
        _inherited_contexts.append(context)


os.register_at_fork(after_in_child=_after_fork)


def start_workers(spark: Any) -> threading.Thread | None:
    """Start workers for all slots in a background thread; None if this application's workers were started before.

    An error here is only logged; the first job raises it again.
    """
    try:
        context = spark.sparkContext
        if context.applicationId in _started_applications:
            return None
        from viewkeeper.plan.catalyst.jvm import use_this_python

        use_this_python(context)
        _started_applications.add(context.applicationId)
    except Exception as error:  # the session is stopped, or is a Spark Connect session
        _log.debug("Spark's workers are not started ahead: %s", error)
        return None
    thread = threading.Thread(target=_run_start_job, args=(context,), name="viewkeeper-workers", daemon=True)
    thread.start()
    return thread


def _run_start_job(context: Any) -> None:
    try:
        slots = max(1, int(context.defaultParallelism))
        context.setJobDescription("viewkeeper: workers start")  # for this thread's jobs only
        context.parallelize(range(slots), slots).foreachPartition(_import_task_modules)
    except Exception as error:  # the session may be stopped by now
        _log.debug("Spark's workers were not started ahead: %s", error)


def _import_task_modules(_: Iterable[Any]) -> None:
    """In a worker: import the modules that every task needs, and open DuckDB once."""
    for name in _TASK_MODULES:
        importlib.import_module(name)
    importlib.import_module("viewkeeper.resources.prepared_statements").connect().close()


# The reachability check: whether Spark's workers can open the store and the maintainer's state.
#
# Some stores are files of one machine (LMDB and its state). On a cluster with workers on other machines a job would
# fail half-way, or find a different file under the same name. The state of a store that all machines can reach may
# still be in a directory of the driver's machine; workers on other machines must then have it mounted.
#
# The driver therefore writes a marker file to the state directory, and workers must read the same marker: before the
# first job of a session, and in every task, since executors join and leave. A worker that cannot reach the state
# reports exactly that, so it is never mistaken for damaged state.


MACHINE_VARIABLE = "VIEWKEEPER_MACHINE"
"""Environment variable that names the machine, for containers that share a kernel but no disks."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MARKER_FILE = ".reach"


@dataclass(frozen=True)
class ReachabilityCheck:
    """What a worker must be able to reach.

    The directory `path` must contain this `marker`; None if the marker cannot be written, then the directory must
    exist. If `machine` is set, the worker must run on that machine.
    """

    url: str
    path: str
    marker: str | None
    machine: str | None

    def is_reachable(self) -> bool:
        """Whether this process passes the check."""
        if self.machine is not None and machine_name() != self.machine:
            return False
        return Path(self.path).is_dir() and (self.marker is None or _read_marker(self.path) == self.marker)

    def refusal(self, task_text: str) -> Unsupported:
        """Return the error for workers that fail the check."""
        if self.machine is not None:
            return Unsupported(
                f"{self.url} is a database of one machine, and {task_text} ran where it is not. Nothing was published.",
                hint="Use workers on this machine, a local master, or a store that all workers reach, such as HBase.",
            )
        return Unsupported(
            f"The state of {self.url} is in {self.path}, and {task_text} ran where that directory is not, or is another"
            " one. Nothing was published.",
            hint="Open the database with state= a directory that is mounted everywhere, or a URL such as s3://….",
        )


def machine_name() -> str:
    """Return a name that identifies the machine of this process."""
    return os.environ.get(MACHINE_VARIABLE) or (
        _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else os.uname().nodename
    )


def reachability_check(spark: Any, store: Store) -> ReachabilityCheck | None:
    """Return the check for a session's workers; None if all of them can certainly reach the store and its state."""
    state = StateDirectory(store.state_path)
    if spark.sparkContext.master.startswith("local") or not (store.is_single_machine or state.is_local):
        return None
    state.create()
    return ReachabilityCheck(
        store.url,
        str(Path(state)),
        _ensure_marker(str(Path(state))),
        machine_name() if store.is_single_machine else None,
    )


def is_single_machine(spark: Any, store: Store) -> bool:
    """Whether all tasks run on one machine, where mapping a state file costs nothing (see `check_reachability`)."""
    return store.is_single_machine or bool(spark.sparkContext.master.startswith("local"))


def check_reachability(spark: Any, store: Store) -> None:
    """Raise Unsupported if a worker of the session cannot reach the store or its state."""
    check = reachability_check(spark, store)
    if check is None:
        return
    context = spark.sparkContext
    slots = 2 * max(2, context.defaultParallelism)

    def run_check(_: Iterable[Any]) -> Iterator[bool]:
        yield check.is_reachable()

    results = context.parallelize(range(slots), slots).mapPartitions(run_check).collect()
    if not all(results):
        raise check.refusal(f"{results.count(False)} of {slots} tasks on {context.master}")


def _ensure_marker(path: str) -> str | None:
    """Return the marker of a directory; creates it if there is none and the directory is writable."""
    with suppress(OSError):
        descriptor = os.open(Path(path) / _MARKER_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(16))
    return _read_marker(path)


def _read_marker(path: str) -> str | None:
    try:
        return (Path(path) / _MARKER_FILE).read_text() or None
    except OSError:
        return None
