"""Log retention holds: promises to keep the changes of views that are not stored, for a subscriber that will return.

    note hold:NAME      position, expiry

These changes are delta files (`viewkeeper.store.redo.delta_files`), dropped when no hold needs them. The changes
of a stored view are versions of its cells, whose number HBase limits, so they cannot be held. A position whose
files are gone is refused; a position that a batch drops at the same moment at which it is first held is refused
when it is read.
"""

from __future__ import annotations

import time
from dataclasses import asdict

from viewkeeper.errors import SnapshotGone, Unsupported
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import LogHold
from viewkeeper.store.redo.delta_files import DeltaFiles
from viewkeeper_hbase.cached_state import StateCache
from viewkeeper_hbase.layout.layout import VIEW_VERSIONS
from viewkeeper_hbase.metadata import MetaTable

_NOTE_PREFIX = "hold:"


class DeltaFileHolds:
    """The holds of one database."""

    def __init__(self, meta_table: MetaTable, state_cache: StateCache) -> None:
        self._meta_table, self._state_cache = meta_table, state_cache

    def put(self, hold: LogHold, view: Table) -> None:
        """Keep the changes of a view after a position."""
        if view.is_stored:
            raise Unsupported(
                f"HBase keeps what {VIEW_VERSIONS} batches did to {view.name}, and no more for anybody.",
                hint="Changes of a view WITH (store = 'none') can be kept.",
            )
        self._meta_table.put_note(_NOTE_PREFIX + hold.name, asdict(hold))
        self._state_cache.expire()
        published = self._state_cache.published_batch()
        if published is not None and hold.position < published.delta_files.forgotten_position:
            self.remove(hold.name)
            raise SnapshotGone(
                f"The changes of {view.name} after position {hold.position} are no longer kept.",
                hint="Subscribe without since=, which starts with the current rows.",
            )

    def remove(self, name: str) -> None:
        """Remove a hold; an unknown name is no error."""
        self._meta_table.put_note(_NOTE_PREFIX + name, None)

    def active_holds(self) -> list[LogHold]:
        """Return the holds that have not expired."""
        return [hold for hold in self._read_holds() if hold.expiry is None or hold.expiry > time.time()]

    def retention_floor(self, up_to: int, delta_files: DeltaFiles) -> int:
        """Return the position, at most `up_to`, up to which changes can be dropped, and remove expired holds."""
        if not delta_files.files or delta_files.files[0].position > up_to:
            return up_to  # no file would be dropped: the holds need not be read
        active = self.active_holds()
        for name in {hold.name for hold in self._read_holds()} - {hold.name for hold in active}:
            self.remove(name)
        return min([up_to, *(hold.position for hold in active)])

    def _read_holds(self) -> list[LogHold]:
        return [LogHold(**note) for note in self._meta_table.read_notes(_NOTE_PREFIX).values()]
