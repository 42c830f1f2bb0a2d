"""What a forked child has of its parent: handles that refuse, things that nobody ends, locks that are free.

A child has its parent's memory and none of its threads. So a lock may be held there by a thread that is none; a DuckDB
or a RocksDB that is ended waits for threads that are none, or crashes; a connection has two who speak; and an
environment of LMDB that is closed frees the parent's places among its readers. In a child

    what is `owned`      refuses every call, by being of another class from then on; to close it does nothing
    what is to `keep`    is never ended, not by the garbage collector and not at the end of the interpreter
    what was garbage     is never collected: there may be a DuckDB in it
    `end_at_once`        leaves out what a library does when the process ends, where that waits for its threads
    a `module_lock`      is free, whoever held it

and the child opens a database for itself. Who does not fork pays for none of it: no call asks whose process this is.
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
    """The handle is of this process alone. `said`: what of it, as "The database lmdb:x was opened"."""
    _owned_handles[handle] = description


def never_release(value: object) -> None:
    """For a forked child: the thing is the parent's, and lasts as long as this process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def exit_without_cleanup() -> None:
    """For a forked child: when Python has ended, so does the process, with its exit code and what it has written."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # what is registered last is called first
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


def module_lock() -> threading.Lock:
    """A lock for what a whole process shares."""
    lock = threading.Lock()
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]
    return lock


def _ignore_close(handle: Any, *_: object, **_named: object) -> None:
    """How an inherited handle is closed: it is the parent's."""


def _refuse_call(handle: Any, name: str) -> Any:
    """What an inherited handle says. It has nothing any more, so this is asked for whatever its methods look for."""
    if name.startswith("__"):  # what Python looks for on its own
        raise AttributeError(name)
    raise StoreError(handle._refusal, hint="Open the database again in this process.")


_INHERITED_METHODS = {"close": _ignore_close, "stop": _ignore_close, "__getattr__": _refuse_call}


def _after_fork() -> None:
    global _owned_handles, _process_id
    gc.freeze()
    parents, parent = dict(_owned_handles), _process_id
    _owned_handles, _process_id = weakref.WeakKeyDictionary(), os.getpid()
    for handle, said in parents.items():
        never_release(handle.__dict__)
        kind = type(handle)
        handle.__class__ = types.new_class(
            kind.__name__, (kind,), exec_body=lambda body: body.update(_INHERITED_METHODS)
        )
        handle.__dict__ = {"_refusal": f"{said} by process {parent}, of which this one is a fork."}


os.register_at_fork(after_in_child=_after_fork)
