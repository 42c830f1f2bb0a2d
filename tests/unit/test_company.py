"""How a flow is divided among processes: again, when one waits for another."""

from __future__ import annotations

import pytest

from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.runtime.processes.scheduler import _fastest_times, _WorkloadPlan


@pytest.mark.parametrize(
    ("took", "uneven"),
    [
        ([], False),
        ([(1.0, 2.0)] * 7, False),  # too few to say
        ([(1.0, 2.0)] * 8, True),
        ([(1.0, 1.3)] * 8, False),
        ([(1.0, 1.1, 0.5)] * 8, True),
        ([(1.0, 1.1)] * 5 + [(1.0, 9.0)] * 3, False),  # now and then something else takes the processor
    ],
)
def test_parts_are_uneven_if_one_takes_longer_most_of_the_time(took: list[tuple[float, ...]], uneven: bool) -> None:
    assert _WorkloadPlan(Dataflow(), partition_times=took).is_imbalanced is uneven


def test_an_operator_takes_what_it_took_when_nothing_was_in_its_way() -> None:
    assert _fastest_times([{"a": 0.3, "b": 0.1}, {"a": 0.2, "c": 0.4}]) == {"a": 0.2, "b": 0.1, "c": 0.4}
