"""A forked child and the environments that its parent had open.

An environment does not survive a fork. The child never touches the parent's environment and never closes it, not even
by the garbage collector: closing it would free the parent's slots in the shared reader table, and LMDB would reuse
pages under the parent's scans (this was observed). The child may open the same database again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from viewkeeper.resources import fork_guard
from viewkeeper.store.lmdb.second_environment import allow_second_open

_parent_paths: set[Path] = set()


def keep_parent_handle(path: Path, handle: Any) -> None:
    """Keep the parent's handle alive, so that it is never closed."""
    _parent_paths.add(path)
    fork_guard.never_release(handle)


@contextmanager
def allow_parent_open(path: Path) -> Iterator[None]:
    """Let a forked child open a database that its parent has open.

    After a fork, py-lmdb still counts the parent's environment. The child does not inherit the parent's locks.
    """
    with allow_second_open(path) if path in _parent_paths else nullcontext():
        yield
