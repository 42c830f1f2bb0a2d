"""Subscriptions: a view's current rows, then every committed change, each exactly once.

    since=None    one delta with the current rows, then the changes after them
    since=token   the changes after that position: the token of the last delta that the subscriber has processed

A view's commit appends its delta to the same log as every write, in the commit's transaction, so a log position is a
position in the view's history even after a crash. A subscriber that stores a delta's token together with the delta's
effects loses no change and sees none twice. The log is kept for a while (`retention`, or `keep` for one subscriber).
A position that the log no longer has raises SnapshotGone; the subscriber then starts over without `since`.

A view that is suspended during the subscription yields a delta "suspended", and no further one until it is resumed.
Then come the changes since, or, if these are not known or not kept, a delta "reset" and all rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, SnapshotGone, UnknownName
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.catalog.view import Suspension
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.intake import arguments
from viewkeeper.model.names import COUNT, ROW_INDEX, WEIGHT
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.freshness import position_of
from viewkeeper.read.rows import to_visible_rows
from viewkeeper.read.suspension import refuse_suspended
from viewkeeper.resources.poll_backoff import poll_pause
from viewkeeper.store.contract.store import Store


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
    """The effect of one batch on a view: `rows` with their weights in the last column; `token` resumes after it.

    The weight's column is `_w`, or `__w` where the table or view has a column `_w` of its own.

    `kind`: "rows" for the first rows of a subscription, "changes" for a batch, "progress" when nothing changed in this
    view up to the token, "suspended" when the view is not maintained from here on (`suspended` has the reason, the
    time, and the batch and position that its rows stand for), "reset" when "rows" follow that replace all before them.
    """

    kind: str
    name: str
    rows: pa.Table
    token: Token
    time: float

    def changes(self) -> Iterator[Change]:
        """Row by row: a deleted and an inserted row with the same key are one update."""
        return pair_changes(self._table, self.rows)

    _table: Table
    suspended: Suspension | None = None


def subscribe(
    store: Store,
    name: str,
    since: Token | str | None = None,
    *,
    timeout: float | None = None,
    progress: float | None = None,
    keep: tuple[str, float] | None = None,
    stale: bool = False,
) -> Iterator[Delta]:
    """The deltas of a table or view, as they are committed. `stale`: a suspended view may first yield its old rows.

    `timeout`: end after this many seconds without a change (None: never). `progress`: yield a progress delta after this
    many seconds without a change. `keep` (name, seconds): hold the log for this subscriber, so that it can come back
    that much later.
    """
    table = store.catalog().table(name)
    for argument, seconds in (("timeout", timeout), ("progress", progress)):
        if seconds is not None:
            arguments.check_seconds(seconds, argument)
    if keep is not None:
        hint = "Give a name and a number of seconds: (name, seconds)."
        if not isinstance(keep, (tuple, list)) or len(keep) != 2:
            raise BadValue(f"keep is {arguments.shorten(keep)}.", hint=hint)
        arguments.check_text(keep[0], "keep's name", hint)
        arguments.check_seconds(keep[1], "keep's time", positive=True)
    store.settled_position(table)  # raises now for a table that cannot be subscribed to
    start = None if since is None else position_of(store, since)
    if start is None:
        refuse_suspended(store.catalog().find_by_id(table.id), stale=stale)
    else:
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
        delta = _current_delta(store, table)
        hold = _SubscriptionHold(store, table, keep, delta.token.position)
        yield delta
        follower = Follower(store, table, delta.token.position)
    else:
        hold = _SubscriptionHold(store, table, keep, start)
        follower = Follower(store, table, start)
    last_change = last_mark = time.monotonic()
    while True:
        hold.move(follower.position)
        found = False
        for delta in follower.read_new_deltas():
            found = True
            if delta.kind == "reset":
                yield delta
                delta = _current_delta(store, follower.table)
                follower.position = delta.token.position
            yield delta
            hold.move(follower.position)
        table, position = follower.table, follower.position
        now = time.monotonic()
        if found:
            last_change = last_mark = now
            continue
        if progress is not None and now - last_mark >= progress:
            last_mark = now
            yield _make_delta("progress", store, table, empty_changes(table), position)
        if timeout is not None and now - last_change >= timeout:
            return
        time.sleep(poll_pause(now - last_change))


class Follower:
    """Reads the changes of a table or view since the last call: it has read the log up to `position`."""

    def __init__(
        self, store: Store, table: Table, position: int, reported_suspension: Suspension | None = None
    ) -> None:
        self.table, self.position = table, position
        self.reported_suspension = reported_suspension
        """The suspension that was last reported."""
        self._store = store

    def read_new_deltas(self) -> Iterator[Delta]:
        """The deltas up to now. "reset" is the last one: the follower then reads all rows and continues from there."""
        found, head = self._look_up()
        suspended = suspension_of(found)
        resumed = self.reported_suspension is not None and suspended is None
        continuous = (
            not isinstance(found, View) or self.position >= found.complete_since
        )  # otherwise the view was rebuilt meanwhile
        if continuous and head > self.position:
            try:
                for position, delta in deltas_by_call(self._store, self.table, self.position, head):
                    self.position = position
                    yield delta
                self.position = head
            except SnapshotGone:
                if not resumed:
                    raise
                continuous = False
        if suspended is not None and suspended != self.reported_suspension:
            yield suspension_delta(self._store, self.table, suspended, self.position)
        self.reported_suspension = suspended
        if not continuous and suspended is None:
            yield reset_delta(self._store, self.table, self.position)

    def _look_up(self) -> tuple[Table | View, int]:
        """The table or view and the head of its log, at one moment."""
        while True:
            found = self._store.catalog().find_by_id(self.table.id)
            if found is None:
                name, hint = self.table.name, "Subscribe to what took its place."
                raise UnknownName(f"{name} was dropped or replaced.", hint=hint)
            self.table = found.table if isinstance(found, View) else found
            head = self._store.settled_position(self.table)
            checked = self._store.catalog().find_by_id(self.table.id)
            if suspension_of(checked) == suspension_of(found):
                return found, head


def suspension_of(object_: Table | View | None) -> Suspension | None:
    return object_.suspended if isinstance(object_, View) else None


def suspension_delta(store: Store, table: Table, suspended: Suspension, position: int) -> Delta:
    """The delta that reports a suspension."""
    delta = _make_delta("suspended", store, table, empty_changes(table), position, suspended.time)
    return replace(delta, suspended=suspended)


def reset_delta(store: Store, table: Table, position: int) -> Delta:
    """The delta that announces rows which replace all rows before them."""
    return _make_delta("reset", store, table, empty_changes(table), position)


def _current_delta(store: Store, table: Table) -> Delta:
    rows, position = _current_rows(store, table)
    weights = pa.array(np.ones(rows.num_rows, np.int64))
    return _make_delta("rows", store, table, rows.append_column(table.weight_column, weights), position)


def _current_rows(store: Store, table: Table) -> tuple[pa.Table, int]:
    source = store.logged_table(table)
    if (
        source is not table
    ):  # rows and changes must come from one table: what the view has not seen yet follows as changes
        rows, position = _current_rows(store, source)
        return rows.select(table.external_schema.names).cast(table.external_schema), position
    if not table.is_stored:
        from viewkeeper.read.lazy.evaluate import read_virtual_view

        return read_virtual_view(store, table.name)
    snapshot = store.open_snapshot()
    try:
        # A base table's rows in the snapshot are those of the batch's cut: later writes follow as changes.
        rows = to_visible_rows(table, pa.Table.from_batches(list(snapshot.scan(table)), table.arrow))
        return rows, snapshot.batch.cut if table.is_changed_by_writes else snapshot.head
    finally:
        snapshot.close()


def deltas_by_call(store: Store, table: Table, after: int, up_to: int) -> Iterator[tuple[int, Delta]]:
    """The effect of each commit or write call in (after, up_to] on the table, with its position."""
    try:
        entries = list(store.entries(table, table.arrow.names, after, up_to))
    except SnapshotGone as error:
        raise _too_old_error(table, after) from error
    for position, chunks in groupby(entries, key=lambda entry: entry[0]):
        parts = list(chunks)
        rows = _to_visible_delta(table, pa.concat_tables([rows for _, _, rows in parts]))
        if rows.num_rows:
            yield position, _make_delta("changes", store, table, rows, position, parts[0][1])


def _to_visible_delta(table: Table, delta: pa.Table) -> pa.Table:
    """Convert a delta of stored rows to visible rows: a bag's counts become weights.

    Changes that affect only dropped columns cancel out.
    """
    weights = delta[WEIGHT]
    if table.is_bag:
        weights = pc.multiply(weights, delta[COUNT])
        delta = delta.drop_columns([COUNT])
    if table.is_bag or (table.dropped_columns and not table.family):
        names = delta.column_names[:-1]
        indexed = [f"{ROW_INDEX}{i}" for i in range(len(names))]  # Arrow reads a name that begins with . or [ as a path
        delta = delta.set_column(len(names), WEIGHT, weights).rename_columns([*indexed, WEIGHT])
        delta = delta.group_by(indexed).aggregate([(WEIGHT, "sum")])
        weights = delta[f"{WEIGHT}_sum"]
        delta = delta.select(indexed).rename_columns(names)
        present = pc.not_equal(weights, 0)
        delta, weights = delta.filter(present), weights.filter(present)
    rows = delta.select([c.name for c in table.columns]).cast(table.external_schema)
    return rows.append_column(table.weight_column, weights).combine_chunks()


def pair_changes(
    table: Table, rows: pa.Table, display_rows: Sequence[dict[str, Any]] | None = None
) -> Iterator[Change]:
    """A delta row by row: a deleted and an inserted row with the same key are one update. `display_rows`: the rows in
    another form."""
    weights = rows[table.weight_column].to_pylist()
    visible = rows.drop_columns([table.weight_column])
    internal = visible.cast(pa.schema([table.arrow.field(c.name) for c in table.columns]))
    keys = encode_keys(table, internal).to_pylist()
    inserted: dict[bytes, list[dict[str, Any]]] = {}
    deleted: dict[bytes, list[dict[str, Any]]] = {}
    for key, row, weight in zip(
        keys, visible.to_pylist() if display_rows is None else display_rows, weights, strict=True
    ):
        (inserted if weight > 0 else deleted).setdefault(key, []).extend([row] * abs(weight))
    for key in dict.fromkeys(keys):
        before, after = deleted.get(key, []), inserted.get(key, [])
        both = min(len(before), len(after))
        yield from (Change(b, a) for b, a in zip(before[:both], after[:both], strict=True))
        yield from (Change(b, None) for b in before[both:])
        yield from (Change(None, a) for a in after[both:])


def _make_delta(
    kind: str, store: Store, table: Table, rows: pa.Table, position: int, time_: float | None = None
) -> Delta:
    return Delta(kind, table.name, rows, Token(store.uuid, position), time.time() if time_ is None else time_, table)


def empty_changes(table: Table) -> pa.Table:
    """The rows of a delta without changes."""
    return table.external_schema.empty_table().append_column(table.weight_column, pa.array([], pa.int64()))


def check_since(store: Store, table: Table, position: int) -> None:
    """Raise SnapshotGone unless the log has all changes of this view after the position."""
    view = store.catalog().find_by_id(table.id)
    if isinstance(view, View) and position < view.complete_since:
        raise _too_old_error(table, position)


def _too_old_error(table: Table, position: int) -> SnapshotGone:
    return SnapshotGone(
        f"The changes of {table.name} after position {position} are no longer kept.",
        hint="Subscribe without a position (since), which starts with the current rows; a longer retention keeps"
        " changes longer.",
    )


class _SubscriptionHold:
    """A subscriber's hold on the log: it follows the subscriber's position, and is renewed well before it expires."""

    def __init__(self, store: Store, table: Table, keep: tuple[str, float] | None, position: int) -> None:
        self._store, self._table, self._keep, self._next = store, table, keep, 0.0
        self.move(position)

    def move(self, position: int) -> None:
        if self._keep is not None and time.monotonic() >= self._next:
            name, seconds = self._keep
            self._store.hold(f"subscription:{name}", position, time.time() + seconds, table=self._table)
            self._next = time.monotonic() + min(seconds / 4, 10.0)
