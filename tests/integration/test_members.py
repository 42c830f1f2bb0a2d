"""Views that differ in constants are gathered into a family, and nobody can tell.

Every template is made twice: as members, and with `share = false` as views by themselves. They must be equal, row for
row and change for change, and equal to Spark's answer (`audit`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from viewkeeper import STALE
from viewkeeper.errors import ViewkeeperError
from viewkeeper.maintain.definitions import families as definitions_families
from viewkeeper.spark import register
from viewkeeper.sql.statements import create_views_together

DAY = datetime.date(1994, 1, 1)
TEMPLATES: dict[str, tuple[str, Callable[[Random], dict[str, Any]]]] = {
    "sums": (
        """SELECT sum(price * (1 - disc)) AS s, count(*) AS n FROM line
           WHERE shipped >= DATE '{day}' AND disc BETWEEN {low} AND {high} AND qty < {qty}""",
        lambda r: {
            "day": _day(r),
            "low": f"0.0{r.randint(1, 4)}",
            "high": f"0.0{r.randint(5, 9)}",
            "qty": r.randint(1, 9),
        },
    ),
    "groups": (
        "SELECT flag, sum(price) AS s, avg(ratio) AS a FROM line WHERE shipped <= DATE '{day}' GROUP BY flag",
        lambda r: {"day": _day(r)},
    ),
    "joined": (
        """SELECT customer, sum(price) AS s FROM line JOIN orders ON line.orderkey = orders.orderkey
           WHERE ordered < DATE '{day}' AND flag = '{flag}' GROUP BY customer""",
        lambda r: {"day": _day(r), "flag": r.choice("ABC")},
    ),
    "rows": (
        "SELECT orderkey, nr, price FROM line WHERE qty = {qty} AND ratio > {ratio}",
        lambda r: {"qty": r.randint(1, 9), "ratio": r.choice(["0.5D", "1.5D", "-2.5D"])},
    ),
    "bag": ("SELECT flag, qty FROM line WHERE qty < {qty}", lambda r: {"qty": r.randint(1, 9)}),
    "ordered": (
        "SELECT orderkey, nr, price FROM line WHERE qty < {qty} ORDER BY price DESC, orderkey, nr",
        lambda r: {"qty": r.randint(1, 9)},
    ),
    "extremes": (
        "SELECT flag, max(price) AS m, count(DISTINCT qty) AS d FROM line WHERE qty <> {qty} GROUP BY flag",
        lambda r: {"qty": r.randint(1, 9)},
    ),
    "outer": (
        """SELECT customer, count(line.orderkey) AS n FROM orders
           LEFT JOIN line ON line.orderkey = orders.orderkey AND qty < {qty} GROUP BY customer""",
        lambda r: {"qty": r.randint(1, 9)},
    ),
    "both": (
        """SELECT customer AS k FROM orders WHERE customer < {qty}
           UNION ALL SELECT orderkey FROM line WHERE qty = {qty}""",
        lambda r: {"qty": r.randint(1, 9)},
    ),
    "exists": (
        """SELECT orderkey, customer FROM orders WHERE customer < {qty}
           AND EXISTS (SELECT 1 FROM line WHERE line.orderkey = orders.orderkey AND qty > {qty})""",
        lambda r: {"qty": r.randint(1, 9)},
    ),
}
FEW = ("sums", "joined", "rows")


def _day(rng: Random) -> datetime.date:
    return DAY + datetime.timedelta(rng.randint(0, 1000))


def line(rng: Random) -> dict[str, Any]:
    return {
        "orderkey": rng.randrange(60),
        "nr": rng.randrange(3),
        "qty": rng.choice([None, *range(1, 10)]),
        "price": Decimal(rng.randint(1, 100_000)) / 100,
        "disc": Decimal(rng.randint(0, 10)) / 100,
        "shipped": rng.choice([None, _day(rng), _day(rng)]),
        "flag": rng.choice("ABC"),
        "ratio": float("nan") if rng.random() < 0.02 else rng.choice([None, 0.0, 1.0, 2.0, 0.1, -3.0]),
    }


def order(rng: Random) -> dict[str, Any]:
    return {"orderkey": rng.randrange(60), "customer": rng.randint(1, 9), "ordered": _day(rng)}


@pytest.fixture
def shop(make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(definitions_families, "is_family_cheaper", lambda views, different, rows: different >= 4)
    db = make_db(spark=spark, durability="none")
    db.sql(
        "CREATE TABLE line (orderkey BIGINT, nr INT, qty INT, price DECIMAL(9,2), disc DECIMAL(4,2), shipped DATE,"
        " flag STRING, ratio DOUBLE, PRIMARY KEY (orderkey, nr))"
    )
    db.sql("CREATE TABLE orders (orderkey BIGINT, customer BIGINT, ordered DATE, PRIMARY KEY (orderkey))")
    rng = Random(1)
    db.put("line", [line(rng) for _ in range(120)])
    db.put("orders", [order(rng) for _ in range(40)])
    return db


def texts(template: str, count: int, seed: int = 2) -> list[str]:
    query, draw = TEMPLATES[template]
    rng = Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[query.format(**draw(rng))] = None
    return list(found)


def apart(db: Any, views: dict[str, str]) -> None:
    """The same views, each by itself."""
    statement = "CREATE MATERIALIZED VIEW apart_{} WITH (share = false) AS {}"
    create_views_together(db, [statement.format(name, text) for name, text in views.items()])


def families(db: Any) -> list[int]:
    """How many members each family has."""
    return sorted(map(len, db._store.catalog().members.values()))


def changed(db: Any, rng: Random) -> None:
    db.put("line", [line(rng) for _ in range(25)])
    db.put("orders", [order(rng) for _ in range(6)])
    db.delete("line", [(rng.randrange(60), rng.randrange(3)) for _ in range(8)])


@pytest.mark.parametrize("chosen", [FEW, pytest.param(tuple(TEMPLATES), marks=pytest.mark.deep)], ids=["few", "all"])
def test_members_are_the_views_that_they_would_be_by_themselves(shop: Any, chosen: tuple[str, ...]) -> None:
    rng = Random(3)
    made = {f"{name}_{i}": text for name in chosen for i, text in enumerate(texts(name, 6))}
    shop.create_views(made)
    assert families(shop) == [6] * len(chosen)
    apart(shop, made)
    for lane in ("driver", "spark", "driver"):
        changed(shop, rng)
        shop.refresh(lane=lane)
        if lane == "spark":
            # Some go, and others come between batches: a name again with another text, and one more of each template.
            for name in chosen:
                for one in (f"{name}_1", f"apart_{name}_1"):
                    shop.sql(f"DROP MATERIALIZED VIEW {one}")
            again = {f"{name}_1": texts(name, 7)[-1] for name in chosen}
            shop.create_views(again)
            apart(shop, again)
        for name in made:
            mine, theirs = shop.read(name), shop.read(f"apart_{name}")
            assert mine.schema.equals(theirs.schema), name
            assert repr(mine.to_pylist()) == repr(theirs.to_pylist()), (lane, name)  # NaN is NaN, and −0.0 not 0.0
    assert families(shop) == [6] * len(chosen)
    assert {v.view: v.differences for v in shop.audit(*made).views} == dict.fromkeys(made, 0)


FAILING = {
    "sum": "SELECT g, sum(x) AS s FROM wide WHERE q > {} GROUP BY g",
    "product": "SELECT g, sum(x * y) AS s, count(*) AS n FROM wide WHERE q > {} GROUP BY g",
    "row": "SELECT id, x * y AS p FROM wide WHERE q > {}",
    "whole": "SELECT sum(CASE WHEN g = 1 THEN x * y * y END) AS s FROM wide WHERE q > {}",
    "most": "SELECT g, max(x * y) AS m FROM wide WHERE q > {} GROUP BY g",
}


@pytest.mark.parametrize("lane", ["driver", "spark"])
@pytest.mark.parametrize("count", [3, pytest.param(5, marks=pytest.mark.deep)])
def test_members_that_fail_are_those_that_would_fail_by_themselves(shop: Any, lane: str, count: int) -> None:
    shop.sql("CREATE TABLE wide (id BIGINT, g INT, q INT, x DECIMAL(38,2), y DECIMAL(20,2), PRIMARY KEY (id))")
    shop.put("wide", [{"id": n, "g": n % 3, "q": n % 6, "x": Decimal(n), "y": Decimal(n)} for n in range(20)])
    templates = dict(list(FAILING.items())[:count])
    made = {f"{name}_{n}": text.format(n) for name, text in templates.items() for n in range(4)}
    shop.create_views(made)
    assert families(shop) == [4] * count
    apart(shop, made)
    large, half = Decimal(10) ** 34, Decimal(9) * 10**35
    nobodys = {"id": 100, "g": 1, "q": 0, "x": large, "y": large / 10**20}
    shop.put("wide", [nobodys])
    assert shop.refresh(lane=lane).suspended == {}
    shop.put("wide", [{**nobodys, "id": 101, "q": 1}, {"id": 102, "g": 2, "q": 2, "x": half, "y": None}])
    first = shop.refresh(lane=lane).suspended
    assert {name for name in first if name in made} == {f"{name}_0" for name in templates if name != "sum"}
    shop.put("wide", [{"id": 103, "g": 2, "q": 5, "x": half, "y": None}])
    second = shop.refresh(lane=lane).suspended
    assert {name for name in second if name in made} == {"sum_0", "sum_1"}
    for told in (first, second):  # by itself each fails on the same, and on nothing else
        assert {f"apart_{name}" for name in told if name in made} == {name for name in told if name not in made}
        assert all("NUMERIC_VALUE_OUT_OF_RANGE" in why or "ARITHMETIC_OVERFLOW" in why for why in told.values())
    for name in made:
        assert shop.read(name, STALE).equals(shop.read(f"apart_{name}", STALE)), name
    shop.delete("wide", [100, 101, 102, 103])
    going = sorted(made.keys() - first.keys() - second.keys())
    assert shop.refresh(lane=lane).suspended == {}
    for name in going:
        assert shop.read(name).equals(shop.read(f"apart_{name}")), name
    assert {v.view: v.differences for v in shop.audit(*going).views} == dict.fromkeys(going, 0)


def test_spark_reads_a_member_as_any_view(shop: Any, spark: Any) -> None:
    made = {f"v{i}": text for i, text in enumerate(texts("rows", 5))}
    shop.create_views(made)
    most = max(made, key=lambda name: shop.read(name).num_rows)
    rows = shop.read(most).to_pylist()
    some = rows[len(rows) // 2]
    asked = shop.sql(f"SELECT * FROM {most} ORDER BY orderkey, nr", engine="spark")
    assert asked.to_pylist() == rows
    register(spark)
    frame = spark.read.format("viewkeeper").option("db", shop._store.url).option("table", most).load()
    assert sorted(r.asDict()["orderkey"] for r in frame.collect()) == [r["orderkey"] for r in rows]
    found = frame.where(f"orderkey = {some['orderkey']} AND nr = {some['nr']}").collect()
    assert [r.asDict() for r in found] == [some]


def test_views_stay_apart_where_together_they_could_be_others(shop: Any) -> None:
    templates = {
        "fails": "SELECT sum(1 / qty) AS s FROM line WHERE nr = {n} AND qty > 0",
        "top": "SELECT orderkey, nr, price FROM line WHERE nr >= {n} ORDER BY price LIMIT 3",
        "shown": "SELECT orderkey, nr, ratio * {n}D AS q FROM line",
    }
    shop.create_views({f"{name}{n}": text.format(n=n) for name, text in templates.items() for n in range(1, 5)})
    # An option keeps a view apart, and few views are no family.
    apart(shop, {f"o{i}": text for i, text in enumerate(texts("groups", 4))})
    shop.create_views({f"few{i}": text for i, text in enumerate(texts("sums", 3))})
    assert families(shop) == []


@pytest.mark.parametrize(
    "text", ["SELECT nope FROM line", "SELECT count(*) AS n FROM nowhere", "SELECT nr, nr FROM line"]
)
def test_of_many_views_it_is_said_which_is_wrong(shop: Any, text: str) -> None:
    views = {f"v{i}": query for i, query in enumerate(texts("sums", 30))} | {"v17": text}
    with pytest.raises(ViewkeeperError, match=r"\] v17: "):
        shop.create_views(views)
    assert not shop.status().views
