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

_Work = tuple[Callable[..., object], tuple[Any, ...]]
_waiting: SimpleQueue[_Work | None] = SimpleQueue()
"""None: the interpreter ends."""
_thread: threading.Thread | None = None
_starting = module_lock()
_PATIENCE = 60.0
"""Seconds that the end of the interpreter waits for what is being closed."""


def when_lost(owner: object, action: Callable[..., object], *args: Any) -> weakref.finalize[Any, Any]:
    """Call `action` some time after the owner is gone, unless what is returned is detached before. Not at exit."""
    _start()
    finalizer = weakref.finalize(owner, _waiting.put, (action, args))
    finalizer.atexit = False
    return finalizer


def _start() -> None:
    global _thread
    with _starting:
        if _thread is None:
            _thread = threading.Thread(target=_work, args=(_waiting,), name="viewkeeper-lost", daemon=True)
            _thread.start()


def _work(waiting: SimpleQueue[_Work | None]) -> None:
    while (work := waiting.get()) is not None:
        action, args = work
        with suppress(Exception):  # nobody is there to be told
            action(*args)
        del work, action, args


def _at_exit() -> None:
    """What was lost before is closed (`model.threads` says why); what is lost later, the system does."""
    if _thread is not None:
        _waiting.put(None)
        _thread.join(_PATIENCE)


atexit.register(_at_exit)


def _after_fork() -> None:
    """The thread is the parent's; what it had to do is the parent's too."""
    global _thread, _waiting
    _thread, _waiting = None, SimpleQueue()


os.register_at_fork(after_in_child=_after_fork)
