"""When a batch changes most rows, making the views anew is cheaper than maintaining them.

Measured on TPC-H (docs/decisions): incremental time grows with the changed share of the rows and meets a rebuild's
between 0.7 and 1. Tables that were loaded after their views were made are beyond it by nature.
"""

from __future__ import annotations

from viewkeeper.plan.flow import Flow
from viewkeeper.store.base import Store

SHARE = 0.75
_FEW = 50_000


def rows_beyond(store: Store, flow: Flow, after: int, about: int) -> int | None:
    """The changed rows that wait, if they are so many that the views are better made anew; else None.

    `about`: how many wait in all tables. A store that cannot count its changes never says so.
    """
    if about < _FEW or not store.capabilities.before_images:
        return None
    tables = list(flow.used)
    waiting = store.pending(after, tables).rows
    if waiting < _FEW or waiting < SHARE * sum(store.count(flow.tables[t]) for t in tables):
        return None
    return waiting


def crossover_text(names: list[str]) -> str:
    """What EXPLAIN says of it."""
    return (
        f"rebuilt from the tables, not maintained, in a batch that changes {_FEW:,} rows or more and at least "
        f"{SHARE:.0%} of those of all tables that views use ({', '.join(names)})"
    )
