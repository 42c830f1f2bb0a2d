"""What an earlier version left on disk opens, goes on, and stays exact."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pytest
from tests.kept import shop

import viewkeeper as vk
from viewkeeper.plan.catalyst import activate_session, front_session

SHOWN = {"spread": "* EXCEPT (deviation), round(deviation, 6)"}
"""Sums of floats in no order: not to the last digit."""
KEPT = sorted(Path(shop.__file__).parent.glob("*.tar.xz"))


@pytest.fixture(params=KEPT, ids=lambda path: path.name.partition(".")[0])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a kept database."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "shop"


@pytest.fixture
def db(kept: Path, spark: Any) -> Iterator[Any]:
    with vk.open(f"lmdb:{kept}", spark=spark) as opened:
        yield opened


def test_the_tables_of_before_are_whole(kept: Path) -> None:
    with vk.open(f"lmdb:{kept}", mode="r") as reader:
        for table, rows in shop.tables_after(shop.WAITING).items():
            found = reader.read(table)
            assert found.column_names == shop.COLUMNS[table]
            assert as_texts(found.to_pylist()) == as_texts(rows)


def test_a_batch_is_written_in_a_format_that_older_code_refuses(kept: Path) -> None:
    """It would take the runs that a record names for all of them."""
    with vk.open(f"lmdb:{kept}", mode="r") as reader:
        assert reader.read("sold").num_rows
    before = written_in(kept)
    with vk.open(f"lmdb:{kept}", spark=None) as opened:
        opened.refresh()
    assert before < 4 <= written_in(kept)


def written_in(kept: Path) -> int:
    with lmdb.open(str(kept), max_dbs=4, readonly=True) as raw, raw.begin() as txn:
        return int(txn.get(b"format", db=raw.open_db(b"meta", txn=txn, create=False)))


def test_the_views_show_the_batch_that_was_published(kept: Path, spark: Any) -> None:
    with vk.open(f"lmdb:{kept}", mode="r") as reader:
        assert {v.name for v in reader.status().views} == set(shop.VIEWS)
        assert_exact(reader, spark, shop.LAST_BATCH)


def test_what_waited_and_what_comes_is_brought_to_them(db: Any, spark: Any) -> None:
    db.refresh()
    db.sql(f"ALTER MATERIALIZED VIEW {shop.SUSPENDED} RESUME")
    shop.write(db, shop.WAITING + 1)
    db.refresh(lane="driver")
    shop.write(db, shop.WAITING + 2)
    db.refresh(lane="spark")
    assert_exact(db, spark, shop.WAITING + 2)


def test_views_over_those_of_before_are_made_and_dropped(db: Any) -> None:
    db.sql("CREATE MATERIALIZED VIEW later AS SELECT kind, sum(total) AS total FROM sold GROUP BY kind")
    db.sql("ALTER TABLE items ADD COLUMN colour STRING")
    db.put("items", {"item": 1, "kind": "toy", "price": 3, "colour": "red"})
    db.sql("DROP MATERIALIZED VIEW top_towns")
    db.refresh()
    audit = db.audit("later", "best_of_kind")
    assert audit.is_right, audit
    db.sql("DROP MATERIALIZED VIEW later")


def test_the_doctor_finds_nothing(db: Any) -> None:
    db.sql(f"ALTER MATERIALIZED VIEW {shop.SUSPENDED} RESUME")
    of_the_machine = ("disk space", "permissions")
    assert [f for f in db.doctor().findings if not f.ok and f.check not in of_the_machine] == []


def assert_exact(db: Any, spark: Any, phase: int) -> None:
    """Every view is Spark's own answer over rows that never were in a store: two queries for all of them."""
    session = front_session(spark)
    with activate_session(session):
        for table, rows in shop.tables_after(phase).items():
            given = pa.Table.from_pylist(rows, db.read(table).schema)
            session.createDataFrame(given).createOrReplaceTempView(table)
        for view in ("sold", "towns"):  # that others are over
            session.sql(shop.VIEWS[view]).createOrReplaceTempView(view)
        expected = as_json(session, shop.VIEWS)
        for view in shop.VIEWS:
            session.createDataFrame(db.read(view, vk.STALE)).createOrReplaceTempView(f"kept_{view}")
        assert as_json(session, {view: f"SELECT * FROM kept_{view}" for view in shop.VIEWS}) == expected


def as_json(session: Any, queries: Mapping[str, str]) -> list[tuple[str, str]]:
    """All rows of some queries, in one order."""
    parts = [
        f"SELECT '{name}' AS name, to_json(struct({SHOWN.get(name, '*')})) AS line FROM ({query})"
        for name, query in queries.items()
    ]
    found = session.sql(" UNION ALL ".join(parts)).toArrow().to_pylist()
    return sorted((row["name"], row["line"]) for row in found)


def as_texts(rows: list[dict[str, Any]]) -> list[str]:
    """In one order, NaN as NaN; the store's times are in UTC."""
    return sorted(str([v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in row.values()]) for row in rows)
