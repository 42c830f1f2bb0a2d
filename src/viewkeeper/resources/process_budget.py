"""The memory budget of this process, and its division among owners.

    the budget   `memory=` of an open database (the maximum, if several databases set it), else VIEWKEEPER_MEMORY, else
                 a fraction of the memory of the machine, the container or the process limit
    a share      each maintainer in this process has an equal share
    a quarter    a one-off task such as a query or an audit has a quarter of a share (`memory.one_off_budget`)
    an eighth    a DuckDB connection without an owner, such as one that loads a file or parses a query

This module does not count allocated bytes: each owner reads its share when it begins, and keeps to it (`memory`).
"""

from __future__ import annotations

import os
import re
import resource
import weakref
from contextlib import suppress
from pathlib import Path

from viewkeeper.errors import BadValue
from viewkeeper.resources.fork_guard import module_lock

ENVIRONMENT_VARIABLE = "VIEWKEEPER_MEMORY"
"""The environment variable that applies where `memory=` is not set."""

MACHINE_FRACTION = 4
"""The default budget is this fraction (1/n) of the machine's memory."""

MIN_BUDGET = 64 << 20
"""The minimum budget: DuckDB alone needs some ten megabytes for a statement."""

_CGROUP_LIMITS = tuple(map(Path, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")))
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_lock = module_lock()
_requested_bytes: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
_maintainers: weakref.WeakSet[object] = weakref.WeakSet()


def parse_size(size: int | str, what: str = "memory", minimum: int = MIN_BUDGET) -> int:
    """Return a size in bytes, from a number of bytes or from a text such as '2GB' or '512 MiB'."""
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise BadValue(f"{what} is {size!r}.", hint="Give a number of bytes or a text such as '2GB'.")
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None:
            raise BadValue(f"{what} is {size!r}.", hint="Give a number of bytes or a text such as '2GB'.")
        number, unit, binary = match.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
    if size < minimum:
        raise BadValue(f"{what} is {size} bytes.", hint=f"Give at least {f'{minimum >> 20}MiB' if minimum else 0}.")
    return size


def default_budget() -> int:
    """Return the default budget: a fraction of what the machine, the container or the process may use."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            available = min(available, int(limit.read_text()))
    data = resource.getrlimit(resource.RLIMIT_DATA)[0]  # not RLIMIT_AS: LMDB's sparse map counts against that
    if data != resource.RLIM_INFINITY:
        available = min(available, data)
    return max(available // MACHINE_FRACTION, MIN_BUDGET)


def process_budget(requested: int | str | None = None) -> int:
    """Return the budget in bytes: `requested`, else an open database's, else the environment's, else the default."""
    if requested is not None:
        return parse_size(requested)
    with _lock:
        registered = max(_requested_bytes.values(), default=None)
    if registered is not None:
        return registered
    from_environment = os.environ.get(ENVIRONMENT_VARIABLE) or None
    return default_budget() if from_environment is None else parse_size(from_environment)


def register(owner: object, requested: int | str | None) -> None:
    """Record the budget of an open database. It applies until the database is closed or lost."""
    if requested is not None:
        with _lock:
            _requested_bytes[owner] = parse_size(requested)


def unregister(owner: object) -> None:
    with _lock:
        _requested_bytes.pop(owner, None)


def register_maintainer(owner: object) -> None:
    """Count one more maintainer with a share, until it ends or is lost."""
    with _lock:
        _maintainers.add(owner)


def unregister_maintainer(owner: object) -> None:
    with _lock:
        _maintainers.discard(owner)


def share_count() -> int:
    """Return the number of shares into which the budget is divided."""
    return max(1, len(_maintainers))


def _after_fork() -> None:
    """Clear the registrations in a forked child: they are the parent's."""
    _requested_bytes.clear()
    _maintainers.clear()


os.register_at_fork(after_in_child=_after_fork)
