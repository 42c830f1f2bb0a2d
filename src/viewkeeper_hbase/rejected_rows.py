"""Notes on rows that cannot be decoded. A note is removed when the row is rewritten and readable, or is deleted.

Views are maintained without such rows. `vk status` shows their number.
"""

from __future__ import annotations

import time

import pyarrow as pa

from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import RejectedRow
from viewkeeper_hbase.metadata import MetaTable

_MAX_REJECTED_ROWS = 1000
"""Maximum number of notes for one table. More rejected rows mean that the mapping is wrong; a longer list would not
help."""


class RejectedRows:
    """The notes on one database's rejected rows."""

    def __init__(self, meta_table: MetaTable) -> None:
        self._meta_table = meta_table
        self._recorded_keys: dict[int, set[str]] = {}

    def record(self, table: Table, keys: pa.Array | None, rejected: tuple[tuple[bytes, str], ...]) -> None:
        """Add notes for the `rejected` rows, and remove those of the other rows that were read. `keys` are the rows
        that were read; None after a scan, which may have covered only a part of the table."""
        recorded = self._recorded_keys.get(table.id)
        if recorded is None:
            recorded = self._recorded_keys[table.id] = {key.hex() for key in (r.key for r in self.list_rows(table))}
        reasons = {key.hex(): reason for key, reason in rejected}
        for key, reason in reasons.items():
            if key not in recorded and len(recorded) < _MAX_REJECTED_ROWS:
                self._meta_table.put_note(f"{_note_prefix(table)}{key}", {"reason": reason, "time": time.time()})
                recorded.add(key)
        if recorded and keys is not None:
            for key in recorded.intersection(k.hex() for k in keys.to_pylist()) - reasons.keys():
                self._meta_table.put_note(f"{_note_prefix(table)}{key}", None)
                recorded.discard(key)

    def list_rows(self, table: Table) -> list[RejectedRow]:
        found = self._meta_table.read_notes(_note_prefix(table))
        return [
            RejectedRow(bytes.fromhex(name.rpartition(":")[2]), n["reason"], n["time"]) for name, n in found.items()
        ]


def _note_prefix(table: Table) -> str:
    return f"reject:{table.id}:"
