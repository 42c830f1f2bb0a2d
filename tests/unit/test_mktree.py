"""The MK tree: exact, and as few elements as adjacency by a known step allows."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.capture.changed_key_ranges import MKTree, key_step
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.model.types import parse_type as type_of


def table(*types: str, **options: str) -> Table:
    columns = tuple(Column(f"k{i}", type_of(t), False) for i, t in enumerate(types))
    return Table(1, "t", columns, tuple(KeyPart(c.name) for c in columns), options=tuple(options.items()))


def keys(of: Table, values: list[Any]) -> pa.Table:
    rows = [v if isinstance(v, tuple) else (v,) for v in values]
    return pa.table([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(of.arrow)], names=of.arrow.names)


def test_adjacent_keys_become_one_range() -> None:
    numbers = table("bigint")
    tree = MKTree.for_table(numbers)
    tree.insert(keys(numbers, [9, 3, 5, 27, 10, 4]))
    assert len(tree) == 3
    assert tree.key_count == 6
    assert len(list(tree.ranges())) == 2
    assert tree.single_keys()["k0"].to_pylist() == [27]


def test_a_tree_shrinks_when_the_gaps_are_filled() -> None:
    numbers = table("int")
    tree = MKTree.for_table(numbers)
    tree.insert(keys(numbers, list(range(0, 100, 2))))
    assert len(tree) == 50
    tree.insert(keys(numbers, list(range(1, 100, 2))))
    assert len(tree) == 1
    assert tree.key_count == 100


def test_dates_are_adjacent_by_days() -> None:
    days = table("date")
    tree = MKTree.for_table(days)
    tree.insert(keys(days, [datetime.date(2024, 2, 28), datetime.date(2024, 2, 29), datetime.date(2024, 3, 1)]))
    assert len(tree) == 1
    assert (datetime.date(2024, 2, 29),) in tree
    assert (datetime.date(2024, 3, 2),) not in tree


def test_keys_without_a_known_neighbour_are_kept_one_by_one() -> None:
    for types, values in ((("string",), ["a", "b", "a"]), (("bigint", "bigint"), [(1, 1), (1, 2), (1, 1)])):
        of = table(*types)
        assert key_step(of) is None
        tree = MKTree.for_table(of)
        tree.insert(keys(of, values))
        tree.insert(keys(of, values[:1]))
        assert len(tree) == tree.key_count == 2
        assert list(tree.ranges()) == []
        assert (values[1] if isinstance(values[1], tuple) else (values[1],)) in tree


@pytest.mark.parametrize("step", [1, 3])
@given(
    batches=st.lists(st.lists(st.integers(-60, 60) | st.sampled_from([2**63 - 1, -(2**63)]), max_size=12), max_size=5)
)
def test_it_stands_for_exactly_the_keys_that_were_inserted(step: int, batches: list[list[int]]) -> None:
    of = table("bigint", key_step=str(step))
    tree = MKTree.for_table(of)
    inserted: set[int] = set()
    for batch in batches:
        tree.insert(keys(of, batch))
        inserted |= set(batch)
    assert sorted(tree.all_keys()["k0"].to_pylist()) == sorted(inserted)
    assert tree.key_count == len(inserted)
    assert all(((n,) in tree) == (n in inserted) for n in range(-61, 62))
    elements = sum(n - step not in inserted for n in inserted)
    assert len(tree) == elements
