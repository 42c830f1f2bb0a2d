"""Indexes as views: the rows of a table or view by other columns.

    CREATE INDEX i ON t (a, b) INCLUDE (c)      t has the key (k, a)
    is the view     SELECT a, b, k, c FROM t    with the key (a, b, k)

The table's key follows the requested columns, so that the index's key is unique. In the index of a bag all columns are
in the key, because a bag's key is the whole row. The plan is a scan that is built here, so Spark need not start. An
index keeps the names of its own columns; its text is updated when the table or its columns are renamed.
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
    """Plan the view that implements an index."""
    catalog = store.catalog()
    on = _indexable_table(catalog, statement.on)
    refuse_options("Indexes", statement.options, _INDEX_OPTIONS)
    requested = [(_find_column(on, name), descends) for name, descends in statement.columns]
    key = [KeyPart(c.name, descends, nulls_last=descends) for c, descends in requested]
    requested_names = {c.name for c, _ in requested}
    # The rest of the table's key makes the key unique; rows with equal values are in the table's order.
    key += [part for part in on.key if part.column not in requested_names]
    names = [part.column for part in key]
    included = [c.name for c in (_find_column(on, name) for name in statement.include) if c.name not in names]
    columns = tuple(on.by_name[name.lower()] for name in (*names, *included))
    definition = IndexDefinition(on.id, tuple(c.internal_name for c in columns), len(requested), len(included))
    view_columns = tuple(Column(c.name, c.type, c.nullable) for c in columns)
    fields = tuple((Column(f"c{i}", c.type, c.nullable), c.internal_name) for i, c in enumerate(columns))
    query = Query(Scan(on.id, fields), tuple((c.name, f) for c, (f, _) in zip(view_columns, fields, strict=True)))
    plan = compile_written_plan(store, catalog, query)
    options = tuple(sorted(statement.options.items()))
    table = Table(reserve_ids(store, 1), statement.name, view_columns, tuple(key), True, on.is_bag, options)
    failpoints.hit("view.planned")
    return View(table, _query_text(on, table, definition), plan.to_json(), statement.options, index=definition)


def update_index_texts(catalog: Catalog, on: int) -> Catalog:
    """Return the catalog with index texts updated to the current names of this table or view."""
    table = catalog.find_table_by_id(on)
    for view in catalog.indexes.get(on, ()):
        if table is not None and view.index is not None:
            catalog = catalog.with_replaced_view(replace(view, query=_query_text(table, view.table, view.index)))
    return catalog


def _query_text(on: Table, table: Table, index: IndexDefinition) -> str:
    current_names = {c.internal_name: c.name for c in on.columns}
    items = []
    for internal_name, own_column in zip(index.columns, table.columns, strict=True):
        name = current_names[internal_name]
        items.append(
            backticked(name) if name == own_column.name else f"{backticked(name)} AS {backticked(own_column.name)}"
        )
    return f"SELECT {', '.join(items)} FROM {backticked(on.name)}"


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
    match = {c.name.lower(): c for c in on.columns}.get(name.lower())
    if match is None:
        raise UnknownName(
            f"{on.name} has no column {name!r}.", hint=f"It has: {', '.join(c.name for c in on.columns)}."
        )
    return match


# Clustered views: a tagged union of tables by a common key; reads join the rows.
#
#     SELECT item_id, 0 AS part, id, name, NULL AS … FROM items
#     UNION ALL SELECT item_id, 1, NULL, …, review_id, stars FROM reviews
#
# A change of a table is one changed row of the union, however many rows it would join, because maintenance does not
# read the other tables. The plan is built here, without Spark; an audit runs the text.


_CLUSTER_OPTIONS = frozenset({"load_rate", "hbase.encoding"})


def plan_cluster(store: Store, statement: CreateCluster) -> View:
    """Plan the clustered view that a statement defines."""
    catalog = store.catalog()
    refuse_options("Clustered views", statement.options, _CLUSTER_OPTIONS)
    tables = [_clusterable_table(catalog, name) for name in statement.of]
    shared = _shared_columns(statement, tables)
    used_names = {c.name.lower() for c in shared} | {SOURCE_COLUMN}
    owned: list[list[tuple[Column, str]]] = []
    for table in tables:
        rest = [c for c in table.columns if c.name.lower() not in {s.name.lower() for s in shared}]
        names = [f"{table.name}.{c.name}" for c in rest]
        if clash := [n for n in names if n.lower() in used_names]:
            raise BadStatement(f"View {statement.name}: two columns would be called {clash[0]}.", hint="Rename one.")
        used_names |= {n.lower() for n in names}
        owned.append(list(zip(rest, names, strict=True)))
    columns = [*shared, Column(SOURCE_COLUMN, types.INT, nullable=False)]
    columns += [Column(name, c.type) for pairs in owned for c, name in pairs]
    key = [c.name for c in shared] + [SOURCE_COLUMN]
    for table, pairs in zip(tables, owned, strict=True):
        own = {c.name: name for c, name in pairs}
        key += [own[part.column] for part in table.key if part.column in own]
    inputs = tuple(_input_node(index, tables[index], shared, owned) for index in range(len(tables)))
    output = tuple(Column(f"u{i}", c.type, c.nullable) for i, c in enumerate(columns))
    query = Query(Union(inputs, output), tuple((c.name, o) for c, o in zip(columns, output, strict=True)))
    plan = compile_written_plan(store, catalog, query)
    options = tuple(sorted(statement.options.items()))
    view_table = Table(
        reserve_ids(store, 1), statement.name, tuple(columns), tuple(map(KeyPart, key)), True, False, options
    )
    key_names = tuple(c.name for c in shared)
    column_names = tuple(tuple((c.name, name) for c, name in one) for one in owned)
    cluster = ClusterDefinition(key_names, tuple(t.name for t in tables), column_names)
    failpoints.hit("view.planned")
    return View(
        view_table, _cluster_query_text(tables, shared, owned), plan.to_json(), statement.options, cluster=cluster
    )


def _clusterable_table(catalog: Catalog, name: str) -> Table:
    catalog.refuse_index(name, "the table or view that it is of")
    found, table = catalog.find(name), catalog.table(name)
    if isinstance(found, View) and strategy_of(found).has_own_cut:
        raise Unsupported(f"{name} has a cut of its own.", hint="Cluster its tables, or views with the usual strategy.")
    if table.is_bag:
        raise Unsupported(f"{name} has no unique key, by which its rows could be told apart.", hint="Give it a KEY.")
    return table


def _shared_columns(statement: CreateCluster, tables: list[Table]) -> list[Column]:
    """Return the columns of the common key, with the names and types of the first table."""
    if len(tables) < 2:
        raise BadStatement(f"View {statement.name} is of one table.", hint="Name at least two; or CREATE INDEX.")
    shared = []
    for name in statement.by:
        candidates = [{c.name.lower(): c for c in t.columns}.get(name.lower()) for t in tables]
        for table, candidate in zip(tables, candidates, strict=True):
            if candidate is None:
                raise UnknownName(f"{table.name} has no column {name!r}, by which the view is clustered.", hint="")
            if candidates[0] is not None and candidate.type != candidates[0].type:
                raise BadStatement(
                    f"{name} is {candidate.type.sql} in {table.name} and {candidates[0].type.sql} in {tables[0].name}.",
                    hint="A clustered key has one type in all tables.",
                )
        nullable = any(candidate is not None and candidate.nullable for candidate in candidates)
        if candidates[0] is not None:
            shared.append(Column(candidates[0].name, candidates[0].type, nullable))
    return shared


def _input_node(
    index: int, table: Table, shared_columns: list[Column], own_columns: list[list[tuple[Column, str]]]
) -> Node:
    """Return the node that projects one table's rows to the view's columns."""
    by_name = {c.name.lower(): c for c in table.columns}
    own = [by_name[c.name.lower()] for c in shared_columns] + [c for c, _ in own_columns[index]]
    names = {c.name: f"t{index}c{i}" for i, c in enumerate(own)}
    scan = Scan(table.id, tuple((Column(names[c.name], c.type, c.nullable), c.internal_name) for c in own))
    exprs = [column(names[by_name[c.name.lower()].name], c.type, c.nullable) for c in shared_columns]
    exprs.append(Expr("literal", types.INT, value=index, nullable=False))
    for source, pairs in enumerate(own_columns):
        exprs += [column(names[c.name], c.type) if source == index else Expr("literal", c.type) for c, _ in pairs]
    return Project(scan, tuple(Named(f"t{index}o{i}", e) for i, e in enumerate(exprs)))


def _cluster_query_text(
    tables: list[Table], shared_columns: list[Column], own_columns: list[list[tuple[Column, str]]]
) -> str:
    parts = []
    for index, table in enumerate(tables):
        items = [backticked(c.name) for c in shared_columns] + [f"{index} AS {SOURCE_COLUMN}"]
        for source, pairs in enumerate(own_columns):
            for c, name in pairs:
                value = backticked(c.name) if source == index else f"CAST(NULL AS {c.type.sql})"
                items.append(f"{value} AS {backticked(name)}")
        parts.append(f"SELECT {', '.join(items)} FROM {backticked(table.name)}")
    return "\nUNION ALL ".join(parts)
