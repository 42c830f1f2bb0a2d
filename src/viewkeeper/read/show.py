"""SHOW and DESCRIBE: the catalog's contents as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.row_names import match_names
from viewkeeper.syntax import indexes, statements
from viewkeeper.syntax.show_create import (
    create_index_sql,
    create_table_sql,
    create_view_sql,
    included_columns,
    index_columns,
    indexed_table,
)


def _show_indexes(catalog: Catalog, statement: indexes.ShowIndexes) -> pa.Table:
    table = None if statement.on is None else catalog.table(statement.on)
    found = [v for views in catalog.indexes.values() for v in views]
    found = sorted(
        (v for v in found if table is None or indexed_table(catalog, v) == table), key=lambda v: v.table.name.lower()
    )
    columns = {
        "name": [v.table.name for v in found],
        "on": [indexed_table(catalog, v).name for v in found],
        "columns": [", ".join(index_columns(catalog, v)) for v in found],
        "include": [", ".join(included_columns(catalog, v)) for v in found],
    }
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


def _show_objects(catalog: Catalog, statement: statements.Show) -> pa.Table:
    tables = catalog.user_tables if statement.object_kind == "tables" else [v.table for v in catalog.user_views]
    names = sorted(t.name for t in tables)
    return pa.table(
        {"name": pa.array(names if statement.like is None else match_names(names, statement.like), pa.string())}
    )


def _show_create(catalog: Catalog, statement: statements.ShowCreate) -> pa.Table:
    found = catalog.find(statement.name)
    if statement.kind == "index":
        text = create_index_sql(catalog, catalog.index(statement.name))
    elif isinstance(found, View) or statement.kind == "view":
        catalog.refuse_index(statement.name, "SHOW CREATE INDEX")
        text = create_view_sql(catalog, catalog.view(statement.name))
    else:
        text = create_table_sql(catalog.table(statement.name))
    return pa.table({"statement": pa.array([text], pa.string())})


def _describe(catalog: Catalog, statement: statements.Describe) -> pa.Table:
    table = catalog.table(statement.name)
    key_places = {k.column.lower(): i + 1 for i, k in enumerate(table.key)}
    description = pa.table(
        {
            "column": pa.array([c.name for c in table.columns], pa.string()),
            "type": pa.array([str(c.type) for c in table.columns], pa.string()),
            "nullable": pa.array([c.nullable for c in table.columns], pa.bool_()),
            "key": pa.array([key_places.get(c.name.lower()) for c in table.columns], pa.int32()),
        }
    )
    if all(c.default is None for c in table.columns):
        return description
    return description.append_column("default", pa.array([c.default for c in table.columns], pa.string()))


LISTINGS: Mapping[type, Callable[[Catalog, Any], pa.Table]] = {
    indexes.ShowIndexes: _show_indexes,
    statements.Show: _show_objects,
    statements.ShowCreate: _show_create,
    statements.Describe: _describe,
}
"""The function that answers each of these statements."""
