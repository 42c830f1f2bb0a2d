"""Random views that differ in constants, made and dropped between random changes, against what Python says they are.

Views come alone and together, equal ones too; some leave their family for an index. Few are a family here already, so
families are made, joined, left and given up again and again. The model is dictionaries: it never asks the store.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract import test_members as members
from tests.contract.planned import TABLES

import viewkeeper

Rows = list[tuple[Any, ...]]

prices = st.none() | st.integers(0, 12)
items = st.dictionaries(
    st.integers(0, 30), st.tuples(st.sampled_from(["a", "b", None]), prices), min_size=1, max_size=8
)
texts = st.tuples(st.sampled_from(members.TEMPLATES), st.integers(0, 9))
steps = st.one_of(
    st.tuples(st.just("put"), items),
    st.tuples(st.just("delete"), st.sets(st.integers(0, 30), min_size=1, max_size=4)),
    st.tuples(st.just("many"), st.lists(texts, min_size=1, max_size=7)),
    st.tuples(st.just("one"), texts),
    st.tuples(st.just("drop"), st.integers(0, 100)),
    st.tuples(st.just("index"), st.integers(0, 100)),
    st.tuples(st.just("again"), st.none()),
)


def expected(table: dict[int, tuple[Any, Any]], template: str, bound: int) -> Rows:
    kept = {k: (c, p) for k, (c, p) in table.items() if p is not None and p > bound}
    if template == members.ROWS:
        return sorted((k, c, p) for k, (c, p) in kept.items())
    if template == members.WHOLE:
        return [(len(kept), sum(p for _, p in kept.values()) if kept else None)]
    counts = Counter(c for c, _ in kept.values())
    if template == members.BAG:
        return sorted(((c,) for c in counts.elements()), key=repr)
    return sorted(((c, n, sum(p for k, p in kept.values() if k == c)) for c, n in counts.items()), key=repr)


def found(db: Any, name: str) -> Rows:
    return sorted((tuple(row.values()) for row in db.read(name).to_pylist()), key=repr)


@settings(max_examples=12, deadline=None)
@given(script=st.lists(steps, min_size=4, max_size=14))
def test_views_are_what_their_queries_say_however_they_are_kept(script: list[tuple[str, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        members.install(patch.setattr)
        url = f"lmdb:{directory}/db"
        table: dict[int, tuple[Any, Any]] = {}
        views: dict[str, tuple[str, int]] = {}
        db = viewkeeper.open(url, durability="none")
        for statement in TABLES:
            db.sql(statement)
        for number, (what, given_) in enumerate(script):
            name = sorted(views)[given_ % len(views)] if what in ("drop", "index") and views else None
            if what == "put":
                table |= given_
                db.put("items", [{"item_id": k, "category": c, "price": p} for k, (c, p) in given_.items()])
            elif what == "delete":
                table = {k: v for k, v in table.items() if k not in given_}
                db.delete("items", sorted(given_))
            elif what in ("many", "one"):
                new = {f"v{number}_{i}": one for i, one in enumerate(given_ if what == "many" else [given_])}
                texts_ = {n: template.format(bound) for n, (template, bound) in new.items()}
                if what == "many":
                    db.create_views(texts_)
                else:
                    db.sql("CREATE MATERIALIZED VIEW {} AS {}".format(*next(iter(texts_.items()))))
                views |= new
                for one, (template, bound) in new.items():  # right when the call returns
                    assert found(db, one) == sorted(expected(table, template, bound), key=repr)
            elif what == "drop" and name is not None:
                if f"ix_{name}" in {i.name for i in db.indexes()}:
                    db.sql(f"DROP INDEX ix_{name}")
                db.sql(f"DROP MATERIALIZED VIEW {name}")
                del views[name]
            elif what == "index" and name is not None and views[name][0] == members.ROWS:
                db.sql(f"CREATE INDEX IF NOT EXISTS ix_{name} ON {name} (price)")
            elif what == "again":
                db.close()
                db = viewkeeper.open(url, durability="none")
            if number % 3 == 2:
                db.refresh()
                for one, (template, bound) in views.items():
                    assert found(db, one) == sorted(expected(table, template, bound), key=repr), (one, template, bound)
        db.refresh()
        for one, (template, bound) in views.items():
            assert found(db, one) == sorted(expected(table, template, bound), key=repr), (one, template, bound)
        catalog = db._store.catalog()
        for family, kept in catalog.members.items():
            parameters = catalog.tables_by_id[catalog.views_by_id[family].parameter_table_id]
            assert db._store.count(parameters) == len({m.table.key_prefix for m in kept})
        assert {t["name"] for t in db.sql("SHOW VIEWS").to_pylist()} == set(views)
        db.close()
