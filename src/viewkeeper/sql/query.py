"""SELECT over tables and views at one state, by whoever can answer it.

1  the embedded DuckDB, if it is known to mean what Spark means (`embedded`): no JVM has to start, and a WHERE that
   names keys reads only those. What fails there on its rows (a division by zero) is asked of Spark, in whose words the
   error then is
2  Spark, with the settings that a view's query is read with, over the rows as temporary views
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
from viewkeeper.read.access.path import Wanted, explained
from viewkeeper.read.access.predicates import Where
from viewkeeper.read.access.requested_rows import state_for, table_wanted
from viewkeeper.read.access.scan import fetch
from viewkeeper.read.state import Source
from viewkeeper.read.suspension import marked, refuse
from viewkeeper.resources.memory import once
from viewkeeper.sql.embedded import Embedded, NotProven, embedded
from viewkeeper.sql.embedded.builder import Input
from viewkeeper.sql.query_limits import Leash
from viewkeeper.syntax.lexer import refuse_surrogates
from viewkeeper.syntax.parameter_tables import with_backticks

# The rows that a query is over, all of one state, each by the cheapest way (`read.access`).
#
# One table or view alone is read as `read` reads it. With a view among several, the tables are read as of the cut of
# the published batch, so that they agree; tables alone are read as they are now, all in one state.
#
# A suspended view is refused (VK605). With `stale` it gives its old rows, and the answer is marked (`read.suspension`).


_AGE = 600.0
"""Seconds in which the rows must have been read."""


def rows_of(db: Any, inputs: Sequence[Input], stale: bool = False) -> list[pa.Table]:
    """The rows of each input: the columns that it names, of the rows that it wants."""
    tables = {one.table.id: one.table for one in inputs}
    catalog = db._catalog()
    for table in tables.values():
        refuse(catalog.of(table.id), stale=stale)
    if len(tables) == 1 and not inputs[0].table.has_rows:
        rows = db.read(inputs[0].table.name)
        return [rows for _ in inputs]
    if len(inputs) == 1:
        return [table_wanted(db._store, wanted_of(inputs[0]))]
    with state_of(db, inputs, stale) as source:
        return [fetch(source, wanted_of(one)) for one in inputs]


@contextmanager
def state_of(db: Any, inputs: Sequence[Input], stale: bool = False) -> Iterator[Source]:
    """One state for all inputs."""
    tables = {one.table.id: one.table for one in inputs}
    views = [table for table in tables.values() if table.is_view]
    if not views or len(tables) == 1:
        with state_for(db._store, view=bool(views)) as source:
            yield source
        return
    with db.snapshot(max_age=_AGE, mixed=stale) as snapshot:
        yield snapshot.source([table.name for table in tables.values()])


def wanted_of(one: Input) -> Wanted:
    return Wanted(one.table, Where(one.terms), tuple(dict.fromkeys(one.columns.values())))


def whole(table: Table) -> Input:
    """All of a table."""
    return Input("", table, {c.name: c.name for c in table.columns})


def select(
    db: Any, query: str, *, engine: str = "auto", leash: Leash | None = None, stale: bool = False
) -> tuple[pa.Table, str]:
    """The query's rows, and which engine gave them. `stale`: also over the old rows of suspended views.

    `leash`: it is somebody else's query, which may read tables and views and nothing else of this machine, has a limit,
    and can be stopped.
    """
    refuse_surrogates(query)
    query = with_backticks(query)
    if engine != "spark":
        try:
            return _embedded(db, embedded(db._catalog(), query), leash, stale), "embedded"
        except NotProven as why:
            if engine == "embedded":
                raise Unsupported(
                    f"The embedded engine is not known to mean what Spark means here: {why}.",
                    hint="Leave the engine open (auto), or let Spark answer: --engine spark, or engine='spark'.",
                ) from why
    return _by_spark(db, query, leash, stale), "spark"


def explain(db: Any, query: str) -> list[str]:
    """Who would answer the query and why, as lines."""
    refuse_surrogates(query)
    query = with_backticks(query)
    try:
        asked = embedded(db._catalog(), query)
    except NotProven as why:
        names = ", ".join(named(db._catalog(), query)) or "nothing"
        return [f"engine: spark, because of {why}", f"reads: {names}, whole"]
    lines = ["engine: embedded"]
    with state_of(db, asked.inputs, stale=True) as source:
        for one in asked.inputs:
            listed = ", ".join(one.columns.values())
            if not one.table.has_rows:
                lines.append(f"reads: {one.table.name} ({listed}), worked out anew")
                continue
            first, *others = explained(source, wanted_of(one))
            lines += [f"reads: {one.table.name} ({listed}), {first}", *(f"       {other}" for other in others)]
    return lines


def _embedded(db: Any, asked: Embedded, leash: Leash | None, stale: bool) -> pa.Table:
    import duckdb

    try:
        rows = asked.run(lambda inputs: rows_of(db, inputs, stale), once(db._store.state_path), leash)
        return marked(rows, [db._catalog().of(one.table.id) for one in asked.inputs]) if stale else rows
    except duckdb.Error as error:
        raise NotProven(f"an error on its rows ({str(error).splitlines()[0]})") from error


def _by_spark(db: Any, query: str, leash: Leash | None, stale: bool) -> pa.Table:
    from viewkeeper.plan.catalyst import at_work, front_session
    from viewkeeper.plan.catalyst.session import translated
    from viewkeeper.sql.query_limits import guard

    spark = front_session(db._spark())
    tables = [db._catalog().table(name) for name in named(db._catalog(), query)]
    rows = rows_of(db, [whole(table) for table in tables], stale)
    views = [db._catalog().of(table.id) for table in tables] if stale else []
    with at_work(spark), translated():  # Spark's errors in a line, as at CREATE MATERIALIZED VIEW
        for table, found in zip(tables, rows, strict=True):
            # Named types: by itself PySpark takes a time without a zone for one with it.
            columns = ", ".join(f"{backticked(c.name)} {c.type}" for c in table.columns)
            spark.createDataFrame(found, columns).createOrReplaceTempView(backticked(table.name))
        if leash is None:
            return marked(spark.sql(query).toArrow(), views)
        guard(spark, query)
        context = spark.sparkContext
        context.addJobTag(leash.tag)
        try:
            with leash.held(lambda: context.cancelJobsWithTag(leash.tag)):
                answer: pa.Table = spark.sql(query).limit(leash.rows + 1).toArrow()
        finally:
            context.removeJobTag(leash.tag)
        leash.fits(answer.num_rows)
        return marked(answer, views)


def named(catalog: Catalog, query: str) -> list[str]:
    """The tables and views that the query may mean: those whose names occur in it."""
    there = [*(t.name for t in catalog.named_tables), *(view.table.name for view in catalog.shown_views)]
    text = query.lower()
    words = set(re.findall(r"\w+", text))
    return [name for name in there if name.lower() in words or backticked(name).lower() in text]
