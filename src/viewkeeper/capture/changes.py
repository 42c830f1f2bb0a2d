"""Change capture: reads the consolidated delta of each table between two cuts from the store's log.

Deltas are consolidated before any expression is evaluated on them. For a store with before-images the log gives net
changes. For other stores the table image replaces the before-images: its rows of the changed keys are retracted, and
the store's current rows are inserted.
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

# The delta of a base table between two cuts.
#
# A store with before-images returns it directly. A store without them returns the touched keys and their rows at the
# later cut; the rows at the earlier cut are in the table image, which is exactly what the views were computed from. So
#
#     Δ = rows now − image rows of the same keys
#
# holds even if the store reports a change twice, late, or without effect: a row that equals the image's row cancels
# when the delta is consolidated.


def read_table_changes(
    store: Store,
    table: Table,
    columns: Sequence[str],
    after: int,
    cut: int,
    retract_image_rows: Callable[[pa.Table | None], pa.Table],
    capture_mark: CaptureMark | None,
) -> tuple[pa.Table, CaptureMark]:
    """Return the delta of (after, cut] over `columns`, not consolidated, and the table's capture mark at `cut`.

    `retract_image_rows` returns the delta that removes the image's rows of some keys (None: of all keys).
    `capture_mark` is the mark at `after`.
    """
    if store.capabilities.before_images:
        return store.changes(table, columns, after, cut), CaptureMark()
    changed, capture_mark = store.changed_keys(table, columns, after, cut, capture_mark)
    rows = with_weight(changed.rows.select(list(columns)), 1)
    if changed.keys is not None and not changed.keys.num_rows:
        return rows, capture_mark
    return pa.concat_tables([rows, retract_image_rows(changed.keys).cast(rows.schema)]).combine_chunks(), capture_mark


MIN_PARALLEL_ROWS = 20_000
"""Pending rows above which capture uses several threads; for fewer, one thread finishes before a second one has
started."""

_MIN_PARTITIONED_ROWS, _MIN_SPILL_ROWS = 200_000, 1_000_000
"""A write call of at least `_MIN_PARTITIONED_ROWS` is read in parallel partitions; of at least `_MIN_SPILL_ROWS`, each
partition is spilled to a file."""


class Capture:
    """Reads changes with the threads of a DuckDB pool. `open_arrangement` returns the arrangement of an image by state
    slot."""

    def __init__(
        self, store: Store, pool: DuckDBPool, memory: MemoryBudget, open_arrangement: Callable[[str], Arrangement]
    ) -> None:
        self._store = store
        self._pool = pool
        self._memory = memory
        self._open_arrangement = open_arrangement
        self._empty_deltas: dict[int, tuple[Sequence[Column], pa.Table]] = {}
        """For each table an empty delta of the used columns."""

    def read_changes(
        self,
        dataflow: Dataflow,
        after: int,
        cut: int,
        capture_marks: Mapping[int, CaptureMark],
        tables: Sequence[int],
        pending: PendingChanges | None = None,
    ) -> tuple[dict[str, pa.Table], dict[int, CaptureMark]]:
        """Return the consolidated delta of each table, by input id, and the capture marks of the tables.

        `pending`: the pending changes of all base tables, if known.
        """
        rows = None if pending is None else pending.rows
        partition_counts = {t: self._partition_count(dataflow.tables[t], after, cut, rows) for t in tables}

        def read_partition(statements: PreparedStatements, request: tuple[int, int]) -> tuple[pa.Table, CaptureMark]:
            table, partition = request
            if self._is_unchanged(dataflow.tables[table], pending):
                return self._empty_delta(dataflow, table), CaptureMark()
            names = [c.name for c in dataflow.used_columns[table]]
            delta = self._read_net_changes(
                dataflow.tables[table], names, after, cut, partition, partition_counts[table], rows
            )
            if delta is not None:
                return delta, CaptureMark()
            retract = partial(self._retract_image_rows, statements, dataflow, table, names)
            delta, mark = read_table_changes(
                self._store, dataflow.tables[table], names, after, cut, retract, capture_marks.get(table)
            )
            return consolidate(statements, delta) if delta.num_rows else delta, mark

        requests = [(t, partition) for t in tables for partition in range(partition_counts[t])]
        if rows is not None and rows < MIN_PARALLEL_ROWS:
            statements = self._pool.use_primary(1)
            found = [read_partition(statements, request) for request in requests]
        else:
            found = self._pool.map(read_partition, requests)
        deltas: dict[int, list[pa.Table]] = {}
        for (table, _), (delta, _) in zip(requests, found, strict=True):
            deltas.setdefault(table, []).append(delta)
        merged = {t: pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces) for t, pieces in deltas.items()}
        marks = {t: mark for (t, _), (_, mark) in zip(requests, found, strict=True)}
        return {Input(t).id: delta for t, delta in merged.items()}, marks

    def _is_unchanged(self, table: Table, pending: PendingChanges | None) -> bool:
        """Return whether a table is known to be unchanged: most batches change one of many tables."""
        if pending is None or not pending.rows_by_table or table.is_view or not self._store.capabilities.before_images:
            return False
        return table.id not in pending.rows_by_table

    def _empty_delta(self, dataflow: Dataflow, table: int) -> pa.Table:
        cached = self._empty_deltas.get(table)
        if cached is None or cached[0] is not dataflow.used_columns[table]:
            schema = pa.schema([dataflow.tables[table].arrow.field(c.name) for c in dataflow.used_columns[table]])
            cached = self._empty_deltas[table] = (
                dataflow.used_columns[table],
                schema.append(pa.field(WEIGHT, pa.int64())).empty_table(),
            )
        return cached[1]

    def _partition_count(self, table: Table, after: int, cut: int, rows: int | None) -> int:
        """Return the number of partitions in which a table's changes are read.

        Only the changes of a single call are partitioned: it names each key once, so the partitions are net changes,
        too. There are as many as fit into memory side by side, and at least one for each thread.
        """
        if not self._store.capabilities.before_images or not self._store.can_partition_changes or not table.is_stored:
            return 1
        if rows is not None and rows < _MIN_PARTITIONED_ROWS:
            return 1
        table_pending = self._store.pending(after, [table.id])
        if table_pending.rows < _MIN_PARTITIONED_ROWS or not is_one_call(table_pending, cut):
            return 1
        return max(-(-table_pending.size * self._pool.size // self._memory.piece_bytes), self._pool.size)

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
        """Return a partition of a table's net changes; None if the store does not know them."""
        if not self._store.capabilities.before_images:
            return None
        if partition_count == 1:
            return self._store.net_changes(table, names, after, cut)
        delta = self._store.changes_partition(table, names, after, cut, partition, partition_count)
        return self._memory.spill(delta) if rows is None or rows >= _MIN_SPILL_ROWS else delta

    def _retract_image_rows(
        self, statements: PreparedStatements, dataflow: Dataflow, table: int, columns: list[str], keys: pa.Table | None
    ) -> pa.Table:
        """Return the delta that removes the rows of these keys from the table's image by primary key."""
        key = tuple(k.column for k in dataflow.tables[table].key)
        image = next(i for i in dataflow.images[table] if i.arrangement_key == key)
        return negated_image_rows(
            statements, self._open_arrangement(slot_names(image)[0]), dataflow.tables[table], columns, keys
        )


def is_one_call(pending: PendingChanges, cut: int) -> bool:
    """Return whether a table's pending changes up to a cut were written in one call, regardless of changes after the
    cut."""
    return pending.first_position is not None and (
        pending.first_position == cut or (pending.calls == 1 and pending.first_position < cut)
    )
