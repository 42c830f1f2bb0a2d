"""Reads of a clustered view: the rows of one key by table, or joined.

The rows of a key are one range of the view. Their join is the product of the tables' rows. Inner: a table without
rows makes the product empty. Left: a table without rows contributes one row of NULLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, TooLarge
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.catalog.view import SOURCE_COLUMN, ClusterDefinition
from viewkeeper.model.intake import arguments

JOIN_KINDS = ("inner", "left")
MAX_JOINED_ROWS = 10_000_000


def cluster_of(catalog: Catalog, name: str) -> ClusterDefinition:
    found = catalog.view(name).cluster
    if found is None:
        raise BadValue(f"{name} is no clustered view.", hint="CREATE MATERIALIZED VIEW … CLUSTER BY (…) OF tables.")
    return found


def check_cluster_key(cluster: ClusterDefinition, name: str, key: Any) -> tuple[Any, ...]:
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(cluster.key_columns):
        raise BadValue(
            f"{name} is clustered by ({', '.join(cluster.key_columns)}); {len(values)} values were given.", hint=""
        )
    return values


def check_join_kinds(cluster: ClusterDefinition, how: str | Mapping[str, str]) -> list[str]:
    """The join kind of each table; the first table is the one that the others are joined to."""
    if isinstance(how, str):
        return [arguments.check_choice(how, "how", JOIN_KINDS) or how for _ in cluster.tables]
    if not isinstance(how, Mapping):
        raise BadValue(
            f"how is {arguments.shorten(how)}.", hint="Write 'inner', 'left', or one for each table by name."
        )
    tables = {t.lower(): t for t in cluster.tables}
    kinds = {}
    for table, kind in how.items():
        if str(table).lower() not in tables:
            raise BadValue(f"how names {table!r}.", hint=f"The tables are {', '.join(cluster.tables)}.")
        arguments.check_choice(kind, "how", JOIN_KINDS)
        kinds[tables[str(table).lower()]] = kind
    return [kinds.get(t, "inner") for t in cluster.tables]


def split_by_table(cluster: ClusterDefinition, rows: pa.Table) -> dict[str, pa.Table]:
    """The rows of each table, in its own columns, from rows of the view."""
    parts = rows[SOURCE_COLUMN]
    found = {}
    for source, table in enumerate(cluster.tables):
        columns = cluster.column_names(source)
        part = rows.filter(pc.equal(parts, source)).select([*cluster.key_columns, *columns.values()])
        found[table] = part.rename_columns([*cluster.key_columns, *columns])
    return found


def join_tables(cluster: ClusterDefinition, rows: pa.Table, how: list[str]) -> pa.Table:
    """Join the rows of one key."""
    tables = split_by_table(cluster, rows)
    counts = [t.num_rows for t in tables.values()]
    is_left = [h == "left" and i > 0 for i, h in enumerate(how)]
    sizes = [max(c, 1) if outer else c for c, outer in zip(counts, is_left, strict=True)]
    total = int(np.prod(sizes, dtype=object)) if sizes else 0
    if total > MAX_JOINED_ROWS:
        raise TooLarge(
            f"The rows of this key join to {total:,}; {MAX_JOINED_ROWS:,} is the most.", hint="Use cluster()."
        )
    column_names = [c for pairs in cluster.columns for c, _ in pairs]
    once = {c for c in column_names if column_names.count(c) == 1 and c not in cluster.key_columns}
    first = next(iter(tables.values()))
    positions = np.arange(total)
    step, columns = total, dict[str, Any]()
    for (name, table), count, size in zip(tables.items(), counts, sizes, strict=True):
        step = step // size if size else 0
        indexes = pa.array(
            (positions // step) % size if step else positions[:0], mask=None if count else np.ones(total, bool)
        )
        joined = table.take(indexes)
        if table is first:
            columns |= {c: joined[c] for c in cluster.key_columns}
        for c in table.column_names[len(cluster.key_columns) :]:
            columns[c if c in once else f"{name}.{c}"] = joined[c]
    return pa.table(columns)
