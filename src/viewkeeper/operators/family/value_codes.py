"""Value codes: values as 64-bit integers in the same order, so that comparisons of values are integer comparisons.

    integers, dates, timestamps, booleans      the number itself
    decimals of up to 18 digits                the unscaled integer
    strings, bytes, doubles, long decimals     the rank among all values that are compared here

Spark compares strings by their bytes, NaN equals itself and is greater than all other values, and −0.0 equals 0.0.
Arrow's sort does the same, once zeros and NaNs are normalised. A mask marks NULLs; their codes have no meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Flags, Int128Array, Ints

ValueCodes = tuple[Ints, Flags]
"""The codes, and a flag where there is a value."""


def encode_values(columns: Sequence[Any]) -> list[ValueCodes]:
    """Return the codes of columns of one type, comparable across all columns."""
    arrays = [one_chunk(c) for c in columns]
    present = [_validity(a) for a in arrays]
    kind = arrays[0].type
    if pa.types.is_decimal(kind) and kind.precision <= 18:
        numbers = [Int128Array.from_decimals(a).low.view(np.int64) for a in arrays]
    elif pa.types.is_decimal(kind) or pa.types.is_floating(kind) or not _is_number(kind):
        numbers = _rank_values(arrays)
    else:
        numbers = [_integer_values(a) for a in arrays]
    return list(zip(numbers, present, strict=True))


def number_tuples(columns: Sequence[Any]) -> tuple[Ints, Ints]:
    """Return for each row the number of its tuple of values, and the first row of each number. NULL counts as a
    value."""
    code: Ints | None = None
    for column in columns:
        column_numbers, count = _number_values(one_chunk(column))
        if code is None:
            code, span = column_numbers, count
        elif span * count >= 1 << 62:
            values, code = np.unique(code, return_inverse=True)
            code, span = code * count + column_numbers, len(values) * count
        else:
            code, span = code * count + column_numbers, span * count
    if code is None or not len(code):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if span <= 4 * len(code) + 1024:
        first_row = np.full(span, -1, np.int64)
        first_row[code[::-1]] = np.arange(len(code))[::-1]
        used_codes = np.flatnonzero(first_row >= 0)
        number = np.empty(span, np.int64)
        number[used_codes] = np.arange(len(used_codes))
        return number[code], first_row[used_codes]
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return inverse, first


def _number_values(array: Any) -> tuple[Ints, int]:
    if pa.types.is_decimal(array.type) and array.type.precision <= 18 and not array.null_count:
        array = pa.array(Int128Array.from_decimals(array).low.view(np.int64))
    encoded = array.dictionary_encode("encode")
    return encoded.indices.to_numpy().astype(np.int64), max(1, len(encoded.dictionary))


def _validity(array: Any) -> Flags:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    is_valid: Flags = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return is_valid


def _is_number(arrow_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(arrow_type)
        or pa.types.is_date(arrow_type)
        or pa.types.is_timestamp(arrow_type)
        or pa.types.is_boolean(arrow_type)
    )


def _integer_values(array: Any) -> Ints:
    if pa.types.is_date(array.type):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    values: Ints = array.to_numpy(zero_copy_only=False).astype(np.int64)
    return values


def _rank_values(arrays: Sequence[Any]) -> list[Ints]:
    """Return the rank of each value among the distinct values of all arrays."""
    all_values = pa.chunked_array([_normalize_floats(a) for a in arrays]).combine_chunks()
    encoded = one_chunk(all_values).dictionary_encode()
    values = encoded.dictionary
    ranks = np.empty(max(1, len(values)), np.int64)
    ranks[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
    codes = ranks[encoded.indices.fill_null(0).to_numpy().astype(np.int64)]
    edges = np.cumsum([0, *(len(a) for a in arrays)])
    return [codes[a:b] for a, b in pairwise(edges)]


def _normalize_floats(array: Any) -> Any:
    """Return floats with one zero and one NaN, because dictionaries distinguish them by their bits."""
    if not pa.types.is_floating(array.type):
        return array
    values = array.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    values = np.where(np.isnan(values), np.nan, values).astype(values.dtype)
    return pa.array(values, array.type, mask=None if not array.null_count else ~_validity(array))
