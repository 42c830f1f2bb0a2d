"""How long batches leave the machine to writers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from viewkeeper.commit.batch_history import BatchReport
from viewkeeper.maintain.continuous import Maintenance, Pace
from viewkeeper.resources.cpu import CpuUsage


@pytest.mark.parametrize(
    ("atomic", "priority", "idle", "seconds", "spent", "rest"),
    [
        (True, "balanced", 0.5, 0.02, 0.01, 0.02),  # writers wait for all of it
        (True, "views", 0.0, 0.02, 0.02, 0.0),
        (True, "writers", 0.0, 0.01, 0.01, 0.04),
        (True, "balanced", 0.0, 9.0, 9.0, 0.05),  # max_delay
        (False, "balanced", 0.0, 0.05, 0.02, 0.02),  # writers wait for processors
        (False, "balanced", 0.3, 0.04, 0.02, 0.01),  # nobody does; the store is spared a little
        (False, "balanced", 0.3, 9.0, 9.0, 0.05),
        (False, "writers", 0.3, 0.04, 0.02, 0.01),
        (False, "views", 0.3, 0.04, 0.02, 0.0),
        (False, "balanced", 0.0, 0.02, 0.03, 0.02),  # of two processors, one is the writers'
        (False, "writers", 0.0, 0.03, 0.01, 0.04),
        (False, "views", 0.0, 0.03, 0.01, 0.0),
        (False, "balanced", 0.0, 0.25, 0.02, 0.02),
        (False, "balanced", 0.0, 0.75, 0.1, 1.05),  # what the store did, too, while nobody was idle
        (False, "views", 0.0, 0.75, 0.1, 0.0),
        (False, "balanced", 0.0, 9.0, 2.0, 2.05),
        (False, "writers", 0.0, 9.0, 2.0, 2.05),
    ],
)
def test_a_batch_takes_no_more_than_its_share_of_the_time(
    atomic: bool, priority: str, idle: float, seconds: float, spent: float, rest: float
) -> None:
    store: Any = SimpleNamespace(url="lmdb:here", capabilities=SimpleNamespace(atomic_batch=atomic))
    made = Maintenance(store, Pace(priority=priority), cast(Any, None))
    made._cpu_usage.idle = idle
    assert made._rest_seconds(BatchReport(1, 10, "driver", seconds), spent) == pytest.approx(rest)


def test_who_wants_no_delay_has_none() -> None:
    store: Any = SimpleNamespace(url="lmdb:here", capabilities=SimpleNamespace(atomic_batch=False))
    made = Maintenance(store, Pace(max_delay=0.0), cast(Any, None))
    assert made._rest_seconds(BatchReport(1, 10, "driver", 9.0), 9.0) == 0.0


@pytest.mark.parametrize(("delay", "lag", "rest"), [(10.0, None, 12.0), (0.05, 1_000, 0.05)])
def test_a_long_rest_is_of_seconds_and_not_while_the_lag_is_limited(delay: float, lag: int | None, rest: float) -> None:
    store: Any = SimpleNamespace(url="lmdb:here", capabilities=SimpleNamespace(atomic_batch=False))
    made = Maintenance(store, Pace(max_delay=delay, max_lag=lag), cast(Any, None))
    assert made._rest_seconds(BatchReport(1, 10, "driver", 99.0), 99.0) == pytest.approx(rest)


def test_after_a_batch_that_left_some_of_it_waiting_nobody_rests() -> None:
    store: Any = SimpleNamespace(url="lmdb:here", capabilities=SimpleNamespace(atomic_batch=True))
    made = Maintenance(store, Pace(max_changes=100), cast(Any, None))
    assert made._rest_seconds(BatchReport(1, 60, "driver", 1.0, more=True), 1.0) == 0.0


def test_processors_are_idle_for_the_share_of_time_that_was_not_used(tmp_path: Path) -> None:
    counts = tmp_path / "stat"
    counts.write_text("cpu  100 0 50 800 50 0 0 0 7 7\ncpu0 1 2 3\n")
    seen = CpuUsage(counts)
    assert seen.sample_idle() == 0.0  # its first window is not over
    counts.write_text("cpu  160 0 60 820 60 0 0 0 9 9\ncpu0 1 2 3\n")
    assert seen.sample_idle(window=0.0) == pytest.approx(0.3)


@pytest.mark.parametrize("told", ["", "what is this", None])
def test_where_the_system_does_not_tell_no_processor_is_idle(tmp_path: Path, told: str | None) -> None:
    if told is not None:
        (tmp_path / "stat").write_text(told)
    assert CpuUsage(tmp_path / "stat").sample_idle(window=0.0) == 0.0
