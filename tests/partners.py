"""Batches that are shared with partners, however small they are: what tests set for that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from viewkeeper.plan.dataflow.shared_paths import shared_variant
from viewkeeper.runtime.batch_work import LocalExecutor
from viewkeeper.runtime.cost_model import SEVERAL_PROCESSES, SchedulerCostModel
from viewkeeper.runtime.local import scheduler as local_scheduler
from viewkeeper.runtime.processes import scheduler
from viewkeeper.runtime.processes.scheduler import ProcessPartition, ProcessScheduler, partition_views


def always(patch: pytest.MonkeyPatch, process_count: int = 2) -> list[str]:
    """Every batch of the driver lane is shared by so many processes, if its flow has as many views. Gives a list in
    which each batch notes who ran it."""
    ran: list[str] = []

    def shares(self: ProcessScheduler, flow: Any, changed: Any, wishes: Any) -> Sequence[ProcessPartition]:
        if not self._processes.count:  # a database that has one thread
            return ()
        self._processes.count = process_count - 1
        self._processes.start()
        deadline = time.monotonic() + 120
        while self._processes._processes and not self._processes.poll() and time.monotonic() < deadline:
            time.sleep(0.01)
        if not self._processes.poll():
            return ()
        known = self._workload(flow, changed, wishes)
        if not known.partitions:
            parts = partition_views(flow, dict.fromkeys(flow.operators, 1.0), process_count)
            assert all(part.dataflow.views for part in parts)
            known.partitions = [
                ProcessPartition(part, shared_variant(part.dataflow, changed, wishes), f"t{id(known)}-{i}")
                for i, part in enumerate(parts)
            ]
        return known.partitions if len(known.partitions) > 1 else ()

    run = LocalExecutor.run

    def noting(self: LocalExecutor, rounds: Any) -> Any:
        nonlocal ran
        found = run(self, rounds)
        ran += [self.scheduler_name] if self.scheduler_name else []
        return found

    patch.setattr(local_scheduler, "_MIN_THREADED_OPERATORS", 1)
    patch.setattr(scheduler.ProcessScheduler, "ready_partitions", shares)
    patch.setattr(scheduler.ProcessScheduler, "observe", lambda *_: None)
    patch.setattr(
        SchedulerCostModel,
        "choose",
        lambda self, sort, ways: SEVERAL_PROCESSES if SEVERAL_PROCESSES in ways else ways[0],
    )
    patch.setattr(LocalExecutor, "run", noting)
    return ran
