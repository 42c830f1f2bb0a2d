"""Who runs a batch's operators: what took less time is taken, and the others tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from viewkeeper.runtime.cost_model import ONE, PROCESSES, SEVERAL, Hands


def taken(hands: Hands, seconds: Mapping[str, float], batches: int, sort: str = "orders") -> list[str]:
    """How batches of a thousand rows are run that take so long each way."""
    found = []
    for _ in range(batches):
        way = hands.way(sort, list(seconds))
        hands.learn(sort, way, 1_000, seconds[way])
        found.append(way)
    return found


@pytest.mark.parametrize(("better", "worse"), [(SEVERAL, ONE), (ONE, SEVERAL)])
def test_the_better_way_is_taken_after_both_were_tried(better: str, worse: str) -> None:
    hands = Hands()
    times = {SEVERAL: 0.25, ONE: 0.25} | {better: 0.2}
    found = taken(hands, times, 37)
    assert found[:3] == [SEVERAL, SEVERAL, ONE]
    assert found[3:].count(worse) == 2  # now and then, in case the machine is another
    assert taken(hands, {SEVERAL: 0.25, ONE: 0.25} | {better: 0.3}, 64)[-8:].count(worse) >= 7


def test_of_three_ways_each_is_tried_and_the_best_taken() -> None:
    hands = Hands()
    found = taken(hands, {SEVERAL: 0.25, ONE: 0.22, PROCESSES: 0.2}, 40)
    assert found[:4] == [SEVERAL, SEVERAL, ONE, PROCESSES]
    assert Counter(found[4:]) == {SEVERAL: 3, ONE: 3, PROCESSES: 30}  # the others once more soon, then seldom


def test_a_way_that_was_slow_once_is_not_given_up() -> None:
    hands = Hands()
    taken(hands, {SEVERAL: 0.25, ONE: 0.27}, 3)
    hands.learn("orders", PROCESSES, 1_000, 0.33)
    found = taken(hands, {SEVERAL: 0.25, ONE: 0.27, PROCESSES: 0.18}, 8)
    assert found[-4:] == [PROCESSES] * 4


def test_a_way_that_comes_later_is_tried_when_it_is_there() -> None:
    hands = Hands()
    taken(hands, {SEVERAL: 0.25, ONE: 0.22}, 6)
    found = taken(hands, {SEVERAL: 0.25, ONE: 0.22, PROCESSES: 0.2}, 6)
    assert found == [PROCESSES] * 6
    assert hands.way("orders", [SEVERAL, ONE]) == ONE  # the processes are at something else


def test_a_way_that_is_much_slower_is_seldom_tried_again() -> None:
    assert taken(Hands(), {SEVERAL: 1.0, ONE: 0.2}, 60)[3:].count(SEVERAL) == 0


def test_batches_of_another_sort_are_measured_by_themselves() -> None:
    hands = Hands()
    taken(hands, {SEVERAL: 1.0, ONE: 0.2}, 5)
    assert taken(hands, {SEVERAL: 0.2, ONE: 1.0}, 5, "lines") == [SEVERAL, SEVERAL, ONE, SEVERAL, SEVERAL]
    assert hands.way("orders", [SEVERAL, ONE]) == ONE
    assert (hands.seen("orders"), hands.seen("lines"), hands.seen("parts")) == (5, 5, 0)


def test_sorts_that_were_not_seen_for_long_are_forgotten() -> None:
    hands = Hands()
    taken(hands, {SEVERAL: 1.0, ONE: 0.2}, 5)
    for number in range(100):
        taken(hands, {SEVERAL: 0.2, ONE: 1.0}, 1, f"other {number}")
    assert hands.way("orders", [SEVERAL, ONE]) == SEVERAL
    assert len(hands._sorts) <= 64
