"""Catalyst as the front end: what it reads, that the plan means what the query meant, and what it refuses."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from viewkeeper.errors import BadStatement, UnknownName, Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.plan.catalyst import SETTINGS, front_session, read_query
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Query, node_from_json, node_to_json
from viewkeeper.plan.logical.text import plan_text
from viewkeeper.workloads import tpch

from . import replay


def _table(id_: int, name: str, columns: str, *key: str) -> Table:
    pairs = (c.split() for c in re.split(r",(?!\d)", columns))
    return Table(
        id_, name, tuple(Column(n, types.parse_type(t.lower())) for n, t in pairs), tuple(KeyPart(k) for k in key)
    )


def _tpch(id_: int, statement: str) -> Table:
    name, body = re.match(r"CREATE TABLE (\w+) \((.*)\)", statement, re.DOTALL).groups()
    columns, key = re.match(r"(.*),\s*PRIMARY KEY \((.*)\)", body, re.DOTALL).groups()
    return _table(id_, name, columns, *key.split(", "))


ITEMS = _table(
    11,
    "items",
    "item_id bigint, category string, price decimal(12,2), d date, f double, ts timestamp, ok boolean, n int",
    "item_id",
)
REVIEWS = _table(12, "reviews", "review_id bigint, item_id bigint, rating int, body string", "review_id")
SHOP = {"items": ITEMS, "reviews": REVIEWS}
TPCH = {name: _tpch(i, statement) for i, (name, statement) in enumerate(tpch.SCHEMAS.items(), 1)}


def _day(n: int) -> datetime.date:
    return datetime.date(2024, 1, 1) + datetime.timedelta(n)


def _item(i: int, category: str | None, price: str | None, day: int | None, f: float | None, n: int | None) -> tuple:
    at = None if day is None else datetime.datetime(2024, 1, 1 + day, 12, 30, tzinfo=datetime.UTC)
    return (
        i,
        category,
        None if price is None else Decimal(price),
        None if day is None else _day(day),
        f,
        at,
        i % 2 == 0,
        n,
    )


ITEM_ROWS = [
    _item(1, "a", "9.99", 0, 1.5, 3),
    _item(2, "a", "20.00", 1, -0.0, 1),
    _item(3, "b", "5.50", 4, 0.0, 2),
    _item(4, "b", None, None, float("nan"), 2),
    _item(5, None, "7.25", 2, None, None),
    _item(6, "c", "0.01", 9, float("nan"), 5),
    _item(7, None, "7.25", 2, 2.5, 3),
    _item(8, "a,b", "100.00", 3, 3.5, -4),
]
REVIEW_ROWS = [
    (1, 1, 5, "a"),
    (2, 1, 3, "good"),
    (3, 2, 1, None),
    (4, 3, 2, "b"),
    (5, 3, 4, "b"),
    (6, None, 3, "c"),
    (7, 99, None, "a"),
    (8, 8, 2, "a"),
]


@pytest.fixture(scope="module")
def front(spark: SparkSession) -> SparkSession:
    return front_session(spark)


@pytest.fixture(scope="module")
def filled(spark: SparkSession) -> SparkSession:
    """A session in which the shop's tables have rows. Without code generation: there are few rows and many queries."""
    session = spark.newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    for table, rows in ((ITEMS, ITEM_ROWS), (REVIEWS, REVIEW_ROWS)):
        arrow = pa.table(list(zip(*rows, strict=True)), schema=table.external_schema)
        session.createDataFrame(arrow).createOrReplaceTempView(table.name)
    return session


def read(front: SparkSession, query: str) -> Query:
    return read_query(front, query, SHOP)


def text(query: Query) -> str:
    return plan_text(query.root, {11: "items", 12: "reviews"})


def assert_sound(query: Query) -> None:
    """It goes through JSON unchanged, its names are unique, and its output is the root's columns in order."""
    assert node_from_json(json.loads(json.dumps(node_to_json(query.root)))) == query.root
    assert [c for _, c in query.output] == list(query.root.columns)
    numbers = sorted({int(c.name[1:]) for node in query.root.walk() for c in node.columns})
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("number", tpch.QUERIES)
def test_tpch_is_read_into_the_golden_plans(front: SparkSession, number: int) -> None:
    """VK_GOLDEN=write makes the files anew, to be read before they are committed."""
    query = read_query(front, tpch.QUERIES[number], TPCH)
    assert_sound(query)
    found = plan_text(query.root, {t.id: t.name for t in TPCH.values()}) + "\n"
    golden = Path(__file__).parents[1] / "golden" / "logical" / f"q{number:02}.txt"
    if os.environ.get("VK_GOLDEN") == "write":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(found, "utf-8")
    assert found == golden.read_text("utf-8")


def test_the_same_query_gives_the_same_plan(front: SparkSession) -> None:
    numbers = (2, 7, 9, 20, 21)
    first = {n: read_query(front, tpch.QUERIES[n], TPCH) for n in numbers}
    again = {n: read_query(front, tpch.QUERIES[n], TPCH) for n in reversed(numbers)}
    other = front_session(front)
    assert first == again
    assert first[21] == read_query(other, tpch.QUERIES[21], TPCH)


REPLAYED = [
    "select * from items where price > 6 and d >= date '2024-01-02' or category is null",
    "select item_id, price * 2 p, price / 3 q, n + 1 m, n div 2 h, upper(category) u, year(d) y from items",
    "select case when n > 2 then 'big' when n is null then '?' else 'small' end size, n in (1, 2, null) i from items",
    "select category like 'a%' a, category like '%,%' b, category like 'a!_b' escape '!' c, item_id from items",
    # joins
    "select i.item_id, r.review_id from items i join reviews r on i.item_id = r.item_id and r.rating > i.n",
    "select i.item_id, r.rating from items i left join reviews r on i.item_id = r.item_id and r.rating > 2",
    "select i.item_id, r.rating from items i right join reviews r on i.item_id = r.item_id",
    "select coalesce(i.item_id, r.item_id) k, price, rating from items i full join reviews r on i.item_id = r.item_id",
    "select i.item_id a, j.item_id b from items i join items j on i.f = j.f",
    "select i.item_id, r.review_id from items i, reviews r where i.price > r.rating * 5",
    # aggregates
    "select category, sum(price) / count(*) x, avg(n) a, min(d) lo, max(f) hi from items group by category",
    "select f, count(*) c from items group by f",
    "select n + 1 k, count(*) c from items group by n + 1 having max(f) > 2 or n + 1 > 3",
    "select count(*) c, sum(price) s from items where n > 100",
    "select category, count(*) filter (where n > 2) c, sum(distinct n) s from items group by category",
    "select count(distinct category) a, count(distinct n) b, sum(price) c from items",
    "select distinct category, n from items",
    "select category, d, sum(price) s, grouping(category) g from items group by rollup(category, d)",
    "select category, n, ok, count(*) c from items group by cube(category, n, ok)",
    "select category, n, avg(price) a from items group by grouping sets ((category), (n), ())",
    "select * from (select category, n, price from items) pivot (sum(price) s, count(*) c for n in (1, 2, 3))",
    # sets
    "select category from items union all select body from reviews",
    "select category, n from items union select body, rating from reviews",
    "select category from items intersect select body from reviews",
    "select category from items except select body from reviews",
    "select body from reviews except all select category from items",
    "select body from reviews intersect all select category from items",
    "select count(*) c from (select 1 from items union all select 2 from reviews)",
    # subqueries
    "select item_id from items i where exists (select 1 from reviews r where r.item_id = i.item_id and r.rating > i.n)",
    "select item_id from items i where not exists (select 1 from reviews r where r.item_id = i.item_id)",
    "select item_id from items i where n in (select rating from reviews where item_id <= 3) or price > 50",
    "select item_id from items where n not in (select rating from reviews where rating is not null)",
    "select item_id from items where n not in (select rating from reviews)",
    "select item_id, exists (select 1 from reviews r where r.item_id = i.item_id) e from items i",
    "select item_id from items where exists (select 1 from reviews where rating > 4) or n = 1",
    "select item_id from items where price > (select avg(price) from items)",
    "select item_id from items where price = (select price from items where item_id = 3)",
    "select item_id from items where price = (select price from items where item_id = 77)",
    "select item_id from items where n = (select rating from reviews order by review_id desc limit 1)",
    "select (select max(price) from items) a, (select min(n) from items) b,"
    " (select count(*) from items where d is null) c, item_id from items",
    "select category, sum(price) / (select sum(price) from items) s from items group by category"
    " having count(*) >= (select avg(rating) - 1 from reviews)",
    "select category, sum(price - (select avg(price) from items)) x from items group by category",
    "select i.item_id, r.review_id from items i left join reviews r on i.n > (select avg(rating) from reviews)"
    " and r.item_id = i.item_id",
    "select item_id, (select count(*) from reviews r where r.item_id = i.item_id) c from items i",
    "select item_id, (select sum(rating) from reviews r where r.item_id = i.item_id) c from items i",
    "select item_id, (select body from reviews r where r.review_id = i.item_id + 1) c from items i",
    "select item_id, (select rating from reviews r where r.item_id = i.item_id order by rating desc limit 1) c"
    " from items i",
    "select item_id from items i where n = (select max(n) from items j where j.category = i.category)",
    "select item_id, m from items i, lateral (select max(rating) m from reviews r where r.item_id = i.item_id)",
    "with a as (select category, sum(price) s from items group by category), b as (select max(s) m from a)"
    " select a.category, a.s from a join b on a.s = b.m",
    # windows
    "select item_id, row_number() over (partition by category order by price desc, item_id) r from items",
    "select item_id, sum(n) over (partition by category order by item_id rows between 1 preceding and current row) s,"
    " lag(n, 1) ignore nulls over (partition by category order by item_id) l,"
    " rank() over (order by price) k from items",
    "select item_id, sum(n) over (order by d range between interval 2 days preceding and current row) s from items",
    "select * from (select item_id, category, rank() over (partition by category order by price) k from items)"
    " where k = 1",
    "select category, sum(sum(price)) over (order by category) c from items group by category",
    # top-k
    "select category from items order by item_id desc limit 3",
    "select item_id, price from items order by price desc nulls last, item_id limit 3 offset 1",
    "select item_id from items order by item_id offset 6",
    "select count(*) c from (select item_id from items limit 5)",
    "select * from (select * from items order by item_id limit 4) i join reviews r using (item_id)",
    # table functions and constants
    "select item_id, e from items lateral view explode(split(category, ',')) t as e",
    "select item_id, e from items lateral view outer explode(split(category, ',')) t as e",
    "select item_id, k, v from (select item_id, n, cast(item_id as int) m from items) unpivot (v for k in (n, m))",
    "select item_id, b, c from (values (1, 'x', date '2024-01-03'), (2, null, null)) v(a, b, c)"
    " join items on item_id = a",
    "select item_id, id from items join range(4) on id = n",
    "select item_id, n from items where 1 = 0",
    "select sum(n) s, count(*) c from items where 1 = 0",
    "select 1 one, 'x' x from items",
    # together, as analytical queries have them
    "with t as (select 'i' ch, category id, sum(price) s from items group by category"
    " union all select 'r', body, sum(rating) from reviews group by body)"
    " select ch, id, sum(s) s from t group by rollup(ch, id)",
    "select category, ok, sum(n) s, rank() over (partition by grouping(category) + grouping(ok),"
    " case when grouping(ok) = 0 then category end order by sum(n) desc) r from items group by rollup(category, ok)",
    "select case when (select count(*) from items where n between 1 and 2) > 2 then (select avg(price) from items"
    " where n between 1 and 2) else (select max(price) from items where n between 3 and 9) end x from reviews",
    "select * from (select avg(price) a, count(distinct n) b from items where n < 3) x,"
    " (select count(*) c, count(distinct n) d from items where n >= 3) y",
    "with a as (select item_id k, sum(n) over (order by item_id) s from items), b as (select item_id k,"
    " sum(rating) over (order by review_id) s from reviews) select coalesce(a.k, b.k) k, a.s x, b.s y,"
    " max(a.s) over (order by coalesce(a.k, b.k), b.s) m from a full outer join b on a.k = b.k",
    "select best.category b, worst.category w from (select category, rank() over (order by s) r from"
    " (select category, sum(price) s from items group by category)) best join (select category, rank() over"
    " (order by s desc) r from (select category, sum(price) s from items group by category)) worst on best.r = worst.r",
    "select item_id from items i where exists (select 1 from reviews r where r.item_id = i.item_id and rating > 2)"
    " and (exists (select 1 from reviews r where r.body = i.category) or n in (select rating from reviews))",
    "select count(*) c from (select category from items intersect select body from reviews where rating > 1"
    " except select body from reviews where rating > 4)",
    "select item_id from items where category like all ('%a%', '%,%b') or category not like any ('_', 'x%y%z')",
]


@pytest.mark.parametrize("query", REPLAYED)
def test_a_plan_means_what_its_query_means(front: SparkSession, filled: SparkSession, query: str) -> None:
    plan = read(front, query)
    assert_sound(plan)
    expected = filled.sql(query)
    replayed = filled.sql(replay.sql(plan.root, {11: "items", 12: "reviews"}))
    assert [name for name, _ in plan.output] == expected.columns
    assert [f.dataType for f in replayed.schema] == [f.dataType for f in expected.schema]
    assert _bag(replayed) == _bag(expected)


def _bag(frame) -> Counter:
    return Counter(repr(tuple(row)).replace("-0.0", "0.0") for row in frame.collect())


def test_a_subquery_with_two_rows_is_an_error_in_the_plan_too(front: SparkSession, filled: SparkSession) -> None:
    query = read(front, "select item_id from items where price = (select price from items where category = 'a')")
    with pytest.raises(Exception, match="SCALAR_SUBQUERY_TOO_MANY_ROWS"):
        filled.sql(replay.sql(query.root, {11: "items"})).collect()


def test_a_correlated_subquery_with_two_matches_is_an_error_in_the_plan_too(
    front: SparkSession, filled: SparkSession
) -> None:
    query = read(front, "select item_id, (select body from reviews r where r.item_id = i.item_id) b from items i")
    with pytest.raises(Exception, match="SCALAR_SUBQUERY_TOO_MANY_ROWS"):
        filled.sql(replay.sql(query.root, {11: "items", 12: "reviews"})).collect()


def test_order_by_before_a_correlated_limit_is_the_windows_order(front: SparkSession) -> None:
    query = read(
        front,
        "select item_id, (select body from reviews r where r.item_id = i.item_id order by rating desc limit 1) b"
        " from items i",
    )
    (window,) = (n for n in query.root.walk() if isinstance(n, nodes.Window))
    assert [(o.expr.op, o.descending) for o in window.order] == [("column", True)]


PLANS = {
    "select count(*) c from items": """
        aggregate: c1 = count(1)
          scan items: c0 = item_id""",
    "select category, sum(price) / count(*) x from items where d > date '2024-01-01' group by category order by x": """
        sort c5
          project c0, c5 = c3 / cast(c4 as decimal(20,0))
            aggregate by c0: c3 = sum(c1), c4 = count(1)
              project c0, c1
                filter c2 is not null and c2 > date '2024-01-01'
                  scan items: c0 = category, c1 = price, c2 = d""",
    "select item_id from items where price > (select avg(price) from items)": """
        project c0
          filter c1 is not null and cast(c1 as decimal(16,6)) > c3
            join inner
              scan items: c0 = item_id, c1 = price
              aggregate: c3 = average(c2)
                scan items: c2 = price""",
    "select item_id from items where n not in (select rating from reviews)": """
        project c0
          join anti on c1 = c2 or (c1 = c2) is null
            scan items: c0 = item_id, c1 = n
            scan reviews: c2 = rating""",
    "select category from items intersect select body from reviews": """
        aggregate by c0
          join semi on c0 <=> c1
            scan items: c0 = category
            scan reviews: c1 = body""",
    "select category, d, sum(price) s from items group by rollup(category, d)": """
        project c4, c5, c7
          aggregate by c4, c5, c6: c7 = sum(c3)
            expand (c3, c4, c5, c6) = (c1, c0, c2, 0), (c1, c0, null, 1), (c1, null, null, 3)
              scan items: c0 = category, c1 = price, c2 = d""",
    "select item_id, rank() over (partition by category order by price desc) k from items": """
        project c0, c3
          window by c1 sort c2 desc: c3 = rank() [frame rows unbounded preceding to current row]
            scan items: c0 = item_id, c1 = category, c2 = price""",
    "select category from items order by d desc limit 3 offset 1": """
        project c0
          limit 3 offset 1
            sort c1 desc
              scan items: c0 = category, c1 = d""",
}


@pytest.mark.parametrize("query", PLANS)
def test_plans_read_as_expected(front: SparkSession, query: str) -> None:
    lines = PLANS[query].strip("\n").splitlines()
    assert text(read(front, query)) == "\n".join(line[8:] for line in lines)


@pytest.mark.parametrize(
    ("call", "arrives"),
    [
        ("count_if(ok)", "Count"),
        *((f"{name}(ok)", "Min") for name in ("bool_and", "every")),
        *((f"{name}(ok)", "Max") for name in ("bool_or", "some", "any")),
    ],
)
def test_aggregates_of_conditions_arrive_as_counts_and_extremes(front: SparkSession, call: str, arrives: str) -> None:
    """So the aggregate operator needs no kernel of its own for them, with FILTER and DISTINCT neither."""
    for text in (call, f"{call} FILTER (WHERE n > 1)", call.replace("(", "(DISTINCT ")):
        root = read_query(front, f"SELECT category, {text} AS v FROM items GROUP BY category", SHOP).root
        called = {c.function for node in root.walk() if isinstance(node, nodes.Aggregate) for c in node.calls}
        assert called == {arrives}


def test_a_key_column_is_not_null_and_other_columns_may_be(front: SparkSession) -> None:
    query = read(front, "select item_id, n from items")
    assert [(name, c.type, c.nullable) for name, c in query.output] == [
        ("item_id", types.BIGINT, False),
        ("n", types.INT, True),
    ]


def test_names_are_case_insensitive_and_keep_the_case_of_the_query(front: SparkSession) -> None:
    query = read(front, "select ITEM_ID, N as Enn from ITEMS")
    assert [name for name, _ in query.output] == ["ITEM_ID", "Enn"]
    assert [stored for n in query.root.walk() if isinstance(n, nodes.Scan) for _, stored in n.fields] == [
        "item_id",
        "n",
    ]


def test_literals_keep_their_values(front: SparkSession) -> None:
    query = read(
        front,
        "select n = -3 a, f = 0.1d b, price = 1.10 c, category = 'it''s' d, d = date '1969-12-31' e,"
        " ts = timestamp '2020-01-01 00:00:00.5' g, cast(category as binary) = x'00ff' h, ok = true i from items",
    )
    found = {str(e.type): e.value for n in query.root.exprs for e in n.expr.walk() if e.op == "literal"}
    assert found == {
        "int": -3,
        "double": "0.1",
        "decimal(12,2)": "1.10",
        "string": "it's",
        "date": -1,
        "timestamp": 1577836800500000,
        "binary": "00ff",
    }


def test_long_in_lists_stay_lists_in_their_order(front: SparkSession) -> None:
    query = read(front, f"select item_id from items where n in ({', '.join(map(str, range(500, 0, -1)))})")
    (found,) = (e for n in query.root.walk() if isinstance(n, nodes.Filter) for e in n.condition.walk() if e.op == "In")
    assert [a.value for a in found.args[1:]] == list(range(500, 0, -1))


def test_a_thousand_conditions_are_no_deeper_than_ten(front: SparkSession) -> None:
    parts = [f"n = {i} and category = 'x{i}'" for i in range(1000)]
    query = read(front, f"select item_id from items where {' or '.join(parts)}")
    assert_sound(query)
    (condition,) = (n.condition for n in query.root.walk() if isinstance(n, nodes.Filter))
    assert sum(e.op == "Or" for e in condition.walk()) == 999


def test_a_changed_table_is_read_with_its_new_columns(front: SparkSession) -> None:
    old = _table(21, "changing", "id bigint, a int", "id")
    new = _table(22, "changing", "id bigint, b string", "id")
    assert read_query(front, "select a from changing", {"changing": old}).output[0][1].type == types.INT
    assert read_query(front, "select b from changing", {"changing": new}).output[0][1].type == types.STRING
    with pytest.raises(UnknownName):
        read_query(front, "select * from changing", {})


def test_the_users_session_keeps_its_settings_and_tables(front: SparkSession) -> None:
    user = front.newSession()
    user.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    read_query(front_session(user), "select n from items", SHOP)
    assert user.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert not user.catalog.tableExists("items")


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("select current_date() d from items", "current_date()"),
        ("select item_id from items where ts > now()", "now()"),
        ("select (select max(current_timestamp()) from reviews) x from items", "current_timestamp()"),
        ("select unix_timestamp() u from items", "current_timestamp()"),
        ("select rand() r from items", "rand()"),
        ("select item_id from items order by rand(3)", "rand()"),
        ("select uuid() u from items", "uuid()"),
        ("select monotonically_increasing_id() m from items", "monotonically_increasing_id()"),
        ("select input_file_name() i from items", "input_file_name()"),
        ("select current_user() u from items", "current_user()"),
        ("select reflect('java.lang.System', 'nanoTime') x from items", "reflect()"),
        ("select * from items tablesample (10 percent)", "TABLESAMPLE"),
        ("select transform(n) using 'cat' as (x) from items", "TRANSFORM"),
        (
            "with recursive t(k) as (select 1 union all select k + 1 from t where k < 5) select k from t, items",
            "RECURSIVE",
        ),
        ("select category collate unicode_ci c from items", "COLLATE"),
        ("select array(n) a from items", "ARRAY<INT>"),
        ("select interval '1' day i from items", "INTERVAL DAY"),
        ("select 1 x", "reads no table"),
        ("select item_id, (select body from reviews r where r.rating < i.n) b from items i", "scalar subquery"),
    ],
)
def test_what_cannot_be_maintained_is_refused_by_name(front: SparkSession, query: str, named: str) -> None:
    with pytest.raises(Unsupported, match=re.escape(named)):
        read(front, query)


def test_a_table_of_sparks_own_catalog_is_refused(front: SparkSession, tmp_path) -> None:
    front.range(3).write.parquet(str(tmp_path / "numbers"))
    with pytest.raises(Unsupported, match="not a table or view of this database"):
        read(front, f"select id from parquet.`{tmp_path}/numbers`")


@pytest.mark.parametrize(
    ("query", "error", "named"),
    [
        ("selec 1", BadStatement, "selec"),
        ("select n n n from items", BadStatement, "Syntax error"),
        ("select nope(n) from items", BadStatement, "nope"),
        ("select ok + 1 from items", BadStatement, "ok + 1"),
        ("select n, price as N from items", BadStatement, "called N"),
        ("select * from items i join reviews r on i.item_id = r.item_id", BadStatement, "item_id"),
        ("select * from nowhere", UnknownName, "nowhere"),
        ("select n from items where exists (select 1 from nowhere)", UnknownName, "nowhere"),
        ("select colour from items", UnknownName, "colour"),
        ("drop table items", BadStatement, "Only a query"),
        ("create table x as select 1", BadStatement, "Only a query"),
        ("insert into items select * from items", BadStatement, "Only a query"),
        ("set spark.sql.ansi.enabled=false", BadStatement, "Only a query"),
        ("show tables", BadStatement, "Only a query"),
        ("select n from items; select n from items", BadStatement, "Syntax error"),
    ],
)
def test_a_wrong_statement_is_refused_in_a_line_or_two(
    front: SparkSession, query: str, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=re.escape(named)) as raised:
        read(front, query)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500
    assert read(front, "select n from items")  # nothing has changed
