"""SELECT over tables and views at one snapshot: the published batch, and the base tables as of its cut.

1  note the published batch
2  read the views, and the base tables at the batch's cut
3  if another batch was published meanwhile, begin again
4  hand them to Spark as temporary views and run the query there
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from viewkeeper.errors import BadStatement, Timeout
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.read.reader import outside
from viewkeeper.store.base import Store

ATTEMPTS = 20


def select(db: Any, query: str) -> pa.Table:
    """The query's rows."""
    from pyspark.errors import PySparkException

    from viewkeeper.plan.catalyst.session import first_lines

    tables = named(db._catalog(), query)
    rows = at_one_snapshot(db._store, tables)
    spark = db._spark().newSession()
    for name, value in _settings().items():
        spark.conf.set(name, value)
    for table in tables:
        spark.createDataFrame(rows[table.id]).createOrReplaceTempView(f"`{table.name.replace('`', '``')}`")
    try:
        found: pa.Table = spark.sql(query).toArrow()
        return found
    except PySparkException as error:
        raise BadStatement(f"Spark refuses the query: {first_lines(str(error))}") from None


def named(catalog: Catalog, query: str) -> list[Table]:
    """The tables and views that the query may mean: those whose names occur in it."""
    there = [*catalog.tables, *(view.table for view in catalog.views)]
    occurring = {word.lower() for word in re.findall(r"\w+", query)}
    return [t for t in there if t.name.lower() in occurring or not re.fullmatch(r"\w+", t.name)]


def at_one_snapshot(store: Store, tables: list[Table]) -> dict[int, pa.Table]:
    """The rows of these tables and views, all of one published batch."""
    for _ in range(ATTEMPTS):
        before = store.published()
        cut = store.head() if before is None else before.cut
        rows = {t.id: _view(store, t) if t.is_view else _base(store, t, cut) for t in tables}
        after = store.published()
        if (after and after.number) == (before and before.number):
            return rows
    raise Timeout(
        f"{ATTEMPTS} batches were published while the snapshot was read.", hint="Ask again, or for fewer tables."
    )


def _view(store: Store, table: Table) -> pa.Table:
    return outside(table, pa.Table.from_batches(list(store.scan(table)), table.arrow))


def _base(store: Store, table: Table, cut: int) -> pa.Table:
    from viewkeeper.capture.snapshot import table_at
    from viewkeeper.model.schema import WEIGHT
    from viewkeeper.operators.consolidate import consolidate
    from viewkeeper.operators.duck import Duck
    from viewkeeper.plan import expressions

    names = [c.name for c in table.columns]
    rows, clean = table_at(store, table, names, cut, None)
    if not clean:
        duck = Duck(threads=2, setup=expressions.setup)
        rows = consolidate(duck, rows)
        duck.close()
    return outside(table, rows.drop_columns([WEIGHT]).select(names))


def _settings() -> dict[str, str]:
    """What a view's query is read with; the optimiser's restrictions are for the reader of plans only."""
    from viewkeeper.plan.catalyst.session import SETTINGS

    return {name: value for name, value in SETTINGS.items() if ".optimizer." not in name} | {
        "spark.sql.optimizer.excludedRules": "",
    }
