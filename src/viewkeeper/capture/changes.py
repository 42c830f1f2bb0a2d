"""From log to delta: what happened to each table between two cuts, consolidated before any expression sees it.

A store that knows what was there before gives net changes. For another the table's image does: what it holds for a key
is taken back, and what the store holds now takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from viewkeeper.capture.feed import table_changes
from viewkeeper.model.schema import Table
from viewkeeper.operators.arrangement import Arrangement
from viewkeeper.operators.consolidate import consolidate
from viewkeeper.operators.crew import Crew
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.kinds.image import taken_back
from viewkeeper.plan.flow import Flow, slots
from viewkeeper.store.base import Pending, Seen, Store
from viewkeeper.store.memory import Memory

ROWS_FOR_MORE = 20_000
"""Changes from which threads are worth waking: below, one is done before the second has begun."""

_ROWS_IN_PARTS = 1_000_000
"""A write call of so many rows is read in parts."""


class Capture:
    """Reads changes with the threads of `crew`. `arrangement` gives the state of an image, by slot."""

    def __init__(self, store: Store, crew: Crew, memory: Memory, arrangement: Callable[[str], Arrangement]) -> None:
        self._store = store
        self._crew = crew
        self._memory = memory
        self._arrangement = arrangement

    def changes(
        self,
        flow: Flow,
        after: int,
        upto: int,
        seen: Mapping[int, Seen],
        tables: Sequence[int],
        rows: int | None = None,
    ) -> tuple[dict[str, pa.Table], dict[int, Seen]]:
        """What happened to each of these tables, consolidated before any expression runs, and what was seen of them.

        `rows`: about how many there are, if that is known.
        """

        has_befores = self._store.capabilities.before_images

        def changed(duck: Duck, table: int) -> tuple[pa.Table, Seen]:
            names = [c.name for c in flow.used[table]]
            delta = self._net(flow.tables[table], names, after, upto, rows) if has_befores else None
            if delta is not None:
                return delta, Seen()
            known = partial(self._known, duck, flow, table, names)
            delta, now = table_changes(self._store, flow.tables[table], names, after, upto, known, seen.get(table))
            return consolidate(duck, delta) if delta.num_rows else delta, now

        if rows is not None and rows < ROWS_FOR_MORE:
            duck = self._crew.alone(1)
            found = [changed(duck, t) for t in tables]
        else:
            found = self._crew.map(changed, tables)
        each = list(zip(tables, found, strict=True))
        return {Input(t).id: delta for t, (delta, _) in each}, {t: now for t, (_, now) in each}

    def _net(self, table: Table, names: list[str], after: int, upto: int, rows: int | None) -> pa.Table | None:
        """A table's net changes. One call that did much is read in parts: it names a key once, so they are net too."""
        parts = 1
        if (rows is None or rows >= _ROWS_IN_PARTS) and self._store.divides_log and table.is_stored:
            waiting = self._store.pending(after, [table.id])
            if is_one_call(waiting, upto):
                parts = -(-waiting.size // self._memory.piece)
        if parts == 1:
            return self._store.net_changes(table, names, after, upto)
        read = partial(self._store.part_of_changes, table, names, after, upto)
        return pa.concat_tables([self._memory.aside(read(part, parts)) for part in range(parts)])

    def _known(self, duck: Duck, flow: Flow, table: int, columns: list[str], keys: pa.Table | None) -> pa.Table:
        """What the table's image by primary key holds for these keys, as the delta that takes it away."""
        key = tuple(k.column for k in flow.tables[table].key)
        image = next(i for i in flow.images[table] if i.arranged_by == key)
        return taken_back(duck, self._arrangement(slots(image)[0]), flow.tables[table], columns, keys)


def is_one_call(waiting: Pending, upto: int) -> bool:
    """Whether what waits for a table up to a position was written in one call, however much waits after it."""
    return waiting.first is not None and (waiting.first == upto or (waiting.calls == 1 and waiting.first < upto))
