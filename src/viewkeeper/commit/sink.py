"""The sink: a view's delta becomes puts and deletes on its table.

For each key: a row with positive weight is a put; if there is none, the key is deleted. A bag's rows have no unique
key: the stored count is read, the weight added, and the row goes when its count reaches zero. A view that is not
stored passes its delta on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.operators.consolidate import consolidate
from viewkeeper.operators.duck import Duck
from viewkeeper.plan.dataflow import quoted
from viewkeeper.store.base import Store, StreamChange, ViewChange


def resolve(duck: Duck, store: Store, table: Table, deltas: Sequence[pa.Table]) -> ViewChange | StreamChange | None:
    """The change of one view, from everything that reached its sink; None when nothing is left of it."""
    if not deltas:
        return None
    delta = pa.concat_tables(deltas, promote_options="permissive").combine_chunks()
    delta = delta.rename_columns([*(c.name for c in table.columns), WEIGHT])
    # A bag's key is the whole row, in which −0.0 and 0.0 are one; elsewhere an update from one to the other shows.
    net = _merged(duck, table, delta) if table.is_bag else consolidate(duck, delta)
    if net.num_rows == 0:
        return None
    if not table.is_stored:
        return StreamChange(table, _typed(table, net, (*(c.name for c in table.columns), WEIGHT)))
    return _bag(duck, store, table, net) if table.is_bag else _keyed(duck, table, net)


def _merged(duck: Duck, table: Table, delta: pa.Table) -> pa.Table:
    columns = ", ".join(quoted(c.name) for c in table.columns)
    weight = f"CAST(sum({WEIGHT}) AS BIGINT) AS {WEIGHT}"
    return duck.run(f"SELECT {columns}, {weight} FROM input GROUP BY {columns} HAVING sum({WEIGHT}) <> 0", input=delta)


def _keyed(duck: Duck, table: Table, net: pa.Table) -> ViewChange:
    columns = ", ".join(quoted(c.name) for c in table.columns)
    puts = duck.run(f"SELECT {columns} FROM input WHERE {WEIGHT} > 0", input=net)
    keys = [quoted(k.column) for k in table.key]
    if not keys:
        deletes = pa.table({}) if puts.num_rows else net.select([]).slice(0, 1)
        return ViewChange(table, _typed(table, puts), deletes)
    matched = " AND ".join(f"p.{k} IS NOT DISTINCT FROM n.{k}" for k in keys)
    listed = ", ".join(f"n.{k}" for k in keys)
    deletes = duck.run(
        f"""SELECT DISTINCT {listed} FROM net n
            WHERE n.{WEIGHT} < 0 AND NOT EXISTS (SELECT 1 FROM net p WHERE p.{WEIGHT} > 0 AND {matched})""",
        net=net,
    )
    return ViewChange(table, _typed(table, puts), _typed(table, deletes))


def _bag(duck: Duck, store: Store, table: Table, net: pa.Table) -> ViewChange:
    keys = _typed(table, net.select([k.column for k in table.key]))
    stored = store.get_many(table, keys)
    columns = [quoted(c.name) for c in table.columns]
    listed = ", ".join(columns)
    counted = duck.run(
        f"""SELECT {listed}, CAST(sum(c) AS BIGINT) AS {COUNT}
            FROM (SELECT {listed}, {COUNT} AS c FROM stored UNION ALL SELECT {listed}, {WEIGHT} AS c FROM net)
            GROUP BY {listed}""",
        stored=stored,
        net=net,
    )
    assert counted.num_rows == 0 or min(counted[COUNT].to_numpy()) >= 0, f"negative count in {table.name}"
    puts = duck.run(f"SELECT * FROM input WHERE {COUNT} > 0", input=counted)
    gone = duck.run(
        f"SELECT {', '.join(quoted(k.column) for k in table.key)} FROM input WHERE {COUNT} = 0", input=counted
    )
    return ViewChange(table, _typed(table, puts), _typed(table, gone))


def _typed(table: Table, rows: pa.Table, names: Sequence[str] | None = None) -> pa.Table:
    """Rows in the table's own Arrow types."""
    rows = rows if names is None else rows.select(list(names))
    weight = pa.field(WEIGHT, pa.int64())
    schema = pa.schema([weight if name == WEIGHT else table.arrow.field(name) for name in rows.column_names])
    return rows if rows.schema.equals(schema) else rows.cast(schema)
