"""Upsert resolution at the sink: turns a view's delta into upserts and tombstones of its table.

    key of the table has a row of positive weight   put that row
    key has rows of negative weight only            delete the key
    bag (the key is the whole row)                  stored count + weight; the row is deleted when the count is zero
    view that is not stored                         the delta is passed on unchanged

A large delta is divided by the hash of the key; that is correct because the result for a key depends on the key's own
rows only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Contradiction
from viewkeeper.model.delta import identical_rows_at
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.int128 import Ints
from viewkeeper.model.names import COUNT, WEIGHT, WEIGHT_SUM, quoted
from viewkeeper.model.schema import Table
from viewkeeper.resources.memory import MemoryBudget, table_bytes
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidate
from viewkeeper.store.contract.store import StreamChange, ViewChange

_MIN_DIVIDED_ROWS = 1 << 10
"""Up to this many rows are not divided, however long the rows are."""
_MAX_PYTHON_ROWS = 32
"""Up to this many rows Python compares keys faster than encoding them takes."""
_COMPARABLE_TYPES = frozenset(
    kind.id for kind in (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.decimal128(1))
)
"""Types whose Python values are equal exactly if their encoded key bytes are equal."""
_PIECES_PER_PART = 1
"""Pieces of memory in a part: a part's rows are copied several times, and its keys encoded and compared."""


class StoredRowCounts(Protocol):
    """Reads the stored counts of a bag's rows."""

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table: ...


def resolve_upserts(
    statements: PreparedStatements,
    row_counts: StoredRowCounts,
    table: Table,
    deltas: Sequence[pa.Table],
    memory: MemoryBudget,
) -> ViewChange | StreamChange | None:
    """Resolve the deltas at a view's sink to the change of its table; None if they cancel out."""
    if not deltas:
        return None
    delta = deltas[0] if len(deltas) == 1 else pa.concat_tables(deltas, promote_options="permissive")
    delta = delta.rename_columns([*(c.name for c in table.columns), WEIGHT])
    part_count = (
        1 if delta.num_rows <= _MIN_DIVIDED_ROWS else -(-table_bytes(delta) // (_PIECES_PER_PART * memory.piece_bytes))
    )
    if part_count <= 1 or not table.key:
        return _resolve_piece(statements, row_counts, table, delta.combine_chunks())
    changes = (
        _spill_change(_resolve_piece(statements, row_counts, table, rows), memory)
        for rows in _divide_by_key(statements, table, delta, part_count, memory)
    )
    return _concat_changes(table, [change for change in changes if change is not None])


def _resolve_piece(
    statements: PreparedStatements, row_counts: StoredRowCounts, table: Table, delta: pa.Table
) -> ViewChange | StreamChange | None:
    delta = _cast_to_table(table, delta)
    if not table.is_bag:
        return _resolve_keyed(statements, table, delta)
    # A bag's key is the whole row; −0.0 and 0.0 are equal in a key. In other views an update from one to the other is a
    # change.
    merged = merge_bag_rows(statements, table, delta)
    if merged.num_rows == 0:
        return None
    return (
        _resolve_bag(statements, row_counts, table, merged)
        if table.is_stored
        else StreamChange(table, _cast_to_table(table, merged))
    )


def _divide_by_key(
    statements: PreparedStatements, table: Table, delta: pa.Table, part_count: int, memory: MemoryBudget
) -> Iterator[pa.Table]:
    """Divide the rows by key: all rows of a key are in one part."""
    keys = [k.column for k in table.key]
    query = f"SELECT CAST(hash({', '.join(map(quoted, keys))}) % {part_count} AS BIGINT) AS part FROM input"
    pieces = list(memory.pieces(delta))
    numbers = [statements.run(query, input=piece.select(keys))["part"].to_numpy() for piece in pieces]
    for number in range(part_count):
        positions_by_piece = [
            (p, np.flatnonzero(numbers_of_piece == number)) for p, numbers_of_piece in zip(pieces, numbers, strict=True)
        ]
        rows = [
            piece.combine_chunks().take(pa.array(positions))
            for piece, positions in positions_by_piece
            if len(positions)
        ]
        if rows:
            yield pa.concat_tables(rows).combine_chunks()


def _spill_change(change: ViewChange | StreamChange | None, memory: MemoryBudget) -> ViewChange | StreamChange | None:
    if isinstance(change, ViewChange):
        return ViewChange(change.table, memory.spill(change.puts), change.deletes)
    return change if change is None else StreamChange(change.table, memory.spill(change.delta))


def _concat_changes(table: Table, changes: Sequence[ViewChange | StreamChange]) -> ViewChange | StreamChange | None:
    if not changes:
        return None
    streams = [change.delta for change in changes if isinstance(change, StreamChange)]
    if streams:
        return StreamChange(table, pa.concat_tables(streams))
    stored = [change for change in changes if isinstance(change, ViewChange)]
    return ViewChange(table, *(pa.concat_tables([getattr(c, side) for c in stored]) for side in ("puts", "deletes")))


def merge_bag_rows(statements: PreparedStatements, table: Table, delta: pa.Table) -> pa.Table:
    """Return each distinct row of a bag's delta once, with the sum of its weights if that is not zero."""
    columns = ", ".join(quoted(c.name) for c in table.columns)
    weight = f"CAST(sum({WEIGHT}) AS BIGINT) AS {WEIGHT}"
    return statements.run(
        f"SELECT {columns}, {weight} FROM input GROUP BY {columns} HAVING sum({WEIGHT}) <> 0", input=delta
    )


def _resolve_keyed(statements: PreparedStatements, table: Table, delta: pa.Table) -> ViewChange | StreamChange | None:
    pairs = _pair_rows(table, delta)
    if pairs is None:  # the delta has rows that are inserted and deleted again between two states of the view
        delta = _cast_to_table(table, consolidate(statements, delta))
        pairs = _pair_rows(table, delta)
        if pairs is None:
            raise Contradiction(f"{table.name} would have several rows of one key.")
    new, old = pairs
    puts, changed, deleted = new[new >= 0], old[old >= 0], old[(old >= 0) & (new < 0)]
    if not len(puts) and not len(changed):
        return None
    if not table.is_stored:
        return StreamChange(table, delta.take(pa.array(np.concatenate([changed, puts]))))
    rows = delta.drop_columns([WEIGHT])
    keys = rows.select([k.column for k in table.key])
    if not table.key:  # Arrow's `take` loses the row count of a table without columns: the row would not be deleted
        deleted_keys = keys.slice(0, len(deleted))
    elif len(deleted):
        deleted_keys = keys.take(pa.array(deleted))
    else:  # not a slice of `keys`, which would keep all keys in memory until the commit
        deleted_keys = keys.schema.empty_table()
    return ViewChange(table, rows.take(pa.array(puts)), deleted_keys)


def _pair_rows(table: Table, delta: pa.Table) -> tuple[Ints, Ints] | None:
    """Return for each key the positions of its new row and of its old row, −1 for none or if both are identical.

    None if a key has several new or several old rows: then the delta must be consolidated first.
    """
    weights = delta[WEIGHT].to_numpy()
    keys = _number_keys(table, delta)
    count = int(keys.max()) + 1 if len(keys) else 0
    sides = []
    for weight in (1, -1):
        positions = np.flatnonzero(weights == weight)
        side = np.full(count, -1, np.int64)
        side[keys[positions]] = positions
        if np.count_nonzero(side >= 0) < len(positions):
            return None
        sides.append(side)
    new, old = sides
    if np.count_nonzero(new >= 0) + np.count_nonzero(old >= 0) < len(weights):
        return None
    both = np.flatnonzero((new >= 0) & (old >= 0))
    same = both[identical_rows_at(delta, new[both], old[both], ignored_column=WEIGHT)]
    new[same] = old[same] = -1
    return new, old


def _number_keys(table: Table, delta: pa.Table) -> Ints:
    """Return a number for each row; rows with the same key have the same number."""
    columns = [delta.column(k.column) for k in table.key]
    if delta.num_rows > _MAX_PYTHON_ROWS or not all(c.type.id in _COMPARABLE_TYPES for c in columns):
        return np.asarray(encode_keys(table, delta).dictionary_encode().indices)
    numbers: dict[Any, int] = {}
    keys = zip(*map(_python_values, columns), strict=True) if columns else [()] * delta.num_rows
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return values that Python can compare; strings as bytes, which need not be decoded."""
    values: list[Any] = (column.cast(pa.binary()) if pa.types.is_string(column.type) else column).to_pylist()
    return values


def _resolve_bag(
    statements: PreparedStatements, row_counts: StoredRowCounts, table: Table, net: pa.Table
) -> ViewChange:
    keys = _cast_to_table(table, net.select([k.column for k in table.key]))
    stored = row_counts.get_rows(table, keys)
    columns = [quoted(c.name) for c in table.columns]
    names = ", ".join(columns)
    counted = statements.run(
        f"""SELECT {names}, CAST(sum({WEIGHT_SUM}) AS BIGINT) AS {COUNT}
            FROM (SELECT {names}, {COUNT} AS {WEIGHT_SUM} FROM stored UNION ALL SELECT {names}, {WEIGHT} FROM net)
            GROUP BY {names}""",
        stored=stored,
        net=net,
    )
    if counted.num_rows and min(counted[COUNT].to_numpy()) < 0:
        raise Contradiction(f"{table.name} would have a row fewer than no times.")
    is_present = pc.greater(counted[COUNT], 0)
    deleted = counted.filter(pc.invert(is_present)).select([k.column for k in table.key])
    return ViewChange(table, _cast_to_table(table, counted.filter(is_present)), _cast_to_table(table, deleted))


def _cast_to_table(table: Table, rows: pa.Table) -> pa.Table:
    """Cast rows to the table's own Arrow types."""
    weight = pa.field(WEIGHT, pa.int64())
    schema = pa.schema([weight if name == WEIGHT else table.arrow.field(name) for name in rows.column_names])
    return rows if rows.schema.equals(schema) else rows.cast(schema)
