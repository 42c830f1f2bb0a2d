"""The reads of one handle: each as new as it asks for, by the cheapest way, and never older than the one before.

1  what cannot be answered is refused before anything is waited for
2  new enough: the published batch; or what the view's operators make of the log since (`overlay`); or the next
   batch, made here where this process maintains, else waited for (`levels`)
3  the way: one key, a range of keys, an index, or all rows (`access`)
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

if TYPE_CHECKING:  # imported by the reads that need them, so that a program which only gets rows starts soon
    from viewkeeper.read.access.path import RowRequest
    from viewkeeper.read.overlay import OverlaidView, OverlayCache

RequestBuilder = Callable[..., "RowRequest"]
"""(table, where, columns, order_by, limit, bounds) as a user gives them: what is wanted, checked."""

_ALL_ROWS = (None, None, None, None)
"""As `where`, `columns`, `order_by` and `limit`: everything, in key order."""


class Reads:
    """What LATEST has shown of a view counts for all reads after it, until a batch has it."""

    def __init__(self, store: Store, maintainer_ref: MaintainerReference, build_request: RequestBuilder) -> None:
        self._store, self._maintainer_ref, self._build_request = store, maintainer_ref, build_request
        self._overlays: OverlayCache | None = None
        self._shown_positions: dict[str, int] = {}
        """By view, the position that a read of LATEST has shown, until a batch has it."""
        self._newest_position = 0
        """The newest position that a read ahead of the published batch has shown."""

    def close(self, store: Store) -> None:
        """From now on read from this store."""
        if self._overlays is not None:
            self._overlays.close()
        self._store = store

    # -- what a database answers --------------------------------------------------------------------------------------

    def get(self, name: str, key: Any, level: Level, after: AfterTokens, timeout: float) -> dict[str, Any] | None:
        if level is not LATEST and after is None and not self.has_shown_ahead:  # most reads, and the fastest
            return get_row(self._store, self._bring_table(name, level, after, timeout), key)
        if level is LATEST and after is None and (again := self._reopen_latest(name, timeout)) is not None:
            return again.get(key)
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
        """`keys`: a prefix, or start and stop."""
        table = self._store.catalog().table(name)
        bounds = scan_range(table, *keys, limit)
        plain = where is None and columns is None and order_by is None
        wanted = None if plain else self._build_request(table, where, columns, order_by, limit, bounds)
        if (latest := self.open_latest(name, level, after, timeout)) is not None:
            rows = latest.read(wanted or self._build_request(table, None, None, None, limit, bounds))
            return iter(python_rows(table, rows))
        if wanted is None:
            return scan_rows(self._store, self._bring_table(name, level, after, timeout), *keys, limit)
        from viewkeeper.read.access.requested_rows import stream_python_rows

        return stream_python_rows(self._store, replace(wanted, table=self._bring_table(name, level, after, timeout)))

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
        wanted = None if plain else self._build_request(table, where, columns, order_by, limit)
        if (latest := self.open_latest(name, level, after, timeout)) is not None:
            return latest.read(wanted or self._build_request(table, *_ALL_ROWS))
        table = self._bring_table(name, level, after, timeout)
        if wanted is not None:
            from viewkeeper.read.access.requested_rows import read_request

            rows = read_request(self._store, replace(wanted, table=table))
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
        asked = check_join_kinds(cluster, how)
        rows = self._read_cluster_rows(name, key, level, after, timeout)
        if None in check_cluster_key(cluster, name, key):
            rows = rows.slice(0, 0)
        return python_rows(self._store.catalog().table(name), join_tables(cluster, rows, asked))

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
        """Whether LATEST has shown of a view what no batch may have yet: a plain read has to look."""
        return bool(self._shown_positions)

    # -- new enough ---------------------------------------------------------------------------------------------------

    def _read_cluster_rows(self, name: str, key: Any, level: Level, after: AfterTokens, timeout: float) -> pa.Table:
        """The rows of a clustered view with one key."""
        from viewkeeper.read.access.requested_rows import read_request
        from viewkeeper.read.clusters import check_cluster_key, cluster_of

        catalog = self._store.catalog()
        table = catalog.table(name)
        bounds = scan_range(table, check_cluster_key(cluster_of(catalog, name), name, key), None, None, None)
        wanted = self._build_request(table, *_ALL_ROWS, bounds)
        if (latest := self.open_latest(name, level, after, timeout)) is not None:
            return latest.read(wanted)
        return read_request(self._store, replace(wanted, table=self._bring_table(name, level, after, timeout)))

    def _bring_table(self, name: str, level: Level, after: AfterTokens, timeout: float) -> Table:
        """The table behind a name, once it is as new as asked for; Suspended if it is a view that is not maintained."""
        freshness.check_level(level, timeout)
        catalog = self._store.catalog()
        table = catalog.table(name)
        refuse_suspended(catalog.find(name), stale=level is STALE)
        after = self.require_shown(name, level, after)
        if level is not LATEST and after is None:
            return table
        freshness.wait_for_freshness(self._store, catalog, name, level, after, timeout, self._refresher(name))
        catalog = self._store.catalog()
        refuse_suspended(catalog.find(name), stale=level is STALE)  # it may have been suspended meanwhile
        return catalog.table(name)

    def _refresher(self, name: str) -> Callable[[], object] | None:
        """What brings a view to the head, if this process maintains: a batch; where its cut is its own, a run of it."""
        maintainer = self._maintainer_ref.current_maintainer
        if maintainer is None:
            return None
        found = self._store.catalog().find(name)
        is_alone = isinstance(found, View) and found.own_cut is not None
        return maintainer.refresh_all if is_alone else maintainer.refresh

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
        """A view as new as asked for, if that needs no batch to be waited for. `catalog`: if it was just looked at."""
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
        """LATEST by key of a view of which it was shown before: whether it still can be is seen in the state itself."""
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
        """What LATEST shows, no read after it may be behind."""
        self._newest_position = max(self._newest_position, view.position)
        self._shown_positions[name.lower()] = max(view.position, self._shown_positions.get(name.lower(), 0))
        return view

    def require_shown(self, name: str, level: Level, after: AfterTokens) -> AfterTokens:
        """No read of a view is older than one before it: what LATEST has shown counts until a batch has it."""
        shown = self._shown_positions.get(name.lower()) if level is ANY and after is None else None
        if shown is None:
            return after
        if freshness.has_position(self._store, self._store.catalog(), name, shown):
            self._shown_positions.pop(name.lower(), None)
            return None
        return Token(self._store.uuid, shown)
