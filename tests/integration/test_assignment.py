"""INSERT and UPDATE take values of other types than their columns have as Spark's store assignment does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from viewkeeper.errors import BadStatement, BadValue

TYPES = {
    **{"i": "INT", "big": "BIGINT", "f": "FLOAT", "d": "DOUBLE", "m": "DECIMAL(10,2)", "s": "STRING", "b": "BOOLEAN"},
    **{"day": "DATE", "at": "TIMESTAMP", "local": "TIMESTAMP_NTZ"},
}
TAKEN = (
    *(("d", v) for v in ("50.0", "-0.1", "5", "12345678901234567890.12", "CAST(2.5 AS FLOAT)")),
    *(("f", v) for v in ("50.0", "-0.1", "7")),
    *(("i", v) for v in ("7.00", "5L", "2.0D")),
    *(("big", v) for v in ("50.0", "5")),
    *(("m", v) for v in ("50.0", "5", "'1.5'")),
    *(("s", v) for v in ("5", "5L", "1.50", "-0.1", "2.5D", "1e30D", "CAST(0.1 AS FLOAT)", "TRUE", "X'6162'")),
    *(("s", v) for v in ("DATE '2024-2-29'", "TIMESTAMP '2024-02-29 12:30:00.5'", "NULL", "'text'")),
    *(("at", v) for v in ("DATE '2024-02-29'", "TIMESTAMP '2024-02-29 12:30:00'")),
    ("local", "DATE '2024-02-29'"),
)
REFUSED = (
    *(("i", v) for v in ("5.5", "3000000000", "3000000000.0", "'x'", "TRUE", "DATE '2024-02-29'")),
    *(("s", v) for v in ("array(1)", "named_struct('a', 1)")),
    *(("m", v) for v in ("5.555", "0.5D", "123456789012.0")),
    *(("b", v) for v in ("1", "1.0", "'yes'")),
    *(("day", v) for v in ("20240229", "1.0")),
)
"""Some of these Spark takes and changes the value."""


@pytest.fixture
def db(make_db: Callable[..., Any], spark: Any) -> Any:
    made = make_db(spark=spark)
    made.sql(f"CREATE TABLE t (k INT, {', '.join(f'{c} {t}' for c, t in TYPES.items())}, PRIMARY KEY (k))")
    made.put("t", {"k": 1})
    return made


def test_values_are_taken_as_spark_casts_them(db: Any) -> None:
    casts = ", ".join(f"CAST({v} AS {TYPES[c]}) AS c{i}" for i, (c, v) in enumerate(TAKEN))
    expected = db.sql(f"SELECT {casts}", engine="spark").rows[0]
    for number, (column, value) in enumerate(TAKEN):
        db.sql(f"UPDATE t SET {column} = {value}")
        assert db.get("t", 1)[column] == expected[f"c{number}"], (column, value)
        db.sql(f"INSERT INTO t (k, {column}) SELECT {number + 10}, {value}")
        assert db.get("t", number + 10)[column] == expected[f"c{number}"], (column, value)


def test_values_that_would_change_or_are_of_another_kind_are_refused(db: Any) -> None:
    for column, value in REFUSED:
        with pytest.raises((BadValue, BadStatement)):
            db.sql(f"UPDATE t SET {column} = {value}")
    assert db.read("t").to_pylist() == [{"k": 1, **dict.fromkeys(TYPES)}]


def test_values_of_statements_are_read_without_a_query(db: Any) -> None:
    db.sql("INSERT INTO t (k, i, d, s) VALUES (2, 7.00, 50.0, 5), (3, -1., .5, -1.50), (4, 1L, 2, TRUE)")
    rows = [db.get("t", key) for key in (2, 3, 4)]
    assert [(r["i"], r["d"], r["s"]) for r in rows] == [(7, 50.0, "5"), (-1, 0.5, "-1.50"), (1, 2.0, "true")]
    for wrong in ("(5, 1.5, 1, 'a')", "(5, 1, 1, 1e3)"):
        with pytest.raises((BadStatement, BadValue)):
            db.sql(f"INSERT INTO t (k, i, d, s) VALUES {wrong}")


def test_a_number_that_is_compared_with_text_is_not_made_text(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark)
    db.sql("CREATE TABLE t (s STRING, v INT, PRIMARY KEY (s))")
    db.put("t", [{"s": "5", "v": 1}, {"s": "05", "v": 2}])
    assert db.sql("DELETE FROM t WHERE s = 5").done == "2 deleted"
