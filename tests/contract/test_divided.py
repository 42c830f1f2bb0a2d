"""Divided batches without a JVM: the tasks are the real ones, only what carries rows between them is this process.

The same changes go through a database in the driver lane; after each batch both have the same views.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.contract import planned

import viewkeeper as vk
from viewkeeper.capture import partitions
from viewkeeper.plan.dataflow import dataflow
from viewkeeper.runtime import inputs
from viewkeeper.runtime.cost_model import LaneChoice
from viewkeeper.runtime.executor import BatchExecutor
from viewkeeper.runtime.spark import pipelined_commit, placement, sessions
from viewkeeper.runtime.spark import scheduler as lane
from viewkeeper.runtime.spark import sessions as spark_sessions
from viewkeeper.runtime.spark.placement import SINK_ROWS, decode_payload, task_of
from viewkeeper.runtime.spark.sessions import Cluster
from viewkeeper.runtime.spark.worker_cache import WorkerCache
from viewkeeper.store.ordered import commits, write_call

VIEWS = {
    "totals": planned.TOTALS,
    "bosses": planned.BOSSES,
    "whole": planned.WHOLE,
    "kinds_of": planned.KINDS,
    "dear": planned.DEAR,
}


class Context:
    """As much of a Spark context as a batch asks for: four tasks at once."""

    defaultParallelism, applicationId, master = 4, "none", "local[4]"

    def __init__(self, rows_a_task: int) -> None:
        self._conf = {"spark.viewkeeper.rowsPerTask": str(rows_a_task)}

    def getConf(self) -> dict[str, str]:
        return self._conf

    def broadcast(self, value: Any) -> Any:
        return SimpleNamespace(value=value, destroy=lambda: None)

    def getLocalProperty(self, name: str) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Sessions:
    def __init__(self, rows_a_task: int) -> None:
        self._session = SimpleNamespace(sparkContext=Context(rows_a_task))

    def __call__(self) -> Any:
        return self._session

    def cluster(self) -> Cluster:
        return Cluster(4, True)


def exchanged(
    _spark: Any, messages: Any, rounds: Any, parts: int, later: int, worked: list[list[int]] | None = None
) -> list[Any]:
    """Every task of a round after the other; what it sends to a task arrives there in the next.

    `worked` gets, for each round, how many rows arrived at each task.
    """
    import pyspark

    rows = list(messages)
    for number, work in enumerate(rounds):
        sent: list[Any] = []
        tasks = later if number else parts
        for part in range(tasks):
            pyspark.TaskContext.get = lambda part=part: SimpleNamespace(partitionId=lambda: part)  # type: ignore[misc]
            sent += work(m for m in rows if task_of(m[0], parts, tasks) == part)
        rows = sent
        if worked is not None:
            came = [m for m in rows if m[3] and (m[1] == SINK_ROWS or not m[1].startswith("!"))]
            worked.append([sum(decode_payload(m[3]).num_rows for m in came if m[0] == part) for part in range(parts)])
    return rows


@pytest.fixture(params=["near", "broadcast", "fully partitioned"])
def pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[vk.Database, vk.Database]]:
    """Two databases with the same tables and views; the batches of the second are divided."""
    import pyspark

    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(pyspark.TaskContext, "get", None)
    monkeypatch.setattr(lane, "_run_round_job", exchanged)
    monkeypatch.setattr(write_call, "_SLICE_ROWS", 3)  # so that one call is several shares of the log
    monkeypatch.setattr(spark_sessions, "is_single_machine", lambda *_: request.param == "near")
    monkeypatch.setattr(dataflow, "BROADCAST_BYTES", 0 if request.param == "fully partitioned" else 1 << 20)
    if request.param == "fully partitioned":  # two rows of a key are dealt out
        monkeypatch.setattr(placement, "_HOT_ROWS", 1)
    if request.param != "near":  # runs are opened where a task's hashes are in them
        made = WorkerCache.__init__

        def begun(self: WorkerCache, *given: Any) -> None:
            made(self, *given)
            self.is_remote = True

        monkeypatch.setattr(WorkerCache, "__init__", begun)
    with vk.open(tmp_path / "driver") as plain, vk.open(tmp_path / "spark") as divided:
        for db in (plain, divided):
            for statement in planned.TABLES:
                db.sql(statement)
            db.put("items", [{"item_id": n, "category": "abcdefgh"[n % 8], "price": n} for n in range(60)])
            db.put("kinds", [{"category": c, "boss": f"b{i % 3}"} for i, c in enumerate("abcdefg")])
            for name, query in VIEWS.items():
                db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        divided._acquire_maintainer().executor.spark = Sessions(3)
        yield plain, divided


@pytest.mark.parametrize("few", [0, 3, 1_000], ids=["from the log", "some from the log", "from the driver"])
def test_divided_batches_are_those_of_the_driver(
    pair: tuple[vk.Database, vk.Database], monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(placement, "MAX_DRIVER_ROWS", few)
    monkeypatch.setattr(inputs, "MAX_PIECE_ROWS", 4)  # a task reads the log in several pieces
    fewer: list[bool] = []

    def noted(spark: Any, messages: Any, rounds: Any, parts: int, later: int) -> list[Any]:
        fewer.append(later < parts)
        return exchanged(spark, messages, rounds, parts, later)

    monkeypatch.setattr(lane, "_run_round_job", noted)
    rng = random.Random(few)
    for turn in range(4):
        for db, seed in zip(pair, [rng.random()] * 2, strict=True):
            change(db, turn, random.Random(seed))
        reports = [db.refresh(chosen) for db, chosen in zip(pair, ("driver", "spark"), strict=True)]
        assert [report.lane for report in reports] == ["driver", "spark"]
        for view in VIEWS:
            assert rows(pair[0], view) == rows(pair[1], view), (turn, view)
    assert not fewer[0], "nobody knows yet how much comes to the later rounds"
    assert any(fewer)
    assert not list(Path(str(pair[1]._acquire_maintainer().executor.state.directory)).glob("b*-s-*"))


@pytest.mark.parametrize(
    ("few", "calls", "travelling"),
    [(0, 1, {"kinds_of"}), (0, 2, {"kinds_of"}), (1_000, 1, {"kinds_of", "whole", "dear"})],
    ids=["one call", "several calls", "from the driver"],
)
def test_rows_of_a_key_that_are_one_tasks_already_do_not_travel(
    pair: tuple[vk.Database, vk.Database],
    monkeypatch: pytest.MonkeyPatch,
    few: int,
    calls: int,
    travelling: set[str],
) -> None:
    """Groups have come to their owners, and a share of the log has all changes of a key; of several calls from the
    round on in which they meet. What the driver deals out is cut anywhere; equal rows of a bag have different keys."""
    monkeypatch.setattr(placement, "MAX_DRIVER_ROWS", few)
    monkeypatch.setattr(pipelined_commit, "MIN_REPORTED_ROWS", 1)
    sent: set[int] = set()
    given_early: set[int] = set()
    close = pipelined_commit.PipelinedCommit.close
    monkeypatch.setattr(
        pipelined_commit.PipelinedCommit, "close", lambda self: (given_early.update(self.applied_rows), close(self))
    )

    def noted(spark: Any, messages: Any, rounds: Any, *tasks: int) -> list[Any]:
        def heard(work: Any, arrived: Any) -> Any:
            for message in work(arrived):
                if message[1] == SINK_ROWS:
                    sent.add(message[2])
                yield message

        return exchanged(spark, messages, [partial(heard, work) for work in rounds], *tasks)

    monkeypatch.setattr(lane, "_run_round_job", noted)
    for db, chosen in zip(pair, ("driver", "spark"), strict=True):
        for turn in range(calls):
            db.put("items", [{"item_id": n, "category": "gfedcba"[n % 7], "price": n + turn + 1} for n in range(40)])
        db.refresh(chosen)
    for view in VIEWS:
        assert rows(pair[0], view) == rows(pair[1], view)
    names = pair[1]._acquire_maintainer().publisher.catalog.names
    assert {names[view] for view in sent} == travelling
    assert {names[view] for view in given_early} == ({"whole", "dear"} if (few, calls) == (0, 1) else set())


@pytest.mark.parametrize("wrong", ["the job", "the store", "the time"])
def test_a_commit_that_was_begun_ahead_and_is_given_up_has_not_happened(
    pair: tuple[vk.Database, vk.Database], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """A job that fails after its tasks have reported publishes nothing, and lets writers go on; a store that refuses
    rows ahead, or has waited for too long, is given them again, with all others."""
    monkeypatch.setattr(placement, "MAX_DRIVER_ROWS", 0)
    monkeypatch.setattr(pipelined_commit, "MIN_REPORTED_ROWS", 1)
    applied: list[int] = []
    apply = commits._OpenTransaction.apply

    def noted(self: Any, table: Any, encoded: Any) -> None:
        apply(self, table, encoded)
        applied.append(encoded.num_rows)
        if wrong == "the store":
            raise vk.errors.StoreError("It is full.", hint="")

    monkeypatch.setattr(commits._OpenTransaction, "apply", noted)
    if wrong == "the time":
        monkeypatch.setattr(pipelined_commit, "_BASE_TIMEOUT", -1_000.0)
        given_up, give_up = threading.Event(), commits._OpenTransaction.abort
        monkeypatch.setattr(commits._OpenTransaction, "abort", lambda self: (give_up(self), applied and given_up.set()))

        def late(*given: Any) -> Any:
            found = exchanged(*given)
            assert given_up.wait(60)
            return found

        monkeypatch.setattr(lane, "_run_round_job", late)
    looked = pipelined_commit.PipelinedCommit.unapplied_changes

    def failing(self: Any, changes: Any) -> Any:
        found = looked(self, changes)
        raise RuntimeError(f"{len(found)} are left")

    before = rows(pair[1], "whole")
    for db in pair:
        db.put("items", [{"item_id": n, "category": "a", "price": 7} for n in range(40)])
    pair[0].refresh("driver")
    if wrong == "the job":
        with monkeypatch.context() as patched:
            patched.setattr(pipelined_commit.PipelinedCommit, "unapplied_changes", failing)
            with pytest.raises(RuntimeError):
                pair[1].refresh("spark")
        assert applied
        assert rows(pair[1], "whole") == before
        pair[1].put("items", [{"item_id": 0, "category": "a", "price": 7}])  # nobody holds the store
    pair[1].refresh("spark")
    assert applied
    for view in VIEWS:
        assert rows(pair[0], view) == rows(pair[1], view)
    assert not list(Path(str(pair[1]._acquire_maintainer().executor.state.directory)).glob("b*-e-*"))


def change(db: vk.Database, turn: int, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 3])):
        keys = rng.sample(range(90), 8)
        db.put("items", [{"item_id": k, "category": rng.choice("abcdefgh"), "price": rng.randrange(9)} for k in keys])
        db.delete("items", rng.sample(range(90), 3))
    for _ in range(rng.choice([1, 2, 3]) if turn % 3 != 2 else 0):
        db.put("kinds", [{"category": c, "boss": f"b{rng.randrange(4)}"} for c in rng.sample("abcdefgh", 5)])


def rows(db: vk.Database, view: str) -> list[str]:
    return sorted(map(repr, db.read(view).to_pylist()))


@pytest.mark.parametrize("spread", [True, False])
def test_a_hot_key_is_no_single_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: bool) -> None:
    """Of 6,000 changes with keys as words are in a text (zipf 1.2), no task has more than twice the median's rows.

    (`spread=False`: without being dealt out they are most of one task's work, or this would show nothing.)
    """
    import pyspark

    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(pyspark.TaskContext, "get", None)
    monkeypatch.setattr(spark_sessions, "is_single_machine", lambda *_: False)
    monkeypatch.setattr(dataflow, "BROADCAST_BYTES", 0)
    monkeypatch.setattr(placement, "MAX_DRIVER_ROWS", 5)
    monkeypatch.setattr(placement, "_HOT_ROWS", 16 if spread else 1_000_000)
    worked: list[list[int]] = []

    def counted(*given: Any) -> list[Any]:
        return exchanged(*given, worked=worked)

    monkeypatch.setattr(lane, "_run_round_job", counted)
    ranks = np.random.default_rng(5).zipf(1.2, 6_000)
    kinds = [f"kind {rank if rank < 500 else rank % 9_973}" for rank in ranks]
    with vk.open(tmp_path / "driver") as plain, vk.open(tmp_path / "spark") as divided:
        for db in (plain, divided):
            for statement in planned.TABLES:
                db.sql(statement)
            db.put("kinds", [{"category": kind, "boss": f"b{len(kind)}"} for kind in sorted(set(kinds))])
            for name, query in VIEWS.items():
                db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        divided._acquire_maintainer().executor.spark = Sessions(100)
        for db, chosen in ((plain, "driver"), (divided, "spark")):
            db.put("items", [{"item_id": n, "category": kind, "price": n % 7} for n, kind in enumerate(kinds)])
            db.refresh(chosen)
        for view in VIEWS:
            assert rows(plain, view) == rows(divided, view)
    loads = [sorted(tasks) for tasks in worked if sum(tasks) >= len(kinds)]
    assert loads
    crowded = [tasks[-1] > 2 * tasks[len(tasks) // 2] for tasks in loads]
    assert any(crowded) != spread


def test_a_load_that_was_interrupted_goes_on_with_what_its_tasks_had_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(pyspark.TaskContext, "get", None)
    monkeypatch.setattr(partitions, "PARTITION_ROWS", 100)
    monkeypatch.setattr(placement, "MAX_DRIVER_ROWS", 5)
    monkeypatch.setattr(
        BatchExecutor, "choose_lane", lambda *asked: LaneChoice("spark" if asked[-1] == "load" else "driver", "a test")
    )
    session = SimpleNamespace(sparkContext=Context(200))
    monkeypatch.setattr(sessions.SparkSessions, "__call__", lambda _: session)
    read: list[int] = []
    table_at = inputs.scan_table_at

    def counted(*asked: Any) -> Any:
        found = table_at(*asked)
        read.append(found[0].num_rows)
        return found

    monkeypatch.setattr(inputs, "scan_table_at", counted)
    begun: list[int] = []

    def interrupted(_spark: Any, messages: Any, rounds: Any, *tasks: int) -> list[Any]:
        def first(arrived: Any) -> Any:
            begun.append(1)
            if len(begun) == 5:
                raise KeyboardInterrupt
            return rounds[0](arrived)

        return exchanged(_spark, messages, [first, *rounds[1:]], *tasks)

    create = f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}"
    told: list[str] = []
    with vk.open(tmp_path / "db", retention=0, progress=lambda what, *_: told.append(what)) as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.put("items", [{"item_id": n, "category": "abcdefgh"[n % 8], "price": n % 9} for n in range(2_000)])
        monkeypatch.setattr(lane, "_run_round_job", interrupted)
        with pytest.raises(KeyboardInterrupt):
            db.sql(create)
        before = sum(read)
        assert 500 < before < 1_500
        read.clear()
        db.put("items", [{"item_id": n, "category": "z", "price": 1} for n in range(0, 2_500, 50)])
        db.delete("items", list(range(7, 2_000, 100)))
        monkeypatch.setattr(lane, "_run_round_job", exchanged)
        db.sql(create)
        assert "resuming items" in told
        assert sum(read) <= 2_000 - before + 100, "only the rest was read"
        assert not list(Path(db._store.state_path).glob("load-*"))
        groups: dict[str, list[int]] = {}
        for row in db.read("items").to_pylist():
            groups.setdefault(row["category"], []).append(row["price"])
        expected = {category: (len(prices), sum(prices)) for category, prices in groups.items()}
        assert {r["category"]: (r["n"], r["total"]) for r in db.read("totals").to_pylist()} == expected
