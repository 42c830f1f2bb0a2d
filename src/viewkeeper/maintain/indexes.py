"""Indexes as views: the rows of a table or view by other columns.

    CREATE INDEX i ON t (a, b) INCLUDE (c)      t has the key (k, a)
    is the view     SELECT a, b, k, c FROM t    with the key (a, b, k)

The key of what it is of stands behind the columns that were asked for, so every row has one place. Of a bag, whose rows
have no other name than all their values, everything is in the key. The plan is a scan and is written here: no Spark has
to start for it. An index keeps the names that its columns had; when the table or its columns are renamed, its text
follows.
"""

from __future__ import annotations

from dataclasses import replace

from viewkeeper import faults
from viewkeeper.errors import UnknownName, Unsupported
from viewkeeper.maintain.drafts import fresh_ids, refuse_options, written_plan
from viewkeeper.model.catalog import Catalog, View
from viewkeeper.model.indexes import Index
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.model.strategies import strategy_of
from viewkeeper.plan.indexing import CreateIndex
from viewkeeper.plan.nodes import Query, Scan
from viewkeeper.store.base import Store

_OPTIONS = frozenset({"load_rate", "hbase.encoding", "sync"})


def plan_index(store: Store, statement: CreateIndex) -> View:
    """The view that an index is."""
    catalog = store.catalog()
    on = _indexed(catalog, statement.on)
    refuse_options("Indexes", statement.options, _OPTIONS)
    asked = [(_column(on, name), descends) for name, descends in statement.columns]
    key = [KeyPart(c.name, descends, nulls_last=descends) for c, descends in asked]
    first = {c.name for c, _ in asked}
    # The rest names the row, as the table does: rows with the same values come in its order.
    key += [part for part in on.key if part.column not in first]
    names = [part.column for part in key]
    included = [c.name for c in (_column(on, name) for name in statement.include) if c.name not in names]
    columns = tuple(on.by_name[name.lower()] for name in (*names, *included))
    made = Index(on.id, tuple(c.inside for c in columns), len(asked), len(included))
    shown = tuple(Column(c.name, c.type, c.nullable) for c in columns)
    fields = tuple((Column(f"c{i}", c.type, c.nullable), c.inside) for i, c in enumerate(columns))
    query = Query(Scan(on.id, fields), tuple((c.name, f) for c, (f, _) in zip(shown, fields, strict=True)))
    plan = written_plan(store, catalog, query)
    options = tuple(sorted(statement.options.items()))
    table = Table(fresh_ids(store, 1), statement.name, shown, tuple(key), True, on.is_bag, options)
    faults.point("view.planned")
    return View(table, _text(on, table, made), plan.to_json(), statement.options, index=made)


def following(catalog: Catalog, on: int) -> Catalog:
    """With the texts of the indexes of a table or view as its names are now."""
    table = catalog.table_of(on)
    for view in catalog.indexes.get(on, ()):
        if table is not None and view.index is not None:
            catalog = catalog.replacing(replace(view, query=_text(table, view.table, view.index)))
    return catalog


def _text(on: Table, table: Table, index: Index) -> str:
    now = {c.inside: c.name for c in on.columns}
    listed = []
    for inside, own in zip(index.columns, table.columns, strict=True):
        name = now[inside]
        listed.append(backticked(name) if name == own.name else f"{backticked(name)} AS {backticked(own.name)}")
    return f"SELECT {', '.join(listed)} FROM {backticked(on.name)}"


def _indexed(catalog: Catalog, name: str) -> Table:
    found = catalog.find(name)
    catalog.refuse_index(name, "CREATE INDEX ON what it is of: an index has none itself")
    on = catalog.table(name)
    if isinstance(found, View) and strategy_of(found).runs_alone:
        raise Unsupported(
            f"{on.name} has a cut of its own (strategy {strategy_of(found).name}), and its index would have another.",
            hint="Index its tables, or keep it with the usual strategy.",
        )
    if not on.is_stored:
        raise Unsupported(f"{on.name} is not stored, so an index has no rows to find.", hint="Keep it stored.")
    return on


def _column(on: Table, name: str) -> Column:
    found = {c.name.lower(): c for c in on.columns}.get(name.lower())
    if found is None:
        raise UnknownName(
            f"{on.name} has no column {name!r}.", hint=f"It has: {', '.join(c.name for c in on.columns)}."
        )
    return found
