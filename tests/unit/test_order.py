"""The order of encoded keys, against sorting them as bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.model.encoding import key_order as encoding_key_order
from viewkeeper.model.encoding.key_order import has_no_duplicates_fast, key_order, last_occurrences

FEW = st.one_of(
    st.lists(st.binary(min_size=3, max_size=3), max_size=30),  # of one length
    st.lists(st.binary(min_size=8, max_size=8), max_size=30),  # whose numbers leave no room for a place
    st.lists(st.binary(max_size=4), max_size=30),  # of several
    st.lists(st.binary(min_size=2, max_size=2).map(lambda tail: b"\x01" * 15 + tail), max_size=30),  # alike but for two
    st.lists(st.binary(min_size=20, max_size=20), max_size=30),  # that differ in more bytes than a number has
    st.lists(st.sampled_from([b"", b"\x00", b"a"]), max_size=6),
)


@given(FEW)
@pytest.mark.parametrize("few", [0, 64])
def test_keys_are_ordered_as_bytes_are(few: int, keys: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding_key_order, "_MAX_PYTHON_SORT", few)
        # A slice: what lies before it in the buffer is none of its keys.
        array = pa.array([b"before", *keys], pa.binary())[1:]
        found = key_order(array)
        ascending = all(a < b for a, b in itertools.pairwise(keys))
        assert (found is None) == ascending
        if found is not None:
            assert sorted(found.tolist()) == list(range(len(keys)))
            assert [keys[place] for place in found] == sorted(keys)


@given(FEW)
@pytest.mark.parametrize("few", [0, 64])
def test_the_last_of_each_key_stays(few: int, keys: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding_key_order, "_MAX_PYTHON_SORT", few)
        found = last_occurrences(pa.array(keys, pa.binary()))
        last = sorted({key: place for place, key in enumerate(keys)}.values())
        assert last == (list(range(len(keys))) if found is None else found.tolist())
        assert (found is None) == (len(last) == len(keys))


@given(FEW)
@pytest.mark.parametrize("few", [0, 64])
def test_keys_that_are_said_to_be_different_are(few: int, keys: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding_key_order, "_MAX_PYTHON_SORT", few)
        array = pa.array([b"before", *keys], pa.binary())[1:]
        found = has_no_duplicates_fast(array)
        assert array.to_pylist() == keys
        assert not found or len(set(keys)) == len(keys)


@pytest.mark.parametrize("twice", [False, True])
def test_of_many_numbers_it_is_seen_whether_they_surely_different(twice: bool) -> None:
    numbers = np.random.default_rng(2).permutation(5_000).tolist()
    keys = [b"\x01" + int(n).to_bytes(8, "big") for n in [*numbers, *numbers[:twice]]]
    assert has_no_duplicates_fast(pa.array(keys, pa.binary())) is not twice


def test_many_keys_of_two_columns_are_ordered_as_bytes_are() -> None:
    chance = np.random.default_rng(1)
    keys = [b"\x01" + int(n).to_bytes(8, "big") + b"\x01" + bytes([n % 7]) for n in chance.integers(0, 1 << 40, 5_000)]
    found = key_order(pa.array(keys, pa.binary()))
    assert found is not None
    assert [keys[place] for place in found] == sorted(keys)
