"""The reads of one handle: each as fresh as requested, by the cheapest access path, and monotonic.

1  refuse what cannot be answered, before anything waits
2  make it fresh enough: the published batch; or an overlay of the log since (`overlay`); or the next batch, which
   a maintaining process runs itself and other processes wait for (`freshness`)
3  read by an access path: one key, a range of keys, an index, or a scan (`access`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from viewkeeper.maintain.registry import MaintainerReference
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read import freshness
from viewkeeper.read.freshness import ANY, LATEST, STALE, AfterTokens, Level
from viewkeeper.read.rows import check_key, get_row, python_rows, read_table, scan_range, scan_rows
from viewkeeper.read.suspension import mark_suspended_rows, refuse_suspended, shown_epoch_and_position
from viewkeeper.store.contract.store import Store

if TYPE_CHECKING:  # imported by the reads that need them, so that a program that only gets rows starts fast
    from viewkeeper.read.access.path import RowRequest
    from viewkeeper.read.overlay import OverlaidView, OverlayCache

RequestBuilder = Callable[..., "RowRequest"]
"""(table, where, columns, order_by, limit, bounds) as a user passes them: the checked request."""

_ALL_ROWS = (None, None, None, None)
"""`where`, `columns`, `order_by` and `limit` of a read of everything, in key order."""


class Reads:
    """The reads of one handle. What a LATEST read has shown of a view holds for all later reads, until a batch has
    it."""

    def __init__(self, store: Store, maintainer_ref: MaintainerReference, build_request: RequestBuilder) -> None:
        self._store, self._maintainer_ref, self._build_request = store, maintainer_ref, build_request
        self._overlays: OverlayCache | None = None
        self._shown_positions: dict[str, int] = {}
        """By view, the position that a LATEST read has shown, until a batch has it."""
        self._newest_position = 0
        """The newest position that a read ahead of the published batch has shown."""

    def close(self, store: Store) -> None:
        """Read from this store from now on."""
        if self._overlays is not None:
            self._overlays.close()
        self._store = store

    # -- reads --------------------------------------------------------------------------------------------------------

    def get(self, name: str, key: Any, level: Level, after: AfterTokens, timeout: float) -> dict[str, Any] | None:
        if level is not LATEST and after is None and not self.has_shown_ahead:  # most reads, and the fastest
            return get_row(self._store, self._bring_table(name, level, after, timeout), key)
        if level is LATEST and after is None and (reopened := self._reopen_latest(name, timeout)) is not None:
            return reopened.get(key)
        catalog = self._store.catalog()
        check_key(catalog.table(name), key)
        if (latest := self.open_latest(name, level, after, timeout, by_key=True, catalog=catalog)) is not None:
            return latest.get(key)
        return get_row(self._store, self._bring_table(name, level, after, timeout), key)

    def scan(
        self,
        name: str,
        keys: tuple[Any, Any, Any],
        limit: int | None,
        where: str | Mapping[str, Any] | None,
        columns: Sequence[str] | None,
        order_by: Sequence[str] | str | None,
        level: Level,
        after: AfterTokens,
        timeout: float,
    ) -> Iterator[dict[str, Any]]:
        """Rows in key order. `keys`: prefix, start and stop."""
        table = self._store.catalog().table(name)
        bounds = scan_range(table, *keys, limit)
        plain = where is None and columns is None and order_by is None
        request = None if plain else self._build_request(table, where, columns, order_by, limit, bounds)
        if (latest := self.open_latest(name, level, after, timeout)) is not None:
            rows = latest.read(request or self._build_request(table, None, None, None, limit, bounds))
            return iter(python_rows(table, rows))
        if request is None:
            return scan_rows(self._store, self._bring_table(name, level, after, timeout), *keys, limit)
        from viewkeeper.read.access.requested_rows import stream_python_rows

        return stream_python_rows(self._store, replace(request, table=self._bring_table(name, level, after, timeout)))

    def read(
        self,
        name: str,
        where: str | Mapping[str, Any] | None,
        columns: Sequence[str] | None,
        order_by: Sequence[str] | str | None,
        limit: int | None,
        level: Level,
        after: AfterTokens,
        timeout: float,
    ) -> pa.Table:
        table = self._store.catalog().table(name)
        plain = where is None and columns is None and order_by is None and limit is None
        request = None if plain else self._build_request(table, where, columns, order_by, limit)
        if (latest := self.open_latest(name, level, after, timeout)) is not None:
            return latest.read(request or self._build_request(table, *_ALL_ROWS))
        table = self._bring_table(name, level, after, timeout)
        if request is not None:
            from viewkeeper.read.access.requested_rows import read_request

            rows = read_request(self._store, replace(request, table=table))
        elif table.has_rows:
            rows = read_table(self._store, table)
        else:
            from viewkeeper.read.lazy.evaluate import read_virtual_view

            rows = read_virtual_view(self._store, name)[0]
        return mark_suspended_rows(rows, [self._store.catalog().find(name)]) if level is STALE else rows

    def cluster(
        self, name: str, key: Any, level: Level, after: AfterTokens, timeout: float
    ) -> dict[str, list[dict[str, Any]]]:
        from viewkeeper.read.clusters import cluster_of, split_by_table

        cluster = cluster_of(self._store.catalog(), name)
        tables = split_by_table(cluster, self._read_cluster_rows(name, key, level, after, timeout))
        return {table: python_rows(self._store.catalog().table(name), rows) for table, rows in tables.items()}

    def join(
        self, name: str, key: Any, how: str | Mapping[str, str], level: Level, after: AfterTokens, timeout: float
    ) -> list[dict[str, Any]]:
        from viewkeeper.read.clusters import check_cluster_key, check_join_kinds, cluster_of, join_tables

        cluster = cluster_of(self._store.catalog(), name)
        kinds = check_join_kinds(cluster, how)
        rows = self._read_cluster_rows(name, key, level, after, timeout)
        if None in check_cluster_key(cluster, name, key):
            rows = rows.slice(0, 0)
        return python_rows(self._store.catalog().table(name), join_tables(cluster, rows, kinds))

    def token(self, name: str | None) -> Token:
        batch = self._store.published_batch()
        if name is None:
            position = self._store.head() if batch is None else max(batch.cut, self._newest_position)
            return Token(self._store.uuid, position)
        catalog = self._store.catalog()
        table, found = catalog.table(name), catalog.find(name)
        _, position = shown_epoch_and_position(found, batch, self._store.head())
        is_suspended = isinstance(found, View) and found.suspended is not None
        newest = 0 if is_suspended or table.is_changed_by_writes else self._newest_position
        return Token(self._store.uuid, max(position, newest))

    @property
    def has_shown_ahead(self) -> bool:
        """Whether LATEST has shown a state that the published batch may not have yet, so that a plain read must
        check."""
        return bool(self._shown_positions)

    # -- freshness ----------------------------------------------------------------------------------------------------

    def _read_cluster_rows(self, name: str, key: Any, level: Level, after: AfterTokens, timeout: float) -> pa.Table:
        """The rows of a clustered view with one key."""
        from viewkeeper.read.access.requested_rows import read_request
        from viewkeeper.read.clusters import check_cluster_key, cluster_of

        catalog = self._store.catalog()
        table = catalog.table(name)
        bounds = scan_range(table, check_cluster_key(cluster_of(catalog, name), name, key), None, None, None)
        request = self._build_request(table, *_ALL_ROWS, bounds)
        if (latest := self.open_latest(name, level, after, timeout)) is not None:
            return latest.read(request)
        return read_request(self._store, replace(request, table=self._bring_table(name, level, after, timeout)))

    def _bring_table(self, name: str, level: Level, after: AfterTokens, timeout: float) -> Table:
        """The table of a name, once it is fresh enough; raises Suspended for a suspended view."""
        freshness.check_level(level, timeout)
        catalog = self._store.catalog()
        table = catalog.table(name)
        refuse_suspended(catalog.find(name), stale=level is STALE)
        after = self.require_shown(name, level, after)
        if level is not LATEST and after is None:
            return table
        freshness.wait_for_freshness(self._store, catalog, name, level, after, timeout, self._refresher(name))
        catalog = self._store.catalog()
        refuse_suspended(catalog.find(name), stale=level is STALE)  # the view may have been suspended meanwhile
        return catalog.table(name)

    def _refresher(self, name: str) -> Callable[[], object] | None:
        """How this process brings a view to the head, if it maintains: a batch, or a run of a view with its own cut."""
        maintainer = self._maintainer_ref.current_maintainer
        if maintainer is None:
            return None
        found = self._store.catalog().find(name)
        has_own_cut = isinstance(found, View) and found.own_cut is not None
        return maintainer.refresh_all if has_own_cut else maintainer.refresh

    def open_latest(
        self,
        name: str,
        level: Level,
        after: AfterTokens,
        timeout: float,
        *,
        by_key: bool = False,
        catalog: Catalog | None = None,
    ) -> OverlaidView | None:
        """A view that is fresh enough without waiting for a batch; None otherwise. `catalog`: if the caller has just
        read it."""
        freshness.check_level(level, timeout)
        after = self.require_shown(name, level, after)
        catalog = catalog or self._store.catalog()
        if (level is not LATEST and after is None) or catalog.table(name).is_changed_by_writes:
            return None
        if self._maintainer_ref.current_maintainer is not None:
            return None
        from viewkeeper.read.overlay import OverlayCache, open_overlaid_view

        if self._overlays is None:
            self._overlays = OverlayCache(self._store)
        found = open_overlaid_view(self._store, self._overlays, catalog, name, level, after, by_key=by_key)
        return None if found is None else self._note_shown(name, found)

    def _reopen_latest(self, name: str, timeout: float) -> OverlaidView | None:
        """Open a view by key that LATEST has shown before; the snapshot itself tells whether it still can be."""
        if (
            self._overlays is None
            or self._maintainer_ref.current_maintainer is not None
            or str(name).lower() not in self._shown_positions
        ):
            return None
        freshness.check_level(LATEST, timeout)
        found = self._overlays.reopen_view(name)
        return None if found is None else self._note_shown(name, found)

    def _note_shown(self, name: str, view: OverlaidView) -> OverlaidView:
        """Note the shown position: no later read may show an older one."""
        self._newest_position = max(self._newest_position, view.position)
        self._shown_positions[name.lower()] = max(view.position, self._shown_positions.get(name.lower(), 0))
        return view

    def require_shown(self, name: str, level: Level, after: AfterTokens) -> AfterTokens:
        """Raise `after` to the position that LATEST has shown of the view, until a batch has it: reads are
        monotonic."""
        position = self._shown_positions.get(name.lower()) if level is ANY and after is None else None
        if position is None:
            return after
        if freshness.has_position(self._store, self._store.catalog(), name, position):
            self._shown_positions.pop(name.lower(), None)
            return None
        return Token(self._store.uuid, position)
