"""One LMDB environment per process and path, whoever opens it.

LMDB must not be opened twice in a process (closing one would drop the other's locks), so stores share environments from
a registry that counts references. A reader's environment is opened read-only, and again if this process then writes.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from pathlib import Path

from viewkeeper.errors import BadValue, ReadOnly, StoreError
from viewkeeper.store.lmdb.environment import DURABILITIES, Environment
from viewkeeper.store.lmdb.failures import not_a_database

_registry: dict[Path, Environment] = {}
_all: weakref.WeakSet[Environment] = weakref.WeakSet()
_registry_lock = threading.Lock()


def attach(path: Path, mode: str, durability: str, map_size: int) -> Environment:
    """The environment at a path, opened if this process has not opened it; `detach` gives it back."""
    if mode not in ("r", "w"):
        raise BadValue(f"mode={mode!r} is unknown.", hint="Use mode='w' (the default) or mode='r'.")
    if durability not in DURABILITIES:
        raise BadValue(f"durability={durability!r} is unknown.", hint=f"Use one of {', '.join(DURABILITIES)}.")
    _check_place(path, mode)
    path = path.resolve()
    with _registry_lock:
        environment = _registry.get(path)
        if environment is None or not environment.is_current():
            environment = Environment(path, durability, map_size, writable=mode == "w")
            environment.open(create=mode == "w")
            _all.add(environment)
            _registry[path] = environment
        elif mode == "w" and not environment.writable:
            environment.make_writable(durability)
        elif mode == "w" and environment.durability != durability:
            raise StoreError(
                f"The database {path} is open in this process with durability={environment.durability!r}.",
                hint="Close it first, or use the same durability.",
            )
        environment.references += 1
        return environment


def detach(environment: Environment) -> None:
    """Close the environment when nobody else in this process uses it."""
    with _registry_lock:
        environment.references -= 1
        if environment.references == 0:
            if _registry.get(environment.path) is environment:
                del _registry[environment.path]
            environment.close()


def _after_fork() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()
    for environment in _all:
        environment.forget()


os.register_at_fork(after_in_child=_after_fork)


def _check_place(path: Path, mode: str) -> None:
    """The path is a database, or a place where one can be made."""
    try:
        if path.exists() and not path.is_dir():
            raise not_a_database(path, "it is a file")
        has_data = (path / "data.mdb").exists()
        if mode == "r":
            if not has_data:
                raise not_a_database(path, "there is no database there")
            return
        if has_data:
            return
        if path.is_dir() and any(path.iterdir()):
            raise not_a_database(path, "the directory holds other files")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        if not os.access(path, os.W_OK | os.X_OK):
            raise ReadOnly(f"The directory {path} cannot be written.", hint="Check its permissions.")
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ReadOnly(f"The path {path} cannot be written: {error.strerror}.", hint="Choose another.") from error
        raise StoreError(
            f"The path {path} cannot be used: {error.strerror}.", hint="Choose a directory that can be written."
        ) from error
