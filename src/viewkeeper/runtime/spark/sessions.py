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
from viewkeeper.resources.directory import Directory
from viewkeeper.store.contract.store import Store

_CODE = (
    "viewkeeper.runtime.spark.single_task",
    "viewkeeper.runtime.spark.round_tasks",
    "viewkeeper.runtime.spark.sink_tasks",
)
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
        from viewkeeper.plan.catalyst.jvm import use_this_python

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


MACHINE = "VIEWKEEPER_MACHINE"
"""Environment variable that names the machine, for containers that share a kernel but no disks."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MARK = ".reach"


@dataclass(frozen=True)
class Reach:
    """What a worker must see: the directory `path` with this `mark` in it (None: it cannot be written, so just the
    directory), and, if all must be on one, the `machine`."""

    url: str
    path: str
    mark: str | None
    machine: str | None

    def sees(self) -> bool:
        """Whether this process does."""
        if self.machine is not None and machine() != self.machine:
            return False
        return Path(self.path).is_dir() and (self.mark is None or _read(self.path) == self.mark)

    def refusal(self, where: str) -> Unsupported:
        """The error for workers that do not."""
        if self.machine is not None:
            return Unsupported(
                f"{self.url} is a database of one machine, and {where} ran where it is not. Nothing was published.",
                hint="Use workers on this machine, a local master, or a store that all workers reach, such as HBase.",
            )
        return Unsupported(
            f"The state of {self.url} is in {self.path}, and {where} ran where that directory is not, or is another"
            " one. Nothing was published.",
            hint="Open the database with state= a directory that is mounted everywhere, or a URL such as s3://….",
        )


def machine() -> str:
    """A name of the machine that this process runs on."""
    return os.environ.get(MACHINE) or (_BOOT.read_text().strip() if _BOOT.exists() else os.uname().nodename)


def reach_of(spark: Any, store: Store) -> Reach | None:
    """What the workers of a session must see of a store; None if there is nothing that they might not."""
    state = Directory(store.state_path)
    if spark.sparkContext.master.startswith("local") or not (store.one_machine or state.is_local):
        return None
    state.make()
    return Reach(store.url, str(Path(state)), _marked(str(Path(state))), machine() if store.one_machine else None)


def all_near(spark: Any, store: Store) -> bool:
    """Whether all tasks run on one machine, where mapping a file of the state costs nothing (see `check_reach`)."""
    return store.one_machine or bool(spark.sparkContext.master.startswith("local"))


def check_reach(spark: Any, store: Store) -> None:
    """Raise Unsupported if some worker of the session does not see the store or its state."""
    reach = reach_of(spark, store)
    if reach is None:
        return
    context = spark.sparkContext
    slots = 2 * max(2, context.defaultParallelism)

    def look(_: Iterable[Any]) -> Iterator[bool]:
        yield reach.sees()

    seen = context.parallelize(range(slots), slots).mapPartitions(look).collect()
    if not all(seen):
        raise reach.refusal(f"{seen.count(False)} of {slots} tasks on {context.master}")


def _marked(path: str) -> str | None:
    """The mark of a directory, which is made if there is none and it may be."""
    with suppress(OSError):
        descriptor = os.open(Path(path) / _MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(16))
    return _read(path)


def _read(path: str) -> str | None:
    try:
        return (Path(path) / _MARK).read_text() or None
    except OSError:
        return None
