"""The batch record of an ordered store: what is read is what was written, in however many parts it lies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.errors import CorruptState
from viewkeeper.store.contract.commits import Batch
from viewkeeper.store.ordered import batch_record, metadata


class Meta:
    """A map in memory, and the bytes that were put."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.put_bytes = 0

    def get(self, name: bytes) -> bytes | None:
        return self.kept.get(name)

    def put(self, name: bytes, value: bytes) -> None:
        self.kept[name] = value
        self.put_bytes += len(value)


def batch(number: int, runs: dict[str, Any]) -> Batch:
    return Batch(number, 10 * number, {"manifest": {"fingerprint": "f", "runs": runs}, "time": 1.5})


def publish(
    meta: Any, number: int, runs: dict[str, Any], basis: batch_record.RunBasis | None
) -> batch_record.RunBasis | None:
    made = batch_record.encode_batch(batch(number, json.loads(json.dumps(runs))), basis)
    made.put(meta)
    return made.basis


CHANGES = st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.none() | st.integers(0, 3), max_size=8), max_size=12)


@given(CHANGES, st.sets(st.integers(0, 11)))
def test_what_is_read_is_what_was_written(changes: list[dict[str, int | None]], forgotten: set[int]) -> None:
    """`forgotten`: batches of another process, which knows no basis."""
    meta: Any = Meta()
    runs: dict[str, Any] = {}
    basis = None
    for number, changed in enumerate(changes):
        runs = {s: r for s, r in (runs | {s: n if n is None else [[s, n]] for s, n in changed.items()}).items() if r}
        basis = publish(meta, number + 1, runs, None if number in forgotten else basis)
        assert batch_record.read_batch(meta) == batch(number + 1, runs)
        assert metadata.read_counter(meta, metadata.BATCH_NUMBER) == number + 1


def test_a_batch_writes_what_it_changes() -> None:
    meta: Any = Meta()
    runs = {f"slot-{i}/0": [[f"slot-{i}/0", "b1.vkr", 0, 100, 5, 0, 2**64 - 1, 7]] for i in range(1000)}
    basis = publish(meta, 1, runs, None)
    whole, meta.put_bytes = meta.put_bytes, 0
    publish(meta, 2, runs | {"slot-3/0": []}, basis)
    assert meta.put_bytes < whole / 100


def test_a_record_of_version_0_1_has_all_its_runs() -> None:
    meta: Any = Meta()
    old = batch(4, {"a/0": [["a/0", "b1.vkr", 0, 1, 1, 0, 1, 1]]})
    meta.put(b"batch", metadata.encode_record({"number": old.number, "cut": old.cut, "record": old.record}))
    assert batch_record.read_batch(meta) == old


@pytest.mark.parametrize("damage", ["gone", "another", "flipped"])
def test_a_basis_that_is_not_the_batchs_is_damage(damage: str) -> None:
    meta: Any = Meta()
    basis = publish(meta, 1, {"a/0": [[1]], "b/0": [[2]]}, None)
    publish(meta, 2, {"a/0": [[1]], "b/0": [[2]]}, basis)
    if damage == "gone":
        del meta.kept[b"batch_basis"]
    elif damage == "another":
        meta.put(b"batch_basis", metadata.encode_record({"number": 2, "runs": {}}))
    else:
        meta.kept[b"batch_basis"] = meta.kept[b"batch_basis"][:-1] + b"!"
    with pytest.raises(CorruptState):
        batch_record.read_batch(meta)
