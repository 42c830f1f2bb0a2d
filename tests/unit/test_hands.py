"""Who runs a batch's operators: what took less time is taken, and the others tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from viewkeeper.runtime.cost_model import ONE_THREAD, SEVERAL_PROCESSES, SEVERAL_THREADS, SchedulerCostModel


def taken(hands: SchedulerCostModel, seconds: Mapping[str, float], batches: int, sort: str = "orders") -> list[str]:
    """How batches of a thousand rows are run that take so long each way."""
    found = []
    for _ in range(batches):
        way = hands.choose(sort, list(seconds))
        hands.observe(sort, way, 1_000, seconds[way])
        found.append(way)
    return found


@pytest.mark.parametrize(("better", "worse"), [(SEVERAL_THREADS, ONE_THREAD), (ONE_THREAD, SEVERAL_THREADS)])
def test_the_better_way_is_taken_after_both_were_tried(better: str, worse: str) -> None:
    hands = SchedulerCostModel()
    times = {SEVERAL_THREADS: 0.25, ONE_THREAD: 0.25} | {better: 0.2}
    found = taken(hands, times, 37)
    assert found[:3] == [SEVERAL_THREADS, SEVERAL_THREADS, ONE_THREAD]
    assert found[3:].count(worse) == 2  # now and then, in case the machine is another
    assert taken(hands, {SEVERAL_THREADS: 0.25, ONE_THREAD: 0.25} | {better: 0.3}, 64)[-8:].count(worse) >= 7


def test_of_three_ways_each_is_tried_and_the_best_taken() -> None:
    hands = SchedulerCostModel()
    found = taken(hands, {SEVERAL_THREADS: 0.25, ONE_THREAD: 0.22, SEVERAL_PROCESSES: 0.2}, 40)
    assert found[:4] == [SEVERAL_THREADS, SEVERAL_THREADS, ONE_THREAD, SEVERAL_PROCESSES]
    assert Counter(found[4:]) == {
        SEVERAL_THREADS: 3,
        ONE_THREAD: 3,
        SEVERAL_PROCESSES: 30,
    }  # the others once more soon, then seldom


def test_a_way_that_was_slow_once_is_not_given_up() -> None:
    hands = SchedulerCostModel()
    taken(hands, {SEVERAL_THREADS: 0.25, ONE_THREAD: 0.27}, 3)
    hands.observe("orders", SEVERAL_PROCESSES, 1_000, 0.33)
    found = taken(hands, {SEVERAL_THREADS: 0.25, ONE_THREAD: 0.27, SEVERAL_PROCESSES: 0.18}, 8)
    assert found[-4:] == [SEVERAL_PROCESSES] * 4


def test_a_way_that_comes_later_is_tried_when_it_is_there() -> None:
    hands = SchedulerCostModel()
    taken(hands, {SEVERAL_THREADS: 0.25, ONE_THREAD: 0.22}, 6)
    found = taken(hands, {SEVERAL_THREADS: 0.25, ONE_THREAD: 0.22, SEVERAL_PROCESSES: 0.2}, 6)
    assert found == [SEVERAL_PROCESSES] * 6
    assert hands.choose("orders", [SEVERAL_THREADS, ONE_THREAD]) == ONE_THREAD  # the processes are at something else


def test_a_way_that_is_much_slower_is_seldom_tried_again() -> None:
    assert taken(SchedulerCostModel(), {SEVERAL_THREADS: 1.0, ONE_THREAD: 0.2}, 60)[3:].count(SEVERAL_THREADS) == 0


def test_batches_of_another_sort_are_measured_by_themselves() -> None:
    hands = SchedulerCostModel()
    taken(hands, {SEVERAL_THREADS: 1.0, ONE_THREAD: 0.2}, 5)
    assert taken(hands, {SEVERAL_THREADS: 0.2, ONE_THREAD: 1.0}, 5, "lines") == [
        SEVERAL_THREADS,
        SEVERAL_THREADS,
        ONE_THREAD,
        SEVERAL_THREADS,
        SEVERAL_THREADS,
    ]
    assert hands.choose("orders", [SEVERAL_THREADS, ONE_THREAD]) == ONE_THREAD
    assert (hands.batch_count("orders"), hands.batch_count("lines"), hands.batch_count("parts")) == (5, 5, 0)


def test_sorts_that_were_not_seen_for_long_are_forgotten() -> None:
    hands = SchedulerCostModel()
    taken(hands, {SEVERAL_THREADS: 1.0, ONE_THREAD: 0.2}, 5)
    for number in range(100):
        taken(hands, {SEVERAL_THREADS: 0.2, ONE_THREAD: 1.0}, 1, f"other {number}")
    assert hands.choose("orders", [SEVERAL_THREADS, ONE_THREAD]) == SEVERAL_THREADS
    assert len(hands._workloads) <= 64
