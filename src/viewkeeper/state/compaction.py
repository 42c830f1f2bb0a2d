"""Compaction policy: when runs are merged, and how large runs are merged in bounded memory.

A policy that merges often keeps the number of runs per lookup small; a policy that merges rarely keeps write
amplification small. `choose_merges` bounds both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.state.hash_index import Hashes
from viewkeeper.state.run import Run, concat_ordered_runs

MAX_RUNS = 5
_SIZE_RATIO = 3


def choose_merges(run_sizes: Sequence[int], limit: int = MAX_RUNS) -> int:
    """Return how many of the newest runs to merge now (0: none), given the sizes of all runs, oldest first.

    Up to `limit` runs, nothing is merged. Above the limit, the merge reaches back to the oldest run that is at most
    `_SIZE_RATIO` times as long as all newer runs together. So a row is rewritten only when its run has grown by a
    factor: about 14 times until it is in a run as long as 6,000 batches. A long run is not rewritten until the newer
    runs together are of comparable size.
    """
    count = len(run_sizes)
    if count <= limit:
        return 0
    for i in range(count - 1):
        newer = sum(run_sizes[i + 1 :])
        if run_sizes[i] <= _SIZE_RATIO * newer:
            return count - i
    return 2


# Work that treats each hash separately can be done one hash range at a time:
#
#     merge(r₁, r₂, …)  =  merge(r₁[a,b), r₂[a,b), …), merge(r₁[b,c), r₂[b,c), …), …
#
# The range boundaries are quantiles of a sample of all runs' hashes, so all ranges have about the same length, whatever
# the distribution of the hashes and however a run was split into pieces.


_PIECES_PER_RANGE = 4
"""Memory pieces (`MemoryBudget.piece_bytes`) that one range holds."""


_SAMPLE_ROWS_PER_RANGE = 64
"""Rows sampled per range."""


def run_by_hash_ranges(runs: Sequence[Run], memory: MemoryBudget, work: Callable[[Sequence[Run]], Run]) -> Run:
    """Apply `work` to the runs: at once if they are small, else range by range, concatenating the results to one
    run."""
    size = sum(int(run.rows.nbytes) for run in runs)
    range_count = -(-size // (_PIECES_PER_RANGE * memory.piece_bytes))
    if range_count <= 1:
        return work(runs)
    step = max(1, sum(run.num_rows for run in runs) // (range_count * _SAMPLE_ROWS_PER_RANGE))
    edges = _range_boundaries(np.sort(np.concatenate([run.hashes[::step] for run in runs])), range_count)
    boundaries = [np.concatenate([[0], np.searchsorted(run.hashes, edges, "left"), [run.num_rows]]) for run in runs]
    results = []
    for i in range(len(edges) + 1):
        slices = [Run(r.rows.slice(int(p[i]), int(p[i + 1] - p[i]))) for r, p in zip(runs, boundaries, strict=True)]
        if any(run.num_rows for run in slices):
            results.append(Run(memory.spill(work(slices).rows)))
    return concat_ordered_runs(results, memory.spill) if results else work(runs)


def _range_boundaries(hashes: Hashes, parts: int) -> Hashes:
    """Return the first hash of every range but the first one."""
    return np.unique(hashes[len(hashes) * np.arange(1, parts) // parts])
