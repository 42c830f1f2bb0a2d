"""A thread pool that accepts work even while the interpreter ends.

    the main thread has ended   Python's pools accept no more work; threads that are not daemons run to their end
    atexit                      final work of the program, such as a last batch; then background threads are stopped
    after that                  a daemon thread that still runs is ended when it next requests the GIL

So no thread of Viewkeeper may run after atexit: ending a thread inside DuckDB or Arrow, which are C++, aborts the
process. In the first two phases a batch needs no thread but the one that runs it.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
_ending = threading.Event()

# The callback that is registered last is called first: before Python shuts its pools down.
getattr(threading, "_register_atexit", atexit.register)(_ending.set)


class ThreadPool(ThreadPoolExecutor):
    """A pool whose `submit` runs the work in the caller's thread when the interpreter ends."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if not _ending.is_set():
            try:
                return super().submit(fn, *args, **kwargs)
            except RuntimeError:
                if not _ending.is_set():
                    raise
        return _run_now(fn, *args, **kwargs)


def _run_now(fn: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
    return future
