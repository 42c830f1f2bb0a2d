"""From log to delta: what happened to each table between two cuts, consolidated before any expression sees it.

A store that knows what was there before gives net changes. For another the table's image does: what it holds for a key
is taken back, and what the store holds now takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import WEIGHT, Column, Table
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.kinds.table_image import taken_back
from viewkeeper.plan.dataflow.dataflow import Flow, slots
from viewkeeper.resources.duckdb_pool import Crew
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Arrangement
from viewkeeper.store.contract.store import Pending, Seen, Store

# What happened to a base table between two cuts, as one delta.
#
# A store with before-images says it. One without gives the keys that were touched and their rows at the later cut; the
# rows at the earlier cut are in the table image, which is exactly what the views were made from. So
#
#     Δ = rows now − image rows of the same keys
#
# holds whatever the store told twice, late, or in vain: a row that equals the known one falls out when the delta is
# consolidated.


def table_changes(
    store: Store,
    table: Table,
    columns: Sequence[str],
    after: int,
    upto: int,
    known: Callable[[pa.Table | None], pa.Table],
    seen: Seen | None,
) -> tuple[pa.Table, Seen]:
    """The delta of (after, upto] over `columns`, not consolidated, and what was seen of the table up to there.

    `known` gives what takes the image's rows of some keys away (None: all rows). `seen`: what was, up to `after`.
    """
    if store.capabilities.before_images:
        return store.changes(table, columns, after, upto), Seen()
    changed, seen = store.changed(table, columns, after, upto, seen)
    now = weighted(changed.rows.select(list(columns)), 1)
    if changed.keys is not None and not changed.keys.num_rows:
        return now, seen
    return pa.concat_tables([now, known(changed.keys).cast(now.schema)]).combine_chunks(), seen


ROWS_FOR_MORE = 20_000
"""Changes from which threads are worth waking: below, one is done before the second has begun."""

_ROWS_IN_PARTS, _ROWS_ASIDE = 200_000, 1_000_000
"""A write call of so many rows is read in parts, side by side; of so many, each waits in a file."""


class Capture:
    """Reads changes with the threads of `crew`. `arrangement` gives the state of an image, by slot."""

    def __init__(self, store: Store, crew: Crew, memory: Memory, arrangement: Callable[[str], Arrangement]) -> None:
        self._store = store
        self._crew = crew
        self._memory = memory
        self._arrangement = arrangement
        self._nothing: dict[int, tuple[Sequence[Column], pa.Table]] = {}
        """For each table no changes of the columns that are used."""

    def changes(
        self,
        flow: Flow,
        after: int,
        upto: int,
        seen: Mapping[int, Seen],
        tables: Sequence[int],
        waiting: Pending | None = None,
    ) -> tuple[dict[str, pa.Table], dict[int, Seen]]:
        """What happened to each of these tables, consolidated before any expression runs, and what was seen of them.

        `waiting`: what waits for all base tables, if that is known.
        """
        rows = None if waiting is None else waiting.rows
        parts = {t: self._parts(flow.tables[t], after, upto, rows) for t in tables}

        def changed(duck: Duck, what: tuple[int, int]) -> tuple[pa.Table, Seen]:
            table, part = what
            if self._is_quiet(flow.tables[table], waiting):
                return self._none(flow, table), Seen()
            names = [c.name for c in flow.used[table]]
            delta = self._net(flow.tables[table], names, after, upto, part, parts[table], rows)
            if delta is not None:
                return delta, Seen()
            known = partial(self._known, duck, flow, table, names)
            delta, now = table_changes(self._store, flow.tables[table], names, after, upto, known, seen.get(table))
            return consolidate(duck, delta) if delta.num_rows else delta, now

        asked = [(t, part) for t in tables for part in range(parts[t])]
        if rows is not None and rows < ROWS_FOR_MORE:
            duck = self._crew.alone(1)
            found = [changed(duck, what) for what in asked]
        else:
            found = self._crew.map(changed, asked)
        deltas: dict[int, list[pa.Table]] = {}
        for (table, _), (delta, _) in zip(asked, found, strict=True):
            deltas.setdefault(table, []).append(delta)
        whole = {t: read[0] if len(read) == 1 else pa.concat_tables(read) for t, read in deltas.items()}
        seen_now = {t: now for (t, _), (_, now) in zip(asked, found, strict=True)}
        return {Input(t).id: delta for t, delta in whole.items()}, seen_now

    def _is_quiet(self, table: Table, waiting: Pending | None) -> bool:
        """Whether it is known that nothing happened to a table: most batches change one of many."""
        if waiting is None or not waiting.by_table or table.is_view or not self._store.capabilities.before_images:
            return False
        return table.id not in waiting.by_table

    def _none(self, flow: Flow, table: int) -> pa.Table:
        known = self._nothing.get(table)
        if known is None or known[0] is not flow.used[table]:
            schema = pa.schema([flow.tables[table].arrow.field(c.name) for c in flow.used[table]])
            known = self._nothing[table] = flow.used[table], schema.append(pa.field(WEIGHT, pa.int64())).empty_table()
        return known[1]

    def _parts(self, table: Table, after: int, upto: int, rows: int | None) -> int:
        """Into how many parts a table's changes are read. Those of one call can be: it names a key once, so parts of it
        are net too. As many as fit into memory side by side, and one for each thread."""
        if not self._store.capabilities.before_images or not self._store.divides_log or not table.is_stored:
            return 1
        if rows is not None and rows < _ROWS_IN_PARTS:
            return 1
        waiting = self._store.pending(after, [table.id])
        if waiting.rows < _ROWS_IN_PARTS or not is_one_call(waiting, upto):
            return 1
        return max(-(-waiting.size * self._crew.size // self._memory.piece), self._crew.size)

    def _net(
        self, table: Table, names: list[str], after: int, upto: int, part: int, parts: int, rows: int | None
    ) -> pa.Table | None:
        """A part of a table's net changes; None where the store does not know them."""
        if not self._store.capabilities.before_images:
            return None
        if parts == 1:
            return self._store.net_changes(table, names, after, upto)
        delta = self._store.part_of_changes(table, names, after, upto, part, parts)
        return self._memory.aside(delta) if rows is None or rows >= _ROWS_ASIDE else delta

    def _known(self, duck: Duck, flow: Flow, table: int, columns: list[str], keys: pa.Table | None) -> pa.Table:
        """What the table's image by primary key holds for these keys, as the delta that takes it away."""
        key = tuple(k.column for k in flow.tables[table].key)
        image = next(i for i in flow.images[table] if i.arranged_by == key)
        return taken_back(duck, self._arrangement(slots(image)[0]), flow.tables[table], columns, keys)


def is_one_call(waiting: Pending, upto: int) -> bool:
    """Whether what waits for a table up to a position was written in one call, however much waits after it."""
    return waiting.first is not None and (waiting.first == upto or (waiting.calls == 1 and waiting.first < upto))
