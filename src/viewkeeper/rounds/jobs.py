"""Spark's side of a batch: flows that are sent once, jobs with names that a person understands, work as tasks.

A session may be a user's own. What is set on it for a job (its description) is as it was afterwards.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from viewkeeper.errors import StoreError
from viewkeeper.plan.flow import Flow
from viewkeeper.rounds.worker import Plan
from viewkeeper.store.base import Spread

T = TypeVar("T")
R = TypeVar("R")

_DESCRIPTION = "spark.job.description"
_NAMED = 8
"""Views that a job's description names."""
_SENT = 8
"""Flows that stay with the executors: that of the batches, in a few forms, and those of loads beside them."""


class Sent:
    """The flows that a session's executors have, the last used ones."""

    def __init__(self) -> None:
        self._plans: OrderedDict[int, tuple[Flow, str, Plan]] = OrderedDict()

    def plan(self, spark: Any, flow: Flow) -> Plan:
        """The flow as tasks know it; it is sent if they do not."""
        context = spark.sparkContext
        found = self._plans.get(id(flow))
        if found is None or found[0] is not flow or found[1] != context.applicationId:
            made = Plan(secrets.token_hex(8), context.broadcast(flow))
            found = self._plans[id(flow)] = (flow, context.applicationId, made)
            if len(self._plans) > _SENT:  # Spark forgets a broadcast that nobody holds
                self._plans.popitem(last=False)
        self._plans.move_to_end(id(flow))
        return found[2]


@contextmanager
def named(spark: Any, description: str) -> Iterator[None]:
    """Jobs that this thread starts are called so in Spark's pages and logs."""
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, description)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


def views_text(names: Sequence[str]) -> str:
    """The views of a job, the first few by name."""
    listed = ", ".join(sorted(names)[:_NAMED])
    return listed + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def spread_on(spark: Any) -> Spread:
    """Pieces of work as the tasks of a Spark stage."""

    def spread(work: Callable[[T], R], pieces: Sequence[T], /) -> list[R]:
        if not pieces:
            return []
        try:
            with named(spark, "viewkeeper: capture"):
                done: list[R] = spark.sparkContext.parallelize(pieces, len(pieces)).map(work).collect()
        except Exception as error:
            raise StoreError(
                f"Capture on Spark failed: {cause(error)}",
                hint="Nothing was published; correct the cause and refresh again.",
            ) from error
        return done

    return spread


def cause(error: Exception) -> str:
    """What a task said last: the line that a traceback ends with. If none spoke, how Spark's own account begins."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line.startswith("viewkeeper.errors.") or "Error:" in line[:80]]
    account = [line for line in lines if line and not line.startswith(("at ", "... "))]
    return (told[-1] if told else " ".join(account[:3]) or type(error).__name__)[:500]
