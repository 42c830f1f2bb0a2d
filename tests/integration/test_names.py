"""Whatever tables, views and columns are called: names of ours, reserved words, quotes, other scripts, 200 bytes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.naming import NAMES, Called, Naming, internal_names

import viewkeeper
from viewkeeper.cli import main
from viewkeeper.errors import BadStatement
from viewkeeper.model.names import COUNT, HASH, INTERNAL_PREFIX, WEIGHT, backticked
from viewkeeper.spark import register
from viewkeeper.store.contract.store import ViewChange

VALUES = [n for n in NAMES if n.lower() != "id"]


@pytest.fixture
def wide(make_db: Callable[..., Any], spark: Any) -> Any:
    """A table with a column for every name in the pool."""
    db = make_db(spark=spark)
    columns = ", ".join(f"{backticked(n)} {'STRING' if i % 3 else 'INT'}" for i, n in enumerate(VALUES))
    db.sql(f"CREATE TABLE `a wide` (id INT, {columns}, PRIMARY KEY (id))")
    db.put("a wide", [_row(i) for i in range(8)])
    return db


def _row(i: int) -> dict[str, Any]:
    values = {n: (i // 2) % 5 if at % 3 == 0 else f"{at}.{i // 2}" for at, n in enumerate(VALUES)}
    return {"id": i, **values, VALUES[9]: None if i % 2 else 7}


def _listed(names: Any) -> str:
    return ", ".join(map(backticked, names))


def test_the_view_of_a_column_named_as_an_alias_of_ours(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark)
    db.sql("CREATE TABLE t (k BIGINT, c INT, PRIMARY KEY (k))")
    db.put("t", [{"k": 1, "c": 3}, {"k": 2, "c": 1}, {"k": 3, "c": 0}, {"k": 4, "c": None}, {"k": 5, "c": -2}])
    db.sql("CREATE MATERIALIZED VIEW v AS SELECT c FROM t")
    assert db.read("v")["c"].to_pylist() == [None, -2, 0, 1, 3]
    db.put("t", [{"k": 1, "c": 1}, {"k": 5, "c": 1}])
    db.refresh()
    assert db.read("v")["c"].to_pylist() == [None, 0, 1, 1, 1]


def test_columns_of_every_name(wide: Any, spark: Any) -> None:
    """Bags, groups, joins, windows and top-k over them stay right through changes, and the audit can say so."""
    numbers, texts = VALUES[::3], VALUES[1::3]
    wide.sql(f"CREATE MATERIALIZED VIEW bag AS SELECT {_listed(VALUES)} FROM `a wide`")
    wide.sql(f"CREATE MATERIALIZED VIEW keyed AS SELECT id, {_listed(VALUES)} FROM `a wide`")
    sums = ", ".join(f"sum({backticked(n)}) AS {backticked(n)}" for n in numbers)
    wide.sql(f"CREATE MATERIALIZED VIEW grouped AS SELECT {_listed(texts[:9])}, {sums} FROM `a wide` "
             f"GROUP BY {_listed(texts[:9])}")  # fmt: skip
    others = ", ".join(
        f"{f}({backticked(n)}) AS {backticked(n)}"
        for f, n in zip(["max", "min", "count", "median"] * 30, numbers[:60], strict=False)
    )
    counted = f"count(DISTINCT {backticked(numbers[60])}) AS `how many`"
    wide.sql(f"CREATE MATERIALIZED VIEW measured AS SELECT {others}, {counted} FROM `a wide`")
    wide.sql(f"CREATE MATERIALIZED VIEW joined AS SELECT {', '.join('l.' + backticked(n) for n in VALUES[:60])}, "
             f"{', '.join('r.' + backticked(n) for n in VALUES[60:120])} FROM `a wide` l LEFT JOIN `a wide` r "
             f"ON l.{backticked(numbers[0])} = r.{backticked(numbers[1])} AND l.id < r.id")  # fmt: skip
    ranks = ", ".join(
        f"max({backticked(n)}) OVER (PARTITION BY {backticked(m)}) AS {backticked(n)}"
        for n, m in zip(numbers[:20], texts[:20], strict=True)
    )
    wide.sql(f"CREATE MATERIALIZED VIEW framed AS SELECT id, {ranks} FROM `a wide`")
    wide.sql(f"CREATE MATERIALIZED VIEW top AS SELECT * FROM `a wide` ORDER BY {_listed(VALUES[:9])}, id LIMIT 3")
    assert wide.audit().differences == 0
    wide.put("a wide", [_row(i) for i in range(5, 12)])
    wide.update("a wide", 2, dict.fromkeys(numbers, 4))
    wide.delete("a wide", [0, 7])
    wide.refresh()
    found = wide.audit(sample=4)
    assert (found.differences, [v.failed for v in found.views]) == (0, [None] * 7)
    wide.refresh(lane="spark")


def test_reads_of_columns_of_every_name(wide: Any, spark: Any) -> None:
    wide.sql(f"CREATE MATERIALIZED VIEW `the bag` AS SELECT {_listed(VALUES)} FROM `a wide`")
    first = wide.get("a wide", 0)
    assert first == _row(0)
    assert next(iter(wide.scan("the bag"))).keys() == set(VALUES)
    deltas = wide.subscribe("the bag", timeout=0)
    assert sum(d.rows.num_rows for d in deltas) > 0
    wide.put("a wide", _row(0) | {VALUES[0]: 4})
    wide.refresh()
    text = f"SELECT {_listed(VALUES)} FROM `the bag` ORDER BY {_listed(VALUES)}"
    got, by_spark = wide.sql(text, engine="embedded"), wide.sql(text, engine="spark")
    assert got.column_names == VALUES == by_spark.column_names
    assert str(got.rows) == str(by_spark.rows)


def test_changes_of_columns_of_every_name_come_once(wide: Any) -> None:
    wide.sql(f"CREATE MATERIALIZED VIEW bag AS SELECT {_listed(VALUES)} FROM `a wide`")
    deltas = wide.subscribe("bag", timeout=30)
    assert next(deltas).rows.num_rows > 0
    wide.put("a wide", _row(1) | {VALUES[0]: 4})
    wide.refresh()
    delta = next(deltas)
    assert sorted(delta.rows.columns[-1].to_pylist()) == [-1, 1]


def test_spark_reads_and_writes_columns_of_every_name(wide: Any, spark: Any) -> None:
    register(spark)
    # Spark looks a source for writing up in the thread's active session, which a new connection to the JVM has not.
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    url = wide._store.url
    source = spark.read.format("viewkeeper").options(db=url, table="a wide")
    frame = source.load()
    assert frame.columns == ["id", *VALUES]
    assert sorted(r["id"] for r in frame.where("id > 2").collect()) == [3, 4, 5, 6, 7]
    asked = [n for n in VALUES if "," in n or "`" in n or n.startswith((".", "["))]
    chosen = source.option("columns", ", ".join(map(backticked, asked))).load()
    assert chosen.columns == asked
    assert chosen.toArrow().num_rows == 8
    frame.where("id < 2").withColumn("id", frame.id + 100).write.format("viewkeeper").options(
        db=url, table="a wide"
    ).mode("append").save()
    assert wide.get("a wide", 101) == _row(1) | {"id": 101}


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_files_with_columns_of_every_name(
    form: str, wide: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, file = [_row(i) for i in range(20, 24)], tmp_path / f"rows.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    elif form == "csv":
        with file.open("w", encoding="utf-8", newline="") as text:
            writer = csv.DictWriter(text, list(rows[0]), quoting=csv.QUOTE_MINIMAL)
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    url = wide._store.url
    with pytest.raises(SystemExit) as ended:
        main(["load", "a wide", str(file), "--db", url])
    assert ended.value.code == 0, capsys.readouterr().err
    assert [wide.get("a wide", i) for i in range(20, 24)] == rows
    with pytest.raises(SystemExit) as ended:
        main(["load", "an`other", str(file), "--key", "id", "--db", url])
    assert ended.value.code == 0, capsys.readouterr().err
    assert wide.get("an`other", 21)["id"] == 21


def test_tables_and_views_of_every_name(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark, durability="none")
    for name in NAMES:
        db.sql(f"CREATE TABLE {backticked(name)} (k INT, v INT, PRIMARY KEY (k))")
    for i, name in enumerate(NAMES):
        if i % 5 == 0:
            db.put(name, {"k": i, "v": i % 7})
    parts = " UNION ALL ".join(f"SELECT k, v FROM {backticked(n)}" for n in NAMES[::5])
    db.sql(f"CREATE MATERIALIZED VIEW `the union` AS {parts}")
    assert db.read("the union").num_rows == len(NAMES[::5])
    some = [n for n in NAMES if not n.isalnum() and len(n.encode()) < 190][::4]
    for name in some:
        view = f"{name} seen"
        db.sql(f"CREATE MATERIALIZED VIEW {backticked(view)} AS SELECT v, count(*) AS n FROM {backticked(name)} "
               "GROUP BY v")  # fmt: skip
        db.put(name, {"k": 1, "v": 1})
    db.refresh()
    assert {db.read(f"{name} seen").to_pylist()[-1]["n"] > 0 for name in some} == {True}
    assert db.audit().differences == 0
    assert all(db.sql(f"DESCRIBE {backticked(n)}").num_rows == 2 for n in NAMES)
    both = f"{backticked(some[0])} t JOIN {backticked(some[1])} u USING (k)"
    assert db.sql(f"SELECT sum(t.v) AS s FROM {both}").rows == [{"s": 1}]
    for name in some[:5]:
        db.sql(f"DROP MATERIALIZED VIEW {backticked(f'{name} seen')}")
    db.sql(f"ALTER TABLE {backticked(some[0])} ADD COLUMN `w w` INT")
    assert db.get(some[0], 1) == {"k": 1, "v": 1, "w w": None}


@pytest.mark.parametrize("name", [WEIGHT, HASH, COUNT, INTERNAL_PREFIX, f"{INTERNAL_PREFIX} a"])
def test_internal_names_are_refused(name: str, make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark)
    db.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k))")
    for statement in (
        f"CREATE TABLE u (k INT, {backticked(name)} INT, PRIMARY KEY (k))",
        f"ALTER TABLE t ADD COLUMN {backticked(name)} INT",
        f"ALTER TABLE t RENAME COLUMN v TO {backticked(name)}",
        f"CREATE MATERIALIZED VIEW w AS SELECT v AS {backticked(name)} FROM t",
        f"CREATE MATERIALIZED VIEW w AS SELECT k, count(*) AS {backticked(name)} FROM t GROUP BY k",
    ):
        with pytest.raises(BadStatement, match=f"begin with {INTERNAL_PREFIX}"):
            db.sql(statement)
    assert db.sql("SHOW VIEWS").num_rows == 0
    # Within a query they are aliases as others are.
    db.sql(f"CREATE MATERIALIZED VIEW w AS WITH {backticked(name)} AS (SELECT v AS {backticked(name)} FROM t) "
           f"SELECT {backticked(name)} AS v FROM {backticked(name)}")  # fmt: skip
    db.put("t", [{"k": 1, "v": 2}, {"k": 2, "v": 2}])
    db.refresh()
    assert db.read("w")["v"].to_pylist() == [2, 2]


def test_a_column_called_as_the_weight_of_a_change(make_db: Callable[..., Any], spark: Any) -> None:
    """The weight has one more `_` then; Spark reads and writes such changes."""
    db = make_db(spark=spark)
    for name in ("t", "copy"):
        db.sql(f"CREATE TABLE {name} (_id INT, _w INT, _count INT, PRIMARY KEY (_id))")
    db.sql("CREATE MATERIALIZED VIEW bag AS SELECT _w, _count FROM t")
    db.put("t", [{"_id": 1, "_w": 7, "_count": 0}, {"_id": 2, "_w": 7, "_count": 0}])
    db.refresh()
    delta = next(iter(db.subscribe("bag", timeout=0)))
    assert delta.rows.column_names == ["_w", "_count", "__w"]
    assert [change.after for change in delta.changes()] == [{"_w": 7, "_count": 0}] * 2
    db.delete("t", 1)
    url = db._store.url
    register(spark)
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    stream = spark.readStream.format("viewkeeper").options(db=url, table="t", changes="true", **{"from": "0"}).load()
    assert stream.columns == ["_id", "_w", "_count", "__w"]
    rows = [(1, 5, 0, 1), (2, 6, 0, 1), (2, 6, 0, -1)]
    frame = spark.createDataFrame(rows[:2], "_id int, _w int, _count int, __w long")
    frame.write.format("viewkeeper").options(db=url, table="copy").mode("append").save()
    frame = spark.createDataFrame(rows[2:], "_id int, _w int, _count int, __w long")
    frame.write.format("viewkeeper").options(db=url, table="copy").mode("append").save()
    assert db.read("copy").to_pylist() == [{"_id": 1, "_w": 5, "_count": 0}]


def test_internal_names_carry_the_mark() -> None:
    """A column, alias or input of a generated statement that begins with `_` could be a user's."""
    pattern = re.compile(r"(?:\bAS |sum\(|[\"'.])(_(?:w|h|n|count|row|place|times|[a-z]))\b(?![\"']?\()")
    found = [
        f"{file.name}: {line.strip()}"
        for folder in ("operators", "plan", "capture", "rounds", "commit", "maintain", "store")
        for file in sorted((Path(viewkeeper.__file__).parent / folder).rglob("*.py"))
        for line in file.read_text("utf-8").splitlines()
        if pattern.search(line) and "self._" not in line
    ]
    assert found == []


def test_the_pool_has_what_statements_use() -> None:
    assert {"c", "e", "s", "place", "input", "delta", "rows", "stored", "net", "chosen", "why"} <= internal_names()
    assert len({n.lower() for n in NAMES}) == len(NAMES) > 200


def test_audit_tells_the_rows_that_differ_whatever_they_are_called(make_db: Callable[..., Any], spark: Any) -> None:
    naming = Naming(7)
    db = Called(make_db(spark=spark), naming)
    db.sql("CREATE TABLE tab_0 (k0 INT, c1 DOUBLE, PRIMARY KEY (k0))")
    db.put("tab_0", [{"k0": i, "c1": i / 3} for i in range(4)])
    db.sql("CREATE MATERIALIZED VIEW view_0 AS SELECT k0, c1 FROM tab_0")
    db.sql("CREATE MATERIALIZED VIEW view_1 AS SELECT c1 AS o1 FROM tab_0")
    store = db.db._store
    table = store.catalog().table(naming.name("view_0"))
    wrong = pa.table([pa.array([1], pa.int32()), pa.array([0.3333333], pa.float64())], schema=table.arrow)
    batch = store.published_batch()
    store.commit(
        type(batch)(**{**batch.__dict__, "number": batch.number + 1}),
        [ViewChange(table, wrong, table.arrow.empty_table().select([table.key[0].column]))],
    )
    assert db.audit() == {"view_0": 1, "view_1": 0}
