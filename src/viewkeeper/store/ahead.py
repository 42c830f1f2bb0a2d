"""What comes next is made ready by a thread while what there is is used."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_END: Any = object()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, each made while the one before is used; at most one waits."""
    with ThreadPoolExecutor(1, thread_name_prefix="viewkeeper-ahead") as pool:
        waiting = pool.submit(next, items, _END)
        while (found := waiting.result()) is not _END:
            waiting = pool.submit(next, items, _END)
            yield found
