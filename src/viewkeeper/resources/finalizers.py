"""Cleanup of handles that were lost: the last reference is gone and `close` was not called.

A separate thread runs the cleanup. The last reference may be dropped anywhere, also inside a garbage collection that
began while the same thread holds a lock which the cleanup needs.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from viewkeeper.resources.fork_guard import module_lock

_Cleanup = tuple[Callable[..., object], tuple[Any, ...]]
_cleanups: SimpleQueue[_Cleanup | None] = SimpleQueue()
"""Cleanups to run. None stops the thread when the interpreter ends."""
_thread: threading.Thread | None = None
_starting = module_lock()
_EXIT_TIMEOUT = 60.0
"""Seconds that the interpreter's exit waits for running cleanups."""


def add_finalizer(owner: object, action: Callable[..., object], *args: Any) -> weakref.finalize[Any, Any]:
    """Call `action` some time after `owner` is collected, unless the returned finalizer is detached before. The
    finalizer does not run at exit."""
    _ensure_thread()
    finalizer = weakref.finalize(owner, _cleanups.put, (action, args))
    finalizer.atexit = False
    return finalizer


def _ensure_thread() -> None:
    global _thread
    with _starting:
        if _thread is None:
            _thread = threading.Thread(target=_run_cleanups, args=(_cleanups,), name="viewkeeper-lost", daemon=True)
            _thread.start()


def _run_cleanups(cleanups: SimpleQueue[_Cleanup | None]) -> None:
    while (work := cleanups.get()) is not None:
        action, args = work
        with suppress(Exception):  # the handle has no owner to which an error could be reported
            action(*args)
        del work, action, args


def _at_exit() -> None:
    """Wait until the handles lost so far are closed (`model.threads` says why). The system closes the later ones."""
    if _thread is not None:
        _cleanups.put(None)
        _thread.join(_EXIT_TIMEOUT)


atexit.register(_at_exit)


def _after_fork() -> None:
    """Drop the thread and its queue in a forked child: both, and the queued cleanups, are the parent's."""
    global _thread, _cleanups
    _thread, _cleanups = None, SimpleQueue()


os.register_at_fork(after_in_child=_after_fork)
