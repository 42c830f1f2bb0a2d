"""A real cluster: an executor killed in the middle of a batch, and an attempt that Spark stops waiting for.

One Python worker puts itself to sleep at a named point. In the first test its executor is killed with SIGKILL, and with
it the shuffle files it held, so that Spark repeats tasks whose rows others have already read; in the second Spark
starts a speculative attempt on the other executor, and takes the first that is done. Then the sleeper is woken: what
it still writes is in no manifest.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import viewkeeper as vk

from . import shop
from .harness import DEEP, Ledger, asleep, executor_of, wake

Victim = Callable[..., subprocess.Popen[str]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # JVMs start slowly on a busy machine
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find an executor"),
]

STEPS = 3
SPECULATION = [
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.minTaskRuntime=100ms",
    "spark.speculation.quantile=0.5",
    "spark.speculation.multiplier=1.5",
]
DIVIDED = ["spark.viewkeeper.rowsPerTask=1"]
"""Also the small batches of these tests."""


def armed(point: str, once: Path) -> list[str]:
    """Settings by which a worker of an executor sleeps at this point, and not the driver, which passes it too."""
    return [f"spark.executorEnv.VK_STOP_AT={point}", f"spark.executorEnv.VK_CRASH_ONCE={once}", *DIVIDED]


def finishes(process: subprocess.Popen[str]) -> list[int]:
    """The steps that it said it has done, all of them published."""
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]
    return [int(line) for line in out.split()]


def goes_on(url: str, fault: str, ledger: Ledger) -> None:
    with vk.open(url, mode="r") as db:
        ledger.check(fault, db)
    with vk.open(url, retention=0) as db:
        shop.change(db, 100)
        assert db.refresh("driver").mended == ()
        ledger.check(fault, db)
    with vk.open(url) as db:
        db._acquire_maintainer()  # which collects what the dead left, before merging writes files of its own
        assert {path.name for path in shop.state_files(url)} == shop.listed(db)


@pytest.mark.skipif(not DEEP, reason="a cluster takes a minute: make torture")
@pytest.mark.parametrize(
    "point", ["task.after@2", "task.before", "task.before@3", "task.after@4", "run.write.middle", "run.write.after@2"]
)
def test_an_executor_is_killed(
    url: str, cluster: dict[str, str], victim: Victim, ledger: Ledger, tmp_path: Path, point: str
) -> None:
    once = tmp_path / "struck"
    fault = "executor of a cluster killed"
    process = victim(url, lane="spark", steps=STEPS, master=[cluster["MASTER"], *armed(point, once)])
    worker = asleep(once, process)
    os.kill(executor_of(worker), signal.SIGKILL)
    ledger.count_injection(fault)
    assert finishes(process) == [1, 2, 3]
    wake(worker, once)
    with vk.open(url, mode="r") as db:
        assert db.status().lag_changes == 0
    goes_on(url, fault, ledger)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(p, marks=pytest.mark.skipif(not DEEP, reason="another driver on the cluster: make torture"))
        for p in ("task.after", "task.before@2", "run.write.middle")
    ],
)
def test_a_speculative_attempt_overtakes(
    url: str, cluster: dict[str, str], victim: Victim, ledger: Ledger, tmp_path: Path, point: str
) -> None:
    once = tmp_path / "struck"
    fault = "speculative attempt overtakes a worker"
    process = victim(
        url,
        lane="spark",
        steps=STEPS,
        master=[cluster["MASTER"], *SPECULATION, *armed(point, once)],
    )
    worker = asleep(once, process)
    assert finishes(process) == [1, 2, 3]  # while it sleeps: another attempt did its work
    ledger.count_injection(fault)
    wake(worker, once)
    goes_on(url, fault, ledger)
