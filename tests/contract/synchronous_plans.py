"""Queries over `items` (`planned.TABLES`) whose plans are written down here: synchronous views without a JVM.

Each has its twin in Python, slow and obvious: what it gives over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.contract import planned

from viewkeeper.expressions.tree import Expr, Named, column
from viewkeeper.model import types
from viewkeeper.model.schema import Column, Table
from viewkeeper.model.types import Type
from viewkeeper.plan.logical.nodes import Aggregate, Call, Filter, Join, Node, Project, Query, Scan

Row = dict[str, Any]
ANSI = (("evalMode", "ANSI"),)
ID, CATEGORY, PRICE = (
    column("id", types.BIGINT, False),
    column("category", types.STRING),
    column("price", types.INT),
)


def _scan(table: Table, **columns: str) -> Scan:
    named = {c.name: c for c in table.columns}
    return Scan(table.id, tuple((Column(n, named[s].type, named[s].nullable), s) for n, s in columns.items()))


def _items(tables: Mapping[str, Table]) -> Scan:
    return _scan(tables["items"], id="item_id", category="category", price="price")


def _literal(value: Any, type_: Type = types.INT) -> Expr:
    return Expr("literal", type_, value=value, nullable=False)


def _call(name: str, function: str, argument: Expr, type_: Type, distinct: bool = False) -> Call:
    return Call(name, function, (argument,), type_, distinct, None, ANSI if function in ("Sum", "Average") else None)


def _query(root: Node) -> Query:
    return Query(root, tuple((c.name, c) for c in root.columns))


def _grouped(tables: Mapping[str, Table]) -> Query:
    calls = (
        _call("n", "Count", _literal(1), types.BIGINT),
        _call("priced", "Count", PRICE, types.BIGINT),
        _call("total", "Sum", PRICE, types.BIGINT),
        _call("mean", "Average", PRICE, types.DOUBLE),
        _call("low", "Min", PRICE, types.INT),
        _call("high", "Max", PRICE, types.INT),
        _call("prices", "Count", PRICE, types.BIGINT, True),
    )
    return _query(Aggregate(_items(tables), (Named("category", CATEGORY),), calls))


def _means(tables: Mapping[str, Table]) -> Query:
    """Averages of numbers that no DOUBLE has: each is cast before it is added."""
    calls = (_call("mean", "Average", ID, types.DOUBLE), _call("total", "Count", ID, types.BIGINT))
    return _query(Aggregate(_items(tables), (Named("category", CATEGORY),), calls))


def _sums(tables: Mapping[str, Table]) -> Query:
    """Many rows need no statement for it either, with a filter below."""
    over = Expr("GreaterThan", types.BOOLEAN, (PRICE, _literal(-2)))
    calls = (
        _call("n", "Count", _literal(1), types.BIGINT),
        _call("total", "Sum", PRICE, types.BIGINT),
        _call("mean", "Average", PRICE, types.DOUBLE),
    )
    return _query(Aggregate(Filter(_items(tables), over), (Named("category", CATEGORY),), calls))


def _totals(tables: Mapping[str, Table]) -> Query:
    """Few rows need no statement for it, with a filter below and one above."""
    over = Expr("GreaterThan", types.BOOLEAN, (PRICE, _literal(-2)))
    calls = (
        _call("n", "Count", _literal(1), types.BIGINT),
        _call("total", "Sum", PRICE, types.BIGINT),
        _call("mean", "Average", PRICE, types.DOUBLE),
        _call("low", "Min", PRICE, types.INT),
        _call("high", "Max", PRICE, types.INT),
    )
    grouped = Aggregate(Filter(_items(tables), over), (Named("category", CATEGORY),), calls)
    return _query(Filter(grouped, Expr("LessThan", types.BOOLEAN, (column("high", types.INT), _literal(40)))))


def _whole(tables: Mapping[str, Table]) -> Query:
    calls = (_call("n", "Count", _literal(1), types.BIGINT), _call("high", "Max", PRICE, types.INT))
    return _query(Aggregate(_items(tables), (), calls))


def _shares(tables: Mapping[str, Table]) -> Query:
    share = Expr("IntegralDivide", types.BIGINT, (_literal(100), PRICE), "ANSI")
    return _query(Project(_items(tables), (Named("item_id", ID), Named("share", share))))


def _dear(tables: Mapping[str, Table]) -> Query:
    over = Expr("GreaterThan", types.BOOLEAN, (PRICE, _literal(3)))
    return _query(Project(Filter(_items(tables), over), (Named("item_id", ID), Named("price", PRICE))))


def _categories(tables: Mapping[str, Table]) -> Query:
    return _query(Project(_items(tables), (Named("category", CATEGORY),)))


def _doubles(tables: Mapping[str, Table]) -> Query:
    double = Expr("Cast", types.DOUBLE, (PRICE,), ("ANSI",))
    rows = Project(_items(tables), (Named("category", CATEGORY), Named("x", double)))
    return _query(
        Aggregate(rows, (Named("category", CATEGORY),), (_call("s", "Sum", column("x", types.DOUBLE), types.DOUBLE),))
    )


def _huge(tables: Mapping[str, Table]) -> Query:
    wide = Expr("Cast", types.BIGINT, (PRICE,), ("ANSI",))
    much = Expr("Multiply", types.BIGINT, (wide, _literal(10**13, types.BIGINT)), "ANSI")
    rows = Project(_items(tables), (Named("x", much),))
    return _query(Aggregate(rows, (), (_call("s", "Sum", column("x", types.BIGINT), types.BIGINT),)))


def _over(name: str, **columns: str) -> Callable[[Mapping[str, Table]], Query]:
    """How often each row is there, of some columns of a view."""

    def query(tables: Mapping[str, Table]) -> Query:
        scan = _scan(tables[name], **columns)
        keys = tuple(Named(c.name, column(c.name, c.type, c.nullable)) for c in scan.columns)
        return _query(Aggregate(scan, keys, (_call("times", "Count", _literal(1), types.BIGINT),)))

    return query


def _joined(tables: Mapping[str, Table]) -> Query:
    kinds = _scan(tables["kinds"], kind="category", boss="boss")
    same = Expr("EqualTo", types.BOOLEAN, (CATEGORY, column("kind", types.STRING, False)))
    join = Join("inner", _items(tables), kinds, same)
    return _query(Project(join, (Named("item_id", ID), Named("boss", column("boss", types.STRING)))))


PLANS: Mapping[str, Callable[[Mapping[str, Table]], Query]] = {
    "SELECT grouped": _grouped,
    "SELECT totals": _totals,
    "SELECT means": _means,
    "SELECT sums": _sums,
    "SELECT whole": _whole,
    "SELECT shares": _shares,
    "SELECT dear": _dear,
    "SELECT categories": _categories,
    "SELECT doubles": _doubles,
    "SELECT huge": _huge,
    "SELECT joined": _joined,
    "SELECT prices of dear": _over("dear", price="price"),
    "SELECT counts of grouped": _over("grouped", n="n"),
    "SELECT counts of batched": _over("batched", n="n"),
}


def install(patch: Any = setattr) -> None:
    planned.install(patch)
    from viewkeeper.plan import catalyst

    patch(catalyst, "read_query", lambda _spark, text, tables: PLANS[text](tables))


# -- twins -------------------------------------------------------------------------------------------------------------


def recomputed(items: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in items:
        groups.setdefault(row["category"], []).append(row)
    dear = {c: [r for r in rows if (r["price"] or -9) > -2 or r["price"] == 0] for c, rows in groups.items()}
    return {
        "totals": [_total(c, rows) for c, rows in dear.items() if rows and max(_priced(rows)) < 40],
        "sums": [
            {k: _total(c, rows)[k] for k in ("category", "n", "total", "mean")} for c, rows in dear.items() if rows
        ],
        "grouped": [{"category": c, **_measures(rows)} for c, rows in groups.items()],
        "whole": [{"n": len(items), "high": max(_priced(items), default=None)}],
        "dear": [{"item_id": r["item_id"], "price": r["price"]} for r in items if (r["price"] or 0) > 3],
        "categories": [{"category": r["category"]} for r in items],
        "doubles": [{"category": c, "s": sum(map(float, p)) if (p := _priced(r)) else None} for c, r in groups.items()],
        "by_price": [{"price": r["price"], "item_id": r["item_id"]} for r in items],
    }


def _priced(rows: Sequence[Row]) -> list[int]:
    return [r["price"] for r in rows if r["price"] is not None]


def _total(category: Any, rows: Sequence[Row]) -> Row:
    kept = {name: value for name, value in _measures(rows).items() if name not in ("priced", "prices")}
    return {"category": category, **kept}


def _measures(rows: Sequence[Row]) -> Row:
    prices = _priced(rows)
    return {
        "n": len(rows),
        "priced": len(prices),
        "total": sum(prices) if prices else None,
        "mean": sum(prices) / len(prices) if prices else None,
        "low": min(prices, default=None),
        "high": max(prices, default=None),
        "prices": len(set(prices)),
    }
