"""Threads that take work, also while the interpreter ends.

    the main thread has ended   Python's pools take no work from now on; threads that are no daemons go on to their end
    atexit                      what programs do last, maybe a last batch; then what we have in the background ends, too
    the rest                    a daemon that still runs is ended where it next asks for Python's lock

The last is why nothing of ours may run until then: within DuckDB or Arrow, which are C++, to be ended is to abort the
process. And in the first two a batch needs no other threads than the one that makes it.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
_ending = threading.Event()

# What is registered last is called first: before Python's pools are told to end.
getattr(threading, "_register_atexit", atexit.register)(_ending.set)


class ThreadPool(ThreadPoolExecutor):
    """A pool; when the interpreter ends, who gives it work does it at once."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if not _ending.is_set():
            try:
                return super().submit(fn, *args, **kwargs)
            except RuntimeError:
                if not _ending.is_set():
                    raise
        return _run_now(fn, *args, **kwargs)


def _run_now(fn: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    found: Future[T] = Future()
    try:
        found.set_result(fn(*args, **kwargs))
    except BaseException as error:
        found.set_exception(error)
    return found
