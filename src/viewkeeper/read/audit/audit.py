"""Audit: every view against its query, run from nothing by Spark over the tables at the view's own batch.

    1  one state of the database: the tables at the published batch's cut, and the views of that batch. A table whose
       store cannot show its past is read as it is, between two looks that find nothing new in it
    2  Spark runs each view's SQL text over these tables, as the text knew them (`plan.view_text`); a view over views
       reads what Spark said of those
    3  rows are compared by the view's key: missing here, too many here, or other values

The text is run, not our plan: an error of the planner would show too. Two things a query does not determine: the last
digits of a floating-point sum, where nine equal ones are enough here, and which of several tied rows a LIMIT or
`row_number` takes, where Spark may choose others and the audit then says so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from viewkeeper.errors import StoreError, Unsupported
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.intake import arguments
from viewkeeper.model.names import COUNT, EXPECTED, FOUND, PLACE, TIMES, backticked, quoted, unused
from viewkeeper.model.schema import Table
from viewkeeper.read.audit.report import Audit, Difference, ViewAudit
from viewkeeper.read.rows import outside
from viewkeeper.resources.memory import Memory, once
from viewkeeper.resources.prepared_statements import connect
from viewkeeper.store.contract.store import Pinned, Store
from viewkeeper.syntax.lexer import tokens
from viewkeeper.syntax.view_text import exact_query

_SHOWN = 20
_TRIES = 3
_NEAR = 1e-9
_WRONG = "wrong"


@dataclass(frozen=True)
class _State:
    """The database at one batch, as a user sees it; what is large of it is in files."""

    catalog: Catalog
    epoch: int
    tables: Mapping[str, pa.Table]
    views: Mapping[str, pa.Table]
    skipped: Mapping[str, str]
    memory: Memory


def audit(store: Store, session: Callable[[], Any], names: Sequence[str] = (), sample: int | None = None) -> Audit:
    """Compare these views (none named: all). `sample`: about so many keys of each, chosen anew every time.

    `session` gives a Spark session of our settings, in which the tables are registered for the time being.
    """
    if sample is not None:
        arguments.whole(sample, "sample", 1)
    started = time.perf_counter()
    for name in names:
        store.catalog().view(name)
    state = _state(store, names)
    wanted = _wanted(state.catalog, names)
    needed = _needed(state.catalog, wanted)
    found: dict[str, ViewAudit] = {}
    if any(v.table.name in state.views for v in needed):
        found = _judged(session(), state, needed, wanted, sample)
    skipped = {n: ViewAudit(n, 0, 0, why) for n, why in state.skipped.items() if n.lower() in wanted}
    order = [v.table.name for v in state.catalog.shown_views if v.table.name.lower() in wanted]
    views = tuple({**found, **skipped}[n] for n in order)
    return Audit(state.epoch, time.perf_counter() - started, views)


# -- step 1 -----------------------------------------------------------------------------------------------------------


def _state(store: Store, names: Sequence[str]) -> _State:
    for _ in range(_TRIES):
        pinned = store.pin()
        try:
            found = _pinned_state(store, pinned, names)
        finally:
            pinned.close()
        if found is not None:
            return found
    raise StoreError(
        f"Tables of {store.url} that have no past were written while they were read, {_TRIES} times.",
        hint="Refresh and audit again while nobody writes, or let their store keep versions and deleted cells.",
    )


def _pinned_state(store: Store, pinned: Pinned, names: Sequence[str]) -> _State | None:
    """None if a table without a past is not what the batch saw: a change of it waits."""
    catalog = pinned.catalog
    live: list[int] = []

    def rows(table: Table) -> pa.Table:
        if not table.has_rows:
            from viewkeeper.read.lazy.evaluate import regenerated

            return regenerated(store, pinned, table)
        try:
            return gathered(table, pinned.scan(table))
        except Unsupported:
            live.append(table.id)
            return gathered(table, pinned.scan(table, at_cut=False))

    def gathered(table: Table, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        shown = (batch for found in batches for batch in outside(table, pa.table(found)).to_batches())
        return memory.gathered(shown, table.outside)

    memory = once(store.state_path)

    kept, skipped = _auditable(catalog, pinned.batch.cut)
    wanted = _wanted(catalog, names)
    read = {word for view in _needed(catalog, wanted) for word in _words(catalog, view)}
    tables = {t.name: rows(t) for t in catalog.tables if t.name.lower() in read}
    views = {t.name: rows(t) for t in kept if t.name.lower() in wanted}
    if live and store.pending(pinned.batch.cut, live).calls:
        return None
    return _State(catalog, pinned.batch.number, tables, views, skipped, memory)


def _auditable(catalog: Catalog, cut: int) -> tuple[list[Table], dict[str, str]]:
    kept, skipped = [], {}
    for view in catalog.shown_views:
        table = view.table
        if view.suspended is not None:
            skipped[table.name] = "it is suspended"
        elif view.at is not None and (view.at.low, view.at.cut) != (cut, cut):
            skipped[table.name] = f"it has a cut of its own, {view.at.cut}"
        else:
            kept.append(table)
    return kept, skipped


def _wanted(catalog: Catalog, names: Sequence[str]) -> set[str]:
    return {n.lower() for n in names} or {v.table.name.lower() for v in catalog.shown_views}


def _needed(catalog: Catalog, wanted: set[str]) -> list[View]:
    """The wanted views and those that they may read. A view reads only what was made before it."""
    found, named = [], set(wanted)
    for view in reversed(catalog.shown_views):
        if view.table.name.lower() in named:
            found.append(view)
            named |= _words(catalog, view)
    return found[::-1]


def _words(catalog: Catalog, view: View) -> set[str]:
    """All that may be a table's name in the view's text: whatever the planner leaves out, Spark looks it up."""
    return {
        token.value.lower() for token in tokens(exact_query(catalog, view)) if token.kind in ("word", "name", "number")
    }


# -- steps 2 and 3 ----------------------------------------------------------------------------------------------------


def _judged(
    spark: Any, state: _State, needed: Sequence[View], wanted: set[str], sample: int | None
) -> dict[str, ViewAudit]:
    """The wanted views, each against Spark; one that Spark cannot run does not keep the others from it."""
    from viewkeeper.plan.catalyst import at_work, explained, has_ended
    from viewkeeper.plan.catalyst.session import first_lines

    found: dict[str, ViewAudit] = {}
    with at_work(spark):
        for table in (t for t in state.catalog.tables if t.name in state.tables):
            _frame(spark, table, state.tables[table.name]).createOrReplaceTempView(backticked(table.name))
        for view in needed:
            name = view.table.name
            try:
                frame = spark.sql(exact_query(state.catalog, view))
                frame.createOrReplaceTempView(backticked(name))
                if name.lower() in wanted and name in state.views:
                    found[name] = _compared(view.table, frame, state.views[name], spark, sample, state.memory)
            except Exception as error:
                told = explained(error) or error
                if has_ended(spark):  # no other view can be judged
                    raise told from error
                if name.lower() in wanted and name in state.views:
                    found[name] = ViewAudit(name, 0, 0, failed=first_lines(str(told)))
    return found


def _compared(table: Table, frame: Any, stored: pa.Table, spark: Any, sample: int | None, memory: Memory) -> ViewAudit:
    names = [c.name for c in table.columns]
    keys = names if table.is_bag else [k.column for k in table.key]
    frame = frame.toDF(*names)
    if sample is not None and keys and stored.num_rows > sample:
        # The same share of the keys on both sides, by a hash: a key that is missing here can be drawn too.
        share = math.ceil(stored.num_rows / sample)
        chosen = f"pmod(xxhash64({', '.join(map(backticked, keys))}), {share}) = {random.randrange(share)}"
        stored = _frame(spark, table, stored).where(chosen).toArrow().cast(table.outside)
        frame = frame.where(chosen)
    expected = frame.toArrow().cast(table.outside)
    found, examples = compare(names, keys, table.is_bag, expected, stored, memory)
    return ViewAudit(table.name, max(expected.num_rows, stored.num_rows), found, examples=examples)


def _frame(spark: Any, table: Table, rows: pa.Table) -> Any:
    return spark.createDataFrame(rows, ", ".join(f"{backticked(c.name)} {c.type}" for c in table.columns))


def compare(
    names: Sequence[str],
    keys: Sequence[str],
    is_bag: bool,
    expected: pa.Table,
    stored: pa.Table,
    memory: Memory | None = None,
) -> tuple[int, tuple[Difference, ...]]:
    """How many keys differ, and the first of them. A bag's key is the whole row, and its count must be the same."""
    listed = ", ".join(map(quoted, names))
    grouped, times = (" GROUP BY ALL", "count(*)") if is_bag else ("", "1")
    rows = {side: f"SELECT {listed}, {times} AS {TIMES} FROM {side}{grouped}" for side in (EXPECTED, FOUND)}
    sides = [f"(SELECT *, row_number() OVER () AS {PLACE} FROM ({told})) {side}" for side, told in rows.items()]
    floats = [f.name for f in expected.schema if pa.types.is_floating(f.type)]
    same = [f"{EXPECTED}.{TIMES} = {FOUND}.{TIMES}", *(_same(n, n in floats) for n in names if n not in keys)]
    with connect(memory) as duck:
        duck.register(EXPECTED, expected)
        duck.register(FOUND, stored)
        duck.execute(
            f"""CREATE TEMP TABLE {_WRONG} AS
                SELECT {EXPECTED}, {FOUND} FROM {" FULL JOIN ".join(sides)} ON {_equal(keys) or "true"}
                WHERE {EXPECTED}.{TIMES} IS NULL OR {FOUND}.{TIMES} IS NULL OR NOT ({" AND ".join(same)})"""
        )
        if is_bag and floats:
            duck.execute(_forgiven([n for n in names if n not in floats], floats))
        examples = duck.sql(f"FROM {_WRONG} LIMIT {_SHOWN}").fetchall()
        total = duck.sql(f"SELECT count(*) FROM {_WRONG}").fetchall()[0][0]
    return int(total), tuple(_difference(keys, is_bag, e, s) for e, s in examples)


def _forgiven(exact: Sequence[str], floats: Sequence[str]) -> str:
    """Of a bag with floating-point columns: rows that are too many on either side, and differ in the last digits alone.
    Those that are equal in all else meet in the order of these columns."""
    sides = []
    for side, other in ((EXPECTED, FOUND), (FOUND, EXPECTED)):
        parts = ", ".join(f"{side}.{quoted(n)}" for n in exact)
        order = ", ".join(f"{side}.{quoted(n)}" for n in floats)
        nth = f"row_number() OVER ({f'PARTITION BY {parts} ' if exact else ''}ORDER BY {order}) AS {COUNT}"
        sides.append(f"(SELECT unnest({side}), {nth} FROM {_WRONG} WHERE {other}.{TIMES} IS NULL) {side}")
    near = " AND ".join(_same(n, True) for n in floats)
    on = _equal([*exact, COUNT, TIMES])
    return f"""DELETE FROM {_WRONG} USING (
        SELECT {EXPECTED}.{PLACE} AS one, {FOUND}.{PLACE} AS other FROM {" JOIN ".join(sides)} ON {on} WHERE {near}) met
        WHERE {EXPECTED}.{PLACE} = met.one AND {FOUND}.{TIMES} IS NULL
           OR {FOUND}.{PLACE} = met.other AND {EXPECTED}.{TIMES} IS NULL"""


def _equal(names: Sequence[str]) -> str:
    return " AND ".join("{} IS NOT DISTINCT FROM {}".format(*_both(name)) for name in names)


def _same(name: str, is_float: bool) -> str:
    one, other = _both(name)
    exact = f"{one} IS NOT DISTINCT FROM {other}"
    if not is_float:
        return f"({exact})"
    return f"({exact} OR coalesce(abs({one} - {other}) <= {_NEAR} * greatest(abs({one}), abs({other})), false))"


def _both(name: str) -> tuple[str, str]:
    """A column of both sides."""
    return f"{EXPECTED}.{quoted(name)}", f"{FOUND}.{quoted(name)}"


def _difference(keys: Sequence[str], is_bag: bool, expected: Any, found: Any) -> Difference:
    sides = [_row(side, is_bag) for side in (expected, found)]
    one = sides[0] or sides[1] or {}
    return Difference({k: one[k] for k in keys}, sides[0], sides[1])


def _row(side: Mapping[str, Any] | None, is_bag: bool) -> dict[str, Any] | None:
    if side is None or side[TIMES] is None:
        return None
    row = dict(side)
    del row[PLACE]
    count = row.pop(TIMES)
    return {**row, unused("_count", row): count} if is_bag else row
