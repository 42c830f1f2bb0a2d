"""What EXPLAIN says of look-ahead and of sums below joins, by how they are asked for. No JVM: plans are made here.

`VK_GOLDEN=write` makes the file anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from viewkeeper.database import Database
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.plan import catalyst
from viewkeeper.plan.logical.nodes import Aggregate, Call, Expr, Filter, Join, Named, Node, Project, Query, Scan, column

GOLDEN = Path(__file__).parent / "notes.txt"
TABLES = {"users": ("id", "zone"), "follows": ("id", "who", "whom"), "tweets": ("id", "author")}
ONE = Expr("literal", types.BIGINT, value=1, nullable=False)


def query_of(text: str, tables: Any) -> Query:
    def of(name: str) -> Expr:
        return column(name, types.BIGINT)

    def scan(table: str) -> Scan:
        fields = ((Column(f"{table[0]}_{c}", types.BIGINT, c != "id"), c) for c in TABLES[table])
        return Scan(tables[table].id, tuple(fields))

    def joined(left: Node, right: Node, a: str, b: str) -> Node:
        return Join("inner", left, right, Expr("EqualTo", types.BOOLEAN, (of(a), of(b))))

    near = Filter(scan("users"), Expr("LessThan", types.BOOLEAN, (of("u_zone"), ONE)))
    seen = joined(joined(scan("tweets"), scan("follows"), "t_author", "f_whom"), near, "f_who", "u_id")
    if text.endswith("seen"):
        shown = (Named("tweet", of("t_id")), Named("follow", of("f_id")))
        return Query(Project(seen, shown), tuple((n.name, n.column) for n in shown))
    made = Aggregate(seen, (Named("zone", of("u_zone")),), (Call("n", "Count", (ONE,), types.BIGINT, nullable=False),))
    return Query(made, tuple((c.name, c) for c in made.columns))


VIEWS = {
    "seen_auto": ("", "seen"),
    "seen_local": ("WITH (lookahead = 'local')", "seen"),
    "seen_global": ("WITH (lookahead = 'global')", "seen"),
    "seen_none": ("WITH (lookahead = 'none')", "seen"),
    "counted": ("", "counted"),
    "counted_first": ("WITH (presum = 'always')", "counted"),
}


def test_explain_tells_what_is_left_out_and_summed(make_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalyst, "read_query", lambda _, text, tables: query_of(text, tables))
    monkeypatch.setattr(Database, "_spark", lambda self: None)
    told = []
    for view, (options, text) in VIEWS.items():
        db = make_db(view, durability="none")
        for table, columns in TABLES.items():
            db.sql(f"CREATE TABLE {table} ({' BIGINT, '.join(columns)} BIGINT, PRIMARY KEY (id))")
        db.put("users", [{"id": i, "zone": i % 10} for i in range(50)])
        db.put("follows", [{"id": i, "who": i, "whom": i % 2} for i in range(100)])
        db.sql(f"CREATE MATERIALIZED VIEW {view} {options} AS SELECT {text}")
        for batch in range(2):
            db.put("tweets", [{"id": 100 * batch + i, "author": i % 3} for i in range(60)])
            db.refresh("driver")
        lines = str(db.explain(view)).splitlines()
        notes = [line for line in lines if line.startswith(("look-ahead", "  changes of", "presum"))]
        told.append("\n".join([view, *(f"  {line}" for line in notes)]))
    found = "\n\n".join(told) + "\n"
    if os.environ.get("VK_GOLDEN") == "write":
        GOLDEN.write_text(found, "utf-8")
    assert found == GOLDEN.read_text("utf-8")
