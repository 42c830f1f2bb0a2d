"""Sums below joins are the sums above them: the same views with `presum` none and always, after every batch. No JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from viewkeeper.database import Database
from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.plan import catalyst
from viewkeeper.plan.logical.nodes import Aggregate, Call, Expr, Filter, Join, Named, Node, Project, Query, Scan, column
from viewkeeper.plan.rules.preaggregation import find_preaggregated, preaggregate

DEEP = os.environ.get("VK_PROFILE") == "deep"
KEYS = {"orders": "o_id", "line": "l_id", "customer": "c_id"}
MONEY = types.decimal(12, 2)
DDL = {
    "orders": "o_id BIGINT, o_customer BIGINT, o_kind STRING, PRIMARY KEY (o_id)",
    "line": "l_id BIGINT, l_order BIGINT, l_price DECIMAL(12,2), l_count INT, l_rate DOUBLE, PRIMARY KEY (l_id)",
    "customer": "c_id BIGINT, c_zone INT, PRIMARY KEY (c_id)",
}
COLUMNS = {
    "orders": [("o_id", types.BIGINT), ("o_customer", types.BIGINT), ("o_kind", types.STRING)],
    "line": [
        ("l_id", types.BIGINT), ("l_order", types.BIGINT), ("l_price", MONEY), ("l_count", types.INT),
        ("l_rate", types.DOUBLE),
    ],
    "customer": [("c_id", types.BIGINT), ("c_zone", types.INT)],
}  # fmt: skip


def plan_of(number: int, tables: Any) -> Query:
    """A random sum over joined tables, some of whose calls cannot be split."""
    rng = Random(number)

    def scan(name: str) -> Scan:
        fields = ((Column(c, t, c not in KEYS.values()), c) for c, t in COLUMNS[name])
        return Scan(tables[name].id, tuple(fields))

    def of(name: str) -> Expr:
        return next(column(c, t) for cs in COLUMNS.values() for c, t in cs if c == name)

    def equal(a: str, b: str) -> Expr:
        return Expr("EqualTo", types.BOOLEAN, (of(a), of(b)))

    joined: Node = Join("inner", scan("line"), scan("orders"), equal("l_order", "o_id"))
    used = ["line", "orders"]
    if rng.random() < 0.6:
        joined = Join("inner", joined, scan("customer"), equal("o_customer", "c_id"))
        used.append("customer")
    two = Expr("literal", types.INT, value=2, nullable=False)
    if rng.random() < 0.5:
        joined = Filter(joined, Expr("GreaterThan", types.BOOLEAN, (of("l_count"), two)))
    named = ["o_id", "o_kind", "o_customer", "l_count", "l_order", *(["c_zone"] if "customer" in used else [])]
    keys = rng.sample(named, rng.randrange(3))
    one = Expr("literal", types.INT, value=1, nullable=False)
    wanted = Expr("GreaterThan", types.BOOLEAN, (of("l_count"), two))
    calls = [
        Call("n", "Count", (one,), types.BIGINT, nullable=False),
        Call("p", "Sum", (of("l_price"),), types.decimal(22, 2)),
        Call("c", "Sum", (of("l_count"),), types.BIGINT),
        Call("k", "Count", (of("l_price"),), types.BIGINT, nullable=False),
        Call("f", "Sum", (of("l_price"),), types.decimal(22, 2), filter=wanted),
        Call("g", "Count", (one,), types.BIGINT, filter=wanted, nullable=False),
    ]
    calls = rng.sample(calls, rng.randrange(1, 4))
    if rng.random() < 0.1:
        calls.append(Call("d", "Sum", (of("l_rate"),), types.DOUBLE))
    if rng.random() < 0.1:
        calls.append(Call("u", "Count", (of("l_count"),), types.BIGINT, distinct=True, nullable=False))
    made = Aggregate(joined, tuple(Named(f"g{i}", of(k)) for i, k in enumerate(keys)), tuple(calls))
    shown = tuple(Named(c.name, column(c.name, c.type, c.nullable)) for c in made.columns)
    return Query(Project(made, shown), tuple((c.name, c) for c in made.columns))


def changes(rng: Random) -> Iterator[tuple[str, str, Any]]:
    def some(*values: Any) -> Any:
        return rng.choice([None, *values])

    rows = {
        "orders": lambda i: {"o_id": i, "o_customer": some(*range(5)), "o_kind": some("a", "b")},
        "line": lambda i: {
            "l_id": i, "l_order": some(*range(9)), "l_price": some(Decimal("1.50"), Decimal("-2.25"), Decimal("1e9")),
            "l_count": some(1, 2, 3, 9), "l_rate": some(0.5, 1e300, -1e300),
        },
        "customer": lambda i: {"c_id": i, "c_zone": some(1, 2)},
    }  # fmt: skip
    for table, most in (("orders", 9), ("line", 60), ("customer", 5)):
        picked = rng.sample(range(most), rng.randrange(most // 2, most))
        yield table, "put", [rows[table](i) for i in picked]
        if rng.random() < 0.5:
            yield table, "delete", rng.sample(range(most), most // 3)


@pytest.mark.parametrize("seed", range(40) if DEEP else range(3))
def test_sums_below_joins_are_those_above(seed: int, make_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalyst, "read_query", lambda _, text, tables: plan_of(int(text.split()[-1]), tables))
    monkeypatch.setattr(Database, "_spark", lambda self: None)
    rng = Random(seed)
    numbers = rng.sample(range(1000), 6)
    dbs = {mode: make_db(mode, durability="none") for mode in ("none", "always")}
    for mode, db in dbs.items():
        for table, columns in DDL.items():
            db.sql(f"CREATE TABLE {table} ({columns})")
        for number in numbers[:3]:
            db.sql(f"CREATE MATERIALIZED VIEW v{number} WITH (presum = '{mode}') AS SELECT {number}")
    for batch in range(4):
        for table, call, given in list(changes(rng)):
            for db in dbs.values():
                getattr(db, call)(table, given)
        for mode, db in dbs.items():
            db.refresh("driver")
            if batch == 1:  # over rows that are there
                for number in numbers[3:]:
                    db.sql(f"CREATE MATERIALIZED VIEW v{number} WITH (presum = '{mode}') AS SELECT {number}")
        for number in numbers[: 3 if batch < 1 else 6]:
            none, always = (sorted(map(repr, db.read(f"v{number}").to_pylist())) for db in dbs.values())
            assert none == always, (number, batch)
    split = [number for number in numbers if "presum: line is summed by" in str(dbs["always"].explain(f"v{number}"))]
    assert split
    assert not any("presum" in str(dbs["none"].explain(f"v{number}")) for number in numbers)


def test_it_is_done_where_it_pays() -> None:
    by_name = {name: Table(i, name, (), (KeyPart(key),)) for i, (name, key) in enumerate(KEYS.items(), 1)}
    tables = {t.id: t for t in by_name.values()}
    found = {}
    for number in range(200):
        query = plan_of(number, by_name)
        for lines in (9_000, 12_000, 1_000_000):
            sizes = {by_name["orders"].id: 1_000, by_name["line"].id: lines, by_name["customer"].id: 10}
            found[number, lines] = [*find_preaggregated(preaggregate(query, tables, sizes, "auto").root)]
        always = [*find_preaggregated(preaggregate(query, tables, {}, "always").root)]
        assert preaggregate(query, tables, {}, "none") is query
        calls = {c.name for c in query.root.child.calls}
        assert not always or not calls & {"d", "u"}, "A sum of doubles and DISTINCT are not split."
        assert not found[number, 9_000], "A small table is no question."
        assert not found[number, 12_000], "Twelve rows to an order are too few."
        assert bool(found[number, 1_000_000]) <= bool(always)
    assert any(found[number, 1_000_000] for number in range(200))
