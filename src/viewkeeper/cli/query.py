"""SELECT over tables and views at one snapshot: the published batch, and the base tables as of its cut.

1  read the tables and views that the query names, all in one snapshot
2  hand them to Spark as temporary views
3  run the query there, with the settings that a view's query is read with
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from viewkeeper.model.catalog import Catalog

_AGE = 600.0
"""Seconds in which the tables must have been read."""


def select(db: Any, query: str) -> pa.Table:
    """The query's rows."""
    from viewkeeper.plan.catalyst.session import _translated

    with db.snapshot(max_age=_AGE) as snapshot:
        rows = {name: snapshot.read(name) for name in named(db._catalog(), query)}
    spark = db._spark().newSession()
    for setting, value in _settings().items():
        spark.conf.set(setting, value)
    for name, table in rows.items():
        spark.createDataFrame(table).createOrReplaceTempView(f"`{name.replace('`', '``')}`")
    with _translated():  # Spark's errors in a line, as at CREATE MATERIALIZED VIEW
        found: pa.Table = spark.sql(query).toArrow()
        return found


def named(catalog: Catalog, query: str) -> list[str]:
    """The tables and views that the query may mean: those whose names occur in it."""
    there = [*(t.name for t in catalog.tables), *(view.table.name for view in catalog.views)]
    occurring = {word.lower() for word in re.findall(r"\w+", query)}
    return [name for name in there if name.lower() in occurring or not re.fullmatch(r"\w+", name)]


def _settings() -> dict[str, str]:
    """What a view's query is read with; the optimiser's restrictions are for the reader of plans only."""
    from viewkeeper.plan.catalyst.session import SETTINGS

    return {name: value for name, value in SETTINGS.items() if ".optimizer." not in name}
