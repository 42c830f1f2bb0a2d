"""Whether Spark's workers can open the store and the maintainer's state at all.

Some stores are files of one machine (LMDB, and its state). On a cluster whose workers run elsewhere a job would fail
half-way, or worse, find another file under the same name. So before the first job of a session each executor says
which machine it is on and whether it sees the same directory; if one does not, nothing is started. Of a store that all
can reach, the state may be in a directory of this machine: then workers elsewhere must have it mounted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.store.base import Store
from viewkeeper.store.files import Directory

MACHINE = "VIEWKEEPER_MACHINE"
"""Environment variable that names the machine, for containers that share a kernel but no disks."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Sight:
    """What a process sees: its machine, and the identity of a directory there (none if it is absent)."""

    machine: str
    directory: tuple[int, int] | None


def sight(path: str) -> Sight:
    """What this process sees of a directory."""
    machine = os.environ.get(MACHINE) or (_BOOT.read_text().strip() if _BOOT.exists() else os.uname().nodename)
    try:
        found = Path(path).stat()
    except OSError:
        return Sight(machine, None)
    return Sight(machine, (found.st_dev, found.st_ino))


def all_near(spark: Any, store: Store) -> bool:
    """Whether all tasks run on one machine, where mapping a file of the state costs nothing (see `check_reach`)."""
    return store.one_machine or bool(spark.sparkContext.master.startswith("local"))


def check_reach(spark: Any, store: Store) -> None:
    """Raise Unsupported if the store is one machine's and some worker of the session is elsewhere."""
    context = spark.sparkContext
    state = Directory(store.state_path)
    if context.master.startswith("local") or not (store.one_machine or state.is_local):
        return
    state.make()
    path = str(Path(state).parent if store.one_machine else Path(state))
    here = sight(path)
    slots = 2 * max(2, context.defaultParallelism)

    def look(_: Iterable[Any]) -> Iterator[Sight]:
        yield sight(path)

    seen = context.parallelize(range(slots), slots).mapPartitions(look).collect()
    if not store.one_machine and any(s.directory is None for s in seen):
        raise Unsupported(
            f"The state of {store.url} is in {state}, and not all workers of {context.master} have that directory."
            " Nothing was started.",
            hint="Open the database with state= a directory that is mounted everywhere, or a URL such as s3://….",
        )
    elsewhere = [s for s in seen if s != here] if store.one_machine else []
    if elsewhere:
        raise Unsupported(
            f"{store.url} is a database of one machine, and {len(elsewhere)} of {slots} tasks on {context.master} ran "
            "where it is not. Nothing was started.",
            hint="Use workers on this machine, a local master, or a store that all workers reach, such as HBase.",
        )
