"""The sink: a view's delta becomes puts and deletes on its table.

For each key: a row with positive weight is a put; if there is none, the key is deleted. A bag's rows have no unique
key: the stored count is read, the weight added, and the row goes when its count reaches zero. A view that is not
stored passes its delta on as it is. A large delta is divided by the hash of the key: what becomes of a key depends on
its own rows only.
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
"""Rows that are one part, as they are one piece, however long they are."""
_MAX_PYTHON_ROWS = 32
"""Of so few rows Python tells sooner which keys are the same."""
_COMPARABLE_TYPES = frozenset(
    kind.id for kind in (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.decimal128(1))
)
"""Types of which Python's values are equal where the key's bytes are."""
_PIECES_PER_PART = 1
"""Pieces that are one part's work: its rows are copied several times, its keys encoded and compared."""


class StoredRowCounts(Protocol):
    """Who knows how often a bag's rows are there."""

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table: ...


def resolve_upserts(
    statements: PreparedStatements,
    row_counts: StoredRowCounts,
    table: Table,
    deltas: Sequence[pa.Table],
    memory: MemoryBudget,
) -> ViewChange | StreamChange | None:
    """The change of one view, from everything that reached its sink; None when nothing is left of it."""
    if not deltas:
        return None
    delta = deltas[0] if len(deltas) == 1 else pa.concat_tables(deltas, promote_options="permissive")
    delta = delta.rename_columns([*(c.name for c in table.columns), WEIGHT])
    parts = (
        1 if delta.num_rows <= _MIN_DIVIDED_ROWS else -(-table_bytes(delta) // (_PIECES_PER_PART * memory.piece_bytes))
    )
    if parts <= 1 or not table.key:
        return _resolve_piece(statements, row_counts, table, delta.combine_chunks())
    found = (
        _spill_change(_resolve_piece(statements, row_counts, table, rows), memory)
        for rows in _divide_by_key(statements, table, delta, parts, memory)
    )
    return _concat_changes(table, [change for change in found if change is not None])


def _resolve_piece(
    statements: PreparedStatements, row_counts: StoredRowCounts, table: Table, delta: pa.Table
) -> ViewChange | StreamChange | None:
    delta = _cast_to_table(table, delta)
    if not table.is_bag:
        return _resolve_keyed(statements, table, delta)
    # A bag's key is the whole row, in which −0.0 and 0.0 are one; elsewhere an update from one to the other shows.
    net = merge_bag_rows(statements, table, delta)
    if net.num_rows == 0:
        return None
    return (
        _resolve_bag(statements, row_counts, table, net)
        if table.is_stored
        else StreamChange(table, _cast_to_table(table, net))
    )


def _divide_by_key(
    statements: PreparedStatements, table: Table, delta: pa.Table, part_count: int, memory: MemoryBudget
) -> Iterator[pa.Table]:
    """The rows by key: all of a key are in one part."""
    keys = [k.column for k in table.key]
    part = f"SELECT CAST(hash({', '.join(map(quoted, keys))}) % {part_count} AS BIGINT) AS part FROM input"
    pieces = list(memory.pieces(delta))
    numbers = [statements.run(part, input=piece.select(keys))["part"].to_numpy() for piece in pieces]
    for number in range(part_count):
        chosen = [(p, np.flatnonzero(n == number)) for p, n in zip(pieces, numbers, strict=True)]
        rows = [piece.combine_chunks().take(pa.array(places)) for piece, places in chosen if len(places)]
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
    """A bag's rows, each once, with its weight."""
    columns = ", ".join(quoted(c.name) for c in table.columns)
    weight = f"CAST(sum({WEIGHT}) AS BIGINT) AS {WEIGHT}"
    return statements.run(
        f"SELECT {columns}, {weight} FROM input GROUP BY {columns} HAVING sum({WEIGHT}) <> 0", input=delta
    )


def _resolve_keyed(statements: PreparedStatements, table: Table, delta: pa.Table) -> ViewChange | StreamChange | None:
    pairs = _pair_rows(table, delta)
    if pairs is None:  # rows that come and go again between two states of the view
        delta = _cast_to_table(table, consolidate(statements, delta))
        pairs = _pair_rows(table, delta)
        if pairs is None:
            raise Contradiction(f"{table.name} would have several rows of one key.")
    new, old = pairs
    puts, changed, gone = new[new >= 0], old[old >= 0], old[(old >= 0) & (new < 0)]
    if not len(puts) and not len(changed):
        return None
    if not table.is_stored:
        return StreamChange(table, delta.take(pa.array(np.concatenate([changed, puts]))))
    rows = delta.drop_columns([WEIGHT])
    keys = rows.select([k.column for k in table.key])
    if not table.key:  # of rows without columns Arrow's `take` forgets how many there are: the one row would stay
        gone_keys = keys.slice(0, len(gone))
    elif len(gone):
        gone_keys = keys.take(pa.array(gone))
    else:  # no slice of the keys, which would hold all of them until the commit
        gone_keys = keys.schema.empty_table()
    return ViewChange(table, rows.take(pa.array(puts)), gone_keys)


def _pair_rows(table: Table, delta: pa.Table) -> tuple[Ints, Ints] | None:
    """For each key the places of its new row and of its old one, −1 where there is none or they are the same.

    None if a key has more than one of either: then the delta has to be consolidated first.
    """
    weights = delta[WEIGHT].to_numpy()
    keys = _number_keys(table, delta)
    count = int(keys.max()) + 1 if len(keys) else 0
    sides = []
    for weight in (1, -1):
        places = np.flatnonzero(weights == weight)
        side = np.full(count, -1, np.int64)
        side[keys[places]] = places
        if np.count_nonzero(side >= 0) < len(places):
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
    """A number for each row, the same for those of one key."""
    columns = [delta.column(k.column) for k in table.key]
    if delta.num_rows > _MAX_PYTHON_ROWS or not all(c.type.id in _COMPARABLE_TYPES for c in columns):
        return np.asarray(encode_keys(table, delta).dictionary_encode().indices)
    numbers: dict[Any, int] = {}
    keys = zip(*map(_python_values, columns), strict=True) if columns else [()] * delta.num_rows
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    """Values of which Python says what is equal; those of strings as bytes, which need not be decoded."""
    told: list[Any] = (column.cast(pa.binary()) if pa.types.is_string(column.type) else column).to_pylist()
    return told


def _resolve_bag(
    statements: PreparedStatements, row_counts: StoredRowCounts, table: Table, net: pa.Table
) -> ViewChange:
    keys = _cast_to_table(table, net.select([k.column for k in table.key]))
    stored = row_counts.get_rows(table, keys)
    columns = [quoted(c.name) for c in table.columns]
    listed = ", ".join(columns)
    counted = statements.run(
        f"""SELECT {listed}, CAST(sum({WEIGHT_SUM}) AS BIGINT) AS {COUNT}
            FROM (SELECT {listed}, {COUNT} AS {WEIGHT_SUM} FROM stored UNION ALL SELECT {listed}, {WEIGHT} FROM net)
            GROUP BY {listed}""",
        stored=stored,
        net=net,
    )
    if counted.num_rows and min(counted[COUNT].to_numpy()) < 0:
        raise Contradiction(f"{table.name} would have a row fewer than no times.")
    there = pc.greater(counted[COUNT], 0)
    gone = counted.filter(pc.invert(there)).select([k.column for k in table.key])
    return ViewChange(table, _cast_to_table(table, counted.filter(there)), _cast_to_table(table, gone))


def _cast_to_table(table: Table, rows: pa.Table) -> pa.Table:
    """Rows in the table's own Arrow types."""
    weight = pa.field(WEIGHT, pa.int64())
    schema = pa.schema([weight if name == WEIGHT else table.arrow.field(name) for name in rows.column_names])
    return rows if rows.schema.equals(schema) else rows.cast(schema)
