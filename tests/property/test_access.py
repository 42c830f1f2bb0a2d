"""Reads by index give what filtered scans give: random tables of all types, random indexes, conditions and changes.

The twin filters and sorts Python rows by the meaning of Spark's comparisons: NULL passes nothing but IS NULL, NaN is
the greatest number and equal to itself, −0.0 is 0.0, texts compare by their UTF-8 bytes. Nothing is waited for: half of
the time the changes are still in the log when they are asked for.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from functools import cmp_to_key
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import viewkeeper as vk

UTC = ZoneInfo("UTC")
VALUES: dict[str, list[Any]] = {
    "BOOLEAN": [True, False],
    "TINYINT": [-128, -1, 0, 1, 127],
    "SMALLINT": [-32768, -7, 0, 7, 32767],
    "INT": [-(2**31), -300, 0, 5, 300, 2**31 - 1],
    "BIGINT": [-(2**63), -1, 0, 1, 2**40, 2**63 - 1],
    "FLOAT": [-math.inf, -1.5, -0.0, 0.0, 0.25, math.inf, math.nan],
    "DOUBLE": [-math.inf, -1e300, -0.0, 0.0, 0.1, 1e-300, math.inf, math.nan],
    "DECIMAL(10,2)": [Decimal("-99999999.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("1.00"), Decimal("1.01")],
    "STRING": ["", "a", "a\0", "a\0b", "ab", "b", "é", "z\U0001f600", "x" * 700, "x" * 701],
    "BINARY": [b"", b"\0", b"\0\1", b"\1", b"\xff", b"\xff\xff", b"q" * 600],
    "DATE": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
    "TIMESTAMP": [dt.datetime(1969, 1, 1, tzinfo=UTC), dt.datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=UTC)],
    "TIMESTAMP_NTZ": [dt.datetime(1969, 1, 1), dt.datetime(2024, 1, 1, 1, 2, 3, 4)],
}
NO_KEYS = ("FLOAT", "DOUBLE")


def order(one: Any, other: Any) -> int:
    """NULL first, then values as Spark orders them."""
    if one is None or other is None:
        return (one is not None) - (other is not None)
    if isinstance(one, float) and (math.isnan(one) or math.isnan(other)):
        return math.isnan(one) - math.isnan(other)
    if isinstance(one, str):
        one, other = one.encode(), other.encode()
    return int(one > other) - int(one < other)


def true(op: str, value: Any, wanted: Any) -> bool:
    if op == "null":
        return value is None
    if value is None:
        return False
    if op == "in":
        return any(order(value, w) == 0 for w in wanted)
    at = order(value, wanted)
    return {"=": at == 0, "<": at < 0, "<=": at <= 0, ">": at > 0, ">=": at >= 0}[op]


def literal(kind: str, value: Any) -> str | None:
    """As one writes it in SQL; None for what has no plain spelling."""
    if kind in ("INT", "BIGINT", "SMALLINT", "TINYINT") and abs(value) < 2**31 - 1:
        return str(value)
    if kind == "DECIMAL(10,2)":
        return str(value)
    if kind == "STRING" and "\0" not in value:
        return f"'{value}'"
    if kind == "DATE" and value.year > 1000:
        return f"'{value}'"
    return None


class Shop:
    """One table, its twin, and its indexes."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.rng = rng
        self.kinds = {f"c{i}": rng.choice(list(VALUES)) for i in range(rng.randint(2, 6))}
        keyed = [c for c, kind in self.kinds.items() if kind not in NO_KEYS]
        self.key = rng.sample(keyed, min(len(keyed), rng.randint(1, 2))) or ["k"]
        if self.key == ["k"]:
            self.kinds["k"] = "INT"
        self.rows: dict[Any, dict[str, Any]] = {}
        self.db = vk.open(f"lmdb:{path}", durability="none")
        columns = ", ".join(f"{c} {kind}" for c, kind in self.kinds.items())
        self.db.sql(f"CREATE TABLE t ({columns}, PRIMARY KEY ({', '.join(self.key)}))")

    def value(self, column: str, null: float = 0.15) -> Any:
        if column not in self.key and self.rng.random() < null:
            return None
        return self.rng.choice(VALUES[self.kinds[column]])

    def change(self) -> None:
        for _ in range(self.rng.randint(1, 12)):
            row = {c: self.value(c) for c in self.kinds}
            key = tuple(repr(row[c]) for c in self.key)
            if key in self.rows and self.rng.random() < 0.4:
                self.db.delete("t", [tuple(row[c] for c in self.key)])
                del self.rows[key]
            else:
                self.db.put("t", [row])
                self.rows[key] = row

    def index(self, name: str) -> None:
        columns = self.rng.sample(list(self.kinds), self.rng.randint(1, min(3, len(self.kinds))))
        rest = [c for c in self.kinds if c not in columns]
        include = self.rng.sample(rest, self.rng.randint(0, len(rest)))
        listed = ", ".join(c + self.rng.choice(["", " DESC"]) for c in columns)
        self.db.sql(f"CREATE INDEX {name} ON t ({listed})" + (f" INCLUDE ({', '.join(include)})" if include else ""))

    def asked(self) -> tuple[dict[str, Any], list[tuple[str, str, Any]]]:
        """What `scan` is asked, and the same as a list of tests."""
        tests = []
        as_text = self.rng.random() < 0.5
        for column in self.rng.sample(list(self.kinds), self.rng.randint(0, min(3, len(self.kinds)))):
            op = self.rng.choice(["=", "<", "<=", ">", ">=", "in", "null"] if as_text else ["=", "in", "null"])
            value = self.value(column, 0)
            wanted: Any = None if op == "null" else [self.value(column, 0) for _ in range(3)] if op == "in" else value
            if as_text and op != "null":
                spelt = [literal(self.kinds[column], v) for v in (wanted if op == "in" else [wanted])]
                if None in spelt:
                    continue
            tests.append((column, op, wanted))
        asked: dict[str, Any] = {}
        if tests and as_text:
            asked["where"] = " AND ".join(self.text(*test) for test in tests)
        elif tests:
            asked["where"] = {c: wanted for c, _, wanted in tests}
        if self.rng.random() < 0.5:
            asked["order_by"] = [
                c + self.rng.choice(["", " DESC"])
                for c in self.rng.sample(list(self.kinds), self.rng.randint(1, min(2, len(self.kinds))))
            ]
        if self.rng.random() < 0.4:
            asked["limit"] = self.rng.randint(0, 6)
        if self.rng.random() < 0.5:
            asked["columns"] = self.rng.sample(list(self.kinds), self.rng.randint(1, len(self.kinds)))
        return asked, tests

    def text(self, column: str, op: str, wanted: Any) -> str:
        if op == "null":
            return f"{column} IS NULL"
        kind = self.kinds[column]
        if op == "in":
            return f"{column} IN ({', '.join(str(literal(kind, w)) for w in wanted)})"
        return f"{column} {op} {literal(kind, wanted)}"

    def expected(self, asked: dict[str, Any], tests: list[tuple[str, str, Any]]) -> list[dict[str, Any]]:
        rows = [r for r in self.rows.values() if all(true(op, r[c], wanted) for c, op, wanted in tests)]
        by = [(c.removesuffix(" DESC"), c.endswith(" DESC")) for c in asked.get("order_by", [])]
        by += [(c, False) for c in self.key]

        def compared(one: dict[str, Any], other: dict[str, Any]) -> int:
            for column, down in by:
                if at := order(one[column], other[column]):
                    return -at if down else at
            return 0

        rows = sorted(rows, key=cmp_to_key(compared))[: asked.get("limit")]
        shown = asked.get("columns", list(self.kinds))
        return [{c: r[c] for c in shown} for r in rows]


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """As text: NaN is NaN, and −0.0 is not 0.0."""
    return [repr(r) for r in found] == [repr(r) for r in expected]


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_reads_by_index_are_filtered_scans(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    run(tmp_path_factory.mktemp("access") / "db", seed, rounds=4, questions=6)


@pytest.mark.deep
@given(seed=st.integers(0, 2**32))
def test_reads_by_index_are_filtered_scans_deep(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    run(tmp_path_factory.mktemp("access") / "db", seed, rounds=8, questions=25)


def run(path: Path, seed: int, rounds: int, questions: int) -> None:
    rng = random.Random(seed)
    shop = Shop(path, rng)
    with shop.db:
        shop.change()
        for n in range(rng.randint(1, 3)):
            shop.index(f"i{n}")
        for _ in range(rounds):
            shop.change()
            if rng.random() < 0.5:
                shop.db.refresh()
            for _ in range(questions):
                asked, tests = shop.asked()
                found, expected = list(shop.db.scan("t", **asked)), shop.expected(asked, tests)
                assert same(found, expected), (shop.kinds, shop.key, asked, found, expected)
                if asked:
                    assert same(shop.db.read("t", **asked).to_pylist(), expected), asked
        shop.db.refresh()
        everything = shop.expected({}, [])
        with shop.db.snapshot() as snapshot:
            shop.change()
            for asked, tests in (shop.asked() for _ in range(questions)):
                before = [r for r in everything if all(true(op, r[c], wanted) for c, op, wanted in tests)]
                if asked.keys() <= {"where"}:
                    assert same(list(snapshot.scan("t", **asked)), before), asked
