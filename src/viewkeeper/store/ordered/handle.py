"""One store's handle of an open database, with its mode and life cycle, and the store's cached catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from viewkeeper.errors import ReadOnly, SnapshotGone, StoreError
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.resources.finalizers import add_finalizer
from viewkeeper.resources.fork_guard import owned
from viewkeeper.store.contract.tables import CatalogStore
from viewkeeper.store.ordered import metadata
from viewkeeper.store.ordered.maps import Database, State


class StoreHandle:
    """Handle shared by the protocol objects of a store. If it is garbage-collected without `close`, a finalizer
    detaches it."""

    def __init__(self, database: Database, mode: str) -> None:
        self._database = database
        self._mode = mode
        self._is_open = True
        self._finalizer = add_finalizer(self, database.detach)
        self.path = database.path
        self.url = f"{database.scheme}:{database.path}"
        self.fork_description = f"The database {self.url} was opened"
        owned(self, self.fork_description)

    def require_open(self) -> Database:
        if not self._is_open:
            raise StoreError(f"The database {self.path} is closed.", hint="Open it again.")
        return self._database

    def require_writable(self) -> Database:
        database = self.require_open()
        if self._mode == "r":
            raise ReadOnly(f"The database {self.path} was opened with mode='r'.", hint="Open it with mode='w'.")
        return database

    def read(self, tables: Sequence[int] = (), *, only_log: bool = False) -> AbstractContextManager[State]:
        return self.require_open().read(tables, only_log=only_log)

    def write(self, tables: Sequence[int] = (), size: int = 0) -> AbstractContextManager[State]:
        return self.require_writable().write(tables, size)

    def check_log_retained(self, state: State, after: int) -> None:
        """Raise SnapshotGone if the log of a state does not reach back to a position."""
        floor = metadata.read_counter(state.meta, metadata.FLOOR)
        if after < floor:
            raise SnapshotGone(
                f"The change log of {self.path} begins after position {floor}, {after} was asked for.",
                hint="Start again from a full read.",
            )

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._finalizer.detach() is not None:
                self._database.detach()


class OrderedCatalogStore(CatalogStore):
    """Catalog and notes of a database."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle
        self._cached = Catalog()

    def catalog(self) -> Catalog:
        cached = self._cached
        if self._handle.require_open().read_counter(metadata.CATALOG_VERSION) == cached.version:
            return cached
        with self._handle.read() as state:
            if metadata.catalog_version(state.meta) != self._cached.version:
                self._cached = metadata.read_catalog(state.meta, self._cached)
        return self._cached

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        with self._handle.write() as state:
            changed = metadata.change_catalog(state.meta, change, self._cached)
        self._cached = changed
        return changed

    def catalog_at(self, state: State) -> Catalog:
        """Return the catalog of a state, or a newer one: the state's rows have no columns that this catalog lacks."""
        cached = self._cached
        return cached if metadata.catalog_version(state.meta) == cached.version else self.catalog()

    @property
    def cached(self) -> Catalog:
        """The catalog that was read last."""
        return self._cached

    def note(self, name: str) -> Mapping[str, Any] | None:
        with self._handle.read() as state:
            found: Mapping[str, Any] | None = metadata.read_note(state.meta, name)
        return found

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        with self._handle.write() as state:
            metadata.put_note(state.meta, name, note)
