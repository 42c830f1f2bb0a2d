"""The table image as the memory of what rows were: before-images for stores that have none."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.keys import encode_keys
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.operators.arrangement import Arrangement
from viewkeeper.operators.duck import Duck
from viewkeeper.plan.dataflow import HASH, hash_sql


def taken_back(duck: Duck, image: Arrangement, table: Table, columns: Sequence[str], keys: pa.Table | None) -> pa.Table:
    """The delta that takes away what the image, arranged by the table's key, holds for these keys; None: all of it."""
    none = pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())]).empty_table()
    if keys is None:
        return _negated(image.rows(list(columns)), columns) if image.runs else none
    names = tuple(c.name for c in table.key_columns)
    hashes = duck.run(f"SELECT {hash_sql(names)} AS {HASH} FROM input", input=keys.select(list(names)))
    asked, rows = image.probe(hashes[HASH].to_numpy(), [*dict.fromkeys([*columns, *names])])
    if not len(asked):
        return none
    # Hashes collide: only rows with the very key count.
    same = pc.equal(encode_keys(table, rows), encode_keys(table, keys).take(pa.array(asked)))
    return _negated(rows.filter(same), columns)


def _negated(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    return rows.select(list(columns)).append_column(WEIGHT, pc.negate(rows[WEIGHT]))
