"""Continuous maintenance: a background thread that runs batches soon after writes, but not at the writers' expense.

    idle      the thread reads the log's head every few milliseconds; a writer of this process also wakes it
    changes   a batch begins at once if the thread has rested since the last batch. The rest after a batch is so long
              that the batch's cost to writers is at most their `priority`'s share of the time (`_rest_seconds`):

                  writers wait for the commit, or Spark    the batch's time
                  there are idle processors                a quarter of the batch's time
                  no idle processor                        processor time, the batch's own and the store's

              A rest takes at most `max_delay`; after a long batch without idle processors it takes up to twice the
              batch's time, at most 2 s. There is no rest while there are more pending changes than the batch could take
    batch     takes at most about `max_changes` rows; a long backlog is processed in several batches
    failure   a view that fails on its own rows is suspended and the other views continue; any other error is retried
              after a growing pause, and ends the maintenance after `retries` retries

A single change is therefore visible after one batch; under load, batches grow until they keep up.
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

if TYPE_CHECKING:  # so that reading the note imports no maintainer
    from viewkeeper.commit.batch_history import BatchReport
    from viewkeeper.maintain.maintainer import Maintainer

PRIORITY_SHARES = {"views": 1.0, "balanced": 0.5, "writers": 0.2}
"""Share of the time that batches may take while writers are busy, by priority."""

MAINTENANCE_NOTE = "maintenance"
"""Name of the store's note about the error of a maintainer: {error, failures, time}."""

_STANDBY_PAUSE = 0.1
_SCHEDULE_CHECK_INTERVAL = 1.0
"""Maximum delay of a scheduled view in seconds, if the thread waits for notifications of the store."""
_IDLE_THRESHOLD = 0.1
"""Idle share of the processors' time above which processors count as idle."""
_SHARE_WHEN_IDLE = 0.8
"""Share of the time that batches may take while processors are idle.

The short rest makes batches larger, which costs the store less and hardly delays changes.
"""
_LONG_BATCH_FACTOR, _MAX_REST_FACTOR = 5, 40
"""Multiples of `max_delay`: a batch is long beyond the first; the additional rest after it is at most the second."""
_MAX_REST = 2.0
"""Maximum seconds of the additional rest after a long batch, whatever `max_delay` is."""
_log = logging.getLogger("viewkeeper.batch")
_instances: weakref.WeakSet[Maintenance] = weakref.WeakSet()


@dataclass(frozen=True)
class Pace:
    """Limits of continuous maintenance: delay and size of batches, priority, back-pressure, and retries."""

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
    """Runs batches in the background between `start` and `stop`, or within a `with` block.

    `maintainer_ref` makes this process the maintainer, and gives that up again after a failure.
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
        """Start the thread. Without standby, raises MaintainerBusy if another process is the maintainer."""
        if not self._standby:
            self._take_over()
        self._thread = threading.Thread(target=self._run, name="viewkeeper-maintenance", daemon=True)
        self._thread.start()
        if self._side_thread is not None:
            self._side_thread.start()
        return self

    def beside(self, every: float, work: Callable[[], None]) -> None:
        """Run `work` every `every` seconds in its own thread between `start` and `stop`; a failure is only recorded."""
        every = arguments.check_seconds(every, "The interval between two", positive=True)
        self._side_thread = threading.Thread(
            target=self._repeat_beside, args=(every, work), name="viewkeeper-audit", daemon=True
        )

    def _repeat_beside(self, every: float, work: Callable[[], None]) -> None:
        while not self._stopping.wait(every):
            if self.waiting:
                continue  # the maintaining process does it
            try:
                work()
            except Exception as error:
                self._record_failure(error, 0)

    def stop(self, timeout: float | None = None) -> None:
        """Stop after the running batch. Raises the error that ended the maintenance, if there is one."""
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
        """Wait until the maintenance has ended or the timeout has passed; raises the error that ended it."""
        if self._thread is not None:
            self._thread.join(timeout)
        if self.error is not None:
            raise self.error

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def waiting(self) -> bool:
        """Whether this process stands by while another process is the maintainer."""
        return self.running and self._maintainer is None

    def __enter__(self) -> Maintenance:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            with suppress(Exception):  # the error of the `with` block is more informative
                self.stop()

    # -- writers ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the thread after a write in this process."""
        self._work_available.set()

    def make_room(self, timeout: float) -> None:
        """Apply back-pressure to a writer: wait while more than `max_lag` changed rows are pending."""
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
            with suppress(OSError, AttributeError):  # a lower priority for this thread only, if the system supports it
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
        """Become the maintainer. From now on a read may run a batch too, so `_after_batch` is called for each batch."""
        self._maintainer = maintainer = self._maintainer_ref.begin_background(self)
        maintainer.on_batch = self._after_batch
        return maintainer

    def _maintain(self, maintainer: Maintainer) -> None:
        handled_head: int | None = None
        batch_ended, rest = 0.0, 0.0
        # A note of an earlier maintainer's failure counts as a failure, so that the first success removes the note.
        failures = 0 if self._store.note(MAINTENANCE_NOTE) is None else 1
        last_change = time.monotonic()
        self._store.on_changes(self._work_available.set)
        while not self._stopping.is_set():
            self._work_available.clear()
            head = None if self._store.can_notify else self._store.head()  # None: the store has notified the thread
            try:
                steps = maintainer.view_scheduler.run()
                if head is not None and head == handled_head:
                    if steps:  # a per-call view may have more calls to apply
                        continue
                    self._work_available.wait(poll_pause(min(time.monotonic() - last_change, 8 * self.pace.max_delay)))
                    continue
                if self._stopping.wait(max(0.0, batch_ended + rest - time.monotonic())):
                    return
                self._cpu_usage.sample_idle()  # after a long rest: the next sample then covers the batch only
                cpu_seconds = time.process_time()
                report = maintainer.refresh(self._lane, max_changes=self.pace.max_changes)
                cpu_seconds = time.process_time() - cpu_seconds
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
            batch_ended, rest = time.monotonic(), self._rest_seconds(report, cpu_seconds)
            if report.lane != "none":
                last_change = batch_ended
                if steps or report.more or not self._store.can_notify:
                    continue
            else:
                handled_head = head
            self._work_available.wait(
                min(
                    self._store.poll_interval,
                    _SCHEDULE_CHECK_INTERVAL if maintainer.publisher.catalog.nonstandard_views else math.inf,
                )
            )

    def _after_batch(self, report: BatchReport) -> None:
        """Count and log a batch, of this thread or of a read that refreshed the views, and call `on_batch`."""
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
        """Return the seconds for which the machine is left to the writers after a batch.

        The pending changes are not counted, because that can be expensive. `cpu_seconds` is the batch's processor time;
        it is the cost to writers if they do not wait for a transaction of the batch. While processors are idle, there
        is only a short rest, to spare a store on another machine, which works for writers and batches. While none are
        idle, a long batch means that the store reads many rows, which needs more processors than this one. A long rest
        follows, and the longer it is, the more changes of a row are consolidated into one.
        """
        idle_share = self._cpu_usage.sample_idle()
        if report.more:
            return 0.0
        seconds, share, delay = report.seconds, PRIORITY_SHARES[self.pace.priority], self.pace.max_delay
        if self._store.capabilities.atomic_batch or report.lane == "spark":
            return min(delay, seconds / share - seconds)
        if idle_share > _IDLE_THRESHOLD:
            share = max(share, _SHARE_WHEN_IDLE)
            return min(delay, seconds / share - seconds)
        rest_factor = 1 / share - 1
        short_rest = min(delay, rest_factor * min(cpu_seconds, seconds))
        if self.pace.max_lag is not None:  # writers may be waiting for the next batch
            return short_rest
        return short_rest + min(
            _MAX_REST_FACTOR * delay, _MAX_REST, 2 * rest_factor * max(0.0, seconds - _LONG_BATCH_FACTOR * delay)
        )

    def _record_failure(self, error: Exception | None, failures: int) -> None:
        if error is not None:
            _log.error("failed, %s so far: %s", count_text(failures, "time"), error, extra={"failures": failures})
        with suppress(ViewkeeperError):
            note = None if error is None else {"error": str(error), "failures": failures, "time": time.time()}
            self._store.put_note(MAINTENANCE_NOTE, note)

    def _give_up(self, error: Exception) -> None:
        self._record_failure(error, self.pace.retries + 1)
        if not isinstance(error, ViewkeeperError):
            self.error = StoreError(f"Maintenance ended: {type(error).__name__}: {error}", hint="Start it again.")
            self.error.__cause__ = error
        self._maintainer_ref.end()
        self._maintainer = None


def stop_all_maintenance() -> None:
    """Stop all maintenance at the end of the program; no thread may run longer (`model.threads`)."""
    for maintenance in list(_instances):
        with suppress(Exception):  # the store's note has the error, and the program has no other receiver
            maintenance.stop(END_TIMEOUT)


atexit.register(stop_all_maintenance)
