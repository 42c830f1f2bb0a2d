"""Where the boxes of a plan's picture lie."""

from __future__ import annotations

import re

from viewkeeper.explain.diagram import Box, Link, Picture
from viewkeeper.explain.render import to_svg


def places(picture: Picture) -> dict[int, tuple[int, int]]:
    found = re.findall(r'<title>#(\d+) [^<]*</title><rect x="(\d+)" y="(\d+)"', to_svg(picture))
    return {int(number): (int(x), int(y)) for number, x, y in found}


def shop(lookup: int, aggregate: int) -> Picture:
    """Orders and items, their lookups in one round or the next."""
    boxes = (
        Box(1, "input", "Δ orders", (), 0, "orders"),
        Box(2, "input", "Δ items", (), 0, "items"),
        Box(3, "image", "image of items", (), 1, "items"),
        Box(4, "lookup", "look up items", (), lookup, "items", reads=3),
        Box(5, "lookup", "look up shops", (), lookup, "shops"),
        Box(6, "aggregate", "aggregate", (), aggregate),
        Box(7, "sink", "view v", (), aggregate, "v"),
    )
    links = (Link(1, 4), Link(4, 5), Link(2, 3), Link(5, 6), Link(6, 7))
    return Picture("v", ("id",), True, aggregate + 1, boxes, links)


def test_deltas_go_from_left_to_right_within_a_round_too() -> None:
    for picture in (shop(0, 1), shop(1, 2)):
        at = places(picture)
        assert at[1][0] < at[4][0] < at[5][0] < at[6][0]
        assert at[1][1] == at[4][1] == at[5][1]
        assert at[7][0] == at[6][0]  # a view lies below what it is made of
        assert at[7][1] > at[6][1]
        assert to_svg(picture).count(">round ") == picture.rounds


def test_state_lies_below_the_path_of_its_lane() -> None:
    at = places(shop(0, 1))
    assert at[3][1] > at[2][1]
    assert at[3][0] > at[5][0]  # its round begins when the one before is over
