"""What a process has open of a database, whoever opens it: an environment to read, one to write, or both.

Stores share environments from a registry that counts references. A reader's environment is opened read-only: it needs
no right to write, and its tables are opened without waiting for anybody's write. If this process then writes, that has
an environment of its own beside it (`beside`), and reads that go on are not disturbed. Closing one of two would give up
the locks and the readers' places of both, so both are closed when nobody in this process uses either.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from viewkeeper.errors import BadValue, StoreError
from viewkeeper.resources.fork_guard import module_lock
from viewkeeper.store.lmdb import second_environment
from viewkeeper.store.lmdb.environment import DURABILITIES, Environment
from viewkeeper.store.ordered.location import check_directory

_registry: dict[Path, list[Environment]] = {}
_open_environments: weakref.WeakSet[Environment] = weakref.WeakSet()
_registry_lock = module_lock()


def attach(path: Path, mode: str, durability: str, map_size: int) -> Environment:
    """The environment at a path, opened if this process has not opened it; `detach` gives it back."""
    if mode not in ("r", "w"):
        raise BadValue(f"mode={mode!r} is unknown.", hint="Use mode='w' (the default) or mode='r'.")
    if durability not in DURABILITIES:
        raise BadValue(f"durability={durability!r} is unknown.", hint=f"Use one of {', '.join(DURABILITIES)}.")
    check_directory(path, mode, "data.mdb")
    path = path.resolve()
    with _registry_lock:
        there = _registry.get(path, [])
        if not all(e.is_current() for e in there):
            there = []
        fitting = [e for e in there if e.writable] or [e for e in there if mode == "r"]
        if not fitting:
            fitting = [Environment(path, durability, map_size, writable=mode == "w")]
            fitting[0].open(create=mode == "w")
            _open_environments.add(fitting[0])
            _registry[path] = there = [*there, *fitting]
            for environment in there:
                environment.siblings = there
        [environment] = fitting
        if mode == "w" and environment.durability != durability:
            raise StoreError(
                f"The database {path} is open in this process with durability={environment.durability!r}.",
                hint="Close it first, or use the same durability.",
            )
        environment.references += 1
        return environment


def detach(environment: Environment) -> None:
    """Close the environments of a database when nobody in this process uses them any more."""
    with _registry_lock:
        environment.references -= 1
        if not count_users(environment):
            if _registry.get(environment.path) is environment.siblings:
                del _registry[environment.path]
            for closing in environment.siblings:
                closing.close()
            second_environment.release_fence(environment.file_identity)


def count_users(environment: Environment) -> int:
    """How many stores of this process have the database open."""
    return sum(e.references for e in environment.siblings)


def _after_fork() -> None:
    for environment in _open_environments:
        environment.abandon()
    _registry.clear()
    _open_environments.clear()
    second_environment.release_all_fences()


os.register_at_fork(after_in_child=_after_fork)
