"""How long batches leave the machine to writers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from viewkeeper.commit.report import BatchReport
from viewkeeper.maintain.continuous import Maintenance, Pace


@pytest.mark.parametrize(
    ("atomic", "priority", "seconds", "spent", "rest"),
    [
        (True, "balanced", 0.02, 0.01, 0.02),  # writers wait for all of it
        (True, "views", 0.02, 0.02, 0.0),
        (True, "writers", 0.01, 0.01, 0.04),
        (True, "balanced", 9.0, 9.0, 0.05),  # max_delay
        (False, "balanced", 0.02, 0.02, 0.02),  # it took all of the processor's time
        (False, "balanced", 0.05, 0.02, 0.0),  # it left the processor alone for more than half of the time
        (False, "balanced", 0.03, 0.02, 0.01),
        (False, "writers", 0.03, 0.01, 0.02),
    ],
)
def test_a_batch_takes_no_more_than_its_share_of_the_time(
    atomic: bool, priority: str, seconds: float, spent: float, rest: float
) -> None:
    store: Any = SimpleNamespace(capabilities=SimpleNamespace(atomic_batch=atomic))
    made = Maintenance(store, Pace(priority=priority), cast(Any, None))
    assert made._rest_after(BatchReport(1, 10, "driver", seconds), spent) == pytest.approx(rest)


def test_after_a_batch_that_was_as_large_as_may_be_nobody_rests() -> None:
    store: Any = SimpleNamespace(capabilities=SimpleNamespace(atomic_batch=True))
    made = Maintenance(store, Pace(max_changes=100), cast(Any, None))
    assert made._rest_after(BatchReport(1, 60, "driver", 1.0), 1.0) == 0.0
