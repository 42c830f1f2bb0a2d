"""Rows that cannot be read, put aside: a note for each, until the row is written again and can be read, or is gone.

The views do without such a row, and go on. `vk status` shows how many there are.
"""

from __future__ import annotations

import time

import pyarrow as pa

from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import RejectedRow
from viewkeeper_hbase.metadata import MetaTable

_MAX_REJECTED_ROWS = 1000
"""Rows noted for one table; a table with more was mapped wrongly, and is not helped by a longer list."""


class RejectedRows:
    """The notes about one database's rejected rows."""

    def __init__(self, meta_table: MetaTable) -> None:
        self._meta_table = meta_table
        self._recorded_keys: dict[int, set[str]] = {}

    def record(self, table: Table, keys: pa.Array | None, rejected: tuple[tuple[bytes, str], ...]) -> None:
        """Rows that were read: `keys` (None: those of a scan, which may be some of many) and the bad ones of them."""
        known = self._recorded_keys.get(table.id)
        if known is None:
            known = self._recorded_keys[table.id] = {key.hex() for key in (r.key for r in self.list_rows(table))}
        bad = {key.hex(): reason for key, reason in rejected}
        for key, reason in bad.items():
            if key not in known and len(known) < _MAX_REJECTED_ROWS:
                self._meta_table.put_note(f"{_note_prefix(table)}{key}", {"reason": reason, "time": time.time()})
                known.add(key)
        if known and keys is not None:
            for key in known.intersection(k.hex() for k in keys.to_pylist()) - bad.keys():
                self._meta_table.put_note(f"{_note_prefix(table)}{key}", None)
                known.discard(key)

    def list_rows(self, table: Table) -> list[RejectedRow]:
        found = self._meta_table.read_notes(_note_prefix(table))
        return [
            RejectedRow(bytes.fromhex(name.rpartition(":")[2]), n["reason"], n["time"]) for name, n in found.items()
        ]


def _note_prefix(table: Table) -> str:
    return f"reject:{table.id}:"
