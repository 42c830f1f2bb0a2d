"""The Spark session of a handle: for planning and for the Spark lane, started only when needed.

A session that was given may come to run batches. A Python worker takes a second or two to start and to read our code,
which the first batch would wait for; so who maintains has them started in the background, once an application.
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
"""Applications whose workers were told to start."""
_inherited_contexts: list[Any] = []
"""Spark's contexts of the processes of which this one is a fork."""
_log = logging.getLogger("viewkeeper.batch")


@dataclass(frozen=True)
class Cluster:
    """Where a session's tasks run. `is_here`: on this machine, beside the driver."""

    cores: int
    is_local: bool


class SparkProvider(Protocol):
    """Gives a session, and says what it runs on without starting one."""

    def __call__(self) -> Any: ...

    def cluster(self) -> Cluster | None:
        """None if no session was given and none is running."""

    def prepare(self) -> None:
        """Somebody begins to maintain, maybe with it."""


class SparkSessions:
    """Gives the session. It does not refer to the handle, which may be gone while its views are still maintained."""

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
            return None  # batches go on without it
        context = session.sparkContext
        return Cluster(max(1, int(context.defaultParallelism)), context.master.startswith("local"))


def refuse_inherited() -> None:
    """A context is a connection to its JVM: the answers to two processes would be mixed up, the parent's too."""
    if _inherited_contexts and _active_context() in _inherited_contexts:
        raise StoreError(
            "Spark was started by the process of which this one is a fork.",
            hint="Let the parent do it, or start this process by multiprocessing's spawn.",
        )


def _active_context() -> Any:
    """The one that this process has, as far as it has loaded Spark at all."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._active_spark_context


def _after_fork() -> None:
    if (context := _active_context()) is not None:
        _inherited_contexts.append(context)


os.register_at_fork(after_in_child=_after_fork)


def start_workers(spark: Any) -> threading.Thread | None:
    """Workers for all slots, in the background: who does so. None if this application's were started before.

    Nobody waits for it but the batch that comes meanwhile; what fails here fails there again, and is told there.
    """
    try:
        context = spark.sparkContext
        if context.applicationId in _started_applications:
            return None
        from viewkeeper.plan.catalyst.jvm import use_this_python

        use_this_python(context)
        _started_applications.add(context.applicationId)
    except Exception as error:  # it is stopped, or one of Spark Connect
        _log.debug("Spark's workers are not started ahead: %s", error)
        return None
    thread = threading.Thread(target=_run_start_job, args=(context,), name="viewkeeper-workers", daemon=True)
    thread.start()
    return thread


def _run_start_job(context: Any) -> None:
    try:
        slots = max(1, int(context.defaultParallelism))
        context.setJobDescription("viewkeeper: workers start")  # of this thread's jobs
        context.parallelize(range(slots), slots).foreachPartition(_import_task_modules)
    except Exception as error:  # it may be stopped by now
        _log.debug("Spark's workers were not started ahead: %s", error)


def _import_task_modules(_: Iterable[Any]) -> None:
    """In a worker: what every task needs of our code, and a DuckDB that was opened once."""
    for name in _TASK_MODULES:
        importlib.import_module(name)
    importlib.import_module("viewkeeper.resources.prepared_statements").connect().close()


# Whether Spark's workers can open the store and the maintainer's state at all.
#
# Some stores are files of one machine (LMDB, and its state). On a cluster whose workers run elsewhere a job would fail
# half-way, or worse, find another file under the same name. Of a store that all can reach, the state may be in a
# directory of this machine: then workers elsewhere must have it mounted.
#
# So the driver leaves a mark in the state directory, and a worker must read it there: before the first job of a
# session, when nothing has been started, and again in every task, since executors come and go. A worker that does not
# see the state says just that; it is never taken for damage.


MACHINE_VARIABLE = "VIEWKEEPER_MACHINE"
"""Environment variable that names the machine, for containers that share a kernel but no disks."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MARKER_FILE = ".reach"


@dataclass(frozen=True)
class ReachabilityCheck:
    """What a worker must see: the directory `path` with this `mark` in it (None: it cannot be written, so just the
    directory), and, if all must be on one, the `machine`."""

    url: str
    path: str
    marker: str | None
    machine: str | None

    def is_reachable(self) -> bool:
        """Whether this process does."""
        if self.machine is not None and machine_name() != self.machine:
            return False
        return Path(self.path).is_dir() and (self.marker is None or _read_marker(self.path) == self.marker)

    def refusal(self, task_text: str) -> Unsupported:
        """The error for workers that do not."""
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
    """A name of the machine that this process runs on."""
    return os.environ.get(MACHINE_VARIABLE) or (
        _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else os.uname().nodename
    )


def reachability_check(spark: Any, store: Store) -> ReachabilityCheck | None:
    """What the workers of a session must see of a store; None if there is nothing that they might not."""
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
    """Whether all tasks run on one machine, where mapping a file of the state costs nothing (see `check_reach`)."""
    return store.is_single_machine or bool(spark.sparkContext.master.startswith("local"))


def check_reachability(spark: Any, store: Store) -> None:
    """Raise Unsupported if some worker of the session does not see the store or its state."""
    reach = reachability_check(spark, store)
    if reach is None:
        return
    context = spark.sparkContext
    slots = 2 * max(2, context.defaultParallelism)

    def look(_: Iterable[Any]) -> Iterator[bool]:
        yield reach.is_reachable()

    seen = context.parallelize(range(slots), slots).mapPartitions(look).collect()
    if not all(seen):
        raise reach.refusal(f"{seen.count(False)} of {slots} tasks on {context.master}")


def _ensure_marker(path: str) -> str | None:
    """The mark of a directory, which is made if there is none and it may be."""
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
