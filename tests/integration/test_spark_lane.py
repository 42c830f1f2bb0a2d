"""Spark jobs: a small side of a join is read whole by every task, also when it changes; a large call in shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from viewkeeper.capture.snapshot import Cancellation
from viewkeeper.errors import StoreError, Unsupported
from viewkeeper.plan.dataflow import dataflow as plan_levels
from viewkeeper.runtime.cost_model import LaneChoice
from viewkeeper.runtime.executor import BatchExecutor
from viewkeeper.runtime.spark import placement, sessions
from viewkeeper.runtime.spark import scheduler as lane
from viewkeeper.runtime.spark.sessions import Cluster

VIEW = """CREATE MATERIALIZED VIEW by_zone AS
          SELECT z.name, count(*) AS n, sum(o.amount) AS total
          FROM orders o JOIN shops s ON o.shop = s.id JOIN zones z ON s.zone = z.id
          WHERE z.open GROUP BY z.name"""


@pytest.fixture
def db(make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three tables, of which only the zones are small; the tasks are many, and held to be on other machines."""
    monkeypatch.setattr(placement, "ROWS_PER_TASK", 1)
    monkeypatch.setattr(sessions, "is_single_machine", lambda *_: False)
    monkeypatch.setattr(plan_levels, "BROADCAST_BYTES", 4_096)
    db = make_db(spark=spark, durability="none")
    db.sql("CREATE TABLE zones (id INT, name STRING, open BOOLEAN, PRIMARY KEY (id))")
    db.sql("CREATE TABLE shops (id INT, zone INT, PRIMARY KEY (id))")
    db.sql("CREATE TABLE orders (id INT, shop INT, amount DECIMAL(9,2), PRIMARY KEY (id))")
    db.put("zones", [{"id": i, "name": f"zone {i % 3}", "open": i != 4} for i in range(5)])
    db.put("shops", [{"id": i, "zone": i % 6} for i in range(400)])
    db.put("orders", [{"id": i, "shop": i % 410, "amount": i} for i in range(2_000)])
    return db


def test_probes_of_a_small_side_stay_where_they_are(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[placement.Placement] = []
    monkeypatch.setattr(
        lane, "plan_placement", lambda *given: placed.append(placement.plan_placement(*given)) or placed[-1]
    )
    db.sql(VIEW.replace(" AS\n", " WITH (share = false) AS\n", 1))  # each lookup by itself
    told = db.explain("by_zone")
    assert "broadcast: with 5 rows every task reads it whole" in told
    assert "not broadcast: over" in told
    rng = Random(4)
    for number in range(3):
        if number != 1:
            db.put("orders", [{"id": rng.randrange(2_500), "shop": rng.randrange(410), "amount": 7} for _ in range(50)])
        if number:  # the small side changes, also together with the large one
            db.put("zones", [{"id": rng.randrange(6), "name": "another", "open": rng.random() < 0.5}])
            db.delete("zones", rng.randrange(6))
            db.put("shops", [{"id": rng.randrange(410), "zone": rng.randrange(6)}])
        db.refresh(lane="spark")
        assert db.audit().differences == 0
    flow = db._acquire_maintainer().publisher.dataflow
    looked_up = {flow.tables[flow.operators[flow.operators[n].arrangement].table].name for n in placed[0].co_located}
    assert looked_up == {"zones"}
    # orders → shops (exchange) → zones (none) → sums (exchange): three levels where there were four.
    assert max(placed[0].rounds.values()) == 2
    assert {e.split("-")[0] for e in placed[1].driver_runs} == {"table_image"}


@pytest.mark.parametrize("near", [True, False])
def test_tasks_read_their_shares_of_the_log(db: Any, monkeypatch: pytest.MonkeyPatch, near: bool) -> None:
    """One call names a key once; the shares of several calls meet by key before the first expression sees them."""
    monkeypatch.setattr(sessions, "is_single_machine", lambda *_: near)
    monkeypatch.setattr(placement, "MAX_DRIVER_ROWS", 5)
    db.sql(VIEW)
    db.sql("CREATE MATERIALIZED VIEW parts AS SELECT id, 100 / amount AS part FROM orders WHERE id > 0")
    stage, tables = (
        db._acquire_maintainer().executor,
        {t.id: t.name for t in db._acquire_maintainer().publisher.catalog.tables},
    )
    captured: list[dict[str, bool]] = []
    capture = stage.capture_inputs

    def spied(lane: str, flow: Any, *rest: int) -> Any:
        found = capture(lane, flow, *rest)
        captured.append({tables[flow.operators[n].table]: g.has_several_calls for n, g in found[0].items() if g.count})
        return found

    monkeypatch.setattr(stage, "capture_inputs", spied)
    db.put("orders", [{"id": i, "shop": i % 410, "amount": i % 3 + 1} for i in range(0, 2_400, 2)])
    for name in ("one", "other"):
        db.put("zones", [{"id": i, "name": name, "open": i != 2} for i in range(8)])
    db.refresh(lane="spark")
    assert captured == [{"orders": False, "zones": True}]
    assert db.audit().differences == 0
    for turn in range(4):  # an amount of 0 comes and goes: nobody may divide by it
        amount = 0 if turn < 3 else 2
        db.put("orders", [{"id": i, "shop": (i + turn) % 410, "amount": amount} for i in range(turn, 300)])
        db.delete("orders", list(range(3 * turn, 300, 7)))
        db.put("orders", [{"id": i, "shop": 5, "amount": 1} for i in range(0, 300, 5)])
    db.put("orders", [{"id": i, "shop": 5, "amount": 4} for i in range(4)])
    db.refresh(lane="spark")
    assert captured[-1] == {"orders": True}
    assert db.audit().differences == 0


def test_a_job_that_spark_gives_up_is_run_again(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when an executor dies with a shuffle's rows: nothing of the first attempt counts."""
    db.sql(VIEW)
    rdd = type(db._spark().sparkContext.parallelize([]))
    collect, faults = rdd.collect, ["a shuffle map stage with indeterminate output was failed and retried"] * 2

    def failing(self: Any) -> Any:
        found = collect(self)  # the tasks did their work, and it is lost
        if faults:
            raise RuntimeError(faults.pop())
        return found

    monkeypatch.setattr(rdd, "collect", failing)
    db.put("orders", [{"id": i, "shop": i % 7, "amount": 3} for i in range(100)])
    db.refresh(lane="spark")
    assert not faults
    faults.append("anything else")
    db.put("orders", {"id": 1, "shop": 1, "amount": 4})
    with pytest.raises(StoreError, match="anything else"):
        db.refresh(lane="spark")
    monkeypatch.undo()
    db.refresh(lane="spark")
    assert db.audit().differences == 0


def test_a_worker_that_does_not_see_the_state_is_an_error_and_no_damage(
    db: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As an executor that joins a session later, on a machine where the directory is not mounted."""
    db.sql(VIEW)
    absent = sessions.ReachabilityCheck(db._store.url, str(tmp_path / "not mounted"), None, None)
    monkeypatch.setattr(sessions, "reachability_check", lambda *_: absent)
    db.put("orders", [{"id": i, "shop": i % 410, "amount": 7} for i in range(50)])
    epoch = db.status().epoch
    with pytest.raises(Unsupported, match="ran where that directory is not"):
        db.refresh("spark")
    assert (db.status().epoch, db.status().rebuilds) == (epoch, 0)
    monkeypatch.setattr(sessions, "reachability_check", lambda *_: None)
    assert db.refresh("spark").mended == ()
    assert db.audit().differences == 0


def test_a_small_batch_is_one_stage_that_leaves_the_session_as_it_was(
    db: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan is sent with the first one, and its name is the batch's; the caller's own jobs keep theirs."""
    monkeypatch.setattr(placement, "ROWS_PER_TASK", 1_000)
    db.sql(VIEW)
    context = spark.sparkContext
    context.setJobDescription("the caller's")
    sent: list[Any] = []
    broadcast = context.broadcast
    monkeypatch.setattr(context, "broadcast", lambda value: sent.append(value) or broadcast(value))
    for number in range(3):
        context.setJobGroup(f"batch {number}", "the caller's")
        db.put("orders", [{"id": i, "shop": i % 7, "amount": number} for i in range(100)])
        assert db.refresh("spark").lane == "spark"
        jobs = context.statusTracker().getJobIdsForGroup(f"batch {number}")
        assert [len(context.statusTracker().getJobInfo(j).stageIds) for j in jobs] == [1]
        assert context.getLocalProperty("spark.job.description") == "the caller's"
    context.setLocalProperty("spark.job.description", None)
    context.setLocalProperty("spark.jobGroup.id", None)
    assert len(sent) == 1
    assert db.audit().differences == 0


@pytest.mark.parametrize("rows_a_task", [1, 1_000], ids=["divided", "whole"])
def test_an_error_in_a_task_stops_the_view_whose_row_it_is(
    db: Any, monkeypatch: pytest.MonkeyPatch, rows_a_task: int
) -> None:
    monkeypatch.setattr(placement, "ROWS_PER_TASK", rows_a_task)
    db.sql(VIEW)
    db.delete("orders", 0)
    db.sql("CREATE MATERIALIZED VIEW shares AS SELECT id, 100 / shop AS share FROM orders WHERE shop > 0 OR id < 9")
    db.put("orders", [{"id": 5, "shop": 0, "amount": 1}, {"id": 6, "shop": 3, "amount": 2}])
    report = db.refresh("spark", suspend=True)
    assert list(report.suspended) == ["shares"]
    assert db.audit().differences == 0


def test_auto_takes_the_lane_that_is_expected_to_be_done_sooner(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a slow driver and a cluster with many cores; the report, the status and EXPLAIN say so."""
    db.sql(VIEW)
    orders = [{"id": i, "shop": i % 400, "amount": 2} for i in range(2_000)]
    db.put("orders", orders[:500])
    assert db.refresh().lane == "driver"
    db._acquire_maintainer().executor.observe(LaneChoice("driver", ""), 20_000, 60.0)
    monkeypatch.setattr(db._acquire_maintainer().executor._lane_costs, "_cluster", lambda: Cluster(1_000, False))
    db.put("orders", orders)
    report = db.refresh()
    assert report.lane == "spark"
    assert "s on Spark with 1000 cores" in report.why
    assert db.status().recent["lane"] == f"spark: {report.why}"
    assert "measured here: driver" in db.explain("by_zone")
    assert db.refresh("driver").lane == "none"


def test_tasks_resolve_what_views_get_and_the_driver_only_hears_where_it_lies(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views by key, of one row, with equal rows, and not stored: what reaches the driver does not grow with them."""
    db.sql(VIEW)
    db.sql("CREATE MATERIALIZED VIEW dear AS SELECT id, shop, amount FROM orders WHERE amount >= 0")
    db.sql("CREATE MATERIALIZED VIEW amounts AS SELECT shop, amount FROM orders")
    db.sql("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(amount) AS s FROM orders")
    db.sql("CREATE MATERIALIZED VIEW passing WITH (store = 'none') AS SELECT id, amount FROM orders")
    stage, outcomes, heard = db._acquire_maintainer().executor, [], []
    run, collected = stage.run, lane._collect_result
    monkeypatch.setattr(stage, "run", lambda *g, **h: outcomes.append(run(*g, **h)) or outcomes[-1])

    def listened(flow: Any, results: Any, *rest: Any) -> Any:
        heard.append(sum(len(payload) for _, node, _, payload in results if node != "!runs"))
        return collected(flow, results, *rest)

    monkeypatch.setattr(lane, "_collect_result", listened)
    for count in (200, 2_000):
        db.put("orders", [{"id": i, "shop": i % 410, "amount": count + i % 9} for i in range(count)])
        db.delete("orders", list(range(count // 10)))
        db.refresh("spark")
        assert outcomes[-1].deltas == {}
        assert {c.table.name for c in outcomes[-1].changes} == {"by_zone", "dear", "amounts", "total", "passing"}
        assert db.audit().differences == 0
    assert heard[1] < 1.5 * heard[0]
    assert not list(Path(str(stage.state.directory)).glob("b*-s-*"))


def test_a_load_on_spark_tells_how_far_it_is_and_can_be_stopped(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchExecutor, "choose_lane", lambda *_: LaneChoice("spark", "it is tested"))
    monkeypatch.setattr(db, "_progress", lambda what, done, of: told.append((what, done, of)))
    told: list[tuple[str, int, int]] = []
    db.sql(VIEW)
    assert [of > 1 for what, _, of in told if what == "working out by_zone"]
    assert db.audit().differences == 0

    def stop(what: str, done: int, of: int) -> None:
        if what == "working out dear":
            raise Cancellation

    monkeypatch.setattr(db, "_progress", stop)
    with pytest.raises(Cancellation):
        db.sql("CREATE MATERIALIZED VIEW dear AS SELECT id, amount FROM orders WHERE amount > 5")
    assert [view.name for view in db.status().views] == ["by_zone"]
    db.put("orders", {"id": 1, "shop": 1, "amount": 4})
    db.refresh("spark")
    assert db.audit().differences == 0
