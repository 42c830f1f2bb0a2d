"""Rows that cannot be read, put aside: a note for each, until the row is written again and can be read, or is gone.

The views do without such a row, and go on. `vk status` shows how many there are.
"""

from __future__ import annotations

import time

import pyarrow as pa

from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import Reject
from viewkeeper_hbase.metadata import MetaTable

_MOST = 1000
"""Rows noted for one table; a table with more was mapped wrongly, and is not helped by a longer list."""


class Rejects:
    """The notes about one database's rejected rows."""

    def __init__(self, records: MetaTable) -> None:
        self._records = records
        self._known: dict[int, set[str]] = {}

    def note(self, table: Table, keys: pa.Array | None, rejects: tuple[tuple[bytes, str], ...]) -> None:
        """Rows that were read: `keys` (None: those of a scan, which may be some of many) and the bad ones of them."""
        known = self._known.get(table.id)
        if known is None:
            known = self._known[table.id] = {key.hex() for key in (r.key for r in self.listed(table))}
        bad = {key.hex(): reason for key, reason in rejects}
        for key, reason in bad.items():
            if key not in known and len(known) < _MOST:
                self._records.put_note(f"{_prefix(table)}{key}", {"reason": reason, "time": time.time()})
                known.add(key)
        if known and keys is not None:
            for key in known.intersection(k.hex() for k in keys.to_pylist()) - bad.keys():
                self._records.put_note(f"{_prefix(table)}{key}", None)
                known.discard(key)

    def listed(self, table: Table) -> list[Reject]:
        found = self._records.notes(_prefix(table))
        return [Reject(bytes.fromhex(name.rpartition(":")[2]), n["reason"], n["time"]) for name, n in found.items()]


def _prefix(table: Table) -> str:
    return f"reject:{table.id}:"
