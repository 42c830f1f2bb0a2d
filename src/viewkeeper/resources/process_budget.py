"""The budget: how much memory this process may take, and who has a part of it.

    the budget   what an open database was given (`memory=`: the most, if several were), else what VIEWKEEPER_MEMORY
                 says, else a share of the machine's, the container's, the process's
    a share      has whoever maintains a database in this process, each as much as the others
    an eighth    has what is asked once: a query, an audit's comparison, a file that is loaded

Nobody counts bytes here: those who work ask for their part when they begin, and keep to it (`store.memory`).
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
"""The environment variable that says what `memory=` does not."""

MACHINE_FRACTION = 4
"""Of the machine's memory this part is the budget, unless told otherwise."""

MIN_BUDGET = 64 << 20
"""Less is no budget: DuckDB alone needs some ten megabytes a statement."""

_CGROUP_LIMITS = tuple(map(Path, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")))
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_lock = module_lock()
_requested_bytes: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
_maintainers: weakref.WeakSet[object] = weakref.WeakSet()


def parse_size(size: int | str, what: str = "memory", minimum: int = MIN_BUDGET) -> int:
    """Bytes, from a number of them or from a text such as '2GB' or '512 MiB'."""
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise BadValue(f"{what} is {size!r}.", hint="Give a number of bytes or a text such as '2GB'.")
    if isinstance(size, str):
        found = _SIZE.fullmatch(size)
        if found is None:
            raise BadValue(f"{what} is {size!r}.", hint="Give a number of bytes or a text such as '2GB'.")
        number, unit, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
    if size < minimum:
        raise BadValue(f"{what} is {size} bytes.", hint=f"Give at least {f'{minimum >> 20}MiB' if minimum else 0}.")
    return size


def default_budget() -> int:
    """The budget where none is given: a share of what the machine, the container or the process may have."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            found = min(found, int(limit.read_text()))
    data = resource.getrlimit(resource.RLIMIT_DATA)[0]  # not that of addresses, which LMDB's sparse map takes
    if data != resource.RLIM_INFINITY:
        found = min(found, data)
    return max(found // MACHINE_FRACTION, MIN_BUDGET)


def process_budget(requested: int | str | None = None) -> int:
    """Bytes: as given, else as an open database was given, else as the environment says, else the machine's share."""
    if requested is not None:
        return parse_size(requested)
    with _lock:
        known = max(_requested_bytes.values(), default=None)
    if known is not None:
        return known
    told = os.environ.get(ENVIRONMENT_VARIABLE) or None
    return default_budget() if told is None else parse_size(told)


def register(owner: object, requested: int | str | None) -> None:
    """An open database was given this much: until it is closed or lost, that is what the process may take."""
    if requested is not None:
        with _lock:
            _requested_bytes[owner] = parse_size(requested)


def unregister(owner: object) -> None:
    with _lock:
        _requested_bytes.pop(owner, None)


def register_maintainer(owner: object) -> None:
    """One more who has a share, until it ends or is lost."""
    with _lock:
        _maintainers.add(owner)


def unregister_maintainer(owner: object) -> None:
    with _lock:
        _maintainers.discard(owner)


def share_count() -> int:
    """Into how many shares the budget is divided."""
    return max(1, len(_maintainers))


def _after_fork() -> None:
    """Who has a share is the parent's."""
    _requested_bytes.clear()
    _maintainers.clear()


os.register_at_fork(after_in_child=_after_fork)
