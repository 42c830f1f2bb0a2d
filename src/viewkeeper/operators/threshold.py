"""A threshold that moves: only rows between its old and its new value change sides.

    Σᵢ wᵢ·[v op sᵢ] = 0   for every v beyond all the sᵢ, if Σ wᵢ = 0

because there all comparisons say the same. So for the changes (sᵢ, wᵢ) of a scalar, with its old and its new value, the
rows that lie between them are enough; if it was or becomes NULL, or comes or goes, those on the side where the
comparison holds are. The rows lie in the order of v (`segments`); the segment that follows compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.arrangement import Arrangement, hashes_of, weights_of

_SLACK = 2
"""Places by which rounding may be wrong."""

_LAST = 2**64 - 1


def lookup(
    probe: pa.Table, value: str, arrangement: Arrangement, columns: Sequence[str], reach: str, most: int
) -> Iterator[pa.Table]:
    """Each change of the scalar (its `value`) with each row whose comparison it may change, as in `join.lookup`."""
    probe = probe.filter(pc.is_valid(probe[value]))  # compared with NULL nothing holds
    low, high = _between(probe, reach)
    kept = [name for name in probe.column_names if name not in (HASH, WEIGHT)]
    step = max(1, most // max(1, int(probe.num_rows)))
    for run in arrangement.runs:
        start, stop = np.searchsorted(run.hashes, low, "left"), np.searchsorted(run.hashes, high, "right")
        for first in range(int(start), int(stop), step):
            rows = run.take(np.arange(first, min(first + step, int(stop))), columns)
            left = probe.select([*kept, WEIGHT]).take(pa.array(np.repeat(np.arange(probe.num_rows), rows.num_rows)))
            right = rows.take(pa.array(np.tile(np.arange(rows.num_rows), probe.num_rows)))
            weight = pc.multiply_checked(left[WEIGHT], right[WEIGHT])
            columned = [*(left[c] for c in kept), *(right[c] for c in columns), weight]
            yield pa.table(columned, names=[*kept, *columns, WEIGHT])


def _between(probe: pa.Table, reach: str) -> tuple[np.uint64, np.uint64]:
    if not probe.num_rows:
        return np.uint64(1), np.uint64(0)
    places = hashes_of(probe)
    low, high = int(places.min()) - _SLACK, int(places.max()) + _SLACK
    if int(weights_of(probe).sum()) != 0:
        low, high = (low, _LAST) if reach == "above" else (0, high)
    return np.uint64(low), np.uint64(high)
