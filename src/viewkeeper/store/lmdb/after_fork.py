"""A forked child and the environments that its parent had open.

An environment does not survive a fork. The parent's is left alone in the child, never closed, not even by the garbage
collector: closing it frees the parent's places in the shared table of readers, and the pages under the parent's scans
would be used again (seen). The child may open the same database for itself.
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
    """Keep what the parent had open, so that nothing closes it."""
    _parent_paths.add(path)
    fork_guard.never_release(handle)


@contextmanager
def allow_parent_open(path: Path) -> Iterator[None]:
    """Let a forked child open what its parent has open.

    py-lmdb still counts the parent's after a fork. The parent's locks are not inherited.
    """
    with allow_second_open(path) if path in _parent_paths else nullcontext():
        yield
