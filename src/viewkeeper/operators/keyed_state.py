"""Shelves: an operator's state as rows of a store, for views that are kept within write calls.

A run is read by hash, and a state of runs grows by whole batches. A write call must read and change what it touches, in
its own transaction. So each slot lies in a table whose key begins with the group:

    vectors    group           ─▶ counts and sums          read by key
    buckets    group, bucket   ─▶ the same, of doubles     a group's rows are a range
    values     group, value    ─▶ how often                read by key, and at the end where the extreme lies

Rows with the same key add up, and one that adds up to nothing is deleted: `summed`. What is read is handed to the
operator as an arrangement of the touched groups, and the operator does not know the difference. Of a group's values it
needs the extreme before and after. If the delta has k values of the group, k go at most, so the first k + 1 from the
end show both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.encoding.keys import encode_keys, successor
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT, Column, KeyPart, Table
from viewkeeper.operators.chunked_execution import combine_deltas
from viewkeeper.state.run import Arrangement, Run


@dataclass(frozen=True)
class KeyedStateLayout:
    """How the rows of a slot lie: by `key`, whose first `group` columns are the group's; `sums` add up."""

    columns: tuple[Column, ...]
    key: tuple[KeyPart, ...]
    group_width: int
    sums: tuple[str, ...]
    keep_zero: bool = False
    access: str = "key"
    """What is read of it: "key", "group" for all of a touched group, "ends" for the key and the group's first ones."""

    def build_table(self, number: int) -> Table:
        return Table(number, f"state {number}", self.columns, self.key, is_view=True)


class StateReader(Protocol):
    """What a write call sees of the store: as it was when the call began."""

    def find(self, table: Table, keys: pa.BinaryArray) -> pa.Table:
        """The rows of these encoded keys, each once, in any order."""

    def range(self, table: Table, start: bytes | None, stop: bytes | None, limit: int | None) -> pa.Table:
        """The rows of a key range, in key order."""


@dataclass(frozen=True)
class StateRows:
    """Of one slot: the `rows` that lie on its shelves under the delta's keys, and the `state` that its operator is to
    see, which may be more."""

    rows: pa.Table
    state: Arrangement


def fetch_state(
    reader: StateReader,
    layouts: Sequence[KeyedStateLayout],
    tables: Sequence[Table],
    deltas: Sequence[pa.Table],
    touched: pa.Table,
) -> StateRows:
    """What is needed of a slot for what arrived at its port, and for all groups that are `touched` at any (keys and
    hashes). All its shelves hold the same rows, by other keys."""
    shelf, table = layouts[0], tables[0]
    rows = combine_deltas(deltas)
    grouped = replace(table, key=table.key[: shelf.group_width])
    known = more = table.arrow.empty_table()
    if rows is not None and shelf.access != "group":
        known = more = reader.find(table, encode_keys(table, rows).unique())
    if shelf.access == "key":
        return (
            StateRows(known, _arrange_rows(shelf, table, more, rows))
            if rows is not None
            else StateRows(known, _EMPTY_ARRANGEMENT)
        )
    groups = encode_keys(grouped, touched).unique()
    if shelf.access == "group":
        known = more = pa.concat_tables(
            [known, *(_read_group(reader, shelf, table, g, None) for g in groups.to_pylist())]
        )
    else:
        of = {} if rows is None else _count_keys(encode_keys(grouped, rows))
        ends = [
            _read_group(reader, shelf, lying, group, of.get(group, 0) + 1)
            for lying in tables
            for group in groups.to_pylist()
        ]
        more = _drop_duplicate_keys(table, pa.concat_tables([known, *ends]))
    return StateRows(known, _arrange_rows(shelf, grouped, more, touched))


def add_run_to_rows(layout: KeyedStateLayout, table: Table, old: pa.Table, run: Run) -> tuple[pa.Table, pa.Table]:
    """What to put on a shelf, and the keys to delete, when a run is added to the rows that lie under its keys."""
    rows = pa.concat_tables(
        [old.select(table.arrow.names), run.weighted_rows.select(table.arrow.names).cast(table.arrow)]
    )
    rows = rows.combine_chunks()
    codes = encode_keys(table, rows).dictionary_encode().indices
    places = pa.table({"code": codes, "place": pa.array(np.arange(rows.num_rows)), **{n: rows[n] for n in layout.sums}})
    wanted = [("place", "min"), *((n, "sum") for n in layout.sums)]
    found = places.group_by("code", use_threads=False).aggregate(wanted)
    first = rows.take(found["place_min"])
    zero = np.full(found.num_rows, not layout.keep_zero)
    for name in layout.sums:
        total = found[f"{name}_sum"].cast(table.arrow.field(name).type)
        first = first.set_column(first.schema.get_field_index(name), table.arrow.field(name), total)
        zero &= np.asarray(pc.equal(total, pa.scalar(0, total.type)))
    keys = first.select([k.column for k in table.key])
    return first.filter(pa.array(~zero)), keys.filter(pa.array(zero))


def _read_group(
    reader: StateReader, layout: KeyedStateLayout, table: Table, group: bytes, limit: int | None
) -> pa.Table:
    """The rows of a group, from the start."""
    start = group if layout.group_width else None
    return reader.range(table, start, None if start is None else successor(start), limit)


def _count_keys(keys: pa.BinaryArray) -> dict[bytes, int]:
    return {found["values"].as_py(): found["counts"].as_py() for found in keys.value_counts()}


def _drop_duplicate_keys(table: Table, rows: pa.Table) -> pa.Table:
    codes = np.asarray(encode_keys(table, rows.combine_chunks()).dictionary_encode().indices)
    return rows.take(pa.array(np.unique(codes, return_index=True)[1]))


def _arrange_rows(layout: KeyedStateLayout, key_table: Table, rows: pa.Table, delta: pa.Table) -> Arrangement:
    """Rows of the store with the hashes that a delta has for the same keys, in the order of a run."""
    if not rows.num_rows:
        return _EMPTY_ARRANGEMENT
    rows = rows.combine_chunks()
    place = pc.index_in(encode_keys(key_table, rows), value_set=encode_keys(key_table, delta))
    rows = rows.append_column(HASH, delta[HASH].combine_chunks().take(place))
    order = [(HASH, "ascending")]
    if WEIGHT in layout.sums:  # values of a group ascend
        order.append((layout.key[-1].column, "ascending"))
    return Arrangement((Run(rows.take(pc.sort_indices(rows, sort_keys=order)).combine_chunks()),))


_EMPTY_ARRANGEMENT = Arrangement()
