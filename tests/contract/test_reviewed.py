"""What a review found: moments and shapes in which rows were lost, or nobody answered."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.contract import planned
from tests.contract import synchronous_plans as plans
from tests.contract import test_members as members

import viewkeeper as vk
from viewkeeper import expressions
from viewkeeper.expressions.tree import Expr, Named, column
from viewkeeper.maintain.definitions import families
from viewkeeper.maintain.load import loader
from viewkeeper.model import types
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT, Column, Table
from viewkeeper.plan.logical.nodes import Aggregate, Filter, Project
from viewkeeper.resources import object_store
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime import batch_work, upserts
from viewkeeper.runtime.spark.sink_tasks import collect_changes
from viewkeeper.runtime.spark.staged_changes import StagedFiles, StagingFile
from viewkeeper.runtime.spark.upsert_tasks import ViewTarget
from viewkeeper.state import run_file
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.state.run import Run
from viewkeeper.store.contract.store import ViewChange


def test_a_table_that_is_empty_for_a_moment_while_views_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.install(monkeypatch.setattr)
    rows = [{"item_id": n, "category": "abc"[n % 3], "price": n} for n in range(9)]
    load = loader.backfill
    with vk.open(f"lmdb:{tmp_path / 'shop'}", durability="none") as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.put("items", rows)

        def loading(*how: Any, **more: Any) -> Any:
            db.delete("items", list(range(9)))
            loaded = load(*how, **more)
            db.put("items", rows)
            return loaded

        monkeypatch.setattr(loader, "backfill", loading)
        for name in ("dear", "grouped"):
            db.sql(f"CREATE MATERIALIZED VIEW {name} AS SELECT {name}")
        monkeypatch.setattr(loader, "backfill", load)
        db.refresh()
        expected = plans.recomputed(rows)
        assert {n: len(db.read(n)) for n in ("dear", "grouped")} == {n: len(expected[n]) for n in ("dear", "grouped")}


def test_a_synchronous_view_with_having_on_what_it_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def having(tables: Mapping[str, Table]) -> Any:
        calls = (plans._call("n", "Count", plans._literal(1), types.BIGINT),)
        groups = Aggregate(plans._items(tables), (Named("category", plans.CATEGORY),), calls)
        count = column("n", types.BIGINT, False)
        several = Filter(groups, Expr("GreaterThan", types.BOOLEAN, (count, plans._literal(1, types.BIGINT))))
        return plans._query(Project(several, (Named("category", plans.CATEGORY),)))

    monkeypatch.setattr(plans, "PLANS", {**plans.PLANS, "SELECT having": having})
    plans.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'shop'}", durability="none") as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.sql("CREATE MATERIALIZED VIEW h WITH (sync = true) AS SELECT having")
        shown = []
        for n in range(3):
            db.put("items", [{"item_id": n, "category": "a", "price": n}])
            shown.append(db.read("h").to_pylist())
        db.delete("items", [0, 1])
        assert [*shown, db.read("h").to_pylist()] == [[], [{"category": "a"}], [{"category": "a"}], []]


def test_the_row_of_a_view_without_a_key_goes_through_staged_files(tmp_path: Path) -> None:
    table = Table(7, "v", (Column("n", types.BIGINT),), (), is_view=True)
    delta = pa.table({"n": pa.array([5], pa.int64()), WEIGHT: pa.array([-1], pa.int64())})
    with PreparedStatements(expressions.register_functions, threads=1) as duck:
        change = upserts.resolve_upserts(duck, None, table, [delta], MemoryBudget(1 << 28))
    assert isinstance(change, ViewChange)
    staging = StagingFile(StateDirectory(tmp_path), 3)
    where = [staging.add(rows) for rows in (change.puts, change.deletes)]
    staging.close()
    taken = StagedFiles(StateDirectory(tmp_path))
    [found] = collect_changes([(7, json.dumps({"where": where}).encode())], {7: ViewTarget(table, "s")}, taken)
    assert isinstance(found, ViewChange)
    assert (found.puts.num_rows, found.deletes.num_rows) == (0, 1)
    taken.clear()


def test_many_long_runs_are_opened_from_afar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(object_store, "_RANGE_BYTES", 1 << 12)
    monkeypatch.setattr(StateDirectory, "is_object_store", True)
    place = (tmp_path / "state").as_uri()
    rows = pa.table({"x": np.arange(2_000), HASH: np.arange(2_000, dtype=np.uint64)}).combine_chunks()
    state, entries = OpenState(place, Manifest()), []
    for batch in range(24):
        entries += state.write(batch, {"s": Run(rows)}, False)
    shutil.rmtree(tmp_path / "cache")
    opened: list[int] = []
    cold = OpenState(place, Manifest().with_entries(entries))
    opening = threading.Thread(target=lambda: opened.append(len(cold.arrangement("s").runs)), daemon=True)
    opening.start()
    opening.join(60)
    assert opened == [24]


def test_a_sweep_that_is_owed_leaves_members_alone_that_are_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members.install(monkeypatch.setattr)
    monkeypatch.setattr("viewkeeper.commit.cleanup._MIN_INTERVAL", 0.0)
    url = f"lmdb:{tmp_path / 'shop'}"
    with vk.open(url, durability="none") as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.put("items", [{"item_id": n, "category": "a", "price": n} for n in range(9)])
        for n in range(6):
            db.sql(f"CREATE MATERIALIZED VIEW v{n} AS {members.ROWS.format(n)}")
    encode, left = families.encode_keys, [1]

    def failing(*what: Any) -> Any:
        if left:
            left.pop()
            raise OSError("a moment's outage")
        return encode(*what)

    monkeypatch.setattr(families, "encode_keys", failing)
    with vk.open(url, durability="none") as db:
        db.refresh()  # it is the maintainer now, and owes a sweep
        db.sql(f"CREATE MATERIALIZED VIEW w AS {members.ROWS.format(7)}")
        assert not left
        assert db._store.catalog().view("w").is_member
        db.put("items", [{"item_id": 100, "category": "a", "price": 50}])
        db.refresh()
        assert len(db.read("w")) == 2


def test_a_load_writes_long_runs_in_pieces_where_the_state_is_behind_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("thriftpy2")
    from tests.contract.small_hbase import SmallHBase

    planned.install(monkeypatch.setattr)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(run_file, "PIECE_ROWS", 16)
    monkeypatch.setattr(batch_work, "_SEPARATE_FILE_ROWS", 16)
    server = SmallHBase()
    state = (tmp_path / "state").as_uri()
    try:
        with vk.open(f"hbase://{server.host}:{server.port}/shop?create=true&state={state}") as db:
            for statement in planned.TABLES:
                db.sql(statement)
            db.put("items", [{"item_id": n, "category": "abc"[n % 3], "price": 1} for n in range(300)])
            db.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
            db.put("items", {"item_id": 1, "category": "c", "price": 5})
            db.refresh("driver")
            totals = {r["category"]: (r["n"], r["total"]) for r in db.read("totals").to_pylist()}
    finally:
        server.close()
    assert totals == {"a": (100, 100), "b": (99, 99), "c": (101, 105)}


def test_members_that_could_not_be_forgotten_are_with_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members.install(monkeypatch.setattr)
    monkeypatch.setattr("viewkeeper.commit.cleanup._MIN_INTERVAL", 0.0)
    with vk.open(f"lmdb:{tmp_path / 'shop'}", durability="none") as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.put("items", [{"item_id": n, "category": "a", "price": n} for n in range(9)])
        for n in range(8):
            db.sql(f"CREATE MATERIALIZED VIEW v{n} AS {members.ROWS.format(n)}")
        family = next(v for v in db._store.catalog().views if v.is_hidden_family)

        def values() -> set[int]:
            parameters = db._store.catalog().tables_by_id[family.parameter_table_id]
            return {v for batch in db._store.scan(parameters) for v in batch.column(0).to_pylist()}

        assert values() == set(range(8)) - {int(n[1:]) for n in alone(db)}
        gone = [m.table.name for m in db._store.catalog().members[family.table.id]][:3]
        forget = families.parameter_rows
        monkeypatch.setattr(families, "parameter_rows", _fails)
        db.sql(f"DROP MATERIALIZED VIEW {gone[0]}")
        db.sql(f"DROP MATERIALIZED VIEW {gone[1]}")
        assert "forgetting members" in (db.status().afterwards or "")
        assert int(gone[0][1:]) in values()
        monkeypatch.setattr(families, "parameter_rows", forget)
        db.sql(f"DROP MATERIALIZED VIEW {gone[2]}")
        assert db.status().afterwards is None
        assert values().isdisjoint({int(n[1:]) for n in gone})


def alone(db: Any) -> list[str]:
    return [v.table.name for v in db._store.catalog().views if not v.is_member and not v.is_hidden_family]


def _fails(*_: Any) -> Any:
    raise OSError("a moment's outage")
