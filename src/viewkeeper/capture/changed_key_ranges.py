"""The MK tree: the keys that changed, as few ranges as they allow (dissertation 6.2.3).

    keys 3 4 5 9 10 27   with step 1   ─▶   [3…5] [9…10] [27]        three elements, not six

Keys are merged only when they are adjacent by a known step, so a range stands for exactly the keys that were inserted:
nothing is maintained that did not change. A table whose key is one integer or date column has step 1 (or what its
option `key_step` says); for any other key there is no neighbour, and every key is an element of its own.

Insertion is in bulk, as keys come from the log by batches: the leaves are two sorted arrays, the first and the last
value of each element, and bisection over them takes the place of the inner nodes.
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
    """By how much neighbouring keys of a table differ; None where a key has no neighbour."""
    if len(table.key) != 1 or table.key_columns[0].type not in _INTEGERS or table.key[0].descending:
        return None
    return int(dict(table.options).get("key_step", "1"))


@dataclass
class MKTree:
    """The inserted keys of one table. `first` and `last` hold the elements, ascending, `step` apart inside each."""

    table: Table
    step: int | None
    first: KeyNumbers
    last: KeyNumbers
    unmergeable_keys: pa.Table
    """Keys that cannot be merged: the key columns, distinct."""

    @staticmethod
    def for_table(table: Table) -> MKTree:
        """An empty tree for a table's keys."""
        names = [c.name for c in table.key_columns]
        none = np.zeros(0, np.int64)
        return MKTree(table, key_step(table), none, none, table.arrow.empty_table().select(names))

    def __len__(self) -> int:
        """How many elements it has."""
        return len(self.first) + int(self.unmergeable_keys.num_rows)

    @property
    def key_count(self) -> int:
        """How many keys it stands for."""
        if self.step is None:
            return int(self.unmergeable_keys.num_rows)
        return int(((self.last - self.first) // self.step + 1).sum())

    def insert(self, keys: pa.Table) -> None:
        """Add keys (the key columns); keys that are there already stay as they are."""
        if not keys.num_rows:
            return
        if self.step is None:
            names = self.unmergeable_keys.column_names
            joined = pa.concat_tables([self.unmergeable_keys, keys.select(names)])
            self.unmergeable_keys = joined.group_by(names).aggregate([]).select(names).combine_chunks()
            return
        numbers = np.unique(np.concatenate([self._expand_numbers(), _as_numbers(keys[self.table.key[0].column])]))
        # Keys off the grid of the step start elements of their own: equal remainders are merged apart.
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
            wanted = pa.table([pa.array([v], t) for v, t in zip(key, types, strict=True)], names=names)
            return bool(self.unmergeable_keys.join(wanted, names, join_type="inner").num_rows)
        number = int(_as_numbers(pa.chunked_array([pa.array([key[0]], self.table.arrow.field(names[0]).type)]))[0])
        inside = (self.first <= number) & (number <= self.last) & ((number - self.first) % self.step == 0)
        return bool(inside.any())

    def ranges(self) -> Iterator[tuple[bytes, bytes]]:
        """Encoded keys [start, stop] of the elements that hold more than one key, with step 1: to be scanned."""
        if self.step == 1:
            for low, high in zip(self.first, self.last, strict=True):
                if high > low:
                    yield self._encode_number(int(low)), self._encode_number(int(high))

    def single_keys(self) -> pa.Table:
        """The key columns of all keys outside `ranges`: to be looked up one by one."""
        if self.step is None:
            return self.unmergeable_keys
        return self._key_table(
            self._expand_numbers(self.first == self.last) if self.step == 1 else self._expand_numbers()
        )

    def all_keys(self) -> pa.Table:
        """The key columns of every key."""
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
