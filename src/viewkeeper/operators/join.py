"""The join's one step: `Δ(R₁⋈…⋈Rₙ) = Σᵢ R₁ⁿᵉʷ⋈…⋈ΔRᵢ⋈…⋈Rₙᵒˡᵈ`, and each ⋈ is a lookup of the delta's keys.

Weights multiply. Rows meet by hash only; the segment that follows compares the real keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.arrangement import Arrangement, hashes_of
from viewkeeper.plan.dataflow import HASH


def lookup(probe: pa.Table, arrangement: Arrangement, columns: Sequence[str], most: int) -> Iterator[pa.Table]:
    """Each probe row with each row of the same hash: the probe's columns, the arrangement's `columns`, and `_w`.

    At most so many rows at a time: what follows is linear, so it does with each piece what it would do with the sum.
    """
    kept = [name for name in probe.column_names if name not in (HASH, WEIGHT)]
    for asked, rows in arrangement.probed(hashes_of(probe), columns, most):
        left = probe.select([*kept, WEIGHT]).take(pa.array(asked))
        weight = pc.multiply_checked(left.column(WEIGHT), rows.column(WEIGHT))
        yield pa.table(
            [*(left.column(c) for c in kept), *(rows.column(c) for c in columns), weight],
            names=[*kept, *columns, WEIGHT],
        )
