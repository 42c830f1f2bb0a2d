"""The order of encoded keys.

Keys of one length differ in few byte positions: markers and the high bytes of numbers are equal in all of them. If at
most eight positions differ, these bytes form a 64-bit number with the order of the key, and numbers are sorted five
times as fast as bytes. Other keys are compared byte by byte.
"""

from __future__ import annotations

from operator import lt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.encoding.keys import value_bytes

RowIndices = np.ndarray[Any, np.dtype[np.int64]]
SortableNumbers = np.ndarray[Any, np.dtype[np.uint64]]

_WORD = 8
_MAX_PYTHON_SORT = 64
"""Up to this many keys, a Python sort is faster than an analysis of the keys."""


def key_order(keys: pa.BinaryArray) -> RowIndices | None:
    """Return indices that sort the keys ascending, equal keys in any order; None if they already ascend strictly."""
    return None if is_ascending(keys) else _sort_keys(keys, _key_numbers(keys))


def last_occurrences(keys: pa.BinaryArray) -> RowIndices | None:
    """Return the index of each key's last occurrence, ascending; None if no key occurs twice."""
    if is_ascending(keys):
        return None
    numbers = _key_numbers(keys)
    order = _sort_keys(keys, numbers)
    if numbers is None:
        ordered = keys.take(pa.array(order))
        is_first = np.asarray(pc.not_equal(ordered[:-1], ordered[1:]))
    else:
        sorted_numbers = numbers[order]
        is_first = sorted_numbers[1:] != sorted_numbers[:-1]
    if is_first.all():
        return None
    last: RowIndices = np.maximum.reduceat(order, np.flatnonzero(np.concatenate([[True], is_first])))
    return np.sort(last)


def has_no_duplicates_fast(keys: pa.BinaryArray) -> bool:
    """Return True if a fast check shows that no key occurs twice; False means unknown."""
    if is_ascending(keys):
        return True
    numbers = _key_numbers(keys)
    if numbers is None:
        return False
    numbers.sort()
    return bool((numbers[1:] != numbers[:-1]).all())


def is_ascending(keys: pa.BinaryArray) -> bool:
    """Return whether each key is greater than its predecessor."""
    if len(keys) < 2:
        return True
    if len(keys) <= _MAX_PYTHON_SORT:
        values = keys.to_pylist()
        return all(map(lt, values, values[1:]))
    return bool(pc.all(pc.less(keys[:-1], keys[1:])).as_py())


def _sort_keys(keys: pa.BinaryArray, numbers: SortableNumbers | None) -> RowIndices:
    if numbers is not None:
        return _sort_numbers(numbers)
    if len(keys) <= _MAX_PYTHON_SORT:
        values = keys.to_pylist()
        return np.array(sorted(range(len(values)), key=values.__getitem__))
    return np.asarray(pc.sort_indices(keys)).astype(np.int64, copy=False)


def _sort_numbers(numbers: SortableNumbers) -> RowIndices:
    """Sort by value; if number and index fit into one word, sort these words, in a quarter of the time of argsort."""
    bits = np.uint64(len(numbers).bit_length())
    if int(numbers.max()) >> (64 - int(bits)):
        return np.argsort(numbers)
    words = numbers << bits | np.arange(len(numbers), dtype=np.uint64)
    words.sort()
    return (words & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)


def _key_numbers(keys: pa.BinaryArray) -> SortableNumbers | None:
    """Return numbers in the order of the keys, if the keys have one length and differ in at most eight positions."""
    rows = len(keys)
    if rows <= _MAX_PYTHON_SORT:
        return None
    offsets = np.frombuffer(keys.buffers()[1], np.int32, rows + 1, keys.offset * 4)
    width = int(offsets[1] - offsets[0])
    if not width or (np.diff(offsets) != width).any():
        return None
    padded = np.zeros((rows, -(-width // _WORD) * _WORD), np.uint8)
    padded[:, :width] = value_bytes(keys).reshape(rows, width)
    words = padded.view(np.uint64)
    differ = np.flatnonzero(np.bitwise_or.reduce(words ^ words[0], axis=0).view(np.uint8))
    if len(differ) > _WORD:
        return None
    significant = np.zeros((rows, _WORD), np.uint8)
    for column, byte in enumerate(differ, _WORD - len(differ)):
        significant[:, column] = padded[:, byte]
    return significant.view(">u8").ravel().astype(np.uint64)
