"""From log to delta: what happened to each table between two cuts, consolidated before any expression sees it.

A store that knows what was there before gives net changes. For another the table's image does: what it holds for a key
is taken back, and what the store holds now takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from viewkeeper.model.delta import with_weight
from viewkeeper.model.schema import WEIGHT, Column, Table
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.kinds.table_image import negated_image_rows
from viewkeeper.plan.dataflow.dataflow import Dataflow, slot_names
from viewkeeper.resources.duckdb_pool import DuckDBPool
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Arrangement
from viewkeeper.store.contract.store import CaptureMark, PendingChanges, Store

# What happened to a base table between two cuts, as one delta.
#
# A store with before-images says it. One without gives the keys that were touched and their rows at the later cut; the
# rows at the earlier cut are in the table image, which is exactly what the views were made from. So
#
#     Δ = rows now − image rows of the same keys
#
# holds whatever the store told twice, late, or in vain: a row that equals the known one falls out when the delta is
# consolidated.


def read_table_changes(
    store: Store,
    table: Table,
    columns: Sequence[str],
    after: int,
    cut: int,
    retract_image_rows: Callable[[pa.Table | None], pa.Table],
    capture_mark: CaptureMark | None,
) -> tuple[pa.Table, CaptureMark]:
    """The delta of (after, upto] over `columns`, not consolidated, and what was seen of the table up to there.

    `known` gives what takes the image's rows of some keys away (None: all rows). `seen`: what was, up to `after`.
    """
    if store.capabilities.before_images:
        return store.changes(table, columns, after, cut), CaptureMark()
    changed, capture_mark = store.changed_keys(table, columns, after, cut, capture_mark)
    now = with_weight(changed.rows.select(list(columns)), 1)
    if changed.keys is not None and not changed.keys.num_rows:
        return now, capture_mark
    return pa.concat_tables([now, retract_image_rows(changed.keys).cast(now.schema)]).combine_chunks(), capture_mark


MIN_PARALLEL_ROWS = 20_000
"""Changes from which threads are worth waking: below, one is done before the second has begun."""

_MIN_PARTITIONED_ROWS, _MIN_SPILL_ROWS = 200_000, 1_000_000
"""A write call of so many rows is read in parts, side by side; of so many, each waits in a file."""


class Capture:
    """Reads changes with the threads of `crew`. `arrangement` gives the state of an image, by slot."""

    def __init__(
        self, store: Store, pool: DuckDBPool, memory: MemoryBudget, open_arrangement: Callable[[str], Arrangement]
    ) -> None:
        self._store = store
        self._pool = pool
        self._memory = memory
        self._open_arrangement = open_arrangement
        self._empty_deltas: dict[int, tuple[Sequence[Column], pa.Table]] = {}
        """For each table no changes of the columns that are used."""

    def read_changes(
        self,
        dataflow: Dataflow,
        after: int,
        cut: int,
        capture_marks: Mapping[int, CaptureMark],
        tables: Sequence[int],
        pending: PendingChanges | None = None,
    ) -> tuple[dict[str, pa.Table], dict[int, CaptureMark]]:
        """What happened to each of these tables, consolidated before any expression runs, and what was seen of them.

        `waiting`: what waits for all base tables, if that is known.
        """
        rows = None if pending is None else pending.rows
        parts = {t: self._partition_count(dataflow.tables[t], after, cut, rows) for t in tables}

        def changed(duck: PreparedStatements, what: tuple[int, int]) -> tuple[pa.Table, CaptureMark]:
            table, part = what
            if self._is_unchanged(dataflow.tables[table], pending):
                return self._empty_delta(dataflow, table), CaptureMark()
            names = [c.name for c in dataflow.used_columns[table]]
            delta = self._read_net_changes(dataflow.tables[table], names, after, cut, part, parts[table], rows)
            if delta is not None:
                return delta, CaptureMark()
            known = partial(self._retract_image_rows, duck, dataflow, table, names)
            delta, now = read_table_changes(
                self._store, dataflow.tables[table], names, after, cut, known, capture_marks.get(table)
            )
            return consolidate(duck, delta) if delta.num_rows else delta, now

        asked = [(t, part) for t in tables for part in range(parts[t])]
        if rows is not None and rows < MIN_PARALLEL_ROWS:
            duck = self._pool.use_primary(1)
            found = [changed(duck, what) for what in asked]
        else:
            found = self._pool.map(changed, asked)
        deltas: dict[int, list[pa.Table]] = {}
        for (table, _), (delta, _) in zip(asked, found, strict=True):
            deltas.setdefault(table, []).append(delta)
        whole = {t: read[0] if len(read) == 1 else pa.concat_tables(read) for t, read in deltas.items()}
        seen_now = {t: now for (t, _), (_, now) in zip(asked, found, strict=True)}
        return {Input(t).id: delta for t, delta in whole.items()}, seen_now

    def _is_unchanged(self, table: Table, pending: PendingChanges | None) -> bool:
        """Whether it is known that nothing happened to a table: most batches change one of many."""
        if pending is None or not pending.rows_by_table or table.is_view or not self._store.capabilities.before_images:
            return False
        return table.id not in pending.rows_by_table

    def _empty_delta(self, dataflow: Dataflow, table: int) -> pa.Table:
        known = self._empty_deltas.get(table)
        if known is None or known[0] is not dataflow.used_columns[table]:
            schema = pa.schema([dataflow.tables[table].arrow.field(c.name) for c in dataflow.used_columns[table]])
            known = self._empty_deltas[table] = (
                dataflow.used_columns[table],
                schema.append(pa.field(WEIGHT, pa.int64())).empty_table(),
            )
        return known[1]

    def _partition_count(self, table: Table, after: int, cut: int, rows: int | None) -> int:
        """Into how many parts a table's changes are read. Those of one call can be: it names a key once, so parts of it
        are net too. As many as fit into memory side by side, and one for each thread."""
        if not self._store.capabilities.before_images or not self._store.can_partition_changes or not table.is_stored:
            return 1
        if rows is not None and rows < _MIN_PARTITIONED_ROWS:
            return 1
        waiting = self._store.pending(after, [table.id])
        if waiting.rows < _MIN_PARTITIONED_ROWS or not is_one_call(waiting, cut):
            return 1
        return max(-(-waiting.size * self._pool.size // self._memory.piece_bytes), self._pool.size)

    def _read_net_changes(
        self,
        table: Table,
        names: list[str],
        after: int,
        cut: int,
        partition: int,
        partition_count: int,
        rows: int | None,
    ) -> pa.Table | None:
        """A part of a table's net changes; None where the store does not know them."""
        if not self._store.capabilities.before_images:
            return None
        if partition_count == 1:
            return self._store.net_changes(table, names, after, cut)
        delta = self._store.changes_partition(table, names, after, cut, partition, partition_count)
        return self._memory.spill(delta) if rows is None or rows >= _MIN_SPILL_ROWS else delta

    def _retract_image_rows(
        self, statements: PreparedStatements, dataflow: Dataflow, table: int, columns: list[str], keys: pa.Table | None
    ) -> pa.Table:
        """What the table's image by primary key holds for these keys, as the delta that takes it away."""
        key = tuple(k.column for k in dataflow.tables[table].key)
        image = next(i for i in dataflow.images[table] if i.arrangement_key == key)
        return negated_image_rows(
            statements, self._open_arrangement(slot_names(image)[0]), dataflow.tables[table], columns, keys
        )


def is_one_call(pending: PendingChanges, cut: int) -> bool:
    """Whether what waits for a table up to a position was written in one call, however much waits after it."""
    return pending.first_position is not None and (
        pending.first_position == cut or (pending.calls == 1 and pending.first_position < cut)
    )
