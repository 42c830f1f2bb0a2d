"""Whether Spark's workers can open the store and the maintainer's state at all.

Some stores are files of one machine (LMDB, and its state). On a cluster whose workers run elsewhere a job would fail
half-way, or worse, find another file under the same name. Of a store that all can reach, the state may be in a
directory of this machine: then workers elsewhere must have it mounted.

So the driver leaves a mark in the state directory, and a worker must read it there: before the first job of a session,
when nothing has been started, and again in every task, since executors come and go. A worker that does not see the
state says just that; it is never taken for damage.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.store.base import Store
from viewkeeper.store.files import Directory

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
