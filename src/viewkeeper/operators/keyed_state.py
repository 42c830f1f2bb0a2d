"""Keyed state: the state of an operator as rows of a store table, for synchronous views.

A run is searched by hash, and a state of runs grows by whole batches. A write call must read and change the rows that
it touches in its own transaction. So each slot is stored in a table whose key begins with the group:

    vectors    group           ─▶ counts and sums            read by key
    buckets    group, bucket   ─▶ the same, of doubles       the rows of a group are a key range
    values     group, value    ─▶ number of occurrences      read by key, and at the end of the range with the extreme

Rows with the same key add up, and a row whose sums are all zero is deleted (`add_run_to_rows`). The rows that were read
are passed to the operator as an arrangement of the touched groups, so the operator runs as in a batch. Of a group's
values it needs the extreme before and after. If the delta has k values of the group, at most k of them disappear, so
the first k + 1 values from the end contain both.
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
    """How the rows of a slot are stored: by `key`, whose first `group_width` columns are the group's; `sums` add up."""

    columns: tuple[Column, ...]
    key: tuple[KeyPart, ...]
    group_width: int
    sums: tuple[str, ...]
    keep_zero: bool = False
    access: str = "key"
    """Which rows are read: "key", those of the delta's keys; "group", all of the touched groups; "ends", those of the
    keys and the first ones of each group."""

    def build_table(self, number: int) -> Table:
        return Table(number, f"state {number}", self.columns, self.key, is_view=True)


class StateReader(Protocol):
    """A write call's view of the store: the rows as they were when the call began."""

    def find(self, table: Table, keys: pa.BinaryArray) -> pa.Table:
        """Return the rows of these encoded keys, each once, in any order."""

    def range(self, table: Table, start: bytes | None, stop: bytes | None, limit: int | None) -> pa.Table:
        """Return the rows of a key range, in key order."""


@dataclass(frozen=True)
class StateRows:
    """The rows of one slot: `rows` are stored under the delta's keys; `state` is the arrangement that the operator
    reads, which may have more rows."""

    rows: pa.Table
    state: Arrangement


def fetch_state(
    reader: StateReader,
    layouts: Sequence[KeyedStateLayout],
    tables: Sequence[Table],
    deltas: Sequence[pa.Table],
    touched: pa.Table,
) -> StateRows:
    """Read the rows of a slot that a step needs for its port's deltas, and for all groups that are `touched` at any
    port (their keys and hashes).

    All tables of a slot hold the same rows, by different keys.
    """
    layout, table = layouts[0], tables[0]
    rows = combine_deltas(deltas)
    group_table = replace(table, key=table.key[: layout.group_width])
    key_rows = state_rows = table.arrow.empty_table()
    if rows is not None and layout.access != "group":
        key_rows = state_rows = reader.find(table, encode_keys(table, rows).unique())
    if layout.access == "key":
        return (
            StateRows(key_rows, _arrange_rows(layout, table, state_rows, rows))
            if rows is not None
            else StateRows(key_rows, _EMPTY_ARRANGEMENT)
        )
    groups = encode_keys(group_table, touched).unique()
    if layout.access == "group":
        key_rows = state_rows = pa.concat_tables(
            [key_rows, *(_read_group(reader, layout, table, g, None) for g in groups.to_pylist())]
        )
    else:
        value_counts = {} if rows is None else _count_keys(encode_keys(group_table, rows))
        ends = [
            _read_group(reader, layout, value_table, group, value_counts.get(group, 0) + 1)
            for value_table in tables
            for group in groups.to_pylist()
        ]
        state_rows = _drop_duplicate_keys(table, pa.concat_tables([key_rows, *ends]))
    return StateRows(key_rows, _arrange_rows(layout, group_table, state_rows, touched))


def add_run_to_rows(layout: KeyedStateLayout, table: Table, old: pa.Table, run: Run) -> tuple[pa.Table, pa.Table]:
    """Return the rows to put and the keys to delete when a run is added to the rows that are stored under its keys."""
    rows = pa.concat_tables(
        [old.select(table.arrow.names), run.weighted_rows.select(table.arrow.names).cast(table.arrow)]
    )
    rows = rows.combine_chunks()
    codes = encode_keys(table, rows).dictionary_encode().indices
    numbered = pa.table(
        {"code": codes, "place": pa.array(np.arange(rows.num_rows)), **{n: rows[n] for n in layout.sums}}
    )
    aggregations = [("place", "min"), *((n, "sum") for n in layout.sums)]
    summed = numbered.group_by("code", use_threads=False).aggregate(aggregations)
    first = rows.take(summed["place_min"])
    zero = np.full(summed.num_rows, not layout.keep_zero)
    for name in layout.sums:
        total = summed[f"{name}_sum"].cast(table.arrow.field(name).type)
        first = first.set_column(first.schema.get_field_index(name), table.arrow.field(name), total)
        zero &= np.asarray(pc.equal(total, pa.scalar(0, total.type)))
    keys = first.select([k.column for k in table.key])
    return first.filter(pa.array(~zero)), keys.filter(pa.array(zero))


def _read_group(
    reader: StateReader, layout: KeyedStateLayout, table: Table, group: bytes, limit: int | None
) -> pa.Table:
    """Return the first rows of a group, in key order."""
    start = group if layout.group_width else None
    return reader.range(table, start, None if start is None else successor(start), limit)


def _count_keys(keys: pa.BinaryArray) -> dict[bytes, int]:
    return {entry["values"].as_py(): entry["counts"].as_py() for entry in keys.value_counts()}


def _drop_duplicate_keys(table: Table, rows: pa.Table) -> pa.Table:
    codes = np.asarray(encode_keys(table, rows.combine_chunks()).dictionary_encode().indices)
    return rows.take(pa.array(np.unique(codes, return_index=True)[1]))


def _arrange_rows(layout: KeyedStateLayout, key_table: Table, rows: pa.Table, delta: pa.Table) -> Arrangement:
    """Return stored rows as an arrangement: with the hashes that the delta has for the same keys, in the order of a
    run."""
    if not rows.num_rows:
        return _EMPTY_ARRANGEMENT
    rows = rows.combine_chunks()
    delta_rows = pc.index_in(encode_keys(key_table, rows), value_set=encode_keys(key_table, delta))
    rows = rows.append_column(HASH, delta[HASH].combine_chunks().take(delta_rows))
    order = [(HASH, "ascending")]
    if WEIGHT in layout.sums:  # a run of values is sorted by value within a hash
        order.append((layout.key[-1].column, "ascending"))
    return Arrangement((Run(rows.take(pc.sort_indices(rows, sort_keys=order)).combine_chunks()),))


_EMPTY_ARRANGEMENT = Arrangement()
