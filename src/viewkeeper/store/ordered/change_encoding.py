"""Encoding of many views' changes: small changes of tables with the same shape are encoded and sorted together.

    v1: a 3, c 1     v2: b 2        as one table   1 a 3 │ 1 c 1 │ 2 b 2        in the order of (table, key), then cut

The bytes of a row depend on the types of its columns and on its key, not on the table's name or on other rows. Encoding
an array of three rows takes as many calls as encoding three thousand, and a batch may change thousands of small views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.encoding.key_order import key_order
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.encoding.rows import encode_rows
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import ViewChange
from viewkeeper.store.contract.tables import convert_rows
from viewkeeper.store.ordered.row_images import MAX_KEY_BYTES, MAX_ROW_BYTES, empty_rows
from viewkeeper.store.ordered.write_call import encode_change_rows

EncodedChange = tuple[Table, pa.BinaryArray, pa.BinaryArray]

_MAX_GROUPED_ROWS = 256
"""Maximum number of rows of a change that is encoded together with others."""


def encode_view_changes(changes: Sequence[ViewChange]) -> Iterator[EncodedChange]:
    """Yield the table, keys and rows (empty: delete) of each change, in slices."""
    groups: dict[Any, list[ViewChange]] = {}
    for change in changes:
        table = change.table
        is_small = (
            change.puts.num_rows + change.deletes.num_rows <= _MAX_GROUPED_ROWS
            and table.key
            and not table.dropped_columns
        )
        groups.setdefault(_encoding_shape(table) if is_small else id(change), []).append(change)
    for group in groups.values():
        puts = [(c.table, convert_rows(c.table, c.puts, c.table.arrow.names)) for c in group if c.puts.num_rows]
        found = _encode_puts_together(puts) if len(group) > 1 else None
        if found is None:  # a single change, or one row is too large: encoding it alone gives an error that names it
            for each in group:
                yield from ((each.table, *piece) for piece in encode_change_rows(each.table, each.puts, each.deletes))
            continue
        yield from found
        yield from _encode_deletes_together([c for c in group if c.deletes.num_rows])


def encode_as_table(change: ViewChange) -> pa.Table:
    """Encode one change, with its keys in order, as a table that can be sent: one chunk for each slice."""
    schema = pa.schema([("key", pa.binary()), ("row", pa.binary())])
    pieces = encode_change_rows(change.table, change.puts, change.deletes)
    return pa.Table.from_batches([pa.record_batch([*slice_], schema=schema) for slice_ in pieces], schema)


def _encoding_shape(table: Table) -> Any:
    """Return the properties of a table that determine the bytes of its rows and keys."""
    positions = {column.name: position for position, column in enumerate(table.stored_columns)}
    keys = tuple((positions[k.column], k.descending, k.nulls_last) for k in table.key)
    return tuple(column.type for column in table.stored_columns), keys


def _encode_puts_together(puts: Sequence[tuple[Table, pa.Table]]) -> list[EncodedChange] | None:
    if not puts:
        return []
    first = puts[0][0]
    rows = pa.concat_tables([rows.rename_columns(first.arrow.names) for _, rows in puts]).combine_chunks()
    keys, after = encode_keys(first, rows), encode_rows(first, rows)
    if (
        pc.max(pc.binary_length(keys)).as_py() > MAX_KEY_BYTES
        or pc.max(pc.binary_length(after)).as_py() > MAX_ROW_BYTES
    ):
        return None
    return _split_by_table([table for table, _ in puts], [rows.num_rows for _, rows in puts], keys, after)


def _encode_deletes_together(changes: Sequence[ViewChange]) -> list[EncodedChange]:
    if not changes:
        return []
    first = changes[0].table
    names = [column.name for column in first.key_columns]
    listed = [
        convert_rows(c.table, c.deletes, [k.name for k in c.table.key_columns]).rename_columns(names) for c in changes
    ]
    keys = encode_keys(first, pa.concat_tables(listed).combine_chunks())
    return _split_by_table([c.table for c in changes], [rows.num_rows for rows in listed], keys, empty_rows(len(keys)))


def _split_by_table(
    tables: Sequence[Table], counts: Sequence[int], keys: pa.BinaryArray, after: pa.BinaryArray
) -> list[EncodedChange]:
    """Sort the keys by (table, key) and split them by table."""
    numbers = np.repeat(np.arange(len(tables), dtype=">u4"), counts).view(np.uint8)
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * np.int32(4)
    table_numbers = pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(numbers)])
    order = key_order(pc.binary_join_element_wise(table_numbers, keys, pa.scalar(b"", pa.binary())))
    if order is not None:
        keys, after = keys.take(pa.array(order)), after.take(pa.array(order))
    ends = np.cumsum(counts).tolist()
    return [
        (table, keys.slice(end - count, count), after.slice(end - count, count))
        for table, count, end in zip(tables, counts, ends, strict=True)
    ]
