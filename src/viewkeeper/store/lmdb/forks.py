"""A forked child and the environments that its parent had open.

An environment does not survive a fork: the child opens it again at first use. The parent's is left alone there, never
closed, not even by the garbage collector: closing it frees the parent's places in the shared table of readers, and the
pages under the parent's scans would be used again (seen).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import lmdb._envid

from viewkeeper.errors import StoreError

_inherited: dict[Path, list[Any]] = {}


def keep(path: Path, handle: Any) -> None:
    """Keep what the parent had open, so that nothing closes it."""
    _inherited.setdefault(path, []).append(handle)


@contextmanager
def beside_the_parents(path: Path) -> Iterator[None]:
    """Let a forked child open what its parent has open.

    py-lmdb refuses files that are open in this process, for the sake of their locks, and after a fork still counts the
    parent's. Those locks are not inherited, and the registry opens a path once, so here it need not look.
    """
    if path not in _inherited:
        yield
        return
    guard = getattr(lmdb, "_envid", None)
    if guard is None:
        raise StoreError(f"The database {path} was open when this process was forked.", hint="Open it after the fork.")
    identify, guard.env_keys = guard.env_keys, lambda path, subdir: ()
    try:
        yield
    finally:
        guard.env_keys = identify
