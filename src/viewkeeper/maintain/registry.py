"""The maintainer registry: all handles of a database in one process share one maintainer, and with it one lease.

    acquire   return the process's maintainer; the first handle that needs one creates it; the handle becomes a user
    release   the handle is closed or lost; with the last user the maintainer ends, and the lease is released
    end       the maintainer cannot be used any longer (lost lease, failure); the next `acquire` creates another

A second handle, or one that was lost without `close`, therefore blocks no other handle. A background maintenance
belongs to the handle that began it. If that handle is lost, the maintenance continues, so that the views remain fresh,
until another handle of this process begins one.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from viewkeeper.errors import MaintainerBusy, StoreError
from viewkeeper.maintain.remote_ddl.server import DefinitionServer, Progress
from viewkeeper.resources.finalizers import add_finalizer
from viewkeeper.resources.fork_guard import module_lock, never_release, owned
from viewkeeper.runtime.spark.sessions import SparkProvider
from viewkeeper.store.contract.store import Store

if TYPE_CHECKING:
    from viewkeeper.maintain.continuous import Maintenance
    from viewkeeper.maintain.maintainer import Maintainer

DefinitionRunner = Callable[[Any, str, Sequence[Any], Progress], Any]
"""Runs a definition for another process: (handle, name of the call, its arguments, progress callback)."""

END_TIMEOUT = 60.0
"""Seconds to wait for a maintainer of this process that is ending, while its last batch still runs."""


class _RegistryEntry:
    """The maintainer of one database, its users, and the handle that runs background maintenance on it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.maintainer: Maintainer | None = None
        self.users: set[MaintainerReference] = set()
        self.background_user: MaintainerReference | None = None
        self.server: DefinitionServer | None = None
        """Runs definitions for other processes, as long as there is a maintainer."""
        self.closed_stores: list[Store] = []
        """Stores of closed handles that the maintainer still uses; they are closed with the maintainer."""
        self.ended = threading.Event()
        self.ended.set()

    def find_handle(self) -> Any:
        """Return a handle that uses the maintainer; None if all of them are lost."""
        with self.lock:
            handles = [user.handle for user in self.users]
        return next((handle for handle in handles if handle is not None), None)

    def end(self, *, unless_used: bool = False) -> None:
        """Close the maintainer; with `unless_used`, only while no handle uses it.

        The server stops first and without the lock, because a statement that it runs may need the maintainer until it
        is broken off. A handle that acquires the maintainer meanwhile keeps it, and the server starts again.
        """
        with self.lock:
            if unless_used and self.users:
                return
            server, self.server = self.server, None
        if server is not None:
            server.stop()
        with self.lock:
            if unless_used and self.users:
                next(iter(self.users)).serve_definitions()
                return
            maintainer, self.maintainer = self.maintainer, None
            stores, self.closed_stores = self.closed_stores, []
            self.users.clear()
            if maintainer is None:
                return
            self.ended.clear()
        try:
            maintainer.close()
        finally:
            for store in stores:
                store.close()
            self.ended.set()


_registry: weakref.WeakValueDictionary[Any, _RegistryEntry] = weakref.WeakValueDictionary()
_registry_lock = module_lock()


class MaintainerReference:
    """One handle's reference to the process's maintainer."""

    def __init__(
        self, handle: object, store: Store, spark: SparkProvider, define: DefinitionRunner, **options: Any
    ) -> None:
        """Register the handle.

        `spark` provides the session, `define` runs definitions of other processes on a handle, `options` are passed to
        the maintainer. None of them may refer to the handle, because that would keep it alive.
        """
        self._store, self._spark, self._define, self._options = store, spark, define, options
        self.maintenance: Maintenance | None = None
        self._handle = weakref.ref(handle)
        owned(handle, f"The database {store.url} was opened")
        self.finalizer = add_finalizer(handle, self._handle_lost)
        """Detached by the handle's `close`."""
        with _registry_lock:
            self._entry = _registry.setdefault(_registry_key(store), _RegistryEntry())

    @property
    def handle(self) -> Any:
        """The handle, or None if it was garbage collected without `close`."""
        return self._handle()

    @property
    def is_lost(self) -> bool:
        """Whether the handle was garbage collected without `close`."""
        return self._handle() is None

    @property
    def current_maintainer(self) -> Maintainer | None:
        """The process's maintainer, if this handle is a user of it."""
        entry = self._entry
        return entry.maintainer if self in entry.users else None

    def acquire(self) -> Maintainer:
        """Return the process's maintainer; raises MaintainerBusy if another process has the lease."""
        entry = self._entry
        while True:
            entry.ended.wait(END_TIMEOUT)  # without the lock, since the batch that ends may need it
            with entry.lock:
                maintainer = entry.maintainer
                if maintainer is None:
                    from viewkeeper.maintain.maintainer import Maintainer

                    maintainer = entry.maintainer = Maintainer(self._store, self._spark, **self._options)
                    self.serve_definitions()
                if not maintainer.publisher.lease.is_lost:
                    entry.users.add(self)
                    return maintainer
            self.end()

    def serve_definitions(self) -> None:
        """Start to run definitions for other processes, if the store has a mailbox. The entry's lock is held."""
        if self._entry.server is None and self._store.mailbox is not None:
            run = partial(_run_received_call, self._entry, self._define)
            self._entry.server = DefinitionServer(self._store, self._store.mailbox, run).start()

    def end(self) -> None:
        """Close the maintainer, whatever handles use it."""
        self._entry.end()

    def release(self) -> bool:
        """Stop using the maintainer.

        Returns whether the handle's store can be closed: not if other handles still use a maintainer over it.
        """
        entry = self._entry
        with entry.lock:
            entry.users.discard(self)
        entry.end(unless_used=True)
        with entry.lock:
            if entry.users and entry.maintainer is not None and entry.maintainer.store is self._store:
                entry.closed_stores.append(self._store)
                return False
        return True

    def begin_background(self, maintenance: Maintenance) -> Maintainer:
        """Return the maintainer for background maintenance by this handle; that of a lost handle is stopped first."""
        while True:
            with self._entry.lock:
                other = self._entry.background_user
                if other is None or other is self or other.maintenance is None or not other.maintenance.running:
                    self._entry.background_user, self.maintenance = self, maintenance
                    break
            if not other.is_lost:
                raise MaintainerBusy(
                    f"The database {self._store.url} is maintained in the background by another handle of this process"
                    f" ({os.getpid()}).",
                    hint="Stop that maintenance first, or close that handle.",
                )
            with suppress(Exception):  # the lost handle cannot receive the error
                other.maintenance.stop()
        return self.acquire()

    def end_background(self) -> None:
        """Record that this handle's background maintenance has ended; a lost handle releases the maintainer."""
        with self._entry.lock:
            if self._entry.background_user is self:
                self._entry.background_user = None
        if self.is_lost:
            self.release()

    def _handle_lost(self) -> None:
        """Release the maintainer when the handle is lost, unless its background maintenance still runs."""
        if self._entry.background_user is not self:
            self.release()


def _run_received_call(
    entry: _RegistryEntry, define: DefinitionRunner, call: str, arguments: Sequence[Any], progress: Progress
) -> Any:
    handle = entry.find_handle()
    if handle is None:
        raise MaintainerBusy(
            f"The program that maintains (process {os.getpid()}) has let go of its database without closing it.",
            hint="Define it in that program, or end that program.",
        )
    return define(handle, call, arguments, progress)


def _registry_key(store: Store) -> Any:
    """Return the key of a database: the URL and its identity, since a copy of the directory has the same identity."""
    return store.url, store.uuid


class ClosedStore:
    """Replaces the store in a closed handle while other handles still use that store; every access raises."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __getattr__(self, name: str) -> Any:
        raise StoreError(f"The database {self._url} is closed.", hint="Open it again.")


def end_all_maintainers() -> None:
    """At the end of the program, close every maintainer and release its lease, after waiting for a running batch."""
    for entry in list(_registry.values()):
        maintainer = entry.maintainer
        if maintainer is not None and maintainer.publisher.lock.acquire(timeout=END_TIMEOUT):
            # Release the lock: `end` waits for a scheduled view, whose thread may be waiting for the lock.
            maintainer.publisher.lock.release()
            with suppress(Exception):  # the program ends; the error has no receiver
                entry.end()


atexit.register(end_all_maintainers)


def _after_fork() -> None:
    """Forget the parent's maintainers in a forked child: their leases and threads belong to the parent process."""
    for entry in _registry.values():
        never_release(entry)
    _registry.clear()


os.register_at_fork(after_in_child=_after_fork)
