"""SELECT over tables and views at one state.

A query that only names columns, an order and a limit of one table or view is answered from the store at once
(`cli.simple`). Any other is Spark's:

1  read what the query names. With a view: the published batch, and the tables as of its cut, so that they agree. Tables
   alone: as they are now, all at one log position
2  hand them to Spark as temporary views
3  run the query there, with the settings that a view's query is read with
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from viewkeeper.cli.simple import simple
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.names import backticked

_AGE = 600.0
"""Seconds in which the tables must have been read."""


def select(db: Any, query: str) -> pa.Table:
    """The query's rows."""
    asked = simple(db._catalog(), query)
    if asked is not None:
        return asked.run(db.read(asked.table))
    from viewkeeper.plan.catalyst import at_work, front_session
    from viewkeeper.plan.catalyst.session import _translated

    spark = front_session(db._spark())
    rows = _rows(db, named(db._catalog(), query))
    with at_work(spark), _translated():  # Spark's errors in a line, as at CREATE MATERIALIZED VIEW
        for name, table in rows.items():
            # Named types: by itself PySpark takes a time without a zone for one with it.
            columns = ", ".join(f"{backticked(c.name)} {c.type}" for c in db._catalog().table(name).columns)
            spark.createDataFrame(table, columns).createOrReplaceTempView(backticked(name))
        found: pa.Table = spark.sql(query).toArrow()
        return found


def _rows(db: Any, names: list[str]) -> dict[str, pa.Table]:
    from viewkeeper.spark.rows import rows_at

    catalog = db._catalog()
    tables = [catalog.table(name) for name in names]
    if any(table.is_view for table in tables):
        with db.snapshot(max_age=_AGE) as snapshot:
            return {name: snapshot.read(name) for name in names}
    head = db._store.head()
    return {t.name: rows_at(db._store, t, [c.name for c in t.columns], head, (None, None)) for t in tables}


def named(catalog: Catalog, query: str) -> list[str]:
    """The tables and views that the query may mean: those whose names occur in it."""
    there = [*(t.name for t in catalog.tables), *(view.table.name for view in catalog.views)]
    text = query.lower()
    words = set(re.findall(r"\w+", text))
    return [name for name in there if name.lower() in words or backticked(name).lower() in text]
