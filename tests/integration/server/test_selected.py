"""Rows by where=, columns= and order_by= over HTTP: what an open database gives, in pages of one state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import httpx
import pytest
from tests.integration.server.conftest import Running

import viewkeeper as vk
from viewkeeper.client import protocol
from viewkeeper.errors import BadStatement, BadValue, UnknownName, Unsupported

ASKED: list[dict[str, Any]] = [
    {"where": "price >= 10 AND category = 'c1'"},
    {"where": {"category": ["c1", "c2"]}, "columns": ["price", "item_id"]},
    {"where": {"item_id": 7}},
    {"where": {"category": None}},
    {"where": {"category": ["c1", None]}},
    {"columns": ["category"]},
    {"order_by": ["category DESC", "price"]},
    {"order_by": "price DESC", "limit": 3},
    {"where": "price > 4", "order_by": "category", "columns": ["item_id"], "limit": 7},
    {"start": 3, "stop": 16, "where": "category <> 'c0'", "limit": 5},
    {"where": "price < 0"},
    {"limit": 0, "columns": ["price"]},
]
DAYS = "CREATE TABLE days (day DATE, cost DECIMAL(20,2), raw BINARY, x DOUBLE, at TIMESTAMP, PRIMARY KEY (day, cost))"


@pytest.fixture(scope="module")
def far(shared: Running) -> Iterator[Any]:
    with vk.connect(shared.address) as client:
        yield client


@pytest.fixture(params=[2, protocol.PAGE_ROWS], ids=["small pages", "one page"])
def pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PAGE_ROWS", request.param)


@pytest.mark.parametrize("given", ASKED, ids=str)
def test_served_as_embedded(shared: Running, far: Any, given: dict[str, Any], pages: None) -> None:
    assert list(far.scan("items", **given)) == list(shared.db.scan("items", **given))
    if "start" not in given:
        found, expected = far.read("items", **given), shared.db.read("items", **given)
        assert found.equals(expected)


def test_views_are_asked_the_same(shared: Running, far: Any, pages: None) -> None:
    given: dict[str, Any] = {"where": "n > 1", "order_by": ["total DESC"], "columns": ["category", "total"]}
    assert far.read("totals", **given).equals(shared.db.read("totals", **given))


def test_the_asynchronous_client_asks_the_same(shared: Running) -> None:
    async def ask() -> tuple[list[Any], Any]:
        async with vk.connect_async(shared.address) as far:
            given: dict[str, Any] = {"where": "price > 4", "order_by": "price DESC", "columns": ["price"]}
            return [row async for row in far.scan("items", **given)], await far.read("items", **given)

    rows, table = asyncio.run(ask())
    assert rows == table.to_pylist() == [{"price": price} for price in range(19, 4, -1)]


def test_values_of_every_type(served: Running) -> None:
    served.db.sql(DAYS)
    rows = [
        {"day": "2024-02-29", "cost": "1.50", "raw": b"\x00\xff", "x": float("nan"), "at": "2024-02-29T12:30:00Z"},
        {"day": "2024-03-01", "cost": "2.50", "raw": b"{", "x": 1.5, "at": "2024-03-01T00:00:00Z"},
    ]
    served.db.put("days", rows)
    with vk.connect(served.address) as far:
        whole = served.db.read("days").to_pylist()
        for name in ("day", "cost", "raw", "x", "at"):
            found = list(far.scan("days", where={name: whole[1][name]}))
            assert found == [whole[1]], name
        assert len(list(far.scan("days", where={"day": [date(2024, 2, 29), date(2024, 3, 1)], "x": float("nan")}))) == 1
        assert list(far.scan("days", where={"cost": Decimal("1.5")}, columns=["raw"])) == [{"raw": b"\x00\xff"}]


def test_pages_of_a_condition_are_of_one_state(served: Running) -> None:
    asked = {"where": "price >= 0", "order_by": "price DESC", "limit": "8"}
    first = served.http.get("/v1/items/rows", params=asked)
    served.put({"item_id": 500, "category": "new", "price": 500})
    second = served.http.get("/v1/items/rows", params={**asked, "cursor": first.json()["next"]})
    third = served.http.get("/v1/items/rows", params={**asked, "cursor": second.json()["next"]})
    prices = [row["price"] for page in (first, second, third) for row in page.json()["rows"]]
    assert prices == list(range(19, -1, -1))
    assert third.json()["next"] is None


def test_a_cursor_belongs_to_its_condition(shared: Running) -> None:
    first = shared.http.get("/v1/items/rows", params={"where": "price > 1", "limit": "2"})
    cursor = first.json()["next"]
    for other in ({}, {"where": "price > 2"}, {"where": "price > 1", "columns": "price"}):
        found = shared.http.get("/v1/items/rows", params={**other, "cursor": cursor})
        assert found.status_code == 400
        assert "another request" in found.json()["detail"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"where": "nothing = 1"}, UnknownName),
        ({"where": "price = "}, BadStatement),
        ({"where": "price = NULL"}, Unsupported),
        ({"where": {"nothing": 1}}, UnknownName),
        ({"columns": ["nothing"]}, UnknownName),
        ({"columns": []}, BadValue),
        ({"order_by": ["price", 3]}, BadValue),
        ({"where": "price / 0 > 1"}, Unsupported),
        ({"where": "price; DROP TABLE items"}, vk.ViewkeeperError),
        ({"where": "price > (SELECT 1)"}, vk.ViewkeeperError),
        ({"where": {"price": {"a": 1}}}, BadValue),
        ({"where": {"price": "much"}}, BadValue),
        ({"where": 7}, BadValue),
        ({"where": "NOT " * 300 + "true"}, BadStatement),
    ],
    ids=lambda given: str(given)[:60],
)
def test_what_cannot_be_asked_is_refused(far: Any, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        list(far.scan("items", **given))


def test_a_condition_that_is_no_json(shared: Running) -> None:
    found = shared.http.get("/v1/items/rows", params={"where": '{"price": '})
    assert found.status_code == 400
    assert "no JSON" in found.json()["detail"]


def test_lines_and_csv_have_the_columns_that_were_asked_for(shared: Running) -> None:
    asked = {"columns": "price", "where": json.dumps({"item_id": [1, 2]})}
    found = shared.http.get("/v1/items/rows", params=asked, headers={"accept": "text/csv"})
    assert isinstance(found, httpx.Response)
    assert found.text.split() == ["price", "1", "2"]
