"""Rows of a table that recomputes of one batch share: taken once, and never those of other hashes or other runs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.kinds import Recompute
from viewkeeper.operators.segment import Segment
from viewkeeper.operators.table_slices import TableSlices
from viewkeeper.plan.logical.nodes import Named, column
from viewkeeper.state.hash_index import Hashes
from viewkeeper.state.run import Arrangement, Run, arrange


def operator(*names: str) -> Recompute:
    segment = Segment("source", (), tuple(Named(n, column(n, types.BIGINT)) for n in names), ("g",))
    return Recompute(((segment,),), ("lines",), "SELECT g, ¤h FROM input0", (Column("g", types.BIGINT),), "a test")


def run(*rows: tuple[int, int]) -> Run:
    """(group, value); a group is its own hash"""
    group, value = (pa.array([row[i] for row in rows], pa.int64()) for i in range(2))
    return arrange(pa.table({"g": group, "v": value, "¤h": group.cast(pa.uint64())}))


def reading(made: Recompute, *runs: Run) -> TableSlices:
    site: Any = SimpleNamespace(new=lambda slot: Arrangement(runs) if slot == "lines/0" else Arrangement())
    return TableSlices(site, made)


def hashes(*found: int) -> Hashes:
    return np.array(found, np.uint64)


def values(rows: pa.Table | None) -> Sequence[int]:
    return [] if rows is None else sorted(rows.column("v").to_pylist())


BOTH = operator("g", "v")


@pytest.fixture
def lines() -> tuple[Run, Run]:
    return run((1, 10), (2, 20), (3, 30)), run((2, 21), (4, 40))


def test_what_one_has_taken_another_need_not_seek(lines: tuple[Run, Run]) -> None:
    first, second = reading(BOTH, *lines), reading(operator("v", "g"), *lines)
    asked = hashes(1, 2, 4)
    rows = first.read_cached_slice("lines", asked)
    assert values(rows) == [10, 20, 21, 40]
    covered = second.find_covering_hashes(hashes(1, 4))
    assert covered is asked
    assert second.read_cached_slice("lines", covered) is rows


def test_hashes_that_were_not_taken_are_sought(lines: tuple[Run, Run]) -> None:
    first, second = reading(BOTH, *lines), reading(BOTH, *lines)
    first.read_cached_slice("lines", hashes(1, 2, 3))
    for other in (hashes(1, 4), hashes(2, 3, 4), hashes(7, 8)):
        assert second.find_covering_hashes(other) is None
    assert second.find_covering_hashes(hashes(3)) is None, "for one of three it is not worth it"
    assert values(second.read_cached_slice("lines", hashes(2, 4))) == [20, 21, 40]


def test_rows_of_other_runs_are_sought_again(lines: tuple[Run, Run]) -> None:
    """The newest run may lie upon others than before: as many, and of the same hashes."""
    asked = hashes(1, 2)
    assert values(reading(BOTH, *lines).read_cached_slice("lines", asked)) == [10, 20, 21]
    replaced = reading(BOTH, run((1, 11), (2, 22)), lines[1])
    assert replaced.find_covering_hashes(asked) is None
    assert values(replaced.read_cached_slice("lines", asked)) == [11, 21, 22]
    assert values(reading(BOTH, *lines, run((1, 12))).read_cached_slice("lines", asked)) == [10, 12, 20, 21]


def test_other_columns_are_taken_by_themselves(lines: tuple[Run, Run]) -> None:
    asked = hashes(1, 2)
    reading(operator("g"), *lines).read_cached_slice("lines", asked)
    other = reading(BOTH, *lines)
    assert other.find_covering_hashes(asked) is None
    assert values(other.read_cached_slice("lines", asked)) == [10, 20, 21]
