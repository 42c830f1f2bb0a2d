"""The feed: what happened after a position, how much of it waits, and for whom it is kept."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import pyarrow as pa

from viewkeeper import failpoints
from viewkeeper.model.encoding.keys import bounded
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Hold, Pending, Touched
from viewkeeper.store.contract.tables import Feed, column_names
from viewkeeper.store.ordered import log_format, metadata
from viewkeeper.store.ordered.handle import Opened, OrderedRecords
from viewkeeper.store.ordered.row_images import NOTHING, Images, net, within
from viewkeeper.store.ordered.write_call import delta

_ASKED = 64
_NOTHING = Pending(0, 0, None)
_position = attrgetter("position")


class OrderedFeed(Feed):
    """Reads and cuts the change log."""

    def __init__(self, opened: Opened, known: OrderedRecords) -> None:
        self.url = opened.url
        self._opened = opened
        self._records = known
        self._measured = log_format.Measured()
        self._waiting: dict[tuple[int, tuple[int, ...]], tuple[int, Pending]] = {}
        """What waited after a position, up to another: the log only grows, so the next look reads on from there."""

    def head(self) -> int:
        return self._opened.live().number(metadata.HEAD)

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        wanted = column_names(table, columns)
        with self._opened.read(only_log=True) as state:
            self._opened.check_kept(state, after)
            table = self._records.shown(state).reading(table)
            found = log_format.entries(state.log, after, upto, [table.home])
            deltas = [delta(table, _own(table, images), wanted, 1) for images in log_format.gather(found)]
        return pa.concat_tables(deltas) if deltas else delta(table, NOTHING, wanted, 1)

    def net_changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table | None:
        if table.is_bag and not table.is_stored:
            return None  # its entries are deltas, which add up, not states that follow each other
        return self.part_of_changes(table, columns, after, upto, 0, 1)

    def part_of_changes(
        self, table: Table, columns: Sequence[str], after: int, upto: int, part: int, parts: int
    ) -> pa.Table:
        wanted = column_names(table, columns)
        with self._opened.read(only_log=True) as state:
            self._opened.check_kept(state, after)
            table = self._records.shown(state).reading(table)
            start, stop = log_format.share(state.log, after, upto, table.home, part, parts)
            found = log_format.between(state.log, start, stop, [table.home])
            pieces = [_own(table, images) for images in log_format.gather(found)]
        return net(table, pieces, wanted)

    def entries(
        self, table: Table, columns: Sequence[str], after: int, upto: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        """Like `changes`, call by call: position, time, and the delta of some chunks of it."""
        wanted = column_names(table, columns)
        with self._opened.read(only_log=True) as state:
            self._opened.check_kept(state, after)
            table = self._records.shown(state).reading(table)
            found = []
            for position, call in groupby(log_format.entries(state.log, after, upto, [table.home]), _position):
                chunks = list(call)
                found += [(position, chunks[0].time, images) for images in log_format.gather(chunks)]
        for position, when, images in found:
            if len(own := _own(table, images)):
                yield position, when, delta(table, own, wanted, 1)

    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> Pending:
        with self._opened.read(only_log=True) as state:
            self._opened.check_kept(state, after)
            head = metadata.read_number(state.meta, metadata.HEAD)
            asked = (after, tuple(tables))
            upto, found = self._waiting.get(asked, (after, _NOTHING))
            if upto > head:  # by another thread, which has seen more
                upto, found = after, _NOTHING
            if upto < head:
                found = _more(found, log_format.entries(state.log, upto, head, tables))
        if len(self._waiting) >= _ASKED:
            self._waiting.clear()
        self._waiting[asked] = head, found
        return found

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        with self._opened.read(only_log=True) as state:
            self._opened.check_kept(state, after)
            head = metadata.read_number(state.meta, metadata.HEAD)
            counted, before, call = 0, None, None
            for entry in log_format.entries(state.log, after, head, tables):
                if entry.position != call:
                    before, call = call, entry.position
                counted += entry.rows
                if counted > rows and before is not None:
                    return before
            return head

    def touched(self, after: int, upto: int) -> dict[int, Touched]:
        with self._opened.read(only_log=True) as state:
            self._opened.check_kept(state, after)
            return log_format.touched(state.log, after, upto)

    def log_bytes(self) -> int | None:
        with self._opened.read() as state:
            known = state.log.size()
            if known is not None:
                return known
            floor = metadata.read_number(state.meta, metadata.FLOOR)
            return self._measured.bytes(state.log, floor, metadata.read_number(state.meta, metadata.HEAD))

    def truncate(self, upto: int) -> None:
        with self._opened.write() as state:
            held = [hold.position for hold in metadata.holds(state.meta, time.time())]
            head = metadata.read_number(state.meta, metadata.HEAD)
            upto = min([upto, head, *held])
            if upto > metadata.read_number(state.meta, metadata.FLOOR):
                log_format.forget(state.log, upto)
                failpoints.point("commit.5.truncate.middle")
                metadata.put_number(state.meta, metadata.FLOOR, upto)

    def hold(self, name: str, position: int, expiry: float | None = None, *, table: Table | None = None) -> None:
        """Keep the log after a position, until released or (seconds since 1970) expired. A name has one hold."""
        with self._opened.write() as state:
            self._opened.check_kept(state, position)
            metadata.put_hold(state.meta, Hold(name, position, expiry))

    def release_hold(self, name: str) -> None:
        """Let go of a hold; an unknown name is no error."""
        with self._opened.write() as state:
            metadata.delete_hold(state.meta, name)

    def holds(self) -> list[Hold]:
        """The holds that have not expired."""
        with self._opened.read() as state:
            return metadata.holds(state.meta, time.time())


def _own(table: Table, images: Images) -> Images:
    """The changes of a table; of a member of a family, those of its own rows."""
    return within(images, *bounded(table, None, None)) if table.prefix else images


def _more(known: Pending, entries: Iterable[log_format.Entry]) -> Pending:
    """What waits, with what came after it."""
    calls, rows, oldest, size = known.calls, known.rows, known.oldest, known.size
    first, last, by_table = known.first, known.last, dict(known.by_table)
    for entry in entries:
        calls += entry.position != last
        oldest = entry.time if oldest is None else oldest
        first, last = entry.position if first is None else first, entry.position
        rows, size = rows + entry.rows, size + len(entry.body)
        by_table[entry.table] = by_table.get(entry.table, 0) + entry.rows
    return Pending(calls, rows, oldest, first, last, size, by_table)
