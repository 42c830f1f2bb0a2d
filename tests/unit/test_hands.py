"""One thread or several for a batch's operators: what took less time is taken, and the other tried again."""

from __future__ import annotations

import pytest

from viewkeeper.maintain.hands import Hands


def taken(hands: Hands, seconds: dict[bool, float], batches: int, sort: str = "orders") -> list[bool]:
    """How batches of a thousand rows are run that take so long."""
    found = []
    for _ in range(batches):
        several = hands.several(sort)
        hands.learn(sort, several, 1_000, seconds[several])
        found.append(several)
    return found


@pytest.mark.parametrize("better", [True, False])
def test_the_better_way_is_taken_after_both_were_tried(better: bool) -> None:
    hands = Hands()
    found = taken(hands, {better: 0.2, not better: 0.25}, 34)
    assert found[:3] == [True, True, False]
    assert found[3:].count(not better) == 2  # now and then, in case the machine is another
    assert taken(hands, {better: 0.3, not better: 0.25}, 64)[-8:].count(not better) >= 7


def test_a_way_that_is_much_slower_is_seldom_tried_again() -> None:
    assert taken(Hands(), {True: 1.0, False: 0.2}, 60)[3:].count(True) == 0


def test_batches_of_another_sort_are_measured_by_themselves() -> None:
    hands = Hands()
    taken(hands, {True: 1.0, False: 0.2}, 5)
    assert taken(hands, {True: 0.2, False: 1.0}, 5, "lines") == [True, True, False, True, True]
    assert not hands.several("orders")


def test_sorts_that_were_not_seen_for_long_are_forgotten() -> None:
    hands = Hands()
    taken(hands, {True: 1.0, False: 0.2}, 5)
    for number in range(100):
        taken(hands, {True: 0.2, False: 1.0}, 1, f"other {number}")
    assert hands.several("orders")
    assert len(hands._sorts) <= 64
