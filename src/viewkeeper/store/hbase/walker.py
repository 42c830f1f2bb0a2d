"""Rows out of any reply that Thrift allows, one field after the other: slow, and what `frames` is checked against."""

from __future__ import annotations

import struct

import numpy as np

from viewkeeper.errors import StoreError
from viewkeeper.store.hbase.cells import PUT, Cells
from viewkeeper.store.hbase.connection import Frame


class Unreadable(StoreError):
    """A reply that is not what the interface says."""


_FIXED = {2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8}
"""Bytes of Thrift's fixed-width types: bool, byte, double, i16, i32, i64."""
_DEEPEST = 20
_STRING, _STRUCT, _MAP, _SET, _LIST = 11, 12, 13, 14, 15


class Reader:
    """Reads Thrift's binary protocol from one place to the next, never beyond the end."""

    def __init__(self, frame: Frame, at: int) -> None:
        self.bytes = frame.tobytes()
        self.at = at

    def take(self, form: str) -> int:
        value: int = struct.unpack_from(form, self.bytes, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def string(self) -> tuple[int, int]:
        size = self.take(">i")
        start, stop = self.at, self.at + size
        if size < 0 or stop > len(self.bytes):
            raise struct.error("a string goes beyond the end")
        self.at = stop
        return start, stop

    def field(self) -> tuple[int, int]:
        """Type and number of the next field; type 0 ends a struct."""
        kind = self.take(">B")
        return (kind, self.take(">h")) if kind else (0, 0)

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEEPEST or self.at >= len(self.bytes):
            raise struct.error("a field that is not known has no end")
        if kind in _FIXED:
            self.at += _FIXED[kind]
        elif kind == _STRING:
            self.string()
        elif kind == _STRUCT:
            while (inner := self.field()[0]) != 0:
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            inner = self.take(">B")
            for _ in range(self.take(">i")):
                self.skip(inner, depth + 1)
        elif kind == _MAP:
            key, value = self.take(">B"), self.take(">B")
            for _ in range(self.take(">i")):
                self.skip(key, depth + 1)
                self.skip(value, depth + 1)
        else:
            raise struct.error(f"there is no type {kind}")


def walk(frame: Frame, start: int, results: int) -> Cells:
    """The same as `_together`, for any frame that Thrift allows."""
    walker = Reader(frame, start)
    keys: list[tuple[int, int]] = []
    first = [0]
    cells: list[tuple[int, int, int, int, int]] = []
    try:
        for _ in range(results):
            key = (0, 0)
            while (field := walker.field()) != (0, 0):
                if field == (_STRING, 1):
                    key = walker.string()
                elif field == (_LIST, 2):
                    walker.take(">B")
                    cells.extend(_cell(walker) for _ in range(walker.take(">i")))
                else:
                    walker.skip(field[0])
            keys.append(key)
            first.append(len(cells))
        if walker.field() != (0, 0):
            raise struct.error("there is more than the results")
    except struct.error as error:
        raise Unreadable(
            f"The gateway's reply cannot be read at byte {walker.at}: {error}.",
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


def _cell(walker: Reader) -> tuple[int, int, int, int, int]:
    head, value, time, kind = -1, (0, 0), 0, PUT
    after_qualifier = -1
    while (field := walker.field()) != (0, 0):
        if field == (_STRING, 1):
            head = walker.at
            walker.string()
        elif field == (_STRING, 2):
            walker.string()
            after_qualifier = walker.at
        elif field == (_STRING, 3):
            in_order = walker.at == after_qualifier + 3
            value = walker.string()
            if not in_order:
                raise struct.error("the fields of a cell are not in order")
        elif field == (10, 4):
            time = walker.take(">q")
        elif field == (3, 6):
            kind = walker.take(">B")
        else:
            walker.skip(field[0])
    if head < 0 or after_qualifier < 0 or value == (0, 0):
        raise struct.error("a cell lacks its family, qualifier or value")
    return head, value[0], value[1], time, kind
