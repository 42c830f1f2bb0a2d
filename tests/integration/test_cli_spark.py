"""Commands that need Spark: views and queries from the command line, pictures of plans, verify and bench."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from viewkeeper.database import Database
from viewkeeper.verify import benchmark_check

Run = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def shop(vk: Run, tmp_path: Path) -> None:
    script = tmp_path / "shop.sql"
    script.write_text("""
        CREATE TABLE items (id BIGINT, category STRING, price DECIMAL(8,2), PRIMARY KEY (id));
        CREATE TABLE orders (id BIGINT, item BIGINT, quantity INT, PRIMARY KEY (id));
        INSERT INTO items VALUES (1, 'toys', 2.50), (2, 'toys', 4.00), (3, 'books', 10);
        INSERT INTO orders VALUES (1, 1, 2), (2, 3, 1);
        CREATE MATERIALIZED VIEW revenue AS
            SELECT i.category, count(*) AS n, sum(o.quantity * i.price) AS total
            FROM orders o JOIN items i ON o.item = i.id GROUP BY i.category;
    """)
    code, out, err = vk("sql", "-f", str(script))
    assert (code, out, err) == (
        0,
        "table items created\ntable orders created\n3 inserted\n2 inserted\nview revenue created\n",
        "",
    )


@pytest.mark.usefixtures("shop")
def test_select_sees_tables_and_views_at_one_snapshot(vk: Run) -> None:
    vk("put", "orders", '{"id": 3, "item": 2, "quantity": 5}')
    query = "SELECT (SELECT count(*) FROM orders) AS orders, sum(n) AS counted FROM revenue"
    assert json.loads(vk("sql", query, "-o", "json")[1]) == {"orders": 2, "counted": 2}
    assert vk("refresh")[0] == 0
    assert json.loads(vk("sql", query, "-o", "json")[1]) == {"orders": 3, "counted": 3}
    assert vk("sql", "SELECT category, total FROM revenue ORDER BY total", "-o", "csv")[1].splitlines() == [
        "category,total",
        "books,10.00",
        "toys,25.00",
    ]
    vk("put", "orders", '{"id": 4, "item": 2, "quantity": 5}')
    assert vk("sql", "SELECT count(*) AS n FROM orders", "-o", "csv")[1] == "n\n4\n"  # tables alone: as they are now
    assert vk("sql", "CREATE MATERIALIZED VIEW `all of it` AS SELECT count(*) AS n FROM orders")[0] == 0
    assert json.loads(vk("get", "all of it", "-o", "json")[1]) == {"n": 4}
    assert vk("sql", "SELECT n FROM `ALL of it`", "-o", "csv")[1] == "n\n4\n"
    code, _, err = vk("sql", "SELECT bogus FROM revenue")
    assert (code, err.startswith("error[VK101]"), "bogus" in err, err.count("\n")) == (1, True, True, 1)


@pytest.mark.usefixtures("shop")
def test_insert_from_a_query(vk: Run) -> None:
    insert = "INSERT INTO orders SELECT 100 + id, id, 1 FROM items WHERE category = 'toys'"
    assert vk("sql", insert)[1] == "2 inserted\n"
    assert json.loads(vk("get", "orders", "102", "-o", "json")[1]) == {"id": 102, "item": 2, "quantity": 1}


@pytest.mark.usefixtures("shop")
def test_run_keeps_views_fresh_and_watch_tells(vk: Run) -> None:
    vk("put", "orders", '{"id": 4, "item": 3, "quantity": 2}')
    lines = [json.loads(line) for line in vk("run", "--seconds", "2", "-o", "json")[1].splitlines()]
    assert sum(line["changes"] for line in lines) == 1
    told = [json.loads(line) for line in vk("watch", "revenue", "--timeout", "0.1", "-o", "json")[1].splitlines()]
    assert {line["after"]["category"]: line["after"]["n"] for line in told} == {"books": 2, "toys": 1}
    vk("put", "orders", '{"id": 5, "item": 1, "quantity": 2}')
    vk("refresh")
    (line,) = vk("watch", "revenue", "--timeout", "0.1", "--since", told[0]["token"])[1].splitlines()
    assert line == "~ category toys  n 1 → 2  total 5.00 → 10.00"


@pytest.mark.usefixtures("shop")
def test_run_ends_in_order_when_terminated(vk: Run) -> None:
    command = [sys.executable, "-m", "viewkeeper", "run", "-o", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        deadline = time.monotonic() + 180
        while '"maintainer": null' in vk("status", "-o", "json")[1]:  # until it holds the lease
            assert process.poll() is None
            assert time.monotonic() < deadline
            vk("put", "orders", json.dumps({"id": 9, "item": 1, "quantity": 1 + int(time.monotonic()) % 9}))
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=180) == 0
    finally:
        process.kill()
        process.stdout.close()
    assert vk("refresh")[0] == 0  # the lease is free again


@pytest.mark.usefixtures("shop")
def test_explain_as_text_json_mermaid_and_svg(vk: Run, tmp_path: Path) -> None:
    assert "round 1" in vk("explain", "revenue")[1]
    picture = json.loads(vk("explain", "revenue", "--format", "json")[1])
    assert picture["key"] == ["category"]
    titles = {box["title"]: box for box in picture["boxes"]}
    assert titles["aggregate"]["key"] == ["category"]
    assert titles["aggregate"]["lines"] == ["count(*)", "sum(cast(quantity as decimal(10,0)) * price)"]
    assert titles["look up items"]["round"] == 0  # small: read whole where the orders are
    numbers = {box["number"] for box in picture["boxes"]}
    assert all({link["source"], link["target"]} <= numbers for link in picture["links"])
    mermaid = vk("explain", "revenue", "--format", "mermaid")[1]
    assert mermaid.startswith("flowchart LR\n")
    assert mermaid.count("subgraph") == picture["rounds"]
    file = tmp_path / "plan.svg"
    assert vk("explain", "revenue", "--format", "svg", "--out", str(file)) == (0, "", "")
    svg = ElementTree.parse(file).getroot()
    boxes = [e for e in svg.iter("{http://www.w3.org/2000/svg}rect") if e.get("rx")]
    assert len(boxes) == len(picture["boxes"])


def overlap(boxes: list[tuple[int, int, int, int]]) -> bool:
    return any(
        a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]
        for i, a in enumerate(boxes)
        for b in boxes[i + 1 :]
    )


@pytest.mark.usefixtures("shop")
def test_boxes_do_not_overlap(vk: Run) -> None:
    vk(
        "sql",
        "CREATE MATERIALIZED VIEW v AS SELECT a.id, count(*) AS n, max(c.price) AS p FROM orders a JOIN items b ON"
        " a.item = b.id JOIN items c ON b.category = c.category LEFT JOIN orders d ON d.item = c.id GROUP BY a.id",
    )
    svg = vk("explain", "v", "--format", "svg")[1]
    found = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)" rx', svg)
    assert len(found) > 10
    assert not overlap([(int(x), int(y), int(w), int(h)) for x, y, w, h in found])


@pytest.mark.slow
@pytest.mark.parametrize(("lane", "seed"), [("driver", "7"), ("spark", "8")])
def test_verify_finds_all_views_of_tpch_equal_after_every_batch(vk: Run, tmp_path: Path, lane: str, seed: str) -> None:
    batches = "2"  # each is 22 Spark queries
    code, out, _ = vk(
        *("verify", "tpch", "--scale", "0.01", "--batches", batches),
        *("--seed", seed, "--lane", lane, "--data", str(tmp_path)),
    )
    assert code == 0
    assert out.count("22 views equal") == int(batches) + 2  # after the first load, after each batch, and at the end
    assert out.count(f" {lane} lane") == int(batches)


def test_verify_shows_the_first_difference(vk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong row is written into the view's table behind the maintainer's back."""
    made = benchmark_check.create_views

    def spoilt(db: Database, *arguments: object) -> None:
        made(db, *arguments)
        table = db._catalog().table("q4")
        wrong = {"o_orderpriority": "3-MEDIUM", "order_count": -1}
        db._store.write(
            table, pa.Table.from_pylist([wrong], table.arrow), table.arrow.empty_table().select(["o_orderpriority"])
        )

    monkeypatch.setattr(benchmark_check, "create_views", spoilt)
    code, _, err = vk(*("verify", "tpch", "--views", "6,4", "--batches", "1", "--data", str(tmp_path)))
    assert code == 1
    first, key, expected, got = err.splitlines()[-4:]
    assert first == "DIFFERENT: q4 after batch 0, 1 rows"
    assert key.split() == ["key", "{'o_orderpriority':", "'3-MEDIUM'}"]
    assert re.fullmatch(r"  expected \{'o_orderpriority': '3-MEDIUM', 'order_count': \d+\}", expected)
    assert got == "  got      {'o_orderpriority': '3-MEDIUM', 'order_count': -1}"


def test_bench_compares_a_batch_with_recomputing(vk: Run, tmp_path: Path) -> None:
    arguments = ["bench", "--views", "6", "--sizes", "3,30", "--repeat", "2", "--data", str(tmp_path), "-o", "json"]
    code, out, _ = vk(*arguments)
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["orders"] for row in rows] == [3, 30]
    assert all(row["changed_rows"] > 0 and row["batch_ms"] > 0 and row["recompute_ms"] > 0 for row in rows)
