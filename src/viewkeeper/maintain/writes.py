"""A user's rows on their way into the store, beside the maintenance of their views: it gets room first, then is woken.

1  table       the base table that is meant, and whether this handle may write
2  model.rows  rows as its columns are, the last of each key
3  made        room under `max_lag`, the store's own write call, a token for it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from viewkeeper.errors import ReadOnly
from viewkeeper.model.intake.rows import keys_table, last_by_key, rows_table, updates_table
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.store.contract.commits import WriteResult
from viewkeeper.store.contract.store import Store

if TYPE_CHECKING:
    from viewkeeper.maintain.continuous import Maintenance

_ROOM_TIMEOUT = 10.0
"""Seconds that a write waits for views that are too far behind."""


class Writes:
    """Those of one handle."""

    def __init__(self, store: Store, mode: str) -> None:
        self._store, self.mode = store, mode
        self.maintenance: Maintenance | None = None
        """What keeps the views fresh in the background, if this handle has begun it."""
        self.on_write: Callable[[], None] = self.wake
        """Told of every write call; who has to answer a writer first wakes the maintenance later."""

    def close(self, store: Store) -> None:
        """`store`: what refuses from now on."""
        self._store = store

    def wake(self) -> None:
        if self.maintenance is not None:
            self.maintenance.wake()

    def check_mode(self, what: str) -> None:
        if self.mode == "r":
            raise ReadOnly(f"The database is open for reading; it cannot {what}.", hint="Open it without mode='r'.")

    def table(self, name: str, verb: str) -> Table:
        self.check_mode(f"{verb} {name}")
        table = self._store.catalog().table(name)
        if table.is_view:
            raise ReadOnly(f"{name} is a materialized view; one cannot {verb} it.", hint="Write to its base tables.")
        return table

    def put(self, name: str, rows: Any) -> Token:
        table = self.table(name, "put into")
        puts = last_by_key(table, rows_table(table, rows))
        no_keys = table.arrow.empty_table().select([c.name for c in table.key_columns])
        return self.run_write(lambda: self._store.write(table, puts, no_keys))

    def delete(self, name: str, keys: Any) -> Token:
        return self.delete_counted(name, keys)[0]

    def delete_counted(self, name: str, keys: Any) -> tuple[Token, int]:
        """The same, and how many rows were there, where the store knows."""
        table = self.table(name, "delete from")
        deletes = last_by_key(table, keys_table(table, keys))
        return self._run_counted(lambda: self._store.write(table, table.arrow.empty_table(), deletes))

    def update(self, name: str, key: Any, columns: Mapping[str, Any]) -> Token:
        table = self.table(name, "update")
        key_row, new_values = updates_table(table, key, columns)
        return self.run_write(lambda: self._store.update(table, key_row, new_values))

    def run_write(self, write: Callable[[], WriteResult]) -> Token:
        """What a write call of the store gives, as a token."""
        return self._run_counted(write)[0]

    def _run_counted(self, write: Callable[[], WriteResult]) -> tuple[Token, int]:
        if self.maintenance is not None:
            self.maintenance.make_room(_ROOM_TIMEOUT)
        written = write()
        self.on_write()
        return Token(self._store.uuid, written.position, written.atomic), written.changed_rows
