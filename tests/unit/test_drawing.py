"""Where the boxes of a plan's picture lie."""

from __future__ import annotations

import re

from viewkeeper.explain.diagram import Diagram, DiagramBox, DiagramEdge
from viewkeeper.explain.render import to_svg


def places(picture: Diagram) -> dict[int, tuple[int, int]]:
    found = re.findall(r'<title>#(\d+) [^<]*</title><rect x="(\d+)" y="(\d+)"', to_svg(picture))
    return {int(number): (int(x), int(y)) for number, x, y in found}


def shop(lookup: int, aggregate: int) -> Diagram:
    """Orders and items, their lookups in one round or the next."""
    boxes = (
        DiagramBox(1, "input", "Δ orders", (), 0, "orders"),
        DiagramBox(2, "input", "Δ items", (), 0, "items"),
        DiagramBox(3, "table_image", "image of items", (), 1, "items"),
        DiagramBox(4, "lookup", "look up items", (), lookup, "items", reads=3),
        DiagramBox(5, "lookup", "look up shops", (), lookup, "shops"),
        DiagramBox(6, "aggregate", "aggregate", (), aggregate),
        DiagramBox(7, "sink", "view v", (), aggregate, "v"),
    )
    links = (DiagramEdge(1, 4), DiagramEdge(4, 5), DiagramEdge(2, 3), DiagramEdge(5, 6), DiagramEdge(6, 7))
    return Diagram("v", ("id",), True, aggregate + 1, boxes, links)


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
