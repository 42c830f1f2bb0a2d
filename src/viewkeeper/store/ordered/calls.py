"""One write call: rows in Arrow become bytes, are applied to their tables, and what changed is appended to the log."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.codec import decode_rows, encode_rows
from viewkeeper.model.delta import weighted
from viewkeeper.model.keys import encode_keys
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.model.threads import Threads
from viewkeeper.store.arrow import typed
from viewkeeper.store.budget import LEAST, budget
from viewkeeper.store.ordered import log, records
from viewkeeper.store.ordered.encoding import SLICES_FOR_MORE, is_much
from viewkeeper.store.ordered.images import Images, join, no_rows, present
from viewkeeper.store.ordered.maps import State
from viewkeeper.store.terms import StreamChange, Written

_BYTES_FOR_MORE = 1 << 20
"""So many bytes are made into chunks of the log by two threads."""
_HELD = 1 / 16
"""Of the budget: what may wait to be noted in the log."""
_AHEAD = 4
"""Slices whose chunks are made ahead of those that are written."""


class Call:
    """One write call or commit inside its transaction: one position, however many tables."""

    def __init__(self, state: State, size: int = 0) -> None:
        """`size`: bytes of the rows that it is about to change, about."""
        self.state = state
        # The log of a call that is much, twice as large as its rows, is written so that it need not wait in memory
        # until the commit. That takes several times as long.
        in_page = state.log.most_in_page if is_much(size) else None
        self._chunk_bytes = log.CHUNK_BYTES if in_page is None else in_page
        self._waits = in_page is None
        self._later: deque[tuple[int, Images]] = deque()
        """What is still to be noted, by table: after all rows. A map that gives out pages in ascending order then has
        those of the rows first, one beside the other, and those of the log behind them (decision 73)."""
        self._held = 0
        self.time = time.time()
        self.head: int = records.read_number(state.meta, records.HEAD)
        self.changed = self.chunk = 0

    def apply(self, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> Images:
        """Change rows, and note in the log what really changed."""
        images = self.state.rows(table.id).apply(table, keys, after)
        self.append(table, images)
        return images

    def append(self, table: Table, images: Images) -> None:
        """Note changed rows in the log."""
        if len(images):
            self.changed += len(images)
            self._later.append((table.id, images))
            self._held += int(images.before.nbytes + images.after.nbytes)
            if not self._waits or (self._held >= LEAST and self._held >= budget() * _HELD):
                self._note()

    def append_few(self, table: Table, keys: list[bytes], before: list[bytes], after: list[bytes]) -> None:
        """The same for rows that Python has."""
        self._note()
        where = (self.head + 1, self.chunk, table.id, self.time)
        self.chunk = log.append_few(self.state.log, *where, (keys, before, after), self._chunk_bytes)
        self.changed += len(keys)

    def finish(self, *, always: bool = False) -> Written:
        """The call's position; one that changed nothing has none, unless `always`."""
        if not self.changed and not always:
            return Written(self.head, 0, atomic=True)
        self._note()
        records.put_number(self.state.meta, records.HEAD, self.head + 1)
        return Written(self.head + 1, self.changed, atomic=True)

    def _note(self) -> None:
        """Append to the log what waits for it; of many slices two threads make the chunks that come next."""
        later, held = self._later, self._held
        self._held = 0
        if len(later) < SLICES_FOR_MORE or held < _BYTES_FOR_MORE:
            while later:
                self._put(self._chunks(*later.popleft()))
            return
        with Threads(2, thread_name_prefix="viewkeeper-log") as threads:
            ahead: deque[Future[list[bytes]]] = deque()
            while later or ahead:
                while later and len(ahead) < _AHEAD:
                    ahead.append(threads.submit(self._chunks, *later.popleft()))
                self._put(ahead.popleft().result())

    def _chunks(self, table: int, images: Images) -> list[bytes]:
        return list(log.encoded(table, self.time, images, self._chunk_bytes))

    def _put(self, chunks: list[bytes]) -> None:
        self.chunk = log.put(self.state.log, self.head + 1, self.chunk, chunks)


def stream(change: StreamChange) -> Images:
    """The images of a delta whose rows are not stored: a negative weight is a row before, a positive one after."""
    table = change.table
    weights = change.delta[WEIGHT]
    data = change.delta.drop_columns([WEIGHT])
    if table.is_bag:
        data = data.append_column(COUNT, pc.abs(weights))
    pieces = []
    for gone in (True, False):
        part = typed(table, data.filter((pc.less if gone else pc.greater)(weights, 0)), table.arrow.names)
        keys, images = encode_keys(table, part), encode_rows(table, part)
        none = no_rows(len(keys))
        pieces.append(Images(keys, images, none) if gone else Images(keys, none, images))
    return join(pieces)


def delta(table: Table, images: Images, wanted: list[str], sign: int) -> pa.Table:
    """Before-images with weight −sign, after-images with weight sign."""
    before = weighted(decode_rows(table, present(images.before), wanted), -sign)
    after = weighted(decode_rows(table, present(images.after), wanted), sign)
    return pa.concat_tables([before, after]).combine_chunks()
