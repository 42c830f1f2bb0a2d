"""Members made from cells equal members made one by one: each way to recompose against the sum over all pairs, codes
against the values' own order, and whole families by cells against the same families by rows, while rows and members
come and go in the same batches. No JVM: the plans are made here."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import combinations_with_replacement
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.database import Database
from viewkeeper.maintain.definitions import alter_table, planning
from viewkeeper.model import types
from viewkeeper.model.schema import Column, Table
from viewkeeper.operators.family.axes import Axis, BitmapAxis, RangeAxis, build_range_axis
from viewkeeper.operators.family.recompose import recompose
from viewkeeper.operators.family.value_codes import encode_values, number_tuples
from viewkeeper.plan import catalyst
from viewkeeper.plan.families import lift
from viewkeeper.plan.logical.nodes import (
    Aggregate,
    Call,
    Expr,
    Filter,
    MemberJoin,
    MemberSeeds,
    Named,
    Node,
    Project,
    Query,
    Scan,
)

NAN = float("nan")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "EqualTo": lambda a, b: a == b,
}
VALUES: dict[pa.DataType, Sequence[Any]] = {
    pa.int64(): [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1],
    pa.int8(): [-128, 0, 127],
    pa.bool_(): [False, True],
    pa.date32(): [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)],
    pa.timestamp("us"): [datetime.datetime(1, 1, 1), datetime.datetime(1970, 1, 1, 0, 0, 0, 1)],
    pa.decimal128(18, 2): [Decimal("-9999999999999999.99"), Decimal("0.01"), Decimal("9999999999999999.99")],
    pa.decimal128(38, 0): [Decimal(-(10**38) + 1), Decimal(-1), Decimal(0), Decimal(2**70), Decimal(10**38 - 1)],
    pa.string(): ["", "a", "aa", "b", "ä", "\U0001f600"],
    pa.binary(): [b"", b"\x00", b"\x7f", b"\xff"],
    pa.float64(): [float("-inf"), -1e308, -5e-324, 0.0, 5e-324, 1.5, float("inf"), NAN],
    pa.float32(): [float("-inf"), -0.5, 0.0, 0.5, NAN],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_codes_have_the_order_of_the_values(kind: pa.DataType) -> None:
    """The lists above ascend, as Spark compares: strings by bytes, NaN last."""
    values = list(VALUES[kind])
    mine, theirs = pa.chunked_array([pa.array([*values, None], kind)]), pa.array(values[::-1], kind)
    (one, there), (other, _) = encode_values([mine, theirs])
    assert there.tolist() == [True] * len(values) + [False]
    for a, b in combinations_with_replacement(range(len(values)), 2):
        assert (one[a] < one[b]) == (a < b)
        assert (one[a] == other[len(values) - 1 - b]) == (a == b)


def test_zeros_are_one_value_and_so_are_nans() -> None:
    odd = np.array([0x7FF8000000000001, 0x7FF8000000000000], np.uint64).view(np.float64)
    (codes, _), (more, _) = encode_values([pa.array([0.0, -0.0, NAN]), pa.array(odd)])
    assert codes[0] == codes[1] < codes[2] == more[0] == more[1]


def test_tuples_are_numbered_with_nulls_as_values() -> None:
    number, first = number_tuples([pa.array([1, None, 1, None, 2]), pa.array(["a", "a", "a", None, "a"])])
    assert len(set(number.tolist())) == 4
    assert number[0] == number[2]
    assert [number[i] for i in first] == list(range(4))


@given(st.integers(0, 2**32 - 1))
def test_every_way_to_recompose_gives_the_sums_over_all_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, members, groups = (int(rng.integers(1, most)) for most in (60, 20, 5))
    group = rng.integers(0, groups, rows)
    sums = [rng.integers(-5, 6, rows), rng.integers(-(2**62), 2**62, rows)]
    wanted = np.ones((rows, members), np.bool_)
    axes: list[Axis] = []
    for _ in range(rng.integers(1, 4)):
        x, null = rng.integers(0, 8, rows), rng.random(rows) < 0.2
        conditions = []
        for _ in range(rng.integers(1, 3)):
            operator = str(rng.choice(list(OPERATORS)))
            bound, none = rng.integers(-1, 9, members), rng.random(members) < 0.1
            conditions.append((operator, pa.array(bound, mask=none)))
            wanted &= OPERATORS[operator](x[:, None], bound[None, :]) & ~null[:, None] & ~none[None, :]
        axes.append(build_range_axis(pa.array(x, mask=null), conditions))
    if rng.random() < 0.3:
        x, table, kind = rng.integers(0, 4, rows), rng.random((4, 3)) < 0.5, rng.integers(0, 3, members)
        wanted &= table[x][:, kind]
        axes.append(BitmapAxis(np.where(table.any(axis=1)[x], x, -1), table, kind))
    kept = np.logical_and.reduce([axis.row_buckets >= 0 for axis in axes])
    assert not wanted[~kept].any()  # a row that goes is nobody's
    places = np.flatnonzero(kept)
    expected = [np.zeros((groups, members), np.int64) for _ in sums]
    pairs = (np.repeat(group, members), np.tile(np.arange(members), rows))
    for total, values in zip(expected, sums, strict=True):
        np.add.at(total, pairs, np.where(wanted, values[:, None], 0).ravel())
    ranges = all(isinstance(axis, RangeAxis) for axis in axes)
    for way in ("", "product", "pairs", *(["grid"] if ranges else [])):
        got = [np.zeros((groups, members), np.int64) for _ in sums]
        chosen = [axis.select_rows(places) for axis in axes]
        for member, where, found in recompose(group[places], groups, chosen, [s[places] for s in sums], way):
            for total, values in zip(got, found, strict=True):
                np.add.at(total, (where, member), values)
        for mine, theirs in zip(expected, got, strict=True):
            assert (mine == theirs).all(), way


# -- whole families ----------------------------------------------------------------------------------------------------

ROWS = {
    "id": ("bigint", range(30)),
    "k": ("string", [None, "a", "b", ""]),
    "x": ("int", [None, -3, 0, 1, 2, 7]),
    "y": ("double", [None, 0.0, -0.0, 1.5, NAN, float("inf"), -2.25]),
    "s": ("string", [None, "", "ab", "b", "bc"]),
    "u": ("timestamp", [None, datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, 0, 0, 1)]),
    "v": ("decimal(12,2)", [None, Decimal("0.01"), Decimal("-9999999999.99"), Decimal("7.50")]),
    "w": ("double", [None, 0.1, 1e16, -1e16, 1.0, NAN]),
    "l": ("bigint", [None, 2**62, -(2**62), 5]),
}
MEMBERS = {
    "i": ("int", [-3, 0, 1, 2, 5]),
    "d": ("double", [0.0, 1.5, NAN, -2.25]),
    "t": ("string", ["", "a%", "b", "bc"]),
    "z": ("timestamp", [datetime.datetime(2024, 1, 1), datetime.datetime(2025, 1, 1)]),
}
COMPARED = {"x": "i", "y": "d", "s": "t", "u": "z"}
COLUMNS = {name: Column(f"c{i}", types.parse_type(kind)) for i, (name, (kind, _)) in enumerate(ROWS.items())}


def column(name: str) -> Expr:
    return Expr("column", COLUMNS[name].type, value=COLUMNS[name].name)


def parameter(name: str) -> Expr:
    return Expr("parameter", types.parse_type(MEMBERS[name][0]), value=name, nullable=False)


def condition(rng: Random) -> Expr:
    mine = rng.choice(list(COMPARED))
    value, bound = column(mine), parameter(COMPARED[mine])
    operator = rng.choice([*OPERATORS, "EqualNullSafe"])
    match rng.randrange(8):
        case 0:
            return Expr("Or", types.BOOLEAN, (condition(rng), condition(rng)))
        case 1:
            return Expr("Like", types.BOOLEAN, (column("s"), parameter("t")), ("\\",))
        case 2:
            return Expr(operator, types.BOOLEAN, (parameter("i"), Expr("literal", types.INT, value=1, nullable=False)))
        case 3:
            return Expr(operator, types.BOOLEAN, (bound, value))
        case 4:
            value = Expr("Coalesce", value.type, (value, value))
    return Expr(operator, types.BOOLEAN, (value, bound))


def template(rng: Random) -> Query:
    """SELECT k, calls FROM r WHERE conditions GROUP BY k, or without keys, or by an expression with a parameter."""
    child: Node = Scan(1, tuple((COLUMNS[name], name) for name in ROWS))
    for _ in range(rng.randint(1, 3)):
        child = Filter(child, condition(rng))
    keys = [Named("c100", column("k"))][: rng.randint(0, 1)]
    if rng.random() < 0.1:
        keys.append(Named("c101", Expr("Concat", types.STRING, (column("k"), parameter("t")))))
    made = [
        Call("c110", "Count", (Expr("literal", types.INT, value=1, nullable=False),), types.parse_type("bigint")),
        Call("c111", "Sum", (column("v"),), types.parse_type("decimal(22,2)")),
        Call("c112", "Average", (column("x"),), types.parse_type("double")),
        Call("c113", "Sum", (column("w"),), types.parse_type("double")),
        Call("c114", "VarianceSamp", (column("w"),), types.parse_type("double")),
        Call("c115", "Count", (column("s"),), types.parse_type("bigint")),
        Call("c116", "Average", (column("l"),), types.parse_type("double")),
        Call(
            "c117",
            "Sum",
            (column("v"),),
            types.parse_type("decimal(22,2)"),
            filter=Expr("IsNotNull", types.BOOLEAN, (column("k"),)),
        ),
        Call("c118", "Max", (column("x"),), types.parse_type("int")),
    ]
    calls = rng.sample(made if rng.random() < 0.2 else made[:-1], rng.randint(1, 4))
    root: Node = Aggregate(child, tuple(keys), tuple(calls))
    if rng.random() < 0.3:
        root = Project(root, tuple(Named(c.name, Expr("column", c.type, value=c.name)) for c in root.columns))
    return Query(root, tuple((f"n{i}", c) for i, c in enumerate(root.columns)))


def by_rows(node: Node) -> Node:
    """The same plan with something between the members and what is made of them: then there are no cells."""
    if isinstance(node, MemberJoin):
        first = node.parameters.columns[0]
        mine = Expr("column", first.type, value=first.name, nullable=False)
        return Filter(node, Expr("IsNotNull", types.BOOLEAN, (mine,), nullable=False))
    if isinstance(node, (Aggregate, Project, Filter, MemberSeeds)):
        return replace(node, child=by_rows(node.child))
    return node


@pytest.fixture
def made(make_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """A database with the family of a template, by cells (`c`) and by rows (`r`)."""
    monkeypatch.setattr(Database, "_spark", lambda self: None)
    known = lift.lift

    def make(seed: int) -> Any:
        query = template(Random(seed))
        monkeypatch.setattr(catalyst, "read_family", lambda *_: query)
        db = make_db(f"db{seed}", durability="none")
        listed = ", ".join(f"{name} {kind.upper()}" for name, (kind, _) in ROWS.items())
        db.sql(f"CREATE TABLE rows ({listed}, PRIMARY KEY (id))")

        def lifted(query: Query, table: Table) -> Query:
            found = known(query, table)
            return replace(found, root=by_rows(found.root)) if table.name.startswith("r") else found

        for module in (alter_table, planning):
            monkeypatch.setattr(module, "lift", lifted)
        listed = ", ".join(f"{name} {kind.upper()}" for name, (kind, _) in MEMBERS.items())
        used = ", ".join(f":{name}" for name in MEMBERS)
        for name in "cr":
            db.sql(f"CREATE MATERIALIZED VIEW {name} PARAMETERS ({listed}) AS SELECT {used}")
        return db

    return make


def some(rng: Random, given: dict[str, tuple[str, Sequence[Any]]], most: int) -> list[dict[str, Any]]:
    return [{n: rng.choice(values) for n, (_, values) in given.items()} for _ in range(rng.randint(0, most))]


def run(db: Any, rng: Random) -> None:
    for batch in range(6):
        if rows := some(rng, ROWS, 12):
            db.put("rows", rows)
        for row in db.read("rows").to_pylist():
            if rng.random() < 0.1:
                db.delete("rows", row["id"])
        members = some(rng, MEMBERS, 6) if batch % 3 else []
        gone = [tuple(m.values()) for m in db.read("c.parameters").to_pylist() if rng.random() < 0.2]
        for name in "cr":
            if gone:
                db.delete(f"{name}.parameters", gone)
            if members:
                db.put(f"{name}.parameters", members)
        db.refresh()
        assert repr(db.read("c").to_pylist()) == repr(db.read("r").to_pylist()), db.explain("c")


@pytest.mark.parametrize("seed", range(6))
def test_a_family_by_cells_is_the_family_by_rows(made: Callable[[int], Any], seed: int) -> None:
    run(made(seed), Random(seed))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_families_by_cells_are_the_families_by_rows(made: Callable[[int], Any], seed: int) -> None:
    run(made(seed), Random(seed))
