"""When runs become one: so often that a lookup meets few of them, and so seldom that rows are rarely rewritten."""

from __future__ import annotations

from collections.abc import Sequence

RUNS_KEPT = 5
_RATIO = 3


def choose_merges(run_sizes: Sequence[int], limit: int = RUNS_KEPT) -> int:
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
        if run_sizes[i] <= _RATIO * newer:
            return count - i
    return 2
