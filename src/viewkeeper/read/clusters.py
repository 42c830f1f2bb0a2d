"""Reads of a clustered view: the rows of one key by table, or joined.

The rows of a key are one range of the view. What a join makes of them is the product of the tables' rows: inner, a
table without rows leaves nothing; left, it leaves one row of NULLs beside the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, TooLarge
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.catalog.view import PART, Cluster
from viewkeeper.model.intake import arguments

HOW = ("inner", "left")
MOST_ROWS = 10_000_000


def cluster_of(catalog: Catalog, name: str) -> Cluster:
    found = catalog.view(name).cluster
    if found is None:
        raise BadValue(f"{name} is no clustered view.", hint="CREATE MATERIALIZED VIEW … CLUSTER BY (…) OF tables.")
    return found


def checked_key(cluster: Cluster, name: str, key: Any) -> tuple[Any, ...]:
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(cluster.by):
        raise BadValue(f"{name} is clustered by ({', '.join(cluster.by)}); {len(values)} values were given.", hint="")
    return values


def checked_how(cluster: Cluster, how: str | Mapping[str, str]) -> list[str]:
    """For each table how it is joined; the first is what the others are joined to."""
    if isinstance(how, str):
        return [arguments.one_of(how, "how", HOW) or how for _ in cluster.of]
    if not isinstance(how, Mapping):
        raise BadValue(f"how is {arguments.short(how)}.", hint="Write 'inner', 'left', or one for each table by name.")
    known = {t.lower(): t for t in cluster.of}
    asked = {}
    for table, one in how.items():
        if str(table).lower() not in known:
            raise BadValue(f"how names {table!r}.", hint=f"The tables are {', '.join(cluster.of)}.")
        arguments.one_of(one, "how", HOW)
        asked[known[str(table).lower()]] = one
    return [asked.get(t, "inner") for t in cluster.of]


def by_table(cluster: Cluster, rows: pa.Table) -> dict[str, pa.Table]:
    """The rows of each table, in its own columns, from rows of the view."""
    parts = rows[PART]
    found = {}
    for place, table in enumerate(cluster.of):
        own = cluster.owned(place)
        mine = rows.filter(pc.equal(parts, place)).select([*cluster.by, *own.values()])
        found[table] = mine.rename_columns([*cluster.by, *own])
    return found


def joined(cluster: Cluster, rows: pa.Table, how: list[str]) -> pa.Table:
    """The rows of one key, joined."""
    tables = by_table(cluster, rows)
    counts = [t.num_rows for t in tables.values()]
    left = [h == "left" and i > 0 for i, h in enumerate(how)]
    sizes = [max(c, 1) if outer else c for c, outer in zip(counts, left, strict=True)]
    total = int(np.prod(sizes, dtype=object)) if sizes else 0
    if total > MOST_ROWS:
        raise TooLarge(f"The rows of this key join to {total:,}; {MOST_ROWS:,} is the most.", hint="Use cluster().")
    listed = [c for pairs in cluster.columns for c, _ in pairs]
    once = {c for c in listed if listed.count(c) == 1 and c not in cluster.by}
    first = next(iter(tables.values()))
    places = np.arange(total)
    step, columns = total, dict[str, Any]()
    for (name, table), count, size in zip(tables.items(), counts, sizes, strict=True):
        step = step // size if size else 0
        at = pa.array((places // step) % size if step else places[:0], mask=None if count else np.ones(total, bool))
        taken = table.take(at)
        if table is first:
            columns |= {c: taken[c] for c in cluster.by}
        for c in table.column_names[len(cluster.by) :]:
            columns[c if c in once else f"{name}.{c}"] = taken[c]
    return pa.table(columns)
