"""Write calls of one handle, with back-pressure from its background maintenance.

1  `table`                check the mode of the handle and find the base table
2  `model.intake.rows`    convert the rows to the table's types, and keep the last row of each key
3  `run_write`            wait while the views are more than `max_lag` behind, run the store's write call, wake the
                          maintenance, and return a token
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
"""Seconds that a write waits while the views are too far behind."""


class Writes:
    """The write calls of one handle."""

    def __init__(self, store: Store, mode: str) -> None:
        self._store, self.mode = store, mode
        self.maintenance: Maintenance | None = None
        """The background maintenance that this handle has begun, if any."""
        self.on_write: Callable[[], None] = self.wake
        """Called after every write call. A server replaces it, to answer the writer before it wakes the maintenance."""

    def close(self, store: Store) -> None:
        """Use `store`, which refuses every access, from now on."""
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
        """Delete the keys and return the token and, if the store knows it, the number of rows that existed."""
        table = self.table(name, "delete from")
        deletes = last_by_key(table, keys_table(table, keys))
        return self._run_counted(lambda: self._store.write(table, table.arrow.empty_table(), deletes))

    def update(self, name: str, key: Any, columns: Mapping[str, Any]) -> Token:
        table = self.table(name, "update")
        key_row, new_values = updates_table(table, key, columns)
        return self.run_write(lambda: self._store.update(table, key_row, new_values))

    def run_write(self, write: Callable[[], WriteResult]) -> Token:
        """Run a write call of the store and return its token."""
        return self._run_counted(write)[0]

    def _run_counted(self, write: Callable[[], WriteResult]) -> tuple[Token, int]:
        if self.maintenance is not None:
            self.maintenance.make_room(_ROOM_TIMEOUT)
        result = write()
        self.on_write()
        return Token(self._store.uuid, result.position, result.atomic), result.changed_rows
