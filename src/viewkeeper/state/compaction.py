"""When runs become one: so often that a lookup meets few of them, and so seldom that rows are rarely rewritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.state.hash_index import Hashes
from viewkeeper.state.run import Run, concat_ordered_runs

MAX_RUNS = 5
_SIZE_RATIO = 3


def choose_merges(run_sizes: Sequence[int], limit: int = MAX_RUNS) -> int:
    """How many of the newest runs to merge into one now (0: none), given the sizes of all, oldest first.

    Nothing happens up to `limit` runs. Above it, the merge reaches back to the oldest run that is not much longer than
    all after it together, so a row is rewritten only when the run that it is in has grown by a factor: about 14
    times on its way into a run as long as 6,000 batches, and a long run is left alone until its successors measure up.
    """
    count = len(run_sizes)
    if count <= limit:
        return 0
    for i in range(count - 1):
        newer = sum(run_sizes[i + 1 :])
        if run_sizes[i] <= _SIZE_RATIO * newer:
            return count - i
    return 2


# Work on runs by ranges of their hashes: what is done for each hash by itself can be done range by range.
#
#     merge(r₁, r₂, …)  =  merge(r₁[a,b), r₂[a,b), …), merge(r₁[b,c), r₂[b,c), …), …
#
# The ranges are cut where a sample of all runs has so many rows, so each is about as long, whatever the hashes are and
# however a run was cut into pieces.


_PIECES_PER_RANGE = 4
"""Pieces that are one range's work."""


_SAMPLE_ROWS_PER_RANGE = 64
"""Rows of the sample for each range."""


def run_by_hash_ranges(runs: Sequence[Run], memory: MemoryBudget, work: Callable[[Sequence[Run]], Run]) -> Run:
    """`work` on the runs: at once if they are small, else by ranges, whose results are one run again."""
    size = sum(int(run.rows.nbytes) for run in runs)
    parts = -(-size // (_PIECES_PER_RANGE * memory.piece_bytes))
    if parts <= 1:
        return work(runs)
    step = max(1, sum(run.num_rows for run in runs) // (parts * _SAMPLE_ROWS_PER_RANGE))
    edges = _range_boundaries(np.sort(np.concatenate([run.hashes[::step] for run in runs])), parts)
    places = [np.concatenate([[0], np.searchsorted(run.hashes, edges, "left"), [run.num_rows]]) for run in runs]
    done = []
    for part in range(len(edges) + 1):
        within = [
            Run(r.rows.slice(int(p[part]), int(p[part + 1] - p[part]))) for r, p in zip(runs, places, strict=True)
        ]
        if any(run.num_rows for run in within):
            done.append(Run(memory.spill(work(within).rows)))
    return concat_ordered_runs(done, memory.spill) if done else work(runs)


def _range_boundaries(hashes: Hashes, parts: int) -> Hashes:
    """The hashes at which the ranges after the first begin."""
    return np.unique(hashes[len(hashes) * np.arange(1, parts) // parts])
