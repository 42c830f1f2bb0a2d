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

VARIABLE = "VIEWKEEPER_MEMORY"
"""The environment variable that says what `memory=` does not."""

SHARE = 4
"""Of the machine's memory this part is the budget, unless told otherwise."""

LEAST = 64 << 20
"""Less is no budget: DuckDB alone needs some ten megabytes a statement."""

_LIMITS = tuple(map(Path, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")))
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_lock = module_lock()
_given: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
_maintaining: weakref.WeakSet[object] = weakref.WeakSet()


def parse_size(given: int | str, what: str = "memory", least: int = LEAST) -> int:
    """Bytes, from a number of them or from a text such as '2GB' or '512 MiB'."""
    if isinstance(given, bool) or not isinstance(given, (int, str)):
        raise BadValue(f"{what} is {given!r}.", hint="Give a number of bytes or a text such as '2GB'.")
    if isinstance(given, str):
        found = _SIZE.fullmatch(given)
        if found is None:
            raise BadValue(f"{what} is {given!r}.", hint="Give a number of bytes or a text such as '2GB'.")
        number, unit, binary = found.groups()
        given = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
    if given < least:
        raise BadValue(f"{what} is {given} bytes.", hint=f"Give at least {f'{least >> 20}MiB' if least else 0}.")
    return given


def machine_share() -> int:
    """The budget where none is given: a share of what the machine, the container or the process may have."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _LIMITS:
        with suppress(OSError, ValueError):
            found = min(found, int(limit.read_text()))
    data = resource.getrlimit(resource.RLIMIT_DATA)[0]  # not that of addresses, which LMDB's sparse map takes
    if data != resource.RLIM_INFINITY:
        found = min(found, data)
    return max(found // SHARE, LEAST)


def budget(given: int | str | None = None) -> int:
    """Bytes: as given, else as an open database was given, else as the environment says, else the machine's share."""
    if given is not None:
        return parse_size(given)
    with _lock:
        known = max(_given.values(), default=None)
    if known is not None:
        return known
    told = os.environ.get(VARIABLE) or None
    return machine_share() if told is None else parse_size(told)


def give(owner: object, given: int | str | None) -> None:
    """An open database was given this much: until it is closed or lost, that is what the process may take."""
    if given is not None:
        with _lock:
            _given[owner] = parse_size(given)


def take_back(owner: object) -> None:
    with _lock:
        _given.pop(owner, None)


def begin_maintaining(owner: object) -> None:
    """One more who has a share, until it ends or is lost."""
    with _lock:
        _maintaining.add(owner)


def end_maintaining(owner: object) -> None:
    with _lock:
        _maintaining.discard(owner)


def sharers() -> int:
    """Into how many shares the budget is divided."""
    return max(1, len(_maintaining))


def _after_fork() -> None:
    """Who has a share is the parent's."""
    _given.clear()
    _maintaining.clear()


os.register_at_fork(after_in_child=_after_fork)
