"""A process killed at each named point, in either lane, and at any moment.

The next process finds the last published batch, whole; goes on from it; and every view is its query run from nothing,
before anything else is done and after every batch that follows.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import viewkeeper as vk
from viewkeeper import failpoints

from . import shop
from .harness import DEEP, Ledger, asleep, killed, wake
from .test_damage import cut

Victim = Callable[..., Any]

BATCH = [
    "write.before",
    "write.middle",
    "commit.1.before",
    "commit.1.after",
    "commit.2.before",
    "run.write.before",
    "run.write.middle",
    "run.sync",
    "run.write.after",
    "commit.2.after",
    "commit.3.before",
    "commit.3.middle",
    "commit.4.before",
    "commit.4.after",
    "commit.5.merge",
    "commit.5.truncate",
    "commit.5.truncate.middle",
    "commit.5.collect",
]
MERGE = ["merge.write.before", "merge.write.after", "merge.adopted"]
DDL = [
    ("create", "view.planned"),
    ("create", "load.1.after"),
    ("create", "run.write.after@2"),
    ("create", "load.2.after"),
    ("create", "commit.3.before@2"),
    ("create", "commit.3.middle@2"),
    ("create", "commit.4.before@2"),
    ("create", "commit.4.after@2"),
    ("replace", "load.1.after@2"),
    ("replace", "commit.4.before@3"),
    ("replace", "commit.4.after@3"),
    ("replace", "commit.4.before@5"),
    ("replace", "view.published"),
    ("drop", "commit.3.before"),
    ("drop", "commit.4.before"),
    ("drop", "view.dropped"),
    ("drop", "view.dropped@2"),
    ("suspend", "commit.4.before"),
    ("suspend", "commit.4.after"),
    ("suspend", "load.1.after"),
    ("suspend", "commit.4.before@3"),
    ("schedule", "remake.after"),
    ("schedule", "remake.after@2"),
    ("schedule", "commit.4.before@3"),
    ("tables", "table.changed"),
    ("tables", "table.changed@2"),
    ("tables", "table.dropped"),
]
SPARK = [p for p in BATCH if not p.startswith("run")] + MERGE
"""What the driver of a Spark batch passes. Its tasks pass `TASKS`: a task that dies there is tried again."""
TASKS = ["task.before", "run.write.before", "run.write.middle", "run.sync", "run.write.after", "task.after"]


def test_every_point_is_listed_and_used() -> None:
    source = Path(failpoints.__file__).parent
    spoken = re.compile(r'(?:failpoints\.hit|\.drop_rows)\((?:[\w.]+, )?"([^"]+)"\)')
    passed = {name for path in source.rglob("*.py") for name in spoken.findall(path.read_text())}
    assert passed == set(failpoints.POINTS)
    struck = {*BATCH, *MERGE, *(point.partition("@")[0] for _, point in DDL)}
    # tests/contract: test_resumed_loads.py, test_backup.py, test_synchronous.py, test_members.py;
    # tests/integration: test_families.py
    members = {"members.table", "members.written", "member.dropped", "member.expelled"}
    elsewhere = {"load.part.after", "backup.copied", "family.parameters", "write.kept", "view.kept", *members}
    assert passed - struck - elsewhere == {"mend.before", "mend.after", "task.before", "task.after"}  # below


def recovers(url: str, fault: str, ledger: Ledger, lane: str = "driver", spark: Any = None) -> None:
    """What must hold after any kill."""
    with vk.open(url, mode="r") as db:
        ledger.check(fault, db)
    with vk.open(url, spark=spark, retention=0) as db:
        db.refresh(lane)
        ledger.check(fault, db)
        for step in (101, 102):
            shop.change(db, step)
            db.refresh(lane)
            ledger.check(fault, db)
    with vk.open(url) as db:
        db._acquire_maintainer().publisher.state.wait_for_collection()  # it removes files of the dead
        assert {path.name for path in shop.state_files(url)} == shop.listed(db)


@pytest.mark.parametrize("passing", [1, 2, 5] if DEEP else [1])
@pytest.mark.parametrize("point", BATCH)
def test_killed_in_a_batch(url: str, victim: Victim, ledger: Ledger, point: str, passing: int) -> None:
    assert killed(victim(url, steps=40, VK_CRASH_AT=f"{point}@{passing}"))
    ledger.count_injection(f"kill at {point}")
    recovers(url, f"kill at {point}", ledger)


@pytest.mark.parametrize("passing", [1, 2] if DEEP else [1])
@pytest.mark.parametrize("point", MERGE)
def test_killed_in_a_merge(url: str, victim: Victim, ledger: Ledger, point: str, passing: int) -> None:
    assert killed(victim(url, steps=60, VK_CRASH_AT=f"{point}@{passing}"))
    ledger.count_injection(f"kill at {point}")
    recovers(url, f"kill at {point}", ledger)


@pytest.mark.parametrize(("kind", "point"), DDL if DEEP else DDL[::3])
def test_killed_in_ddl(url: str, victim: Victim, ledger: Ledger, spark: Any, kind: str, point: str) -> None:
    assert killed(victim(url, kind, VK_CRASH_AT=point))
    fault = f"{kind}: kill at {point.partition('@')[0]}"
    ledger.count_injection(fault)
    recovers(url, fault, ledger)
    with vk.open(url, spark=spark) as db:  # and the statement can be given again
        if kind in ("create", "replace", "schedule"):
            db.sql("DROP MATERIALIZED VIEW IF EXISTS spent")
            db.sql(f"CREATE MATERIALIZED VIEW spent AS {shop.EXTRA['spent2']}")
        elif kind == "drop":
            db.sql("DROP MATERIALIZED VIEW IF EXISTS unsold")
            db.sql(f"CREATE MATERIALIZED VIEW unsold AS {shop.VIEWS['unsold']}")
        elif kind == "suspend":
            db.sql("ALTER MATERIALIZED VIEW customers RESUME")
        else:
            db.sql("DROP TABLE IF EXISTS notes")
            db.sql(f"CREATE TABLE notes ({shop.TABLES['items']})")
            assert db.read("notes").num_rows == 0
        shop.change(db, 103)
        db.refresh("driver")
        ledger.check(fault, db)


@pytest.mark.parametrize(
    "point",
    ["mend.before", "mend.after", "run.write.after", "commit.3.middle", "commit.4.after"][: None if DEEP else 2],
)
def test_killed_while_mending(url: str, victim: Victim, ledger: Ledger, point: str) -> None:
    for path in shop.state_files(url)[::2]:
        cut(path, random.Random(point))
    assert killed(victim(url, VK_CRASH_AT=point))
    ledger.count_injection(f"mend: kill at {point}")
    recovers(url, f"mend: kill at {point}", ledger)


@pytest.mark.slow
@pytest.mark.parametrize("point", SPARK if DEEP else ["commit.4.before"])
def test_killed_in_the_spark_lane(url: str, victim: Victim, ledger: Ledger, spark: Any, point: str) -> None:
    """Each victim starts a Spark of its own, which must not outlive it."""
    process = victim(url, lane="spark", steps=60 if point in MERGE else 4, VK_CRASH_AT=point)
    assert killed(process)
    ledger.count_injection(f"spark: kill at {point}")
    recovers(url, f"spark: kill at {point}", ledger, "spark", spark)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find a worker")
@pytest.mark.parametrize("point", TASKS if DEEP else ["run.write.middle"])
def test_killed_while_its_tasks_work(
    url: str, victim: Victim, ledger: Ledger, spark: Any, tmp_path: Path, point: str
) -> None:
    """The program dies while a task is at the point; the orphan goes on when others have long taken over."""
    once = tmp_path / "struck"
    process = victim(url, lane="spark", VK_STOP_AT=point, VK_CRASH_ONCE=str(once))
    worker = asleep(once, process)
    process.kill()
    assert killed(process)
    fault = f"spark: kill while a task is at {point}"
    ledger.count_injection(fault)
    with vk.open(url, mode="r") as db:
        ledger.check(fault, db)
    with vk.open(url, spark=spark, retention=0) as db:
        db.refresh("spark")
        ledger.check(fault, db)
        wake(worker, once)
        shop.change(db, 100)
        db.refresh("spark")
        ledger.check(fault, db)
    recovers(url, fault, ledger)


@pytest.mark.parametrize("point", TASKS if DEEP else ["task.after", "task.before"])
def test_a_killed_task_is_tried_again(
    url: str, ledger: Ledger, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """One Python worker dies; Spark gives its task to another, and what the dead one wrote counts for nothing."""
    environment = spark.sparkContext.environment
    fault = f"worker: kill at {point}"
    for passing in range(1, 4 if DEEP else 2):
        once = tmp_path / f"struck{passing}"
        monkeypatch.setitem(environment, "VK_CRASH_AT", f"{point}@{passing}")
        monkeypatch.setitem(environment, "VK_CRASH_ONCE", str(once))
        with vk.open(url, spark=spark) as db:
            shop.change(db, passing)
            assert db.refresh("spark").lane == "spark"
            if once.exists():
                ledger.count_injection(fault)
            ledger.check(fault, db)
        assert once.exists() or passing > 1
        with vk.open(url) as db:
            db._acquire_maintainer().publisher.state.wait_for_collection()
            assert {path.name for path in shop.state_files(url)} == shop.listed(db)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find a worker")
@pytest.mark.parametrize("point", TASKS if DEEP else ["run.write.after"])
def test_a_task_that_spark_kills_is_tried_again(
    url: str, ledger: Ledger, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Spark itself ends every attempt that runs while one sleeps at the point, as for a task that lost its race."""
    context, once = spark.sparkContext, tmp_path / "struck"
    monkeypatch.setitem(context.environment, "VK_STOP_AT", point)
    monkeypatch.setitem(context.environment, "VK_CRASH_ONCE", str(once))

    def kill_tasks() -> int:
        asleep(once)
        found = context._jsc.sc().statusStore()
        running = 0
        for stage in context.statusTracker().getActiveStageIds():
            tasks = found.taskList(stage, 0, 100)
            for task in (tasks.apply(i) for i in range(tasks.size())):
                running += context._jsc.sc().killTaskAttempt(task.taskId(), True, "tortured")
        return running

    fault = "task ended by Spark"
    with vk.open(url, spark=spark) as db, ThreadPoolExecutor(1) as beside:
        shop.change(db, 1)
        ended = beside.submit(kill_tasks)
        assert db.refresh("spark").lane == "spark"
        ledger.count_injection(fault, ended.result())
        assert ended.result() > 0
        ledger.check(fault, db)
    recovers(url, fault, ledger)


@pytest.mark.skipif(not DEEP, reason="Spark takes its time to give up: make torture")
def test_a_task_that_always_dies_fails_the_batch_and_nothing_else(
    url: str, ledger: Ledger, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vk.open(url, spark=spark) as db:
        shop.change(db, 1)
        with monkeypatch.context() as armed:
            armed.setitem(spark.sparkContext.environment, "VK_CRASH_AT", "task.after")
            with pytest.raises(vk.ViewkeeperError) as failed:
                db.refresh("spark")
        assert failed.value.code == "VK503"
        ledger.count_injection("worker: always killed")
        ledger.check("worker: always killed", db)
        db.refresh("spark")
        ledger.check("worker: always killed", db)


def test_killed_at_any_moment(url: str, victim: Victim, ledger: Ledger) -> None:
    rng = random.Random(8)
    step = 1
    for _ in range(100 if DEEP else 4):
        process = victim(url, "run", first=step, steps=1_000)
        assert process.stdout is not None
        process.stdout.readline()  # it works now
        time.sleep(rng.uniform(0.0, 0.6))
        process.kill()
        assert killed(process)
        step += 1_000
        ledger.count_injection("kill at a random moment")
        with vk.open(url, mode="r") as db:
            ledger.check("kill at a random moment", db)
    recovers(url, "kill at a random moment", ledger)
