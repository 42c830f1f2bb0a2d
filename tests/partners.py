"""Batches that are shared with partners, however small they are: what tests set for that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from viewkeeper.plan.dataflow.shared_paths import shared
from viewkeeper.runtime.batch_work import Driving
from viewkeeper.runtime.cost_model import PROCESSES, Hands
from viewkeeper.runtime.local import scheduler as local_scheduler
from viewkeeper.runtime.processes import scheduler
from viewkeeper.runtime.processes.scheduler import Company, Share, divided


def always(patch: pytest.MonkeyPatch, most: int = 2) -> list[str]:
    """Every batch of the driver lane is shared by so many processes, if its flow has as many views. Gives a list in
    which each batch notes who ran it."""
    ran: list[str] = []

    def shares(self: Company, flow: Any, changed: Any, wishes: Any) -> Sequence[Share]:
        if not self._partners.count:  # a database that has one thread
            return ()
        self._partners.count = most - 1
        self._partners.start()
        deadline = time.monotonic() + 120
        while self._partners._each and not self._partners.look() and time.monotonic() < deadline:
            time.sleep(0.01)
        if not self._partners.look():
            return ()
        known = self._kind(flow, changed, wishes)
        if not known.shares:
            parts = divided(flow, dict.fromkeys(flow.operators, 1.0), most)
            assert all(part.flow.views for part in parts)
            known.shares = [
                Share(part, shared(part.flow, changed, wishes), f"t{id(known)}-{i}") for i, part in enumerate(parts)
            ]
        return known.shares if len(known.shares) > 1 else ()

    run = Driving.run

    def noting(self: Driving, rounds: Any) -> Any:
        nonlocal ran
        found = run(self, rounds)
        ran += [self.way] if self.way else []
        return found

    patch.setattr(local_scheduler, "_OPERATORS_FOR_MORE", 1)
    patch.setattr(scheduler.Company, "shares", shares)
    patch.setattr(scheduler.Company, "note", lambda *_: None)
    patch.setattr(Hands, "way", lambda self, sort, ways: PROCESSES if PROCESSES in ways else ways[0])
    patch.setattr(Driving, "run", noting)
    return ran
