"""Who maintains, within one process: all handles of a database use one maintainer, and with it one lease.

    get      the process's maintainer, made by the first handle that needs one; who has called it is a user of it
    leave    the handle is closed or lost: with its last user the maintainer ends, and the lease is given up
    end      it is of no more use (a lost lease, a failure): whoever needs one makes another

So a handle that was opened twice, or forgotten, stands in nobody's way. A background maintenance belongs to the handle
that began it. If that handle is lost the maintenance goes on, since views are to be kept fresh, until another handle of
this process begins one.
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
"""Runs on a handle what another process wants defined: a call, its arguments, and who is told how far it is."""

END_TIMEOUT = 60.0
"""Seconds to wait for a maintainer of this process that ends, and is still at its last batch."""


class _RegistryEntry:
    """The maintainer of one database, its users, and the handle whose background maintenance runs on it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.maintainer: Maintainer | None = None
        self.users: set[MaintainerReference] = set()
        self.background_user: MaintainerReference | None = None
        self.server: DefinitionServer | None = None
        """Runs what other processes want defined, as long as there is a maintainer."""
        self.closed_stores: list[Store] = []
        """Stores of handles that are closed, which the maintainer still works over."""
        self.ended = threading.Event()
        self.ended.set()

    def find_handle(self) -> Any:
        """A handle that uses the maintainer; None if all of them are lost."""
        with self.lock:
            handles = [user.handle for user in self.users]
        return next((handle for handle in handles if handle is not None), None)

    def end(self) -> None:
        """Close the maintainer."""
        with self.lock:
            server, self.server = self.server, None
        if server is not None:
            server.stop()
        with self.lock:
            maintainer, self.maintainer = self.maintainer, None
            left, self.closed_stores = self.closed_stores, []
            self.users.clear()
            if maintainer is None:
                return
            self.ended.clear()
        try:
            maintainer.close()
        finally:
            for store in left:
                store.close()
            self.ended.set()


_registry: weakref.WeakValueDictionary[Any, _RegistryEntry] = weakref.WeakValueDictionary()
_registry_lock = module_lock()


class MaintainerReference:
    """What one handle has to do with the process's maintainer."""

    def __init__(
        self, handle: object, store: Store, spark: SparkProvider, define: DefinitionRunner, **options: Any
    ) -> None:
        """`spark` gives the session, `define` runs what other processes send on a handle, `options` are the
        maintainer's; none of them may refer to the handle."""
        self._store, self._spark, self._define, self._options = store, spark, define, options
        self.maintenance: Maintenance | None = None
        self._handle = weakref.ref(handle)
        owned(handle, f"The database {store.url} was opened")
        self.finalizer = add_finalizer(handle, self._handle_lost)
        """To be detached by who closes the handle."""
        with _registry_lock:
            self._entry = _registry.setdefault(_registry_key(store), _RegistryEntry())

    @property
    def handle(self) -> Any:
        """None if it is gone and nobody closed it."""
        return self._handle()

    @property
    def is_lost(self) -> bool:
        """Whether the handle is gone and nobody closed it."""
        return self._handle() is None

    @property
    def current_maintainer(self) -> Maintainer | None:
        """The process's maintainer, if this handle is a user of it."""
        held = self._entry
        return held.maintainer if self in held.users else None

    def acquire(self) -> Maintainer:
        """The process's maintainer; MaintainerBusy if another process has one."""
        held = self._entry
        while True:
            held.ended.wait(END_TIMEOUT)  # not under the lock: what ends may be at a batch that needs it
            with held.lock:
                found = held.maintainer
                if found is None:
                    from viewkeeper.maintain.maintainer import Maintainer

                    found = held.maintainer = Maintainer(self._store, self._spark, **self._options)
                    if self._store.mailbox is not None:
                        run = partial(_run_received_call, held, self._define)
                        held.server = DefinitionServer(self._store, self._store.mailbox, run).start()
                if not found.publisher.lease.is_lost:
                    held.users.add(self)
                    return found
            self.end()

    def end(self) -> None:
        """Close the maintainer, whoever uses it."""
        self._entry.end()

    def release(self) -> bool:
        """Use it no more. Whether the store can be closed: not if others go on with a maintainer over it."""
        held = self._entry
        with held.lock:
            held.users.discard(self)
            if held.users and held.maintainer is not None:
                if held.maintainer.store is not self._store:
                    return True
                held.closed_stores.append(self._store)
                return False
            mine = held.maintainer is not None
        if mine:
            self.end()
        return True

    def begin_background(self, maintenance: Maintenance) -> Maintainer:
        """The maintainer for a background maintenance of this handle; one of a handle that is lost ends first."""
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
            with suppress(Exception):  # nobody is there to be told
                other.maintenance.stop()
        return self.acquire()

    def end_background(self) -> None:
        """The background maintenance of this handle has ended."""
        with self._entry.lock:
            if self._entry.background_user is self:
                self._entry.background_user = None
        if self.is_lost:
            self.release()

    def _handle_lost(self) -> None:
        """The handle is lost."""
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
    """What handles of the same database have in common; a copy of its directory has only the one."""
    return store.url, store.uuid


class ClosedStore:
    """In a handle that is closed, in place of a store that others still use: it refuses everything."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __getattr__(self, name: str) -> Any:
        raise StoreError(f"The database {self._url} is closed.", hint="Open it again.")


def end_all_maintainers() -> None:
    """The program ends, and with it what is not closed, and its lease; a thread that is at a batch is waited for."""
    for held in list(_registry.values()):
        maintainer = held.maintainer
        if maintainer is not None and maintainer.publisher.lock.acquire(timeout=END_TIMEOUT):
            # Not held any longer: to end is also to wait for a scheduled view, whose thread may be waiting for it.
            maintainer.publisher.lock.release()
            with suppress(Exception):  # nobody is there to be told
                held.end()


atexit.register(end_all_maintainers)


def _after_fork() -> None:
    """The lease is the parent's, and so are its threads: also of handles that are lost."""
    for held in _registry.values():
        never_release(held)
    _registry.clear()


os.register_at_fork(after_in_child=_after_fork)
