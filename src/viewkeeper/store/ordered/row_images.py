"""Row images: changed rows as bytes, with their keys and the rows before and after the change."""

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
"""Maximum bytes of a row. A scan holds a few rows at a time in memory, and a log entry holds two images of one."""


@dataclass(frozen=True)
class RowImages:
    """Changed rows: their keys, and the rows before and after (empty bytes: no row)."""

    keys: pa.BinaryArray
    before: pa.BinaryArray
    after: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.keys)


NO_IMAGES = RowImages(*[pa.array([], pa.binary())] * 3)


def concat_images(pieces: Sequence[RowImages]) -> RowImages:
    """Concatenate images."""
    return RowImages(
        pa.concat_arrays([p.keys for p in pieces]),
        pa.concat_arrays([p.before for p in pieces]),
        pa.concat_arrays([p.after for p in pieces]),
    )


def drop_empty(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return the images that are not empty."""
    is_present = non_empty_mask(values)
    return values if is_present.all() else values.filter(pa.array(is_present))


def non_empty_mask(values: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Return for each image whether it is not empty."""
    if not len(values):
        return np.zeros(0, np.bool_)
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    found: npt.NDArray[np.bool_] = offsets[1:] > offsets[:-1]
    return found


def filter_key_range(images: RowImages, start: bytes | None, stop: bytes | None) -> RowImages:
    """Return the images whose key is in `start` ≤ key < `stop`."""
    for bound, compare in ((start, pc.greater_equal), (stop, pc.less)):
        if bound is not None:
            mask = compare(images.keys, pa.scalar(bound, pa.binary()))
            images = RowImages(images.keys.filter(mask), images.before.filter(mask), images.after.filter(mask))
    return images


def binary_array(values: Sequence[bytes]) -> pa.BinaryArray:
    """Build an array from bytes objects, none of them None. It copies the bytes once, while pyarrow inspects each
    object."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def empty_rows(rows: int) -> pa.BinaryArray:
    """Return an array of empty rows: deletes."""
    buffers = [None, pa.py_buffer(np.zeros(rows + 1, np.int32)), pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def sort_by_key(table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Sort keys and rows by key, so that a map is traversed once and can append. Raise an error if a key occurs
    twice."""
    order = key_order(keys)
    if order is None:
        return keys, after
    keys, after = keys.take(pa.array(order)), after.take(pa.array(order))
    if pc.any(pc.equal(keys[:-1], keys[1:])).as_py():
        raise BadValue(f"A write to {table.name} has the same key twice.", hint="Keep the last row of each key.")
    return keys, after


def check_sizes(table: Table, data: pa.Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> None:
    """Raise TooLarge, naming the row, if a row is over the limits; `keys` and `after` are the encoded rows of
    `data`."""
    for kind, encoded, limit, unit, hint in (
        ("key", keys, MAX_KEY_BYTES, 10, "Use a digest of it as the key."),
        ("row", after, MAX_ROW_BYTES, 20, "Keep large objects elsewhere."),
    ):
        if len(value_bytes(encoded)) <= limit:
            continue  # even their sum is below the limit
        sizes = pc.binary_length(encoded)
        largest = pc.max(sizes).as_py()
        if largest > limit:
            index = pc.index(sizes, largest).as_py()
            row = key_text(table, data, index)
            limit_text = f"{limit >> unit} {'KB' if unit == 10 else 'MB'}"
            raise TooLarge(
                f"A {kind} of {table.name} has {largest:,} bytes, {limit_text} is the limit: {row}.",
                hint=hint,
                table=table.id,
                key=keys[index].as_py(),
            )


def first_image_by_key(images: RowImages) -> RowImages:
    """Return the first image of each key: the row before all of the changes."""
    positions = pa.table({"key": images.keys, "place": pa.array(range(len(images)), pa.int64())})
    first = positions.group_by("key").aggregate([("place", "min")])["place_min"].combine_chunks()
    return RowImages(images.keys.take(first), images.before.take(first), images.after.take(first))


# Net changes of a range of the log: for each key the row before the first entry and the row after the last entry.
#
#     k: −a +b   k: −b +c   m: +d   m: −d        ─▶        k: −a +c
#
# Successive images of a key cancel, so the delta is consolidated without comparing rows of different keys. A key whose
# requested columns are the same before and after is dropped.


def net_delta(table: Table, pieces: Sequence[RowImages], columns: list[str]) -> pa.Table:
    """Return the consolidated delta of the images, oldest first."""
    deltas = [_images_to_delta(table, images, columns) for images in _net_images(pieces)]
    if not deltas:
        return pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())]).empty_table()
    return deltas[0] if len(deltas) == 1 else pa.concat_tables(deltas).combine_chunks()


def _net_images(pieces: Sequence[RowImages]) -> Sequence[RowImages]:
    """Return the net images, oldest first: each key once, with its first before-image and its last after-image."""
    if not pieces or _is_ascending([p.keys for p in pieces]):
        return pieces
    keys = one_chunk(pa.chunked_array([p.keys for p in pieces], pa.binary()))
    if has_no_duplicates_fast(keys):
        return pieces
    key_numbers = np.asarray(keys.dictionary_encode().indices)
    count = int(key_numbers.max()) + 1 if len(key_numbers) else 0
    if count == len(key_numbers):
        return pieces
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    indices = np.arange(len(key_numbers))
    # If a key number occurs several times, numpy keeps the last assignment.
    first[key_numbers[::-1]], last[key_numbers] = indices[::-1], indices
    images = concat_images(pieces)
    ends = pa.array(last)
    return [RowImages(images.keys.take(ends), images.before.take(pa.array(first)), images.after.take(ends))]


def _is_ascending(pieces: Sequence[pa.BinaryArray]) -> bool:
    """Return whether the keys ascend over all pieces, as those of one call do: then no key occurs twice."""
    last = b""
    for keys in pieces:
        if not is_ascending(keys) or (len(keys) and last and keys[0].as_py() <= last):
            return False
        last = keys[-1].as_py() if len(keys) else last
    return True


def _images_to_delta(table: Table, images: RowImages, columns: list[str]) -> pa.Table:
    has_before, has_after = non_empty_mask(images.before), non_empty_mask(images.after)
    before, after = int(has_before.sum()), int(has_after.sum())
    rows = decode_rows(table, pa.concat_arrays([drop_empty(images.before), drop_empty(images.after)]), columns)
    weights = np.repeat(np.array([-1, 1]), [before, after])
    rows = rows.append_column(WEIGHT, pa.array(weights))
    is_update = has_before & has_after
    old, new = np.flatnonzero(is_update[has_before]), before + np.flatnonzero(is_update[has_after])
    is_same = identical_rows(_take_rows(rows, old), _take_rows(rows, new), ignored_column=WEIGHT)
    if not is_same.any():
        return rows
    is_kept = np.ones(len(weights), np.bool_)
    is_kept[old[is_same]] = is_kept[new[is_same]] = False
    return rows.filter(pa.array(is_kept))


def _take_rows(rows: pa.Table, indices: npt.NDArray[np.int64]) -> pa.Table:
    """Take rows; consecutive rows, as in a batch that only updates, are sliced without a copy."""
    if len(indices) and indices[-1] - indices[0] == len(indices) - 1:
        return rows.slice(int(indices[0]), len(indices))
    return rows.take(pa.array(indices))
