"""Subscriptions: a view's rows now, then every committed change, each exactly once.

    since=None    one delta with the current rows, then the changes after them
    since=token   the changes after that position: what the token of the last delta that was dealt with says

A view's commit appends its delta to the same log as every write, in the commit's transaction, so a position in the log
is a position in the view's history, whoever crashes. Store a delta's token together with what it caused, and nothing
is lost or seen twice. The log is kept for a while (`retention`, or `keep` for one subscriber); a position that is gone
raises SnapshotGone, and the way to start over is to subscribe without `since`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, SnapshotGone, UnknownName
from viewkeeper.model import arguments
from viewkeeper.model.catalog import View
from viewkeeper.model.keys import encode_keys
from viewkeeper.model.names import COUNT, PLACE, WEIGHT
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.levels import position_of
from viewkeeper.read.reader import outside
from viewkeeper.store.base import Store
from viewkeeper.store.looking import pause_after


@dataclass(frozen=True)
class Change:
    """One changed row: `before` is None for an insert, `after` for a delete."""

    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def kind(self) -> str:
        if self.before is None:
            return "insert"
        return "delete" if self.after is None else "update"


@dataclass(frozen=True)
class Delta:
    """What one batch did to a view: `rows` with their weights in `_w`; resume after it with `token`.

    `kind`: "rows" for the first rows of a subscription, "changes" for a batch, "progress" when there was nothing for
    this view up to the token.
    """

    kind: str
    name: str
    rows: pa.Table
    token: Token
    time: float

    def changes(self) -> Iterator[Change]:
        """Row by row: rows that came and went with the same key are updates."""
        return paired(self._table, self.rows)

    _table: Table


def subscribe(
    store: Store,
    name: str,
    since: Token | str | None = None,
    *,
    timeout: float | None = None,
    progress: float | None = None,
    keep: tuple[str, float] | None = None,
) -> Iterator[Delta]:
    """The deltas of a table or view, as they are committed.

    `timeout`: end when nothing came for so many seconds (None: never). `progress`: give a mark when nothing came for so
    many seconds. `keep` (name, seconds): hold the log for this subscriber, so that it can come back that much later.
    """
    table = store.catalog().table(name)
    for what, given in (("timeout", timeout), ("progress", progress)):
        if given is not None:
            arguments.seconds(given, what)
    if keep is not None:
        hint = "Give a name and a number of seconds: (name, seconds)."
        if not isinstance(keep, (tuple, list)) or len(keep) != 2:
            raise BadValue(f"keep is {arguments.short(keep)}.", hint=hint)
        arguments.text(keep[0], "keep's name", hint)
        arguments.seconds(keep[1], "keep's time", positive=True)
    store.settled(table)  # a table that cannot be subscribed to says so now
    start = None if since is None else position_of(store, since)
    if start is not None:
        check_since(store, table, start)
    return _deltas(store, table, start, timeout, progress, keep)


def _deltas(
    store: Store,
    table: Table,
    start: int | None,
    timeout: float | None,
    progress: float | None,
    keep: tuple[str, float] | None,
) -> Iterator[Delta]:
    if start is None:
        rows, at = _current(store, table)
        hold = _Keeper(store, table, keep, at)
        yield _delta("rows", store, table, rows.append_column(WEIGHT, pa.array(np.ones(rows.num_rows, np.int64))), at)
    else:
        at = start
        hold = _Keeper(store, table, keep, at)
    heard = marked = time.monotonic()
    while True:
        hold.move(at)
        head = store.settled(table)
        found = False
        if head > at:
            table = still_there(store, table, at)
            for position, delta in calls(store, table, at, head):
                found = True
                yield delta
                at = position
                hold.move(at)
            at = head
        now = time.monotonic()
        if found:
            heard = marked = now
            continue
        if progress is not None and now - marked >= progress:
            marked = now
            yield _delta("progress", store, table, _nothing(table), at)
        if timeout is not None and now - heard >= timeout:
            return
        time.sleep(pause_after(now - heard))


def _current(store: Store, table: Table) -> tuple[pa.Table, int]:
    source = store.told_by(table)
    if source is not table:  # rows and changes must be of one kind: what the view has not seen yet, it will tell of
        rows, at = _current(store, source)
        return rows.select(table.outside.names).cast(table.outside), at
    if not table.is_stored:
        from viewkeeper.read.regenerate import read_regenerated

        return read_regenerated(store, table.name)
    pinned = store.pin()
    try:
        # A base table's pinned rows are those of the batch's cut: what came after follows as changes.
        rows = outside(table, pa.Table.from_batches(list(pinned.scan(table)), table.arrow))
        return rows, pinned.batch.cut if table.with_writes else pinned.head
    finally:
        pinned.close()


def calls(store: Store, table: Table, after: int, upto: int) -> Iterator[tuple[int, Delta]]:
    """What each commit or write call in (after, upto] did to the table, with its position."""
    try:
        entries = list(store.entries(table, table.arrow.names, after, upto))
    except SnapshotGone as gone:
        raise _too_old(table, after) from gone
    for position, chunks in groupby(entries, key=lambda entry: entry[0]):
        parts = list(chunks)
        rows = _outside(table, pa.concat_tables([rows for _, _, rows in parts]))
        if rows.num_rows:
            yield position, _delta("changes", store, table, rows, position, parts[0][1])


def _outside(table: Table, delta: pa.Table) -> pa.Table:
    """A delta of stored rows as a user sees it: a bag's counts become weights.

    Changes of a column that was dropped since are none.
    """
    weights = delta[WEIGHT]
    if table.is_bag:
        weights = pc.multiply(weights, delta[COUNT])
        delta = delta.drop_columns([COUNT])
    if table.is_bag or (table.gone and not table.family):
        names = delta.column_names[:-1]
        places = [f"{PLACE}{i}" for i in range(len(names))]  # Arrow takes a name that begins with . or [ for a path
        delta = delta.set_column(len(names), WEIGHT, weights).rename_columns([*places, WEIGHT])
        delta = delta.group_by(places).aggregate([(WEIGHT, "sum")])
        weights = delta[f"{WEIGHT}_sum"]
        delta = delta.select(places).rename_columns(names)
        present = pc.not_equal(weights, 0)
        delta, weights = delta.filter(present), weights.filter(present)
    rows = delta.select([c.name for c in table.columns]).cast(table.outside)
    return rows.append_column(WEIGHT, weights).combine_chunks()


def paired(table: Table, rows: pa.Table, shown: Sequence[dict[str, Any]] | None = None) -> Iterator[Change]:
    """A delta row by row: rows that came and went with the same key are updates. `shown`: the rows in another form."""
    weights = rows[WEIGHT].to_pylist()
    visible = rows.drop_columns([WEIGHT])
    inside = visible.cast(pa.schema([table.arrow.field(c.name) for c in table.columns]))
    keys = encode_keys(table, inside).to_pylist()
    came: dict[bytes, list[dict[str, Any]]] = {}
    went: dict[bytes, list[dict[str, Any]]] = {}
    for key, row, weight in zip(keys, visible.to_pylist() if shown is None else shown, weights, strict=True):
        (came if weight > 0 else went).setdefault(key, []).extend([row] * abs(weight))
    for key in dict.fromkeys(keys):
        before, after = went.get(key, []), came.get(key, [])
        both = min(len(before), len(after))
        yield from (Change(b, a) for b, a in zip(before[:both], after[:both], strict=True))
        yield from (Change(b, None) for b in before[both:])
        yield from (Change(None, a) for a in after[both:])


def _delta(kind: str, store: Store, table: Table, rows: pa.Table, position: int, when: float | None = None) -> Delta:
    return Delta(kind, table.name, rows, Token(store.uuid, position), time.time() if when is None else when, table)


def _nothing(table: Table) -> pa.Table:
    return table.outside.empty_table().append_column(WEIGHT, pa.array([], pa.int64()))


def still_there(store: Store, table: Table, at: int) -> Table:
    """The table as the catalog has it now; its name may be another one's meanwhile."""
    catalog = store.catalog()
    found = catalog.table_of(table.id)
    if found is None:
        raise UnknownName(f"{table.name} was dropped or replaced.", hint="Subscribe to what took its place.")
    check_since(store, found, at)
    return found


def check_since(store: Store, table: Table, at: int) -> None:
    """Whether the changes after a position are all of this view's, or SnapshotGone."""
    view = store.catalog().of(table.id)
    if isinstance(view, View) and at < view.since:
        raise _too_old(table, at)


def _too_old(table: Table, at: int) -> SnapshotGone:
    return SnapshotGone(
        f"The changes of {table.name} after position {at} are no longer kept.",
        hint="Subscribe without since=, which starts with the current rows; keep= and retention= keep changes longer.",
    )


class _Keeper:
    """A subscriber's hold on the log, moved on as it goes and renewed well before it expires."""

    def __init__(self, store: Store, table: Table, keep: tuple[str, float] | None, position: int) -> None:
        self._store, self._table, self._keep, self._next = store, table, keep, 0.0
        self.move(position)

    def move(self, position: int) -> None:
        if self._keep is not None and time.monotonic() >= self._next:
            name, seconds = self._keep
            self._store.hold(f"subscription:{name}", position, time.time() + seconds, table=self._table)
            self._next = time.monotonic() + min(seconds / 4, 10.0)
