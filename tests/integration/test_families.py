"""Families of views: members are rows of a table, and each is what the same query with constants would be.

Equality is Spark's: `audit` runs the family's query over the table of parameters, with Spark's own LATERAL.
"""

from __future__ import annotations

import datetime
import errno
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from random import Random
from typing import Any

import pytest

import viewkeeper
from viewkeeper import failpoints
from viewkeeper.errors import BadStatement, BadValue, InUse, NameTaken, Unsupported

DAYS = [datetime.date(1994, 1, 1) + datetime.timedelta(days) for days in (0, 100, 365, 366, 700, 2000)]
FAMILIES = {
    "q6": (
        "day DATE, disc DECIMAL(4,2), qty INT",
        """SELECT sum(price * disc_) AS revenue, count(*) AS n, avg(qty_) AS a FROM line WHERE shipped >= :day
           AND shipped < :day + INTERVAL 1 YEAR AND disc_ BETWEEN :disc - 0.01 AND :disc + 0.01 AND qty_ < :qty""",
    ),
    "q1": (
        "day DATE",
        """SELECT flag, sum(price * (1 - disc_) * (1 + disc_)) AS s, count(*) AS n, avg(ratio) AS a,
           stddev_samp(ratio) AS d FROM line WHERE shipped <= :day GROUP BY flag""",
    ),
    "q3": (
        "day DATE",
        """SELECT customer, sum(price) AS s, count(*) AS n FROM line JOIN orders ON line.orderkey = orders.orderkey
           WHERE ordered < :day AND shipped > :day GROUP BY customer""",
    ),
    "tops": (
        "day DATE",
        """SELECT customer, sum(price) AS s FROM line JOIN orders ON line.orderkey = orders.orderkey
           WHERE ordered < :day GROUP BY customer ORDER BY s DESC LIMIT 3""",
    ),
    "plain": ("q INT", "SELECT orderkey, nr, qty_ + :q AS z FROM line WHERE qty_ < :q"),
    "extremes": (
        "q INT, f STRING",
        "SELECT max(disc_) AS m, count(DISTINCT flag) AS d, sum(qty_) AS s FROM line WHERE qty_ < :q AND flag LIKE :f",
    ),
    "others": (
        "q INT, f STRING",
        """SELECT count(*) AS c, sum(qty_) AS s FROM line
           WHERE (qty_ < :q OR disc_ > 0.05) AND flag LIKE :f AND :q > 2""",
    ),
    "outer_": (
        "q INT",
        """SELECT customer, count(line.orderkey) AS n FROM orders
           LEFT JOIN line ON line.orderkey = orders.orderkey AND qty_ < :q GROUP BY customer""",
    ),
    "both": (
        "q INT",
        "SELECT customer AS k FROM orders WHERE customer < :q UNION ALL SELECT orderkey FROM line WHERE qty_ = :q",
    ),
}

FEW = ("q6", "q3", "others")


def line(rng: Random) -> dict[str, Any]:
    return {
        "orderkey": rng.randrange(80),
        "nr": rng.randrange(3),
        "qty_": rng.choice([None, *map(Decimal, range(1, 10))]),
        "price": Decimal(rng.randint(1, 100_000)) / 100,
        "disc_": Decimal(rng.randint(0, 10)) / 100,
        "shipped": rng.choice([None, *(DAYS[0] + datetime.timedelta(rng.randint(0, 1000)) for _ in range(5))]),
        "flag": rng.choice("ABC"),
        "ratio": rng.choice([None, 0.1, 1e16, -1e16, 2.5]),
    }


def order(rng: Random) -> dict[str, Any]:
    day = DAYS[0] + datetime.timedelta(rng.randint(0, 1000))
    return {"orderkey": rng.randrange(80), "customer": rng.randint(1, 9), "ordered": day}


def members(rng: Random, parameters: str, count: int = 8) -> list[dict[str, Any]]:
    choices: dict[str, Callable[[], Any]] = {
        "DATE": lambda: rng.choice(DAYS),
        "DECIMAL(4,2)": lambda: Decimal(rng.randint(0, 10)) / 100,
        "INT": lambda: rng.randint(0, 12),
        "STRING": lambda: rng.choice(["A%", "%", "B", "_"]),
    }
    declared = [p.split(" ", 1) for p in parameters.split(", ")]
    return [{name: choices[kind]() for name, kind in declared} for _ in range(count)]


@pytest.fixture
def shop(make_db: Callable[..., Any], spark: Any) -> Any:
    db = make_db(spark=spark, durability="none")
    db.sql(
        "CREATE TABLE line (orderkey BIGINT, nr INT, qty_ DECIMAL(15,2), price DECIMAL(15,2), disc_ DECIMAL(15,2),"
        " shipped DATE, flag STRING, ratio DOUBLE, PRIMARY KEY (orderkey, nr))"
    )
    db.sql("CREATE TABLE orders (orderkey BIGINT, customer BIGINT, ordered DATE, PRIMARY KEY (orderkey))")
    rng = Random(1)
    db.put("line", [line(rng) for _ in range(150)])
    db.put("orders", [order(rng) for _ in range(60)])
    return db


@pytest.mark.parametrize("chosen", [FEW, pytest.param(tuple(FAMILIES), marks=pytest.mark.deep)], ids=["few", "all"])
def test_members_come_and_go_with_the_rows_in_either_lane(shop: Any, chosen: tuple[str, ...]) -> None:
    rng = Random(2)
    families = {name: FAMILIES[name] for name in chosen}
    for name, (parameters, query) in families.items():
        shop.sql(f"CREATE MATERIALIZED VIEW {name} PARAMETERS ({parameters}) AS {query}")
    for step, lane in enumerate(("driver", "spark", "driver")):
        for name, (parameters, _) in families.items():
            if step:
                held = shop.read(f"{name}.parameters").to_pylist()
                shop.delete(f"{name}.parameters", [tuple(m.values()) for m in rng.sample(held, 2)])
            shop.put(f"{name}.parameters", members(rng, parameters))
        shop.put("line", [line(rng) for _ in range(30)])
        shop.put("orders", [order(rng) for _ in range(8)])
        shop.refresh(lane=lane)
    # What a lane has left is what the next one starts from.
    assert {v.view: v.differences for v in shop.audit().views} == dict.fromkeys(chosen, 0)
    # One that is made when members and rows are there is loaded with them, in the lane that loads.
    held = shop.read("q3").to_pylist()
    shop.sql("ALTER MATERIALIZED VIEW q3 SUSPEND")
    shop.sql("ALTER MATERIALIZED VIEW q3 RESUME")
    assert shop.read("q3").to_pylist() == held


def test_a_row_that_fails_stops_a_family_only_if_a_member_wants_it(shop: Any) -> None:
    shop.sql(
        "CREATE MATERIALIZED VIEW parts PARAMETERS (most INT) AS"
        " SELECT flag, sum(price / CAST(nr AS DOUBLE)) AS s, count(*) AS n FROM line WHERE nr > 0 AND qty_ < :most"
        " GROUP BY flag"
    )
    shop.sql(
        "CREATE MATERIALIZED VIEW whole PARAMETERS (most INT) AS"
        " SELECT sum(ratio / CAST(nr - 7 AS DOUBLE)) AS s FROM line WHERE qty_ < :most"
    )
    assert all("cells of a family" in shop.explain(name) for name in ("parts", "whole"))
    for name in ("parts", "whole"):
        shop.put(f"{name}.parameters", [{"most": n} for n in (3, 5, 20)])
    bad = {"orderkey": 500, "nr": 7, "qty_": Decimal(50), "price": Decimal(1), "ratio": 1.0, "flag": "A"}
    shop.put("line", [bad])
    assert shop.refresh().suspended == {}
    assert {v.view: v.differences for v in shop.audit().views} == {"parts": 0, "whole": 0}
    shop.put("whole.parameters", [{"most": 100}])
    told = shop.refresh().suspended
    assert set(told) == {"whole"}
    assert "DIVIDE_BY_ZERO" in told["whole"] or "ARITHMETIC_OVERFLOW" in told["whole"]


def test_a_member_is_the_view_with_its_constants(shop: Any) -> None:
    parameters, query = FAMILIES["q6"]
    shop.sql(f"CREATE MATERIALIZED VIEW q6 PARAMETERS ({parameters}) AS {query}")
    member = {"day": DAYS[1], "disc": Decimal("0.05"), "qty": 7}
    shop.put("q6.parameters", [member, *members(Random(3), parameters)])
    constants = query.replace(":day", f"DATE '{DAYS[1]}'").replace(":disc", "0.05").replace(":qty", "7")
    shop.sql(f"CREATE MATERIALIZED VIEW apart AS {constants}")
    shop.put("line", [line(Random(4)) for _ in range(20)])
    shop.refresh()
    (alone,) = shop.read("apart").to_pylist()
    assert shop.get("q6", (DAYS[1], Decimal("0.05"), 7)) == {**member, **alone}
    assert shop.get("q6", (DAYS[1], Decimal("0.05"), 8)) is None
    nobody = {"day": datetime.date(2500, 1, 1), "disc": Decimal("0.01"), "qty": 0}
    shop.put("q6.parameters", nobody)
    shop.refresh()
    assert shop.get("q6", tuple(nobody.values())) == {**nobody, "revenue": None, "n": 0, "a": None}
    shop.delete("q6.parameters", tuple(nobody.values()))
    shop.refresh()
    assert shop.get("q6", tuple(nobody.values())) is None


def test_a_family_is_made_shown_and_dropped_as_a_view_is(shop: Any) -> None:
    parameters, query = FAMILIES["q1"]
    shop.sql(f"CREATE MATERIALIZED VIEW q1 PARAMETERS ({parameters}) AS {query}")
    (written,) = shop.sql("SHOW CREATE VIEW q1").to_pylist()
    assert "PARAMETERS (`day` DATE) KEY (`flag`) AS" in written["statement"]
    assert query in written["statement"]
    assert "cells of a family by (k0) and (d0), members where d0 <= g0" in shop.explain("q1")
    shop.put("q1.parameters", [{"day": day} for day in DAYS])
    shop.refresh()
    kept = shop.read("q1").to_pylist()
    assert f"{len(DAYS)} members, for 10,000 changed rows about: grid" in shop.explain("q1")
    assert shop.sql("INSERT INTO q1.parameters VALUES (DATE '1995-05-05')").done == "1 inserted"
    shop.refresh()
    assert f"{len(DAYS) + 1} members, for" in shop.explain("q1")
    assert shop.sql("DELETE FROM q1.parameters WHERE day = DATE '1995-05-05'").done == "1 deleted"
    shop.refresh()
    assert f"{len(DAYS)} members, for" in shop.explain("q1")
    days = [{"day": day} for day in DAYS]
    assert shop.sql("INSERT INTO `q1`.`parameters` VALUES (DATE '1995-05-06')").done == "1 inserted"
    assert shop.sql("DELETE FROM `q1`.`parameters` WHERE day = DATE '1995-05-06'").done == "1 deleted"
    for engine, spelt in product(("embedded", "spark"), ("q1.parameters", "`q1`.`parameters`")):
        asked = f"SELECT {spelt}.day FROM {spelt} ORDER BY day"
        assert shop.sql(asked, engine=engine).to_pylist() == days, engine
    assert "reads: q1.parameters (day)" in "".join(
        shop.sql("EXPLAIN SELECT * FROM q1.parameters").to_arrow()["plan"].to_pylist()
    )
    shop.sql("CREATE MATERIALIZED VIEW many AS SELECT count(*) AS n FROM q1.parameters")
    assert shop.read("many").to_pylist() == [{"n": len(DAYS)}]
    shop.sql("DROP MATERIALIZED VIEW many")
    assert list(shop.scan("q1", prefix=(DAYS[2],))) == [r for r in kept if r["day"] == DAYS[2]]
    for statement, error in (
        ("DROP TABLE `q1.parameters`", InUse),
        ("DROP MATERIALIZED VIEW q1.parameters", InUse),
        ("ALTER TABLE `q1.parameters` ADD COLUMN more INT", BadValue),
        ("ALTER MATERIALIZED VIEW q1 RENAME TO q2", Unsupported),
        (f"CREATE OR REPLACE MATERIALIZED VIEW q1 PARAMETERS (day DATE) AS {query}", Unsupported),
        (f"CREATE MATERIALIZED VIEW q1 PARAMETERS (day DATE) AS {query}", NameTaken),
    ):
        with pytest.raises(error):
            shop.sql(statement)
    assert shop.read("q1").to_pylist() == kept
    shop.sql("DROP MATERIALIZED VIEW q1")
    assert [t["name"] for t in shop.sql("SHOW TABLES").to_pylist()] == ["line", "orders"]
    shop.sql(written["statement"])
    assert shop.read("q1").num_rows == 0


@pytest.mark.parametrize(
    ("statement", "error", "says"),
    [
        ("(q INT) AS SELECT count(*) AS n FROM line WHERE qty_ < :other", BadValue, ":other"),
        ("(q INT, r INT) AS SELECT count(*) AS n FROM line WHERE qty_ < :q", BadStatement, "its parameter r"),
        ("(q INT, Q INT) AS SELECT count(*) AS n FROM line WHERE qty_ < :q", BadStatement, "twice"),
        ("(q INT DEFAULT 3) AS SELECT count(*) AS n FROM line WHERE qty_ < :q", BadStatement, "parameter q"),
        ("(n INT) AS SELECT count(*) AS n FROM line WHERE qty_ < :n", BadStatement, "Two columns"),
        ("(q INT) WITH (strategy = 'ISN') AS SELECT count(*) AS n FROM line WHERE qty_ < :q", Unsupported, "strategy"),
        (
            "(q INT) AS SELECT count(*) AS n FROM orders o WHERE EXISTS"
            " (SELECT 1 FROM line l WHERE l.orderkey = o.orderkey AND qty_ < :q)",
            Unsupported,
            ":q stands in a subquery",
        ),
    ],
)
def test_what_cannot_be_a_family_is_refused_and_leaves_nothing(
    shop: Any, statement: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        shop.sql(f"CREATE MATERIALIZED VIEW v PARAMETERS {statement}")
    assert [t["name"] for t in shop.sql("SHOW TABLES").to_pylist()] == ["line", "orders"]
    assert viewkeeper.ViewkeeperError in error.__mro__


def test_a_table_of_parameters_that_an_interrupted_create_left_is_made_again(shop: Any) -> None:
    parameters, query = FAMILIES["q1"]
    text = f"CREATE MATERIALIZED VIEW q1 PARAMETERS ({parameters}) AS {query}"
    with failpoints.fail_at("family.parameters", errno.EIO), pytest.raises(OSError, match="output error"):
        shop.sql(text)
    assert shop.sql("SHOW TABLES").num_rows == 3
    shop.put("q1.parameters", [{"day": DAYS[0]}])
    shop.sql(text)
    assert shop.read("q1.parameters").num_rows == 0
