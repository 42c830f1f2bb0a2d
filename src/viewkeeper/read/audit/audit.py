"""Audit: compare every view with its query, which Spark recomputes from the tables at the view's own batch.

    1  read one state of the database: the tables at the published batch's cut, and the views of that batch. A table
       whose store cannot read a past state is read as it is; the state is used only if no change of it is pending
    2  Spark runs each view's SQL text over these tables, with the names that the text was written for
       (`exact_query`); a view over views reads Spark's results for those
    3  rows are compared by the view's key: missing, surplus, or with other values

Spark runs the text, not the view's plan, so the audit also detects errors of the planner. A query does not determine
two things: the last digits of a floating-point sum, where a relative difference of 1e-9 is accepted; and which of
several tied rows a LIMIT or `row_number` takes, where Spark may choose others and the audit reports a difference.
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
from viewkeeper.model.names import ACTUAL, COUNT, EXPECTED, ROW_INDEX, WEIGHT_SUM, backticked, quoted, unused_name
from viewkeeper.model.schema import Table
from viewkeeper.read.audit.report import Audit, Difference, ViewAudit
from viewkeeper.read.rows import to_visible_rows
from viewkeeper.resources.memory import MemoryBudget, one_off_budget
from viewkeeper.resources.prepared_statements import connect
from viewkeeper.store.contract.store import Store, StoreSnapshot
from viewkeeper.syntax.lexer import lex
from viewkeeper.syntax.view_text import exact_query

_MAX_EXAMPLES = 20
_MAX_ATTEMPTS = 3
_FLOAT_TOLERANCE = 1e-9
_WRONG_ROWS = "wrong"


@dataclass(frozen=True)
class _AuditState:
    """The database at one batch, as a user sees it; large tables are in files."""

    catalog: Catalog
    epoch: int
    tables: Mapping[str, pa.Table]
    views: Mapping[str, pa.Table]
    skipped: Mapping[str, str]
    memory: MemoryBudget


def audit(store: Store, session: Callable[[], Any], names: Sequence[str] = (), sample: int | None = None) -> Audit:
    """Compare these views (all, if none is named). `sample`: about this many keys of each, chosen anew every time.

    `session` returns a Spark session with Viewkeeper's settings; the tables are registered in it temporarily.
    """
    if sample is not None:
        arguments.check_whole_number(sample, "sample", 1)
    started = time.perf_counter()
    for name in names:
        store.catalog().view(name)
    state = _read_state(store, names)
    requested = _requested_names(state.catalog, names)
    needed = _needed_views(state.catalog, requested)
    found: dict[str, ViewAudit] = {}
    if any(v.table.name in state.views for v in needed):
        found = _audit_views(session(), state, needed, requested, sample)
    skipped = {n: ViewAudit(n, 0, 0, reason) for n, reason in state.skipped.items() if n.lower() in requested}
    order = [v.table.name for v in state.catalog.user_views_and_indexes if v.table.name.lower() in requested]
    views = tuple({**found, **skipped}[n] for n in order)
    return Audit(state.epoch, time.perf_counter() - started, views)


# -- step 1 -----------------------------------------------------------------------------------------------------------


def _read_state(store: Store, names: Sequence[str]) -> _AuditState:
    for _ in range(_MAX_ATTEMPTS):
        snapshot = store.open_snapshot()
        try:
            found = _read_snapshot(store, snapshot, names)
        finally:
            snapshot.close()
        if found is not None:
            return found
    raise StoreError(
        f"Tables of {store.url} that have no past were written while they were read, {_MAX_ATTEMPTS} times.",
        hint="Refresh and audit again while nobody writes, or let their store keep versions and deleted cells.",
    )


def _read_snapshot(store: Store, snapshot: StoreSnapshot, names: Sequence[str]) -> _AuditState | None:
    """The state to audit; None if a table without past states has a pending change, so that the batch did not see
    it."""
    catalog = snapshot.catalog
    live: list[int] = []

    def rows(table: Table) -> pa.Table:
        if not table.has_rows:
            from viewkeeper.read.lazy.evaluate import regenerate_view

            return regenerate_view(store, snapshot, table)
        try:
            return collect(table, snapshot.scan(table))
        except Unsupported:
            live.append(table.id)
            return collect(table, snapshot.scan(table, at_cut=False))

    def collect(table: Table, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        visible = (batch for found in batches for batch in to_visible_rows(table, pa.table(found)).to_batches())
        return memory.collect(visible, table.external_schema)

    memory = one_off_budget(store.state_path)

    auditable, skipped = _split_auditable(catalog, snapshot.batch.cut)
    requested = _requested_names(catalog, names)
    needed_names = {word for view in _needed_views(catalog, requested) for word in _possible_table_names(catalog, view)}
    tables = {t.name: rows(t) for t in catalog.tables if t.name.lower() in needed_names}
    views = {t.name: rows(t) for t in auditable if t.name.lower() in requested}
    if live and store.pending(snapshot.batch.cut, live).calls:
        return None
    return _AuditState(catalog, snapshot.batch.number, tables, views, skipped, memory)


def _split_auditable(catalog: Catalog, cut: int) -> tuple[list[Table], dict[str, str]]:
    auditable, skipped = [], {}
    for view in catalog.user_views_and_indexes:
        table = view.table
        if view.suspended is not None:
            skipped[table.name] = "it is suspended"
        elif view.own_cut is not None and (view.own_cut.low, view.own_cut.cut) != (cut, cut):
            skipped[table.name] = f"it has a cut of its own, {view.own_cut.cut}"
        else:
            auditable.append(table)
    return auditable, skipped


def _requested_names(catalog: Catalog, names: Sequence[str]) -> set[str]:
    return {n.lower() for n in names} or {v.table.name.lower() for v in catalog.user_views_and_indexes}


def _needed_views(catalog: Catalog, requested: set[str]) -> list[View]:
    """The requested views and those that they may read. A view reads only views that were created before it."""
    found, needed_names = [], set(requested)
    for view in reversed(catalog.user_views_and_indexes):
        if view.table.name.lower() in needed_names:
            found.append(view)
            needed_names |= _possible_table_names(catalog, view)
    return found[::-1]


def _possible_table_names(catalog: Catalog, view: View) -> set[str]:
    """Every word of the view's text that may be a table's name: Spark resolves tables that the planner leaves out,
    too."""
    return {
        token.value.lower() for token in lex(exact_query(catalog, view)) if token.kind in ("word", "name", "number")
    }


# -- steps 2 and 3 ----------------------------------------------------------------------------------------------------


def _audit_views(
    spark: Any, state: _AuditState, needed: Sequence[View], requested: set[str], sample: int | None
) -> dict[str, ViewAudit]:
    """Compare each requested view with Spark. A view that Spark cannot run does not stop the others."""
    from viewkeeper.plan.catalyst import activate_session, explain_jvm_error, has_ended
    from viewkeeper.plan.catalyst.session import first_lines

    found: dict[str, ViewAudit] = {}
    with activate_session(spark):
        for table in (t for t in state.catalog.tables if t.name in state.tables):
            _make_frame(spark, table, state.tables[table.name]).createOrReplaceTempView(backticked(table.name))
        for view in needed:
            name = view.table.name
            try:
                frame = spark.sql(exact_query(state.catalog, view))
                frame.createOrReplaceTempView(backticked(name))
                if name.lower() in requested and name in state.views:
                    found[name] = _compare_view(view.table, frame, state.views[name], spark, sample, state.memory)
            except Exception as error:
                explained = explain_jvm_error(error) or error
                if has_ended(spark):  # no other view can be compared
                    raise explained from error
                if name.lower() in requested and name in state.views:
                    found[name] = ViewAudit(name, 0, 0, failed=first_lines(str(explained)))
    return found


def _compare_view(
    table: Table, frame: Any, stored: pa.Table, spark: Any, sample: int | None, memory: MemoryBudget
) -> ViewAudit:
    names = [c.name for c in table.columns]
    keys = names if table.is_bag else [k.column for k in table.key]
    frame = frame.toDF(*names)
    if sample is not None and keys and stored.num_rows > sample:
        # A hash selects the same share of keys on both sides, so that a key missing in the view can be drawn too.
        share = math.ceil(stored.num_rows / sample)
        sample_sql = f"pmod(xxhash64({', '.join(map(backticked, keys))}), {share}) = {random.randrange(share)}"
        stored = _make_frame(spark, table, stored).where(sample_sql).toArrow().cast(table.external_schema)
        frame = frame.where(sample_sql)
    expected = frame.toArrow().cast(table.external_schema)
    found, examples = compare(names, keys, table.is_bag, expected, stored, memory)
    return ViewAudit(table.name, max(expected.num_rows, stored.num_rows), found, examples=examples)


def _make_frame(spark: Any, table: Table, rows: pa.Table) -> Any:
    return spark.createDataFrame(rows, ", ".join(f"{backticked(c.name)} {c.type}" for c in table.columns))


def compare(
    names: Sequence[str],
    keys: Sequence[str],
    is_bag: bool,
    expected: pa.Table,
    stored: pa.Table,
    memory: MemoryBudget | None = None,
) -> tuple[int, tuple[Difference, ...]]:
    """The number of keys that differ, and the first of them. A bag's key is the whole row, and its count must be
    equal."""
    columns = ", ".join(map(quoted, names))
    grouped, count = (" GROUP BY ALL", "count(*)") if is_bag else ("", "1")
    rows = {side: f"SELECT {columns}, {count} AS {WEIGHT_SUM} FROM {side}{grouped}" for side in (EXPECTED, ACTUAL)}
    sides = [f"(SELECT *, row_number() OVER () AS {ROW_INDEX} FROM ({query})) {side}" for side, query in rows.items()]
    floats = [f.name for f in expected.schema if pa.types.is_floating(f.type)]
    equal = [
        f"{EXPECTED}.{WEIGHT_SUM} = {ACTUAL}.{WEIGHT_SUM}",
        *(_same_value_sql(n, n in floats) for n in names if n not in keys),
    ]
    with connect(memory) as connection:
        connection.register(EXPECTED, expected)
        connection.register(ACTUAL, stored)
        connection.execute(
            f"""CREATE TEMP TABLE {_WRONG_ROWS} AS
                SELECT {EXPECTED}, {ACTUAL} FROM {" FULL JOIN ".join(sides)} ON {_equality_sql(keys) or "true"}
                WHERE {EXPECTED}.{WEIGHT_SUM} IS NULL OR {ACTUAL}.{WEIGHT_SUM} IS NULL OR NOT ({" AND ".join(equal)})"""
        )
        if is_bag and floats:
            connection.execute(_delete_near_rows_sql([n for n in names if n not in floats], floats))
        examples = connection.sql(f"FROM {_WRONG_ROWS} LIMIT {_MAX_EXAMPLES}").fetchall()
        total = connection.sql(f"SELECT count(*) FROM {_WRONG_ROWS}").fetchall()[0][0]
    return int(total), tuple(
        _difference(keys, is_bag, expected_row, stored_row) for expected_row, stored_row in examples
    )


def _delete_near_rows_sql(exact: Sequence[str], floats: Sequence[str]) -> str:
    """SQL that deletes, for a bag with floating-point columns, the pairs of surplus rows of the two sides that differ
    only in the last digits. Rows that agree in all other columns are paired in the order of the floating-point
    columns."""
    sides = []
    for side, other in ((EXPECTED, ACTUAL), (ACTUAL, EXPECTED)):
        partition = ", ".join(f"{side}.{quoted(n)}" for n in exact)
        order = ", ".join(f"{side}.{quoted(n)}" for n in floats)
        nth = f"row_number() OVER ({f'PARTITION BY {partition} ' if exact else ''}ORDER BY {order}) AS {COUNT}"
        sides.append(f"(SELECT unnest({side}), {nth} FROM {_WRONG_ROWS} WHERE {other}.{WEIGHT_SUM} IS NULL) {side}")
    near = " AND ".join(_same_value_sql(n, True) for n in floats)
    on = _equality_sql([*exact, COUNT, WEIGHT_SUM])
    return f"""DELETE FROM {_WRONG_ROWS} USING (
        SELECT {EXPECTED}.{ROW_INDEX} AS one, {ACTUAL}.{ROW_INDEX} AS other
        FROM {" JOIN ".join(sides)} ON {on} WHERE {near}) met
        WHERE {EXPECTED}.{ROW_INDEX} = met.one AND {ACTUAL}.{WEIGHT_SUM} IS NULL
           OR {ACTUAL}.{ROW_INDEX} = met.other AND {EXPECTED}.{WEIGHT_SUM} IS NULL"""


def _equality_sql(names: Sequence[str]) -> str:
    return " AND ".join("{} IS NOT DISTINCT FROM {}".format(*_both_columns(name)) for name in names)


def _same_value_sql(name: str, is_float: bool) -> str:
    want, got = _both_columns(name)
    exact = f"{want} IS NOT DISTINCT FROM {got}"
    if not is_float:
        return f"({exact})"
    return (
        f"({exact} OR coalesce(abs({want} - {got}) <= {_FLOAT_TOLERANCE} * greatest(abs({want}), abs({got})), false))"
    )


def _both_columns(name: str) -> tuple[str, str]:
    """The column on both sides, qualified."""
    return f"{EXPECTED}.{quoted(name)}", f"{ACTUAL}.{quoted(name)}"


def _difference(keys: Sequence[str], is_bag: bool, expected: Any, found: Any) -> Difference:
    sides = [_side_row(side, is_bag) for side in (expected, found)]
    row = sides[0] or sides[1] or {}
    return Difference({k: row[k] for k in keys}, sides[0], sides[1])


def _side_row(side: Mapping[str, Any] | None, is_bag: bool) -> dict[str, Any] | None:
    if side is None or side[WEIGHT_SUM] is None:
        return None
    row = dict(side)
    del row[ROW_INDEX]
    count = row.pop(WEIGHT_SUM)
    return {**row, unused_name("_count", row): count} if is_bag else row
