"""The environments that all stores of a process share: one to read, one to write, or both.

Stores use environments from a registry that counts references. A reader's environment is opened read-only: it needs no
write permission, and its tables are opened without waiting for a write transaction. If the process then writes, an
environment for writing is opened beside it (`second_environment`), and running reads are not disturbed. Closing one of
the two would release the locks and reader slots of both, so both are closed when no store of this process uses either.
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
    """Return the environment at a path, opened if this process has not opened it yet; `detach` gives it back."""
    if mode not in ("r", "w"):
        raise BadValue(f"mode={mode!r} is unknown.", hint="Use mode='w' (the default) or mode='r'.")
    if durability not in DURABILITIES:
        raise BadValue(f"durability={durability!r} is unknown.", hint=f"Use one of {', '.join(DURABILITIES)}.")
    check_directory(path, mode, "data.mdb")
    path = path.resolve()
    with _registry_lock:
        environments = _registry.get(path, [])
        if not all(e.is_current() for e in environments):
            environments = []
        fitting = [e for e in environments if e.writable] or [e for e in environments if mode == "r"]
        if not fitting:
            fitting = [Environment(path, durability, map_size, writable=mode == "w")]
            fitting[0].open(create=mode == "w")
            _open_environments.add(fitting[0])
            _registry[path] = environments = [*environments, *fitting]
            for environment in environments:
                environment.siblings = environments
        [environment] = fitting
        if mode == "w" and environment.durability != durability:
            raise StoreError(
                f"The database {path} is open in this process with durability={environment.durability!r}.",
                hint="Close it first, or use the same durability.",
            )
        environment.references += 1
        return environment


def detach(environment: Environment) -> None:
    """Release an environment, and close the environments of a database when no store of this process uses them any
    more."""
    with _registry_lock:
        environment.references -= 1
        if not count_users(environment):
            if _registry.get(environment.path) is environment.siblings:
                del _registry[environment.path]
            for closing in environment.siblings:
                closing.close()
            second_environment.release_fence(environment.file_identity)


def count_users(environment: Environment) -> int:
    """Return the number of stores of this process that have the database open."""
    return sum(e.references for e in environment.siblings)


def _after_fork() -> None:
    for environment in _open_environments:
        environment.abandon()
    _registry.clear()
    _open_environments.clear()
    second_environment.release_all_fences()


os.register_at_fork(after_in_child=_after_fork)
