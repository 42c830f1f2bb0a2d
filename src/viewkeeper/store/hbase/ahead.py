"""The next batch's capture, begun while the batch before it commits.

A commit waits for HBase, and so does the capture of what was pushed: for shipping, and for the rows. Where more has
come since a batch chose its cut, the commit's own question for HBase's clock gives the cut of the next one, and a
thread finds out whether all up to there has come and reads the rows that were touched. The next batch takes that if it
follows the batch that is being committed: cut, what was seen, table and columns are the same, or it is thrown away. So
it is read as the batch itself would have read it, a little earlier, and nothing depends on whether the commit succeeds.

A cut of some milliseconds ago is for who goes on anyway. Whoever takes one is told once more that something has come:
what came after it waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from viewkeeper.model.schema import Table
from viewkeeper.store.base import Batch, Changed, Seen
from viewkeeper.store.hbase.windows import Noted

_OLD = 2.0
"""Seconds after which a cut is not worth taking any more: if nothing came up to it, it was asked for in vain."""

_LONG = 5.0
"""Seconds for which a batch waits for what was begun; then it looks for itself."""

Capturing = Callable[[Table, list[str], int, int, Seen | None], tuple[Changed, Noted]]


class NotRipe(Exception):
    """What happened to a table is not to be read ahead: not all has come, or it is much."""


@dataclass
class _Begun:
    """What follows a batch up to a cut, when it is `done`; nothing of a table that is not there."""

    after: int
    cut: int
    seen: Mapping[int, Seen]
    complete: bool = False
    found: dict[int, tuple[Table, list[str], tuple[Changed, Noted]]] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    at: float = field(default_factory=time.monotonic)
    offered: bool = False


class Ahead:
    """`reach` says whether all has come up to a cut; `capture` what happened to a table then, or NotRipe."""

    def __init__(self, reach: Callable[[int], bool], capture: Capturing) -> None:
        self._reach, self._capture = reach, capture
        self._asked: dict[int, tuple[Table, list[str]]] = {}
        self._begun: _Begun | None = None

    def begin(self, batch: Batch, cut: int) -> None:
        """A batch is being committed; the next one may have this cut."""
        self._asked = {table: how for table, how in self._asked.items() if table in batch.seen}
        if cut > batch.cut and self._asked:
            self._begun = begun = _Begun(batch.cut, cut, batch.seen)
            threading.Thread(target=self._look, args=(begun,), name="viewkeeper-ahead", daemon=True).start()

    def cut(self, after: int) -> int | None:
        """The cut of what was begun after this one, once it is read; None if there is none. It is offered once."""
        begun = self._begun
        if begun is None or begun.offered or begun.after != after or time.monotonic() - begun.at > _OLD:
            return None
        begun.offered = True
        return begun.cut if begun.done.wait(_LONG) and begun.complete else None

    def take(
        self, table: Table, columns: list[str], after: int, upto: int, seen: Seen | None
    ) -> tuple[Changed, Noted] | None:
        """What `capture` gives for this, if that was read ahead."""
        begun, self._asked[table.id] = self._begun, (table, columns)
        if begun is None or (begun.after, begun.cut) != (after, upto) or not begun.done.is_set():
            return None
        known = begun.found.pop(table.id, None)
        if known is None or known[:2] != (table, columns) or begun.seen.get(table.id) != seen:
            return None
        return known[2]

    def _look(self, begun: _Begun) -> None:
        asked = list(self._asked.values())
        try:
            if self._reach(begun.cut):
                for table, columns in asked:
                    found = self._capture(table, columns, begun.after, begun.cut, begun.seen.get(table.id))
                    begun.found[table.id] = table, columns, found
                begun.complete = True
        except Exception:  # the batch looks for itself, and says what is wrong
            begun.found.clear()
        finally:
            begun.done.set()
