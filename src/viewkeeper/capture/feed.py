"""What happened to a base table between two cuts, as one delta.

A store with before-images says it. One without gives the keys that were touched and their rows at the later cut; the
rows at the earlier cut are in the table image, which is exactly what the views were made from. So

    Δ = rows now − image rows of the same keys

holds whatever the store told twice, late, or in vain: a row that equals the known one falls out when the delta is
consolidated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import Table
from viewkeeper.store.base import Seen, Store


def table_changes(
    store: Store,
    table: Table,
    columns: Sequence[str],
    after: int,
    upto: int,
    known: Callable[[pa.Table | None], pa.Table],
    seen: Seen | None,
) -> tuple[pa.Table, Seen]:
    """The delta of (after, upto] over `columns`, not consolidated, and what was seen of the table up to there.

    `known` gives what takes the image's rows of some keys away (None: all rows). `seen`: what was, up to `after`.
    """
    if store.capabilities.before_images:
        return store.changes(table, columns, after, upto), Seen()
    changed, seen = store.changed(table, columns, after, upto, seen)
    now = weighted(changed.rows.select(list(columns)), 1)
    if changed.keys is not None and not changed.keys.num_rows:
        return now, seen
    return pa.concat_tables([now, known(changed.keys).cast(now.schema)]).combine_chunks(), seen
