"""The catalog of a database in HBase, changed by one check-and-put; and its notes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from viewkeeper.errors import MaintainerBusy
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.store.contract.tables import Records
from viewkeeper_hbase.handle import Opened
from viewkeeper_hbase.metadata import FORMAT, Cells, State, catalog_cells

_DEFINING = 10.0
"""Seconds that a change of the catalog waits for a batch that changes it too."""


class HBaseRecords(Records):
    """The catalog and the notes."""

    def __init__(self, opened: Opened) -> None:
        self._opened, self._known, self._layouts = opened, opened.known, opened.layouts

    def catalog(self) -> Catalog:
        self._opened.live()
        return self._known.catalog()

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        self._opened.writable()
        records = self._opened.records
        until = time.monotonic() + _DEFINING
        made: list[Catalog] = []
        said: list[str] = []

        def moved(state: State) -> tuple[State, Cells] | None:
            made.clear()
            said.clear()
            before = self._known.catalog() if state.catalog else Catalog()
            _, changed, written = records.change(before, change)
            if written is None:
                made.append(changed)
                return None
            for table in filter(None, map(changed.tables_by_id.get, written.definitions)):
                said.extend(self._layouts.check(table))
            if state.claim is not None and state.claim.defines:
                return None
            made.append(changed)
            return replace(state, catalog=changed.version, format=FORMAT), catalog_cells(written)

        before = {t.id for t in self._known.catalog(now=True).tables}
        while True:
            state = records.move(moved)
            self._known.learn(state)
            if made:
                break
            if time.monotonic() > until:
                raise MaintainerBusy(
                    f"A view of {self._opened.namespace} is being published by {state.claim and state.claim.owner}.",
                    hint="Try again when it is done.",
                )
            time.sleep(0.05)
        for table in (t for t in made[0].tables if t.id not in before):
            self._layouts.ensure(self._layouts.of(table))
        for warning in said:
            warnings.warn(warning, stacklevel=3)
        return self._known.catalog(now=True)

    def note(self, name: str) -> Mapping[str, Any] | None:
        self._opened.live()
        found: Mapping[str, Any] | None = self._opened.records.note(name)
        return found

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        self._opened.writable()
        self._opened.records.put_note(name, note)
