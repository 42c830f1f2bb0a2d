"""The catalog and the notes of a database in HBase. A catalog change is one check-and-put."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from viewkeeper.errors import MaintainerBusy
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.store.contract.tables import CatalogStore
from viewkeeper_hbase.handle import HBaseHandle
from viewkeeper_hbase.metadata import FORMAT, CellChanges, DatabaseState, encode_catalog_changes

_PUBLICATION_TIMEOUT = 10.0
"""Seconds that a catalog change waits for a claimed batch that changes the catalog too."""


class HBaseCatalogStore(CatalogStore):
    """Reads and changes the catalog and the notes of one database."""

    def __init__(self, handle: HBaseHandle) -> None:
        self._handle, self._state_cache, self._layouts = handle, handle.state_cache, handle.layouts

    def catalog(self) -> Catalog:
        self._handle.require_open()
        return self._state_cache.catalog()

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        self._handle.require_writable()
        meta_table = self._handle.meta_table
        deadline = time.monotonic() + _PUBLICATION_TIMEOUT
        results: list[Catalog] = []
        mapping_warnings: list[str] = []

        def apply_change(state: DatabaseState) -> tuple[DatabaseState, CellChanges] | None:
            results.clear()
            mapping_warnings.clear()
            before = self._state_cache.catalog() if state.catalog else Catalog()
            _, changed, difference = meta_table.plan_catalog_change(before, change)
            if difference is None:
                results.append(changed)
                return None
            for table in filter(None, map(changed.tables_by_id.get, difference.definitions)):
                mapping_warnings.extend(self._layouts.check_new_table(table))
            if state.claim is not None and state.claim.changes_catalog:
                return None
            results.append(changed)
            return replace(state, catalog=changed.version, format=FORMAT), encode_catalog_changes(difference)

        before = {t.id for t in self._state_cache.catalog(refresh=True).tables}
        while True:
            state = meta_table.change_state(apply_change)
            self._state_cache.update(state)
            if results:
                break
            if time.monotonic() > deadline:
                raise MaintainerBusy(
                    f"A view of {self._handle.namespace} is being published by {state.claim and state.claim.owner}.",
                    hint="Try again when it is done.",
                )
            time.sleep(0.05)
        for table in (t for t in results[0].tables if t.id not in before):
            self._layouts.ensure_table(self._layouts.layout_of(table))
        for warning in mapping_warnings:
            warnings.warn(warning, stacklevel=3)
        return self._state_cache.catalog(refresh=True)

    def note(self, name: str) -> Mapping[str, Any] | None:
        self._handle.require_open()
        found: Mapping[str, Any] | None = self._handle.meta_table.read_note(name)
        return found

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        self._handle.require_writable()
        self._handle.meta_table.put_note(name, note)
