"""Continuous maintenance: a thread that turns what writers do into batches, soon but not more often than it pays.

    idle      look at the log's head every few milliseconds; a writer of this process also wakes it
    changes   begin a batch at once, unless the last one ended just now: then rest first, until what that batch took
              from writers is no more than its share of the time (`priority`): its time where they wait for its commit,
              else processor time, its own and the store's, or a quarter of its time while processors are idle; at most
              `max_delay`, but twice as long as a long batch that met no idle processor (2 s at most); and not at all
              when more waited than it could take
    batch     at most about `max_changes` rows: a long backlog is worked off in several batches
    failure   a view that fails on its own rows is suspended and the others go on; anything else is tried again, some
              time later each time, and ends the maintenance after `retries` times

So a lone change is visible after one batch, and under load batches grow until they keep up.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from viewkeeper.errors import MaintainerBusy, StoreError, Timeout, ViewkeeperError
from viewkeeper.maintain.registry import END_TIMEOUT, MaintainerReference
from viewkeeper.model.display import count_text
from viewkeeper.model.intake import arguments
from viewkeeper.resources.cpu import CpuUsage
from viewkeeper.resources.fork_guard import owned
from viewkeeper.resources.poll_backoff import poll_pause
from viewkeeper.store.contract.store import Store

if TYPE_CHECKING:  # who only looks at the note imports no maintainer
    from viewkeeper.commit.batch_history import BatchReport
    from viewkeeper.maintain.maintainer import Maintainer

PRIORITY_SHARES = {"views": 1.0, "balanced": 0.5, "writers": 0.2}
"""How much of the time batches may run while writers are busy."""

MAINTENANCE_NOTE = "maintenance"
"""The store's record of what stopped a maintainer."""

_STANDBY_PAUSE = 0.1
_SCHEDULE_CHECK_INTERVAL = 1.0
"""Seconds by which a view that is made at intervals may be late, where nobody looks for changes."""
_IDLE_THRESHOLD = 0.1
"""The share of the processors' time from which on they are not all needed."""
_SHARE_WHEN_IDLE = 0.8
"""How much of the time batches may take where none are: larger batches cost a store less, and are seen as soon."""
_LONG_BATCH_FACTOR, _MAX_REST_FACTOR = 5, 40
"""How many times `max_delay` a long batch takes, and the rest after it at most."""
_MAX_REST = 2.0
"""Seconds of that, whatever `max_delay` is."""
_log = logging.getLogger("viewkeeper.batch")
_instances: weakref.WeakSet[Maintenance] = weakref.WeakSet()


@dataclass(frozen=True)
class Pace:
    """How often, how large, and at whose cost."""

    max_delay: float = 0.05
    max_changes: int = 50_000
    priority: str = "balanced"
    max_lag: int | None = None
    retries: int = 5

    def validate(self) -> Pace:
        arguments.check_choice(self.priority, "priority", tuple(PRIORITY_SHARES))
        arguments.check_seconds(self.max_delay, "max_delay")
        arguments.check_whole_number(self.max_changes, "max_changes", 1)
        arguments.check_whole_number(self.retries, "retries", 0)
        if self.max_lag is not None:
            arguments.check_whole_number(self.max_lag, "max_lag", 1)
        return self


class Maintenance:
    """Runs in the background from `start` (or entering it) to `stop` (or leaving it).

    `holding` makes this process the maintainer, and gives that up again after a failure.
    """

    def __init__(
        self,
        store: Store,
        pace: Pace,
        maintainer_ref: MaintainerReference,
        *,
        lane: str = "auto",
        standby: bool = False,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        self.pace = pace.validate()
        from viewkeeper.runtime.cost_model import check_lane

        check_lane(lane)
        self.error: Exception | None = None
        self.batches = 0
        self._store = store
        self._maintainer_ref = maintainer_ref
        self._lane, self._standby, self._on_batch = lane, standby, on_batch
        self._work_available = threading.Event()
        self._stopping = threading.Event()
        self._lag_reduced = threading.Condition()
        self._cpu_usage = CpuUsage()
        self._thread: threading.Thread | None = None
        self._side_thread: threading.Thread | None = None
        self._maintainer: Maintainer | None = None
        _instances.add(self)
        owned(self, f"The maintenance of {store.url} was begun")

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Maintenance:
        """Begin. Without standby, MaintainerBusy if another process maintains."""
        if not self._standby:
            self._take_over()
        self._thread = threading.Thread(target=self._run, name="viewkeeper-maintenance", daemon=True)
        self._thread.start()
        if self._side_thread is not None:
            self._side_thread.start()
        return self

    def beside(self, every: float, work: Callable[[], None]) -> None:
        """Do this every so many seconds in a thread of its own, from the start to the end. A failure is noted only."""
        every = arguments.check_seconds(every, "The interval between two", positive=True)
        self._side_thread = threading.Thread(
            target=self._repeat_beside, args=(every, work), name="viewkeeper-audit", daemon=True
        )

    def _repeat_beside(self, every: float, work: Callable[[], None]) -> None:
        while not self._stopping.wait(every):
            if self.waiting:
                continue  # the process that maintains does it
            try:
                work()
            except Exception as error:
                self._record_failure(error, 0)

    def stop(self, timeout: float | None = None) -> None:
        """End after the batch that runs. Raises what ended the maintenance, if something did."""
        self._stopping.set()
        self._work_available.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        if self._side_thread is not None and self._side_thread is not threading.current_thread():
            self._side_thread.join(timeout)
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def wait(self, timeout: float | None = None) -> None:
        """Return when the maintenance has ended or the time has passed; raises what ended it."""
        if self._thread is not None:
            self._thread.join(timeout)
        if self.error is not None:
            raise self.error

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def waiting(self) -> bool:
        """Whether it stands by while another process maintains."""
        return self.running and self._maintainer is None

    def __enter__(self) -> Maintenance:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            with suppress(Exception):  # what went wrong inside says more
                self.stop()

    # -- writers ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something was written in this process."""
        self._work_available.set()

    def make_room(self, timeout: float) -> None:
        """Back-pressure: wait while more than `max_lag` changed rows are not in the views yet."""
        if self.pace.max_lag is None:
            return
        deadline = time.monotonic() + timeout
        while self.running and self._lag() > self.pace.max_lag:
            if time.monotonic() >= deadline:
                raise Timeout(
                    f"The views are more than {self.pace.max_lag} changes behind after {timeout:g} s; nothing written.",
                    hint="Write more slowly, or raise max_lag.",
                )
            with self._lag_reduced:
                self._lag_reduced.wait(min(0.05, max(0.0, deadline - time.monotonic())))

    def _lag(self) -> int:
        batch = self._store.published_batch()
        tables = [t.id for t in self._store.catalog().tables]
        return self._store.pending(batch.cut if batch is not None else 0, tables).rows

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self.pace.priority == "writers":
            with suppress(OSError, AttributeError):  # a lower priority for this thread alone, where the system can
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        try:
            maintainer = self._maintainer or self._stand_by()
            if maintainer is not None:
                self._maintain(maintainer)
        except Exception as error:
            self.error = error
            self._give_up(error)
        finally:
            if self._maintainer is not None:
                self._maintainer.on_batch = None
            with self._lag_reduced:
                self._lag_reduced.notify_all()
            self._maintainer_ref.end_background()

    def _stand_by(self) -> Maintainer | None:
        while not self._stopping.is_set():
            if self._store.lease_holder() is None:
                with suppress(MaintainerBusy):
                    return self._take_over()
            self._stopping.wait(_STANDBY_PAUSE)
        return None

    def _take_over(self) -> Maintainer:
        """Be the maintainer. From now on a read may make the next batch, before the thread does: it is told, too."""
        self._maintainer = maintainer = self._maintainer_ref.begin_background(self)
        maintainer.on_batch = self._after_batch
        return maintainer

    def _maintain(self, maintainer: Maintainer) -> None:
        seen: int | None = None
        ended, rest = 0.0, 0.0
        failures = (
            0 if self._store.note(MAINTENANCE_NOTE) is None else 1
        )  # of an earlier maintainer: taken away by success
        heard = time.monotonic()
        self._store.on_changes(self._work_available.set)
        while not self._stopping.is_set():
            self._work_available.clear()
            head = None if self._store.can_notify else self._store.head()  # who tells has told: there is something
            try:
                steps = maintainer.view_scheduler.run()
                if head is not None and head == seen:
                    if steps:  # a view that goes from call to call may have more of them
                        continue
                    self._work_available.wait(poll_pause(min(time.monotonic() - heard, 8 * self.pace.max_delay)))
                    continue
                if self._stopping.wait(max(0.0, ended + rest - time.monotonic())):
                    return
                self._cpu_usage.sample_idle()  # after a long rest: what follows is of the batch
                spent = time.process_time()
                report = maintainer.refresh(self._lane, max_changes=self.pace.max_changes)
                spent = time.process_time() - spent
            except Exception as error:
                failures += 1
                if failures > self.pace.retries or isinstance(error, MaintainerBusy):
                    raise
                self._record_failure(error, failures)
                self._stopping.wait(min(5.0, 0.05 * 2**failures))
                continue
            if failures:
                failures = 0
                self._record_failure(None, 0)
            ended, rest = time.monotonic(), self._rest_seconds(report, spent)
            if report.lane != "none":
                heard = ended
                if steps or report.more or not self._store.can_notify:
                    continue
            else:
                seen = head
            self._work_available.wait(
                min(
                    self._store.poll_interval,
                    _SCHEDULE_CHECK_INTERVAL if maintainer.publisher.catalog.nonstandard_views else math.inf,
                )
            )

    def _after_batch(self, report: BatchReport) -> None:
        """Of this thread, or of a read that refreshed at once."""
        self.batches += 1
        with self._lag_reduced:
            self._lag_reduced.notify_all()
        _log.info(
            "batch %d: %s, %.0f ms, %s%s",
            report.epoch,
            count_text(report.changes, "change"),
            1000 * report.seconds,
            report.lane,
            "".join(f"; suspended: {name}" for name in report.suspended),
            extra=asdict(report),
        )
        if self._on_batch is not None:
            self._on_batch(report)

    def _rest_seconds(self, report: BatchReport, cpu_seconds: float) -> float:
        """Seconds for which the machine is left to the writers. What waits is not asked for: that can be dear.

        `spent`: seconds of the processor. Where writers do not wait for a transaction, that is what a batch takes from
        them; while processors are idle only a store elsewhere, which has work for both, is spared a little. While none
        are, a batch that takes long has the store read many rows, which needs more processors than this one: it is
        followed by a long rest, and the longer that is, the more changes of a row are one.
        """
        idle = self._cpu_usage.sample_idle()
        if report.more:
            return 0.0
        took, share, delay = report.seconds, PRIORITY_SHARES[self.pace.priority], self.pace.max_delay
        if self._store.capabilities.atomic_batch or report.lane == "spark":
            return min(delay, took / share - took)
        if idle > _IDLE_THRESHOLD:
            share = max(share, _SHARE_WHEN_IDLE)
            return min(delay, took / share - took)
        left = 1 / share - 1
        short = min(delay, left * min(cpu_seconds, took))
        if self.pace.max_lag is not None:  # writers may wait for the next one
            return short
        return short + min(_MAX_REST_FACTOR * delay, _MAX_REST, 2 * left * max(0.0, took - _LONG_BATCH_FACTOR * delay))

    def _record_failure(self, error: Exception | None, failures: int) -> None:
        if error is not None:
            _log.error("failed, %s so far: %s", count_text(failures, "time"), error, extra={"failures": failures})
        with suppress(ViewkeeperError):
            text = None if error is None else {"error": str(error), "failures": failures, "time": time.time()}
            self._store.put_note(MAINTENANCE_NOTE, text)

    def _give_up(self, error: Exception) -> None:
        self._record_failure(error, self.pace.retries + 1)
        if not isinstance(error, ViewkeeperError):
            self.error = StoreError(f"Maintenance ended: {type(error).__name__}: {error}", hint="Start it again.")
            self.error.__cause__ = error
        self._maintainer_ref.end()
        self._maintainer = None


def stop_all_maintenance() -> None:
    """A program may end without leaving its maintenance: no thread of it is left to Python (`model.threads`)."""
    for maintenance in list(_instances):
        with suppress(Exception):  # the note in the store says it, and nobody else is there to be told
            maintenance.stop(END_TIMEOUT)


atexit.register(stop_all_maintenance)
