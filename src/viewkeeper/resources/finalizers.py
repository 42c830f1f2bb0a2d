"""What is done when a handle is lost: its last reference goes and nobody has closed it.

It is done by a thread of its own. The last reference may go anywhere, also inside a garbage collection that began
while this very thread holds a lock which closing needs.
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
"""None: the interpreter ends."""
_thread: threading.Thread | None = None
_starting = module_lock()
_EXIT_TIMEOUT = 60.0
"""Seconds that the end of the interpreter waits for what is being closed."""


def add_finalizer(owner: object, action: Callable[..., object], *args: Any) -> weakref.finalize[Any, Any]:
    """Call `action` some time after the owner is gone, unless what is returned is detached before. Not at exit."""
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
        with suppress(Exception):  # nobody is there to be told
            action(*args)
        del work, action, args


def _at_exit() -> None:
    """What was lost before is closed (`model.threads` says why); what is lost later, the system does."""
    if _thread is not None:
        _cleanups.put(None)
        _thread.join(_EXIT_TIMEOUT)


atexit.register(_at_exit)


def _after_fork() -> None:
    """The thread is the parent's; what it had to do is the parent's too."""
    global _thread, _cleanups
    _thread, _cleanups = None, SimpleQueue()


os.register_at_fork(after_in_child=_after_fork)
