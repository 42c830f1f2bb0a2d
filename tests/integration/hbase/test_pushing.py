"""Selections in HBase's scanner: what a first load is given, and that no row that matters is left out."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")


import viewkeeper as vk
from viewkeeper_hbase.layout import row_reader

TABLE = """CREATE TABLE events (id BIGINT PRIMARY KEY, kind STRING, n INT, day DATE, price DECIMAL(9,2),
           a STRING, b STRING, c STRING, d STRING, e STRING)"""

SELECTIONS = [
    "n >= -3 AND n < 4",
    "n > 2",
    "n <= -2",
    "n < 3",
    "n > -5",
    "n = -1",
    "n IN (-7, 0, 5)",
    "kind = 'it''s'",
    "kind > 'b' AND kind <= 'm'",
    "day >= DATE'1969-12-30' AND day < DATE'1970-01-05'",
    "id >= 100 AND id < 300",
    "id = 17",
    "id > 350 AND n < 0 AND price > 2",
    "price >= 5 AND kind = 'x'",
]


@pytest.fixture
def events(server: Any, spark: Any, tmp_path: Path) -> Iterator[Any]:
    url = f"hbase://{server.host}:{server.port}/vk_{secrets.token_hex(4)}?create=true"
    with vk.open(url, spark=spark, state=str(tmp_path / "state")) as db:
        db.sql(TABLE)
        db.put("events", [_row(n, random.Random(n)) for n in range(400)])
        yield db


def _row(n: int, chance: random.Random) -> dict[str, Any]:
    return {
        "id": n,
        "kind": chance.choice(["x", "a", "it's", "m", "z\x00", None]),
        "n": chance.choice([None, *range(-8, 9)]),
        "day": date(1970, 1, 1) + timedelta(days=chance.randrange(-8, 8)),
        "price": chance.randrange(10),
    }


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that came out of scans."""
    original, counts = row_reader.decode_rows, []

    def counted(layout: Any, cells: Any, columns: Any) -> Any:
        counts.append(cells.rows)
        return original(layout, cells, columns)

    monkeypatch.setattr(row_reader, "decode_rows", counted)
    return counts


def test_a_first_load_is_given_the_rows_that_its_view_selects_and_no_fewer(events: Any, scanned: list[int]) -> None:
    rows = events.read("events").to_pylist()
    kept = {}
    for number, selection in enumerate(SELECTIONS):
        scanned.clear()
        events.sql(f"CREATE MATERIALIZED VIEW v AS SELECT id, n, price FROM events WHERE {selection}")
        kept[selection] = sum(scanned)
        found = {row["id"] for row in events.read("v").to_pylist()}
        wanted = {row["id"] for row in rows if _passes(number, row)}
        assert found == wanted, selection
        assert kept[selection] < len(rows), selection
        if "price" not in selection:
            assert kept[selection] == len(wanted), selection
        events.sql("DROP MATERIALIZED VIEW v")


def _passes(number: int, row: dict[str, Any]) -> bool:
    n, kind, day, id_, price = (row[c] for c in ("n", "kind", "day", "id", "price"))
    low, high = date(1969, 12, 30), date(1970, 1, 5)
    return bool(
        [
            n is not None and -3 <= n < 4,
            n is not None and n > 2,
            n is not None and n <= -2,
            n is not None and n < 3,
            n is not None and n > -5,
            n == -1,
            n in (-7, 0, 5),
            kind == "it's",
            kind is not None and "b" < kind <= "m",
            low <= day < high,
            100 <= id_ < 300,
            id_ == 17,
            id_ > 350 and n is not None and n < 0 and price > 2,
            price >= 5 and kind == "x",
        ][number]
    )


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_views_over_a_selected_table_follow_rows_in_and_out_of_the_selection(events: Any, lane: str) -> None:
    events.sql("CREATE MATERIALIZED VIEW high AS SELECT kind, count(*) AS c FROM events WHERE n > 2 GROUP BY kind")
    text = events.explain("high")
    assert "rows with n > 2" in text
    assert "ask HBase for cells c:kind, c:n of" in text
    events.put("events", [{"id": n, "kind": "in", "n": 5} for n in range(0, 400, 7)])
    events.refresh(lane)
    events.put("events", [{"id": n, "kind": "out", "n": 1} for n in range(0, 400, 14)])
    events.delete("events", list(range(3, 400, 5)))
    events.refresh(lane)
    _equal(events, "high", lambda n: n is not None and n > 2)
    # A view that wants others: the image comes to hold what both want.
    events.sql("CREATE MATERIALIZED VIEW low AS SELECT kind, count(*) AS c FROM events WHERE n < 0 GROUP BY kind")
    assert "rows with" not in events.explain("high")
    events.put("events", [{"id": n, "kind": "again", "n": -n % 9 - 4} for n in range(0, 400, 3)])
    events.refresh(lane)
    _equal(events, "high", lambda n: n is not None and n > 2)
    _equal(events, "low", lambda n: n is not None and n < 0)
    events.sql("DROP MATERIALIZED VIEW high")
    events.put("events", [{"id": n, "kind": "last", "n": -2} for n in range(0, 400, 6)])
    events.refresh(lane)
    _equal(events, "low", lambda n: n is not None and n < 0)
    assert events.audit().differences == 0


def _equal(db: Any, view: str, passes: Any) -> None:
    counts: dict[Any, int] = {}
    for row in db.read("events").to_pylist():
        if passes(row["n"]):
            counts[row["kind"]] = counts.get(row["kind"], 0) + 1
    assert {row["kind"]: row["c"] for row in db.read(view).to_pylist()} == counts
