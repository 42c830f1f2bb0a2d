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

from viewkeeper import failpoints
from viewkeeper.errors import BadStatement, UnknownName, Unsupported
from viewkeeper.expressions.tree import Expr, Named, column
from viewkeeper.maintain.definitions.new_views import compile_written_plan, refuse_options, reserve_ids
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.model.catalog.view import SOURCE_COLUMN, ClusterDefinition, IndexDefinition
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.plan.logical.nodes import Node, Project, Query, Scan, Union
from viewkeeper.store.contract.store import Store
from viewkeeper.syntax.indexes import CreateCluster, CreateIndex

_INDEX_OPTIONS = frozenset({"load_rate", "hbase.encoding", "sync"})


def plan_index(store: Store, statement: CreateIndex) -> View:
    """The view that an index is."""
    catalog = store.catalog()
    on = _indexable_table(catalog, statement.on)
    refuse_options("Indexes", statement.options, _INDEX_OPTIONS)
    asked = [(_find_column(on, name), descends) for name, descends in statement.columns]
    key = [KeyPart(c.name, descends, nulls_last=descends) for c, descends in asked]
    first = {c.name for c, _ in asked}
    # The rest names the row, as the table does: rows with the same values come in its order.
    key += [part for part in on.key if part.column not in first]
    names = [part.column for part in key]
    included = [c.name for c in (_find_column(on, name) for name in statement.include) if c.name not in names]
    columns = tuple(on.by_name[name.lower()] for name in (*names, *included))
    made = IndexDefinition(on.id, tuple(c.internal_name for c in columns), len(asked), len(included))
    shown = tuple(Column(c.name, c.type, c.nullable) for c in columns)
    fields = tuple((Column(f"c{i}", c.type, c.nullable), c.internal_name) for i, c in enumerate(columns))
    query = Query(Scan(on.id, fields), tuple((c.name, f) for c, (f, _) in zip(shown, fields, strict=True)))
    plan = compile_written_plan(store, catalog, query)
    options = tuple(sorted(statement.options.items()))
    table = Table(reserve_ids(store, 1), statement.name, shown, tuple(key), True, on.is_bag, options)
    failpoints.hit("view.planned")
    return View(table, _query_text(on, table, made), plan.to_json(), statement.options, index=made)


def update_index_texts(catalog: Catalog, on: int) -> Catalog:
    """With the texts of the indexes of a table or view as its names are now."""
    table = catalog.find_table_by_id(on)
    for view in catalog.indexes.get(on, ()):
        if table is not None and view.index is not None:
            catalog = catalog.with_replaced_view(replace(view, query=_query_text(table, view.table, view.index)))
    return catalog


def _query_text(on: Table, table: Table, index: IndexDefinition) -> str:
    now = {c.internal_name: c.name for c in on.columns}
    listed = []
    for inside, own in zip(index.columns, table.columns, strict=True):
        name = now[inside]
        listed.append(backticked(name) if name == own.name else f"{backticked(name)} AS {backticked(own.name)}")
    return f"SELECT {', '.join(listed)} FROM {backticked(on.name)}"


def _indexable_table(catalog: Catalog, name: str) -> Table:
    found = catalog.find(name)
    catalog.refuse_index(name, "CREATE INDEX ON what it is of: an index has none itself")
    on = catalog.table(name)
    if isinstance(found, View) and strategy_of(found).has_own_cut:
        raise Unsupported(
            f"{on.name} has a cut of its own (strategy {strategy_of(found).name}), and its index would have another.",
            hint="Index its tables, or keep it with the usual strategy.",
        )
    if not on.is_stored:
        raise Unsupported(f"{on.name} is not stored, so an index has no rows to find.", hint="Keep it stored.")
    return on


def _find_column(on: Table, name: str) -> Column:
    found = {c.name.lower(): c for c in on.columns}.get(name.lower())
    if found is None:
        raise UnknownName(
            f"{on.name} has no column {name!r}.", hint=f"It has: {', '.join(c.name for c in on.columns)}."
        )
    return found


# Clustered views: a tagged union of tables by a common key, joined when it is read.
#
#     SELECT item_id, 0 AS part, id, name, NULL AS … FROM items
#     UNION ALL SELECT item_id, 1, NULL, …, review_id, stars FROM reviews
#
# A change of a table is one row of the union, however many rows it would join: upkeep does not know of the others. The
# plan is written here, without Spark; the text is what an audit runs.


_CLUSTER_OPTIONS = frozenset({"load_rate", "hbase.encoding"})


def plan_cluster(store: Store, statement: CreateCluster) -> View:
    """The view that a statement defines."""
    catalog = store.catalog()
    refuse_options("Clustered views", statement.options, _CLUSTER_OPTIONS)
    tables = [_clusterable_table(catalog, name) for name in statement.of]
    shared = _shared_columns(statement, tables)
    taken = {c.name.lower() for c in shared} | {SOURCE_COLUMN}
    owned: list[list[tuple[Column, str]]] = []
    for table in tables:
        rest = [c for c in table.columns if c.name.lower() not in {s.name.lower() for s in shared}]
        names = [f"{table.name}.{c.name}" for c in rest]
        if clash := [n for n in names if n.lower() in taken]:
            raise BadStatement(f"View {statement.name}: two columns would be called {clash[0]}.", hint="Rename one.")
        taken |= {n.lower() for n in names}
        owned.append(list(zip(rest, names, strict=True)))
    columns = [*shared, Column(SOURCE_COLUMN, types.INT, nullable=False)]
    columns += [Column(name, c.type) for pairs in owned for c, name in pairs]
    key = [c.name for c in shared] + [SOURCE_COLUMN]
    for table, pairs in zip(tables, owned, strict=True):
        own = {c.name: name for c, name in pairs}
        key += [own[part.column] for part in table.key if part.column in own]
    inputs = tuple(_input_node(place, tables[place], shared, owned) for place in range(len(tables)))
    output = tuple(Column(f"u{i}", c.type, c.nullable) for i, c in enumerate(columns))
    query = Query(Union(inputs, output), tuple((c.name, o) for c, o in zip(columns, output, strict=True)))
    plan = compile_written_plan(store, catalog, query)
    options = tuple(sorted(statement.options.items()))
    made = Table(reserve_ids(store, 1), statement.name, tuple(columns), tuple(map(KeyPart, key)), True, False, options)
    by = tuple(c.name for c in shared)
    called = tuple(tuple((c.name, name) for c, name in one) for one in owned)
    cluster = ClusterDefinition(by, tuple(t.name for t in tables), called)
    failpoints.hit("view.planned")
    return View(made, _cluster_query_text(tables, shared, owned), plan.to_json(), statement.options, cluster=cluster)


def _clusterable_table(catalog: Catalog, name: str) -> Table:
    catalog.refuse_index(name, "the table or view that it is of")
    found, table = catalog.find(name), catalog.table(name)
    if isinstance(found, View) and strategy_of(found).has_own_cut:
        raise Unsupported(f"{name} has a cut of its own.", hint="Cluster its tables, or views with the usual strategy.")
    if table.is_bag:
        raise Unsupported(f"{name} has no unique key, by which its rows could be told apart.", hint="Give it a KEY.")
    return table


def _shared_columns(statement: CreateCluster, tables: list[Table]) -> list[Column]:
    """The columns that the tables share, as the first of them has them."""
    if len(tables) < 2:
        raise BadStatement(f"View {statement.name} is of one table.", hint="Name at least two; or CREATE INDEX.")
    found = []
    for name in statement.by:
        there = [{c.name.lower(): c for c in t.columns}.get(name.lower()) for t in tables]
        for table, one in zip(tables, there, strict=True):
            if one is None:
                raise UnknownName(f"{table.name} has no column {name!r}, by which the view is clustered.", hint="")
            if there[0] is not None and one.type != there[0].type:
                raise BadStatement(
                    f"{name} is {one.type.sql} in {table.name} and {there[0].type.sql} in {tables[0].name}.",
                    hint="A clustered key has one type in all tables.",
                )
        nullable = any(one is not None and one.nullable for one in there)
        if there[0] is not None:
            found.append(Column(there[0].name, there[0].type, nullable))
    return found


def _input_node(
    index: int, table: Table, shared_columns: list[Column], own_columns: list[list[tuple[Column, str]]]
) -> Node:
    """One table's rows in the view's columns."""
    by_name = {c.name.lower(): c for c in table.columns}
    own = [by_name[c.name.lower()] for c in shared_columns] + [c for c, _ in own_columns[index]]
    names = {c.name: f"t{index}c{i}" for i, c in enumerate(own)}
    scan = Scan(table.id, tuple((Column(names[c.name], c.type, c.nullable), c.internal_name) for c in own))
    exprs = [column(names[by_name[c.name.lower()].name], c.type, c.nullable) for c in shared_columns]
    exprs.append(Expr("literal", types.INT, value=index, nullable=False))
    for other, pairs in enumerate(own_columns):
        exprs += [column(names[c.name], c.type) if other == index else Expr("literal", c.type) for c, _ in pairs]
    return Project(scan, tuple(Named(f"t{index}o{i}", e) for i, e in enumerate(exprs)))


def _cluster_query_text(
    tables: list[Table], shared_columns: list[Column], own_columns: list[list[tuple[Column, str]]]
) -> str:
    parts = []
    for place, table in enumerate(tables):
        listed = [backticked(c.name) for c in shared_columns] + [f"{place} AS {SOURCE_COLUMN}"]
        for other, pairs in enumerate(own_columns):
            for c, name in pairs:
                value = backticked(c.name) if other == place else f"CAST(NULL AS {c.type.sql})"
                listed.append(f"{value} AS {backticked(name)}")
        parts.append(f"SELECT {', '.join(listed)} FROM {backticked(table.name)}")
    return "\nUNION ALL ".join(parts)
