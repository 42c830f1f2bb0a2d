"""Arrays of 128-bit integers, as numpy sees Arrow's decimal128: a low word (uint64) and a high word (int64).

Sums, range checks and rounding take a few numpy calls for a whole column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]

DIGIT_BITS = 32
_DIGIT_MASK = (1 << DIGIT_BITS) - 1


@dataclass(frozen=True)
class Int128Array:
    """Integers `high · 2^64 + low`."""

    low: Words
    high: Ints

    @staticmethod
    def from_decimals(values: Any) -> Int128Array:
        """Return the unscaled values of a decimal128 array; the values of NULLs are arbitrary."""
        words = np.frombuffer(values.buffers()[1], np.uint64) if len(values) else np.zeros(0, np.uint64)
        words = words[2 * values.offset :][: 2 * len(values)].reshape(-1, 2)
        return Int128Array(words[:, 0], words[:, 1].view(np.int64))

    @staticmethod
    def from_bytes(data: npt.NDArray[np.void]) -> Int128Array:
        """Return the integers in an array of 16-byte words."""
        halves = data.view(np.uint64).reshape(-1, 2)
        return Int128Array(halves[:, 0], halves[:, 1].view(np.int64))

    @staticmethod
    def from_int64(values: Ints) -> Int128Array:
        """Return 64-bit integers, sign-extended."""
        return Int128Array(values.view(np.uint64), values >> 63)

    @property
    def sums_fit_int64(self) -> bool:
        """Whether the sum of any subset fits 64 bits, derived from the largest absolute value."""
        if not len(self.low):
            return True
        small = self.low.view(np.int64)
        largest = max(int(small.max()), -int(small.min()))
        return largest * len(small) < 1 << 63 and bool((self.high == small >> 63).all())

    @property
    def addends(self) -> tuple[Ints, Ints, Ints]:
        """Three parts that can be summed separately; `sum` combines the sums."""
        return (self.low & _DIGIT_MASK_WORD).view(np.int64), (self.low >> _DIGIT_SHIFT).view(np.int64), self.high

    @staticmethod
    def sum(low: Ints, middle: Ints, high: Ints) -> Int128Array:
        """Return low + middle · 2^32 + high · 2^64, which must fit 128 bits."""
        middle = middle + (low >> DIGIT_BITS)
        word = (low & _DIGIT_MASK).view(np.uint64) | (middle.view(np.uint64) << _DIGIT_SHIFT)
        return Int128Array(word, high + (middle >> DIGIT_BITS))

    def __getitem__(self, positions: Ints) -> Int128Array:
        return Int128Array(self.low[positions], self.high[positions])

    @property
    def fits_int64(self) -> Flags:
        """Whether each integer fits 64 bits."""
        fits: Flags = self.high == (self.low.view(np.int64) >> 63)
        return fits

    def is_within(self, limit: int) -> Flags:
        """Return whether each integer is strictly between −limit and limit."""
        return self._is_below(limit) & ~self._is_below(-limit + 1)

    def _is_below(self, bound: int) -> Flags:
        high, low = np.int64(bound >> 64), np.uint64(bound & (2**64 - 1))
        below: Flags = (self.high < high) | ((self.high == high) & (self.low < low))
        return below

    @property
    def python_integers(self) -> npt.NDArray[np.object_]:
        """Python integers: exact for any size, at the cost of one object each."""
        integers: npt.NDArray[np.object_] = self.high.astype(object) * 2**64 + self.low.astype(object)
        return integers

    def to_decimals(self, arrow_type: pa.DataType, valid: Flags | None = None) -> Any:
        """Return an Arrow decimal column with these unscaled values, NULL where not `valid` (None: no NULLs)."""
        words = np.empty((len(self.low), 2), np.uint64)
        words[:, 0], words[:, 1] = self.low, self.high.view(np.uint64)
        bitmap = None if valid is None else _bitmap(valid)
        return pa.Array.from_buffers(arrow_type, len(words), [bitmap, pa.py_buffer(words)])

    @property
    def digits(self) -> Ints:
        """Base-2^32 digits, the lowest first; the highest one is signed."""
        upper = self.high.view(np.uint64)
        lower = [self.low & _DIGIT_MASK_WORD, self.low >> _DIGIT_SHIFT, upper & _DIGIT_MASK_WORD]
        return np.stack([*(d.view(np.int64) for d in lower), self.high >> DIGIT_BITS], axis=1)

    @property
    def doubles(self) -> Doubles:
        """The nearest double of each integer, ties to even."""
        small = self.low.view(np.int64)
        if bool((self.fits_int64 & (small <= 2**53) & (small >= -(2**53))).all()):
            return small.astype(np.float64)
        return nearest_doubles(self.digits, 0)


_DIGIT_MASK_WORD, _DIGIT_SHIFT = np.uint64(_DIGIT_MASK), np.uint64(DIGIT_BITS)


def add_upper_words(lower: Int128Array, upper: Int128Array) -> tuple[Int128Array, Flags]:
    """Return lower + upper · 2^64 where it fits 128 bits, and where it fits. `lower` must not be negative."""
    middle = lower.high.view(np.uint64) + upper.low
    top = upper.high + (middle < upper.low)
    high = middle.view(np.int64)
    return Int128Array(lower.low, high), top == (high >> 63)


def carry_digits(digits: Ints) -> None:
    """Carry in place, so that all digits but the highest are in 0 … 2^32 − 1."""
    for j in range(digits.shape[1] - 1):
        digits[:, j + 1] += digits[:, j] >> DIGIT_BITS
        digits[:, j] &= _DIGIT_MASK


def nearest_doubles(digits: Ints, exponent: int) -> Doubles:
    """Return the double nearest to Σ digits[:, j] · 2^(32 j + exponent), ties to even. `digits` is overwritten."""
    carry_digits(digits)
    negative = digits[:, -1] < 0
    if negative.any():
        digits[negative] *= -1
        carry_digits(digits)
    filled = digits != 0
    top = digits.shape[1] - 1 - np.argmax(filled[:, ::-1], axis=1)
    first = np.argmax(filled, axis=1)
    rows = np.arange(len(digits))
    a, b, c = (np.where(top >= j, digits[rows, np.maximum(top - j, 0)], 0).astype(np.uint64) for j in range(3))
    # 96 bits a·2^64 + b·2^32 + c, shifted so that the highest bit of the upper 64 is set; lower bits only break ties.
    shift = (DIGIT_BITS - np.frexp(a.astype(np.float64))[1]).astype(np.uint64)
    upper = (((a << _DIGIT_SHIFT) | b) << shift) | (c >> (_DIGIT_SHIFT - shift))
    more = (first < top - 2) | (((c << shift) & _DIGIT_MASK_WORD) != 0)
    mantissa, rest = upper >> np.uint64(11), upper & np.uint64(2047)
    odd = (mantissa & np.uint64(1)) == 1
    mantissa += (rest > 1024) | ((rest == 1024) & (more | odd))
    with np.errstate(over="ignore"):
        size = np.ldexp(mantissa.astype(np.float64), DIGIT_BITS * (top - 1) + exponent - shift.astype(np.int64) + 11)
    return np.where(filled.any(axis=1), np.where(negative, -size, size), 0.0)


def _bitmap(valid: Flags) -> Any:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
