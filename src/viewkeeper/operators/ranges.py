"""Work on runs by ranges of their hashes: what is done for each hash by itself can be done range by range.

    merge(r₁, r₂, …)  =  merge(r₁[a,b), r₂[a,b), …), merge(r₁[b,c), r₂[b,c), …), …

The ranges are cut where a sample of all runs has so many rows, so each is about as long, whatever the hashes are and
however a run was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from viewkeeper.operators.arrangement import Run, succession
from viewkeeper.operators.finding import Hashes
from viewkeeper.store.memory import Memory

_PIECES = 4
"""Pieces that are one range's work."""


_SAMPLED = 64
"""Rows of the sample for each range."""


def in_ranges(runs: Sequence[Run], memory: Memory, work: Callable[[Sequence[Run]], Run]) -> Run:
    """`work` on the runs: at once if they are small, else by ranges, whose results are one run again."""
    size = sum(int(run.rows.nbytes) for run in runs)
    parts = -(-size // (_PIECES * memory.piece))
    if parts <= 1:
        return work(runs)
    step = max(1, sum(run.num_rows for run in runs) // (parts * _SAMPLED))
    edges = _edges(np.sort(np.concatenate([run.hashes[::step] for run in runs])), parts)
    places = [np.concatenate([[0], np.searchsorted(run.hashes, edges, "left"), [run.num_rows]]) for run in runs]
    done = []
    for part in range(len(edges) + 1):
        within = [
            Run(r.rows.slice(int(p[part]), int(p[part + 1] - p[part]))) for r, p in zip(runs, places, strict=True)
        ]
        if any(run.num_rows for run in within):
            done.append(Run(memory.aside(work(within).rows)))
    return succession(done, memory.aside) if done else work(runs)


def _edges(hashes: Hashes, parts: int) -> Hashes:
    """The hashes at which the ranges after the first begin."""
    return np.unique(hashes[len(hashes) * np.arange(1, parts) // parts])
