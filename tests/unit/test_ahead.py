"""Items that a thread makes ready while those before them are used."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from viewkeeper.store.ahead import ahead


def test_the_next_item_is_made_while_the_one_before_is_used() -> None:
    made = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    seen = []
    for number in ahead(items()):
        if number + 1 < len(made):
            assert made[number + 1].wait(30)
        seen.append(number)
    assert seen == [0, 1, 2]


def test_an_item_that_fails_fails_in_its_turn() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the second")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="the second"):
        next(found)


def test_who_stops_early_leaves_no_thread() -> None:
    found = ahead(iter(range(1000)))
    assert next(found) == 0
    found.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("viewkeeper-ahead")]
