"""SELECT over tables and views at one state, run by the first engine that can.

1  the embedded DuckDB, if it is proven to mean what Spark means (`embedded`): no JVM starts, and a WHERE on key
   columns reads only those keys. If the query fails on its rows there (a division by zero), Spark runs it, so that
   the error is Spark's
2  Spark, with the settings of a view's query, over the rows as temporary views
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from viewkeeper.errors import Unsupported
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Table
from viewkeeper.read.access.path import RowRequest, explain_access_path
from viewkeeper.read.access.predicates import RequestPredicate
from viewkeeper.read.access.requested_rows import open_read_state, read_request
from viewkeeper.read.access.scan import fetch
from viewkeeper.read.state import ReadState
from viewkeeper.read.suspension import mark_suspended_rows, refuse_suspended
from viewkeeper.resources.memory import one_off_budget
from viewkeeper.sql.embedded import EmbeddedQuery, UnprovenQuery, compile_embedded
from viewkeeper.sql.embedded.builder import TableInput
from viewkeeper.sql.query_limits import QueryLimits
from viewkeeper.syntax.lexer import refuse_surrogates
from viewkeeper.syntax.parameter_tables import quote_parameter_tables

# The rows that a query reads, all of one state, each table by its cheapest access path (`read.access`).
#
# A single table or view is read as `read` reads it. If views are among several, the tables are read at the cut of the
# published batch, so that they agree; tables alone are read as they are now, all in one state.
#
# A suspended view is refused (VK605). With `stale` its old rows are read, and the result is marked (`read.suspension`).


_MAX_SNAPSHOT_AGE = 600.0
"""Seconds within which the rows must have been read."""


def read_inputs(db: Any, inputs: Sequence[TableInput], stale: bool = False) -> list[pa.Table]:
    """The rows of each input: the columns that it names, of the rows that satisfy its terms."""
    tables = {table_input.table.id: table_input.table for table_input in inputs}
    catalog = db._catalog()
    for table in tables.values():
        refuse_suspended(catalog.find_by_id(table.id), stale=stale)
    if len(tables) == 1 and not inputs[0].table.has_rows:
        rows = db.read(inputs[0].table.name)
        return [rows for _ in inputs]
    if len(inputs) == 1:
        return [read_request(db._store, row_request_of(inputs[0]))]
    with open_shared_state(db, inputs, stale) as source:
        return [fetch(source, row_request_of(table_input)) for table_input in inputs]


@contextmanager
def open_shared_state(db: Any, inputs: Sequence[TableInput], stale: bool = False) -> Iterator[ReadState]:
    """One state for all inputs."""
    tables = {table_input.table.id: table_input.table for table_input in inputs}
    views = [table for table in tables.values() if table.is_view]
    if not views or len(tables) == 1:
        with open_read_state(db._store, at_batch=bool(views)) as source:
            yield source
        return
    with db.snapshot(max_age=_MAX_SNAPSHOT_AGE, mixed=stale) as snapshot:
        yield snapshot.source([table.name for table in tables.values()])


def row_request_of(table_input: TableInput) -> RowRequest:
    return RowRequest(
        table_input.table, RequestPredicate(table_input.terms), tuple(dict.fromkeys(table_input.columns.values()))
    )


def whole_table_input(table: Table) -> TableInput:
    """The input for all columns and rows of a table."""
    return TableInput("", table, {c.name: c.name for c in table.columns})


def select(
    db: Any, query: str, *, engine: str = "auto", query_limits: QueryLimits | None = None, stale: bool = False
) -> tuple[pa.Table, str]:
    """The query's rows, and the engine that returned them. `stale`: also read the old rows of suspended views.

    `query_limits`: the query is untrusted. It may read tables and views and nothing else of this machine, has a limit
    of rows, and can be stopped.
    """
    refuse_surrogates(query)
    query = quote_parameter_tables(query)
    if engine != "spark":
        try:
            return _run_embedded(db, compile_embedded(db._catalog(), query), query_limits, stale), "embedded"
        except UnprovenQuery as why:
            if engine == "embedded":
                raise Unsupported(
                    f"The embedded engine is not known to mean what Spark means here: {why}.",
                    hint="Leave the engine open (auto), or let Spark answer: --engine spark, or engine='spark'.",
                ) from why
    return _run_on_spark(db, query, query_limits, stale), "spark"


def explain(db: Any, query: str) -> list[str]:
    """Which engine would run the query and why, as lines."""
    refuse_surrogates(query)
    query = quote_parameter_tables(query)
    try:
        compiled = compile_embedded(db._catalog(), query)
    except UnprovenQuery as why:
        names = ", ".join(mentioned_relations(db._catalog(), query)) or "nothing"
        return [f"engine: spark, because of {why}", f"reads: {names}, whole"]
    lines = ["engine: embedded"]
    with open_shared_state(db, compiled.inputs, stale=True) as source:
        for table_input in compiled.inputs:
            columns = ", ".join(table_input.columns.values())
            if not table_input.table.has_rows:
                lines.append(f"reads: {table_input.table.name} ({columns}), worked out anew")
                continue
            first, *others = explain_access_path(source, row_request_of(table_input))
            lines += [f"reads: {table_input.table.name} ({columns}), {first}", *(f"       {other}" for other in others)]
    return lines


def _run_embedded(db: Any, embedded_query: EmbeddedQuery, query_limits: QueryLimits | None, stale: bool) -> pa.Table:
    import duckdb

    try:
        rows = embedded_query.run(
            lambda inputs: read_inputs(db, inputs, stale), one_off_budget(db._store.state_path), query_limits
        )
        return (
            mark_suspended_rows(
                rows, [db._catalog().find_by_id(table_input.table.id) for table_input in embedded_query.inputs]
            )
            if stale
            else rows
        )
    except duckdb.Error as error:
        raise UnprovenQuery(f"an error on its rows ({str(error).splitlines()[0]})") from error


def _run_on_spark(db: Any, query: str, query_limits: QueryLimits | None, stale: bool) -> pa.Table:
    from viewkeeper.plan.catalyst import activate_session, front_session
    from viewkeeper.plan.catalyst.session import translate_errors
    from viewkeeper.sql.query_limits import refuse_side_effects

    spark = front_session(db._spark())
    tables = [db._catalog().table(name) for name in mentioned_relations(db._catalog(), query)]
    rows = read_inputs(db, [whole_table_input(table) for table in tables], stale)
    views = [db._catalog().find_by_id(table.id) for table in tables] if stale else []
    with activate_session(spark), translate_errors():  # Spark's errors in one line, as in CREATE MATERIALIZED VIEW
        for table, found in zip(tables, rows, strict=True):
            # The types are explicit: by default PySpark reads a time without a zone as one with a zone.
            columns = ", ".join(f"{backticked(c.name)} {c.type}" for c in table.columns)
            spark.createDataFrame(found, columns).createOrReplaceTempView(backticked(table.name))
        if query_limits is None:
            return mark_suspended_rows(spark.sql(query).toArrow(), views)
        refuse_side_effects(spark, query)
        context = spark.sparkContext
        context.addJobTag(query_limits.job_tag)
        try:
            with query_limits.on_stop(lambda: context.cancelJobsWithTag(query_limits.job_tag)):
                answer: pa.Table = spark.sql(query).limit(query_limits.max_rows + 1).toArrow()
        finally:
            context.removeJobTag(query_limits.job_tag)
        query_limits.check_row_count(answer.num_rows)
        return mark_suspended_rows(answer, views)


def mentioned_relations(catalog: Catalog, query: str) -> list[str]:
    """The tables and views that the query may mean: those whose names occur in it."""
    existing = [*(t.name for t in catalog.user_tables), *(view.table.name for view in catalog.user_views_and_indexes)]
    text = query.lower()
    words = set(re.findall(r"\w+", text))
    return [name for name in existing if name.lower() in words or backticked(name).lower() in text]
