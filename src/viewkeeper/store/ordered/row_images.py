"""Changed rows as bytes: their keys, and the rows before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, TooLarge
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.delta import identical_rows
from viewkeeper.model.encoding.key_order import has_no_duplicates_fast, is_ascending, key_order
from viewkeeper.model.encoding.keys import value_bytes
from viewkeeper.model.encoding.rows import decode_rows
from viewkeeper.model.row_names import key_text
from viewkeeper.model.schema import WEIGHT, Table

MAX_KEY_BYTES = 1 << 16
MAX_ROW_BYTES = 256 << 20
"""Bytes. A scan holds a few rows at a time in memory, and a log entry holds one twice."""


@dataclass(frozen=True)
class RowImages:
    """Changed rows: their keys, and the rows before and after (empty bytes where there was, or is, none)."""

    keys: pa.BinaryArray
    before: pa.BinaryArray
    after: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.keys)


NO_IMAGES = RowImages(*[pa.array([], pa.binary())] * 3)


def concat_images(pieces: Sequence[RowImages]) -> RowImages:
    """Many chunks as one."""
    return RowImages(
        pa.concat_arrays([p.keys for p in pieces]),
        pa.concat_arrays([p.before for p in pieces]),
        pa.concat_arrays([p.after for p in pieces]),
    )


def drop_empty(values: pa.BinaryArray) -> pa.BinaryArray:
    """The images that are not empty."""
    there = non_empty_mask(values)
    return values if there.all() else values.filter(pa.array(there))


def non_empty_mask(values: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Which images are not empty."""
    if not len(values):
        return np.zeros(0, np.bool_)
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    found: npt.NDArray[np.bool_] = offsets[1:] > offsets[:-1]
    return found


def filter_key_range(images: RowImages, start: bytes | None, stop: bytes | None) -> RowImages:
    """The images whose key is in `start` ≤ key < `stop`."""
    for bound, inside in ((start, pc.greater_equal), (stop, pc.less)):
        if bound is not None:
            kept = inside(images.keys, pa.scalar(bound, pa.binary()))
            images = RowImages(images.keys.filter(kept), images.before.filter(kept), images.after.filter(kept))
    return images


def binary_array(values: Sequence[bytes]) -> pa.BinaryArray:
    """Python's bytes as one array, none of them None: copied once, where pyarrow looks at each."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def empty_rows(rows: int) -> pa.BinaryArray:
    """So many empty rows: deletes."""
    buffers = [None, pa.py_buffer(np.zeros(rows + 1, np.int32)), pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def sort_by_key(table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """In key order: a map is then walked once, and may be appended to. The same key twice is refused."""
    order = key_order(keys)
    if order is None:
        return keys, after
    keys, after = keys.take(pa.array(order)), after.take(pa.array(order))
    if pc.any(pc.equal(keys[:-1], keys[1:])).as_py():
        raise BadValue(f"A write to {table.name} has the same key twice.", hint="Keep the last row of each key.")
    return keys, after


def check_sizes(table: Table, data: pa.Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> None:
    """TooLarge, with its name, if one of these rows is over the limits; `keys` and `after` are its bytes."""
    for what, encoded, limit, unit, hint in (
        ("key", keys, MAX_KEY_BYTES, 10, "Use a digest of it as the key."),
        ("row", after, MAX_ROW_BYTES, 20, "Keep large objects elsewhere."),
    ):
        if len(value_bytes(encoded)) <= limit:
            continue  # all of them together
        sizes = pc.binary_length(encoded)
        largest = pc.max(sizes).as_py()
        if largest > limit:
            at = pc.index(sizes, largest).as_py()
            row = key_text(table, data, at)
            most = f"{limit >> unit} {'KB' if unit == 10 else 'MB'}"
            raise TooLarge(
                f"A {what} of {table.name} has {largest:,} bytes, {most} is the limit: {row}.",
                hint=hint,
                table=table.id,
                key=keys[at].as_py(),
            )


def first_image_by_key(images: RowImages) -> RowImages:
    """Of several images of a key, the first: what it was before them."""
    places = pa.table({"key": images.keys, "place": pa.array(range(len(images)), pa.int64())})
    first = places.group_by("key").aggregate([("place", "min")])["place_min"].combine_chunks()
    return RowImages(images.keys.take(first), images.before.take(first), images.after.take(first))


# What is left of a stretch of the log: for each key the row before the first entry and the one after the last.
#
#     k: −a +b   k: −b +c   m: +d   m: −d        ─▶        k: −a +c
#
# The states of a key follow each other, so what lies between cancels, and a delta is consolidated without comparing
# rows of different keys. A key whose wanted columns are the same at both ends falls out.


def net_delta(table: Table, pieces: Sequence[RowImages], columns: list[str]) -> pa.Table:
    """The consolidated delta of the pieces, oldest first."""
    deltas = [_images_to_delta(table, images, columns) for images in _net_images(pieces)]
    if not deltas:
        return pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())]).empty_table()
    return deltas[0] if len(deltas) == 1 else pa.concat_tables(deltas).combine_chunks()


def _net_images(pieces: Sequence[RowImages]) -> Sequence[RowImages]:
    """What is left of many chunks, oldest first: each key once, as it was before the first and after the last."""
    if not pieces or _is_ascending([p.keys for p in pieces]):
        return pieces
    keys = one_chunk(pa.chunked_array([p.keys for p in pieces], pa.binary()))
    if has_no_duplicates_fast(keys):
        return pieces
    codes = np.asarray(keys.dictionary_encode().indices)
    count = int(codes.max()) + 1 if len(codes) else 0
    if count == len(codes):
        return pieces
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    places = np.arange(len(codes))
    first[codes[::-1]], last[codes] = places[::-1], places  # of several assignments to a place the last one stays
    whole = concat_images(pieces)
    ends = pa.array(last)
    return [RowImages(whole.keys.take(ends), whole.before.take(pa.array(first)), whole.after.take(ends))]


def _is_ascending(pieces: Sequence[pa.BinaryArray]) -> bool:
    """Whether the keys ascend from piece to piece, as those of one call do: then none is there twice."""
    last = b""
    for keys in pieces:
        if not is_ascending(keys) or (len(keys) and last and keys[0].as_py() <= last):
            return False
        last = keys[-1].as_py() if len(keys) else last
    return True


def _images_to_delta(table: Table, images: RowImages, columns: list[str]) -> pa.Table:
    was, now = non_empty_mask(images.before), non_empty_mask(images.after)
    before, after = int(was.sum()), int(now.sum())
    rows = decode_rows(table, pa.concat_arrays([drop_empty(images.before), drop_empty(images.after)]), columns)
    weights = np.repeat(np.array([-1, 1]), [before, after])
    rows = rows.append_column(WEIGHT, pa.array(weights))
    updated = was & now
    old, new = np.flatnonzero(updated[was]), before + np.flatnonzero(updated[now])
    same = identical_rows(_take_rows(rows, old), _take_rows(rows, new), ignored_column=WEIGHT)
    if not same.any():
        return rows
    kept = np.ones(len(weights), np.bool_)
    kept[old[same]] = kept[new[same]] = False
    return rows.filter(pa.array(kept))


def _take_rows(rows: pa.Table, indices: npt.NDArray[np.int64]) -> pa.Table:
    """Neighbours, as in a batch of updates only, are not copied."""
    if len(indices) and indices[-1] - indices[0] == len(indices) - 1:
        return rows.slice(int(indices[0]), len(indices))
    return rows.take(pa.array(indices))
