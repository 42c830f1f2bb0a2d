"""Decodes the rows of a gateway's reply without an object per cell.

A reply to getScannerRows, getScannerResults or getMultiple in the binary protocol (numbers big-endian, `s` = i32
length and bytes):

    message   80 01 00 02 | s method | i32 seqid | 0f 0000 0c i32 results | result ... | 00
    result    0b 0001 s row | 0f 0002 0c i32 cells | cell ... | tail           a row
              0f 0002 0c 00000000 | tail                                       a key that was not found (getMultiple)
    tail      02 0003 stale | 02 0004 partial | 00
    cell      0b 0001 s family | 0b 0002 s qualifier | 0b 0003 s value | 0a 0004 i64 time | 03 0006 kind | 00

The end of an element depends on the lengths inside it, so a parser must proceed step by step, which numpy cannot.
The vectorised decoder avoids this:

1. *Guess*: rows and cells both begin with `0b 00 01 00 00`. All offsets of these bytes are candidates; a value may
   contain them too.
2. *Reach*: for all candidates at once, read the lengths and compute where the next element would have to begin.
3. *Prove*: the first candidate is where the message header ends. If the successor of each is the next candidate, then
   by induction all are real and none is missing. Candidates that a successor skips are inside a value and are dropped.
4. *Check* the fixed bytes and the counts of every real candidate.

A frame that fails a step (unknown fields, fields that HBase 2.6 does not send, rows without cells) is decoded by
`decode_slowly`, which reads one field after the other and accepts whatever Thrift allows.
"""

from __future__ import annotations

import struct

import numpy as np

from viewkeeper.errors import StoreError
from viewkeeper_hbase.thrift.cells import PUT, Cells, Offsets, no_cells
from viewkeeper_hbase.thrift.connection import Frame

# The field-by-field decoder: slow, and the reference for the vectorised one.


class UnreadableReply(StoreError):
    """The reply does not conform to the interface."""


_FIXED = {2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8}
"""Bytes of Thrift's fixed-width types: bool, byte, double, i16, i32, i64."""
_MAX_DEPTH = 20
_STRING, _STRUCT, _MAP, _SET, _LIST = 11, 12, 13, 14, 15


class ThriftReader:
    """Reads Thrift's binary protocol sequentially, never beyond the end."""

    def __init__(self, frame: Frame, offset: int) -> None:
        self.bytes = frame.tobytes()
        self.offset = offset

    def read_number(self, form: str) -> int:
        value: int = struct.unpack_from(form, self.bytes, self.offset)[0]
        self.offset += struct.calcsize(form)
        return value

    def read_string(self) -> tuple[int, int]:
        size = self.read_number(">i")
        start, stop = self.offset, self.offset + size
        if size < 0 or stop > len(self.bytes):
            raise struct.error("a string goes beyond the end")
        self.offset = stop
        return start, stop

    def read_field(self) -> tuple[int, int]:
        """Return type and number of the next field; type 0 ends a struct."""
        kind = self.read_number(">B")
        return (kind, self.read_number(">h")) if kind else (0, 0)

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _MAX_DEPTH or self.offset >= len(self.bytes):
            raise struct.error("a field that is not known has no end")
        if kind in _FIXED:
            self.offset += _FIXED[kind]
        elif kind == _STRING:
            self.read_string()
        elif kind == _STRUCT:
            while (inner := self.read_field()[0]) != 0:
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            inner = self.read_number(">B")
            for _ in range(self.read_number(">i")):
                self.skip(inner, depth + 1)
        elif kind == _MAP:
            key, value = self.read_number(">B"), self.read_number(">B")
            for _ in range(self.read_number(">i")):
                self.skip(key, depth + 1)
                self.skip(value, depth + 1)
        else:
            raise struct.error(f"there is no type {kind}")


def decode_slowly(frame: Frame, start: int, results: int) -> Cells:
    """Return the same as `_decode_vectorised`, for any frame that Thrift allows."""
    reader = ThriftReader(frame, start)
    keys: list[tuple[int, int]] = []
    first = [0]
    cells: list[tuple[int, int, int, int, int]] = []
    try:
        for _ in range(results):
            key = (0, 0)
            while (field := reader.read_field()) != (0, 0):
                if field == (_STRING, 1):
                    key = reader.read_string()
                elif field == (_LIST, 2):
                    reader.read_number(">B")
                    cells.extend(_read_cell(reader) for _ in range(reader.read_number(">i")))
                else:
                    reader.skip(field[0])
            keys.append(key)
            first.append(len(cells))
        if reader.read_field() != (0, 0):
            raise struct.error("there is more than the results")
    except struct.error as error:
        raise UnreadableReply(
            f"The gateway's reply cannot be read at byte {reader.offset}: {error}.",
            hint="Report this with the version of HBase.",
        ) from error
    key_of = np.array(keys, np.int64).reshape(-1, 2).T
    cell_of = np.array(cells, np.int64).reshape(-1, 5).T
    return Cells(
        frame,
        key_of[0],
        key_of[1],
        np.array(first, np.int64),
        cell_of[0],
        cell_of[1],
        cell_of[2],
        cell_of[3],
        cell_of[4].astype(np.uint8),
    )


def _read_cell(reader: ThriftReader) -> tuple[int, int, int, int, int]:
    head, value, time, kind = -1, (0, 0), 0, PUT
    after_qualifier = -1
    while (field := reader.read_field()) != (0, 0):
        if field == (_STRING, 1):
            head = reader.offset
            reader.read_string()
        elif field == (_STRING, 2):
            reader.read_string()
            after_qualifier = reader.offset
        elif field == (_STRING, 3):
            in_order = reader.offset == after_qualifier + 3
            value = reader.read_string()
            if not in_order:
                raise struct.error("the fields of a cell are not in order")
        elif field == (10, 4):
            time = reader.read_number(">q")
        elif field == (3, 6):
            kind = reader.read_number(">B")
        else:
            reader.skip(field[0])
    if head < 0 or after_qualifier < 0 or value == (0, 0):
        raise struct.error("a cell lacks its family, qualifier or value")
    return head, value[0], value[1], time, kind


def decode_frame(frame: Frame) -> Cells | None:
    """Decode the rows of a reply; return None if it is an exception, which `Connection.decode` raises."""
    start, results = _read_header(frame)
    if results < 0:
        return None
    cells = _decode_vectorised(frame, start, results, has_misses=False)
    if cells is None:
        cells = _decode_vectorised(frame, start, results, has_misses=True)
    return decode_slowly(frame, start, results) if cells is None else cells


def count_results(frame: Frame) -> int:
    """Return how many results a reply holds, including keys not found; -1 for an exception."""
    return _read_header(frame)[1]


def _read_header(frame: Frame) -> tuple[int, int]:
    """Return the offset of the first result and the number of results; -1 if the reply is no list of results."""
    head = frame[:300].tobytes()
    if len(head) < 16 or head[:3] != b"\x80\x01\x00":
        raise UnreadableReply("The gateway's reply is not a Thrift message.", hint="Check port and protocol.")
    start = 8 + struct.unpack_from(">i", head, 4)[0] + 4
    if head[3] != 2 or head[start : start + 4] != b"\x0f\x00\x00\x0c" or len(head) < start + 8:
        return start, -1
    return start + 8, struct.unpack_from(">i", head, start + 4)[0]


# -- vectorised -------------------------------------------------------------------------------------------------------


def _decode_vectorised(frame: Frame, start: int, results: int, *, has_misses: bool) -> Cells | None:
    """Do steps 1 to 4 of the module; return None if the frame does not have the usual form."""
    size = len(frame)
    end = size - 1
    if results == 0 or end - start < 17:
        return no_cells(frame) if results == 0 and start == end and frame[end] == 0 else None
    word = np.ndarray((size - 3,), ">u4", buffer=frame, strides=(1,))
    last_word = size - 4

    # 1 guess
    begins = (frame[start:-4] == 0x0B) & (frame[start + 1 : -3] == 0) & (frame[start + 2 : -2] == 1)
    begins &= (frame[start + 3 : -1] == 0) & (frame[start + 4 :] == 0)
    if has_misses:
        begins |= (frame[start:-4] == 0x0F) & (frame[start + 2 : -2] == 2) & (frame[start + 3 : -1] == 0x0C)
    at = np.flatnonzero(begins) + start
    if not len(at) or at[0] != start:
        return None

    # 2 reach: offsets are clipped to the frame, so that a false candidate's meaningless length is never read beyond
    # it
    def read(offsets: Offsets) -> Offsets:
        return word[np.minimum(offsets, last_word)].astype(np.int64)

    after = at + 7 + read(at + 3)
    form = read(after)
    is_row = form == 0x0F00020C
    is_cell = form & 0xFFFFFF00 == 0x0B000200
    is_miss = frame[at] == 0x0F if has_misses else np.zeros(len(at), bool)
    value_head = after + 7 + read(after + 3)
    value_start = value_head + 7
    value_stop = value_start + read(value_head + 3)
    cell_end = value_stop + 16
    # A cell is followed by a cell (0b), or by its row's tail. A key not found is followed by its tail.
    tail = np.where(is_miss, at + 8, cell_end)
    has_tail = is_miss | (is_cell & (frame[np.minimum(tail, end)] == 2))
    succ = np.where(is_row & ~is_miss, after + 8, np.where(has_tail, tail + 9, cell_end))

    # 3 prove
    real = _follow_chain(at, succ, end)
    if real is None:
        return None
    if len(real) < len(at):
        at, after, value_head, value_start, value_stop, cell_end, tail = (
            a[real] for a in (at, after, value_head, value_start, value_stop, cell_end, tail)
        )
        is_row, is_cell, is_miss, has_tail = (a[real] for a in (is_row, is_cell, is_miss, has_tail))
    is_row &= ~is_miss
    is_cell &= ~is_miss

    # 4 check
    in_cell = np.flatnonzero(is_cell)
    tail_start, stop = tail[has_tail], value_stop[in_cell]
    starts_result = is_row | is_miss
    first_token = np.flatnonzero(starts_result)
    counts = np.where(is_row, read(after + 4), 0)[first_token]
    cells_of = np.diff(np.append(first_token, len(at))) - 1
    sound = (
        bool((starts_result | is_cell).all())
        and len(first_token) == results
        and bool((counts == cells_of).all())
        and bool((cells_of > 0)[is_row[first_token]].all())
        # A result begins exactly after a tail.
        and bool((starts_result[1:] == has_tail[:-1]).all())
        and bool(has_tail[-1])
        and bool((read(tail_start) & 0xFFFFFF00 == 0x02000300).all())
        and bool((read(tail_start + 4) & 0xFFFFFF00 == 0x02000400).all())
        and bool((frame[tail_start + 8] == 0).all())
        and bool((read(value_head[in_cell]) & 0xFFFFFF00 == 0x0B000300).all())
        and bool((read(stop) & 0xFFFFFF00 == 0x0A000400).all())
        and bool((read(stop + 11) & 0xFFFFFF00 == 0x03000600).all())
        and bool((frame[stop + 15] == 0).all())
    )
    if not sound:
        return None
    long = np.ndarray((size - 7,), ">i8", buffer=frame, strides=(1,))
    found = is_row[first_token]
    first = np.zeros(results + 1, np.int64)
    np.cumsum(cells_of, out=first[1:])
    return Cells(
        frame=frame,
        key_start=np.where(found, at[first_token] + 7, 0),
        key_stop=np.where(found, after[first_token], 0),
        first=first,
        head_start=at[in_cell] + 3,
        value_start=value_start[in_cell],
        value_stop=stop,
        time=long[stop + 3].astype(np.int64),
        kind=frame[stop + 14],
    )


def _follow_chain(starts: Offsets, successors: Offsets, end: int) -> Offsets | None:
    """Return the real candidates: those reached from the first one. None if the chain does not lead to the end."""
    breaks = np.flatnonzero(successors[:-1] != starts[1:])
    if not len(breaks):
        return np.arange(len(starts)) if successors[-1] == end else None
    targets = np.searchsorted(starts, successors)
    jumps = targets[breaks].tolist()
    real = np.zeros(len(starts), bool)
    current = 0
    # Each iteration marks a run of real candidates up to a break, and jumps over the false ones after it.
    run = 0
    breaks_list = breaks.tolist()
    while True:
        while run < len(breaks_list) and breaks_list[run] < current:
            run += 1
        stop = breaks_list[run] if run < len(breaks_list) else len(starts) - 1
        real[current : stop + 1] = True
        successor = int(successors[stop])
        if successor == end:
            return np.flatnonzero(real)
        if run == len(breaks_list):
            return None
        current = jumps[run]
        if current <= stop or current >= len(starts) or starts[current] != successor:
            return None
