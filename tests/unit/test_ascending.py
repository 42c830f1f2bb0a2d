"""The order of hashes, against numpy's own stable sort."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.model.names import HASH
from viewkeeper.state.hash_index import radix_argsort
from viewkeeper.state.run import distinct_hashes

SPREADS = {
    "spread": lambda random, count: random.integers(0, 2**64, count, np.uint64),
    "repeated": lambda random, count: random.integers(0, 2**64, max(1, count // 3), np.uint64)[
        random.integers(0, max(1, count // 3), count)
    ],
    "alike in their top bits": lambda random, count: random.integers(0, 2**16, count, np.uint64),
    "ends": lambda random, count: random.choice(np.array([0, 2**64 - 1], np.uint64), count),
    "stretches": lambda random, count: np.concatenate(
        [np.sort(part) for part in np.array_split(random.integers(0, 2**64, count, np.uint64), 5)]
    ),
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("count", [0, 1, 2, 511, 512, 5_000])
def test_the_order_is_stable_and_ascends(spread: str, count: int) -> None:
    hashes = SPREADS[spread](np.random.default_rng(count), count)
    assert radix_argsort(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


@given(st.lists(st.lists(st.integers(0, 5).map(lambda n: n << 60), max_size=5), max_size=3))
def test_hashes_that_occur(tables: list[list[int]]) -> None:
    found = distinct_hashes(*(pa.table({HASH: pa.array(hashes, pa.uint64())}) for hashes in tables))
    assert found.dtype == np.uint64
    assert found.tolist() == sorted({h for hashes in tables for h in hashes})
