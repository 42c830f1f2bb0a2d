"""Holds: from where on the changes of views that are not stored are kept for a subscriber that will come back.

    note hold:NAME      position, expiry

These changes are files of ours (`redo.streams`), forgotten when no hold needs them. Those of a stored view are versions
of its cells, which HBase counts: nobody can hold them. A position whose files are gone is refused; one that a batch
forgets in the moment in which it is first held is refused when it is read.
"""

from __future__ import annotations

import time
from dataclasses import asdict

from viewkeeper.errors import SnapshotGone, Unsupported
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Hold
from viewkeeper.store.redo.delta_files import Streams
from viewkeeper_hbase.cached_state import Known
from viewkeeper_hbase.layout.layout import VIEW_VERSIONS
from viewkeeper_hbase.metadata import MetaTable

_NOTE = "hold:"


class Holds:
    """Those of one database."""

    def __init__(self, records: MetaTable, known: Known) -> None:
        self._records, self._known = records, known

    def put(self, hold: Hold, view: Table) -> None:
        """Keep what happened to a view after a position."""
        if view.is_stored:
            raise Unsupported(
                f"HBase keeps what {VIEW_VERSIONS} batches did to {view.name}, and no more for anybody.",
                hint="Changes of a view WITH (store = 'none') can be kept.",
            )
        self._records.put_note(_NOTE + hold.name, asdict(hold))
        self._known.expire()
        published = self._known.published()
        if published is not None and hold.position < published.streams.gone:
            self.remove(hold.name)
            raise SnapshotGone(
                f"The changes of {view.name} after position {hold.position} are no longer kept.",
                hint="Subscribe without since=, which starts with the current rows.",
            )

    def remove(self, name: str) -> None:
        """Let go of it; an unknown name is no error."""
        self._records.put_note(_NOTE + name, None)

    def all(self) -> list[Hold]:
        """Those that have not expired."""
        return [hold for hold in self._noted() if hold.expiry is None or hold.expiry > time.time()]

    def floor(self, upto: int, streams: Streams) -> int:
        """Up to where changes can be forgotten, of those up to a position; who expired is forgotten, too."""
        if not streams.kept or streams.kept[0].position > upto:
            return upto  # nothing would be: nobody need be asked
        lasting = self.all()
        for name in {hold.name for hold in self._noted()} - {hold.name for hold in lasting}:
            self.remove(name)
        return min([upto, *(hold.position for hold in lasting)])

    def _noted(self) -> list[Hold]:
        return [Hold(**note) for note in self._records.notes(_NOTE).values()]
