"""MK tree: the set of changed keys, as the smallest number of key ranges (dissertation 6.2.3).

    keys 3 4 5 9 10 27   with step 1   ─▶   [3…5] [9…10] [27]        three elements, not six

Keys are merged only if they differ by a known step, so a range stands for exactly the inserted keys: no unchanged key
is maintained. A table whose key is one integer or date column has step 1, or its option `key_step`. Other keys have no
neighbours, and each key is an element of its own.

Keys are inserted in bulk, because the log delivers them in batches: the leaves are two sorted arrays with the first and
the last value of each element, and bisection over them replaces the inner nodes of a tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_key
from viewkeeper.model.schema import Table

_INTEGERS = frozenset({types.TINYINT, types.SMALLINT, types.INT, types.BIGINT, types.DATE})

KeyNumbers = npt.NDArray[np.int64]


def key_step(table: Table) -> int | None:
    """Return the step between neighbouring keys of a table; None if its keys have no neighbours."""
    if len(table.key) != 1 or table.key_columns[0].type not in _INTEGERS or table.key[0].descending:
        return None
    return int(dict(table.options).get("key_step", "1"))


@dataclass
class MKTree:
    """The inserted keys of one table. `first` and `last` hold the elements in ascending order; keys in an element are
    `step` apart."""

    table: Table
    step: int | None
    first: KeyNumbers
    last: KeyNumbers
    unmergeable_keys: pa.Table
    """Distinct keys that cannot be merged, as key columns."""

    @staticmethod
    def for_table(table: Table) -> MKTree:
        """Return an empty tree for the keys of a table."""
        names = [c.name for c in table.key_columns]
        empty = np.zeros(0, np.int64)
        return MKTree(table, key_step(table), empty, empty, table.arrow.empty_table().select(names))

    def __len__(self) -> int:
        """Return the number of elements."""
        return len(self.first) + int(self.unmergeable_keys.num_rows)

    @property
    def key_count(self) -> int:
        """Number of keys that the elements stand for."""
        if self.step is None:
            return int(self.unmergeable_keys.num_rows)
        return int(((self.last - self.first) // self.step + 1).sum())

    def insert(self, keys: pa.Table) -> None:
        """Insert keys (the key columns); keys that the tree has already are ignored."""
        if not keys.num_rows:
            return
        if self.step is None:
            names = self.unmergeable_keys.column_names
            joined = pa.concat_tables([self.unmergeable_keys, keys.select(names)])
            self.unmergeable_keys = joined.group_by(names).aggregate([]).select(names).combine_chunks()
            return
        numbers = np.unique(np.concatenate([self._expand_numbers(), _as_numbers(keys[self.table.key[0].column])]))
        # Keys with different remainders modulo the step cannot be neighbours, so each remainder is merged separately.
        for_remainder = [numbers[numbers % self.step == r] for r in np.unique(numbers % self.step)]
        starts, ends = [], []
        for group in for_remainder:
            breaks = np.flatnonzero(np.diff(group) != self.step)
            starts.append(group[np.concatenate([[0], breaks + 1])])
            ends.append(group[np.concatenate([breaks, [len(group) - 1]])])
        order = np.argsort(np.concatenate(starts), kind="stable")
        self.first, self.last = np.concatenate(starts)[order], np.concatenate(ends)[order]

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        names = self.unmergeable_keys.column_names
        if self.step is None:
            types = [self.unmergeable_keys.schema.field(n).type for n in names]
            probe = pa.table([pa.array([v], t) for v, t in zip(key, types, strict=True)], names=names)
            return bool(self.unmergeable_keys.join(probe, names, join_type="inner").num_rows)
        number = int(_as_numbers(pa.chunked_array([pa.array([key[0]], self.table.arrow.field(names[0]).type)]))[0])
        inside = (self.first <= number) & (number <= self.last) & ((number - self.first) % self.step == 0)
        return bool(inside.any())

    def ranges(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the encoded keys (first, last) of each element with more than one key, if the step is 1: to be
        scanned."""
        if self.step == 1:
            for low, high in zip(self.first, self.last, strict=True):
                if high > low:
                    yield self._encode_number(int(low)), self._encode_number(int(high))

    def single_keys(self) -> pa.Table:
        """Return the key columns of all keys outside of `ranges`: to be looked up one by one."""
        if self.step is None:
            return self.unmergeable_keys
        return self._key_table(
            self._expand_numbers(self.first == self.last) if self.step == 1 else self._expand_numbers()
        )

    def all_keys(self) -> pa.Table:
        """Return the key columns of all keys."""
        return self.unmergeable_keys if self.step is None else self._key_table(self._expand_numbers())

    def _key_table(self, numbers: KeyNumbers) -> pa.Table:
        field = self.table.arrow.field(self.table.key[0].column)
        return pa.table([pa.array(numbers).cast(_storage_type(field.type)).cast(field.type)], names=[field.name])

    def _expand_numbers(self, mask: npt.NDArray[np.bool_] | None = None) -> KeyNumbers:
        first, last = (self.first, self.last) if mask is None else (self.first[mask], self.last[mask])
        step = self.step or 1
        counts = (last - first) // step + 1
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        members: KeyNumbers = np.repeat(first, counts) + step * offsets
        return members

    def _encode_number(self, number: int) -> bytes:
        field = self.table.arrow.field(self.table.key[0].column)
        value = pa.array([number]).cast(_storage_type(field.type)).cast(field.type)[0].as_py()
        return encode_key(self.table, (value,))


def _storage_type(type_: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(type_) else type_


def _as_numbers(column: pa.ChunkedArray) -> KeyNumbers:
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return np.asarray(pc.cast(values, pa.int64()))
