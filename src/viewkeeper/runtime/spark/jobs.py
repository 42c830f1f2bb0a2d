"""Spark's side of a batch: flows that are sent once, jobs with names that a person understands, work as tasks.

A session may be a user's own. What is set on it for a job (its description) is as it was afterwards.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from pyspark import InheritableThread

from viewkeeper.errors import StoreError
from viewkeeper.plan.catalyst import explain_jvm_error
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.runtime.spark.worker_cache import DataflowHandle
from viewkeeper.store.contract.store import ParallelMap

T = TypeVar("T")
R = TypeVar("R")

_DESCRIPTION = "spark.job.description"
_POLL_INTERVAL = 0.5
"""Seconds between two looks at a job."""
_MAX_NAMED_VIEWS = 8
"""Views that a job's description names."""
_MAX_DATAFLOWS = 8
"""Flows that stay with the executors: that of the batches, in a few forms, and those of loads beside them."""
_MAX_RATES = 256
"""Kinds of batches whose rounds are remembered."""


class SentDataflows:
    """The flows that a session's executors have, the last used ones."""

    def __init__(self) -> None:
        self._handles: OrderedDict[int, tuple[Dataflow, str, DataflowHandle]] = OrderedDict()
        self._bytes_per_row: dict[tuple[str, frozenset[str]], float] = {}

    def dataflow_handle(self, spark: Any, dataflow: Dataflow) -> DataflowHandle:
        """The flow as tasks know it; it is sent if they do not."""
        context = spark.sparkContext
        found = self._handles.get(id(dataflow))
        if found is None or found[0] is not dataflow or found[1] != context.applicationId:
            made = DataflowHandle(secrets.token_hex(8), context.broadcast(dataflow))
            found = self._handles[id(dataflow)] = (dataflow, context.applicationId, made)
            if len(self._handles) > _MAX_DATAFLOWS:  # Spark forgets a broadcast that nobody holds
                self._handles.popitem(last=False)
        self._handles.move_to_end(id(dataflow))
        return found[2]

    def expected_bytes(self, handle: DataflowHandle, sources: Iterable[str], rows: int) -> float | None:
        """Bytes that come to the busiest round after the first when these sources change in so many rows, if it is as
        the last time; None if there was none."""
        rate = self._bytes_per_row.get((handle.token, frozenset(sources)))
        return None if rate is None else rate * rows

    def observe(self, handle: DataflowHandle, sources: Iterable[str], rows: int, size: int) -> None:
        if len(self._bytes_per_row) >= _MAX_RATES:
            self._bytes_per_row.clear()
        self._bytes_per_row[handle.token, frozenset(sources)] = size / max(rows, 1)


def run_job(
    spark: Any,
    description: str,
    job: Callable[[], T],
    tasks: int = 1,
    progress: Callable[[int, int], None] | None = None,
    concurrent_work: Callable[[threading.Event], None] | None = None,
) -> T:
    """A job of this thread, which is called so in Spark's pages and logs.

    `told` hears of its tasks, how many are done and of how many; what it raises ends the job, and is raised here. So
    does an interruption of this thread: nobody waits for the job any more. `meanwhile` is what this thread does until
    the event says that the job is over.
    """
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    tag = f"viewkeeper-{secrets.token_hex(8)}"
    context.setLocalProperty(_DESCRIPTION, description)
    context.addJobTag(tag)
    watch = _JobMonitor(context, tag, tasks, progress)
    try:
        with watch:
            return job() if concurrent_work is None else _run_in_thread(job, concurrent_work)
    except BaseException as error:
        context.cancelJobsWithTag(tag)
        raise watch.error or error from None
    finally:
        context.removeJobTag(tag)
        context.setLocalProperty(_DESCRIPTION, before)


def _run_in_thread(job: Callable[[], T], concurrent_work: Callable[[threading.Event], None]) -> T:
    """The job in another thread."""
    over = threading.Event()
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(job())
        except BaseException as error:
            done.set_exception(error)
        finally:
            over.set()

    InheritableThread(target=work, daemon=True).start()
    concurrent_work(over)
    return done.result()


class _JobMonitor:
    """Looks at a job while it runs, now and then, from a thread of its own."""

    def __init__(self, context: Any, tag: str, tasks: int, progress: Callable[[int, int], None] | None) -> None:
        self._context, self._tag, self._tasks, self._progress = context, tag, tasks, progress
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        if self._progress is not None:
            self._progress(0, self._tasks)
            self._thread = InheritableThread(target=self._poll, args=(self._progress,), daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        if self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def _poll(self, progress: Callable[[int, int], None]) -> None:
        done = 0
        try:
            while not self._finished.wait(_POLL_INTERVAL):
                with suppress(Exception):  # what Spark cannot say now it may say later; the job goes on
                    done = max(done, self._completed_tasks())
                progress(min(done, self._tasks), self._tasks)
        except BaseException as error:
            self.error = error
            self._context.cancelJobsWithTag(self._tag)

    def _completed_tasks(self) -> int:
        tracker = self._context._jsc.sc().statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(self._tag)]
        stages = [tracker.getStageInfo(s) for j in jobs if j.isDefined() for s in j.get().stageIds()]
        return sum(int(stage.get().numCompletedTasks()) for stage in stages if stage.isDefined())


def views_text(names: Sequence[str]) -> str:
    """The views of a job, the first few by name."""
    listed = ", ".join(sorted(names)[:_MAX_NAMED_VIEWS])
    return listed + (f" and {len(names) - _MAX_NAMED_VIEWS} more" if len(names) > _MAX_NAMED_VIEWS else "")


def spark_parallel_map(spark: Any) -> ParallelMap:
    """Pieces of work as the tasks of a Spark stage."""

    def spread(work: Callable[[T], R], pieces: Sequence[T], /) -> list[R]:
        if not pieces:
            return []
        try:
            rdd = spark.sparkContext.parallelize(pieces, len(pieces)).map(work)
            done: list[R] = run_job(spark, "viewkeeper: the store's reads and writes", rdd.collect)
        except Exception as error:
            if (ended := explain_jvm_error(error)) is not None:
                raise ended from error
            raise StoreError(
                f"Reading or writing the store on Spark failed: {cause(error)}",
                hint="Correct the cause and refresh again.",
            ) from error
        return done

    return spread


def cause(error: Exception) -> str:
    """What a task said last: the line that a traceback ends with. If none spoke, how Spark's own account begins."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line.startswith("viewkeeper.errors.") or "Error:" in line[:80]]
    account = [line for line in lines if line and not line.startswith(("at ", "... "))]
    return (told[-1] if told else " ".join(account[:3]) or type(error).__name__)[:500]
