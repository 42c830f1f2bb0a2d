"""Which rows of a run meet conditions.

Worked out for the rows that are asked for, and kept for all of them once as many were asked for as that would cost: a
run never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from viewkeeper.expressions.backends.vector_predicates import Comparison, all_hold, columns_of, spelt
from viewkeeper.model.int128 import Flags
from viewkeeper.state.hash_index import Places
from viewkeeper.state.run import Run

_ROWS_FOR_ALL = 4
"""What all rows say is worked out when one for so many was asked for: they lie side by side, and nothing is taken."""
_MOST_ROWS = 1 << 24
"""Of a run whose answers are kept: a byte each."""


@dataclass
class _Memory:
    """The answers of all rows, if they were worked out, and for how many rows was asked before."""

    asked: int = 0
    flags: Flags | None = None


def meeting(conditions: Sequence[Comparison], run: Run, places: Places) -> Flags:
    """Whether the rows at these places meet all of the conditions, which are of columns and constants."""
    memory = run.kept.setdefault(f"meeting {[spelt(c) for c in conditions]}", _Memory())
    columns = sorted(frozenset().union(*map(columns_of, conditions)))
    if memory.flags is None:
        memory.asked += len(places)
        if run.num_rows > min(memory.asked * _ROWS_FOR_ALL, _MOST_ROWS):
            return all_hold(conditions, run.rows.select(columns).take(pa.array(places)))
        memory.flags = all_hold(conditions, run.rows.select(columns))
        run.forget_oldest()
    found: Flags = memory.flags[places]
    return found
