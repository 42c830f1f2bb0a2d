"""The rows that a frame says were touched, by table. Numbers are little-endian:

    name        n: 2 bytes, n bytes                        one after another, for each table
    kind        1 byte: 0 rows, 1 files were bulk-loaded, or a region is new
    written     8 bytes: the newest entry's write time
    rows        n: 4 bytes; n oldest times, n newest times (8 bytes each), n + 1 offsets (4 bytes), the row keys

`java/viewkeeper/push/Touched.java` writes it. A row may come more than once.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Times = npt.NDArray[np.int64]

_HEAD = struct.Struct("<BqI")


class Malformed(ValueError):
    """The bytes are no such list."""


@dataclass(frozen=True)
class Touched:
    """Rows of one table: their keys, and the oldest and newest time of the cells that touched each."""

    keys: pa.Array
    oldest: Times
    newest: Times
    written: int
    """When the newest of these entries was written, by its region server's clock."""
    loaded: bool = False
    """Files were bulk-loaded, or the table was emptied or made anew: any row may have changed."""

    def __len__(self) -> int:
        return len(self.keys)

    def only(self, which: npt.NDArray[np.bool_]) -> Touched:
        return Touched(
            self.keys.filter(pa.array(which)), self.oldest[which], self.newest[which], self.written, self.loaded
        )


NOTHING = Touched(pa.array([], pa.binary()), np.empty(0, np.int64), np.empty(0, np.int64), 0)


def read(data: bytes) -> dict[str, Touched]:
    """The tables of a frame's body; Malformed if it is not whole."""
    found: dict[str, list[Touched]] = {}
    at = 0
    try:
        while at < len(data):
            (length,) = struct.unpack_from("<H", data, at)
            name = data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            kind, written, rows = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            oldest = np.frombuffer(data, "<i8", rows, at)
            newest = np.frombuffer(data, "<i8", rows, at + 8 * rows)
            offsets = np.frombuffer(data, "<i4", rows + 1, at + 16 * rows)
            at += 16 * rows + 4 * (rows + 1)
            size = int(offsets[-1])
            if kind > 1 or not name or offsets[0] or bool((np.diff(offsets) < 0).any()) or at + size > len(data):
                raise Malformed("a table's rows are not whole")
            keys = pa.Array.from_buffers(
                pa.binary(), rows, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data[at : at + size])]
            )
            at += size
            found.setdefault(name, []).append(Touched(keys, oldest, newest, written, kind == 1))
    except (struct.error, ValueError) as error:
        raise error if isinstance(error, Malformed) else Malformed(str(error)) from error
    return {name: joined(parts) for name, parts in found.items()}


def write(tables: Mapping[str, Touched]) -> bytes:
    """The bytes that `read` reads."""
    out = []
    for name, rows in tables.items():
        text = name.encode()
        keys = pa.concat_arrays([rows.keys])  # from offset 0
        lengths = np.asarray(pc.binary_length(keys), np.int32)
        offsets = np.zeros(len(keys) + 1, "<i4")
        np.cumsum(lengths, out=offsets[1:])
        out += [struct.pack("<H", len(text)), text, _HEAD.pack(int(rows.loaded), rows.written, len(keys))]
        out += [rows.oldest.astype("<i8").tobytes(), rows.newest.astype("<i8").tobytes(), offsets.tobytes()]
        out.append(keys.buffers()[2].to_pybytes()[: offsets[-1]] if len(keys) and offsets[-1] else b"")
    return b"".join(out)


def joined(parts: Sequence[Touched]) -> Touched:
    """All rows of several lists."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NOTHING
    return Touched(
        pa.concat_arrays([p.keys for p in parts]),
        np.concatenate([p.oldest for p in parts]),
        np.concatenate([p.newest for p in parts]),
        max(p.written for p in parts),
        any(p.loaded for p in parts),
    )
