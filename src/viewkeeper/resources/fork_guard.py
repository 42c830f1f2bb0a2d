"""Protection of a forked child from what it inherits: its handles refuse calls, and its module locks are free.

A child has its parent's memory and none of its threads. So a lock may be held in the child by a thread that does not
exist there; closing a DuckDB or RocksDB handle waits for threads that do not exist, or crashes; a connection has two
processes that speak on it; and closing an LMDB environment frees the parent's slots in the reader table. In a child:

    an `owned` handle           refuses every call, because its class is replaced; `close` does nothing
    `never_release`             an object is never finalized, neither by the garbage collector nor at exit
    garbage at the fork         is never collected: it may contain a DuckDB handle
    `exit_without_cleanup`      skips exit handlers of native libraries, where these wait for their threads
    a `module_lock`             is free, even if a thread of the parent held it

The child opens the database again. A process that does not fork pays nothing: no call checks the process id.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import types
import weakref
from typing import Any

from viewkeeper.errors import StoreError

_owned_handles: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_process_id = os.getpid()


def owned(handle: object, description: str) -> None:
    """Register a handle as usable in this process only. `description` begins its refusal in a child, for example "The
    database lmdb:x was opened"."""
    _owned_handles[handle] = description


def never_release(value: object) -> None:
    """Keep an inherited object until this process ends (for a forked child): the object is the parent's."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def exit_without_cleanup() -> None:
    """Skip native exit handlers (for a forked child): after Python's own exit, the process ends at once, with its exit
    code and flushed output."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # the function that is registered last is called first
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


def module_lock() -> threading.Lock:
    """Return a lock for process-wide state, which is free in a forked child."""
    lock = threading.Lock()
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]
    return lock


def _ignore_close(handle: Any, *_: object, **_named: object) -> None:
    """Replace `close` of an inherited handle: the resource is the parent's."""


def _refuse_call(handle: Any, name: str) -> Any:
    """Refuse a call on an inherited handle. Its `__dict__` is empty, so every lookup of a method ends here."""
    if name.startswith("__"):  # special names that Python looks up by itself
        raise AttributeError(name)
    raise StoreError(handle._refusal, hint="Open the database again in this process.")


_INHERITED_METHODS = {"close": _ignore_close, "stop": _ignore_close, "__getattr__": _refuse_call}


def _after_fork() -> None:
    global _owned_handles, _process_id
    gc.freeze()
    parents, parent = dict(_owned_handles), _process_id
    _owned_handles, _process_id = weakref.WeakKeyDictionary(), os.getpid()
    for handle, description in parents.items():
        never_release(handle.__dict__)
        kind = type(handle)
        handle.__class__ = types.new_class(
            kind.__name__, (kind,), exec_body=lambda body: body.update(_INHERITED_METHODS)
        )
        handle.__dict__ = {"_refusal": f"{description} by process {parent}, of which this one is a fork."}


os.register_at_fork(after_in_child=_after_fork)
