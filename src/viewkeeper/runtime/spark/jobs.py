"""Spark jobs of a batch: broadcasts dataflows once, runs jobs with readable descriptions, and watches their progress.

The session may be the user's own: a property that is set for a job (its description) is restored afterwards.
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
"""Seconds between two polls of a job."""
_MAX_NAMED_VIEWS = 8
"""Views that a job's description names."""
_MAX_DATAFLOWS = 8
"""Dataflows that executors keep: that of the batches in several variants, and those of concurrent backfills."""
_MAX_RATES = 256
"""Workloads whose received bytes are kept."""


class SentDataflows:
    """The dataflows last broadcast to a session's executors."""

    def __init__(self) -> None:
        self._handles: OrderedDict[int, tuple[Dataflow, str, DataflowHandle]] = OrderedDict()
        self._bytes_per_row: dict[tuple[str, frozenset[str]], float] = {}

    def dataflow_handle(self, spark: Any, dataflow: Dataflow) -> DataflowHandle:
        """Return the handle by which tasks load the dataflow; broadcasts it if the application does not have it."""
        context = spark.sparkContext
        entry = self._handles.get(id(dataflow))
        if entry is None or entry[0] is not dataflow or entry[1] != context.applicationId:
            handle = DataflowHandle(secrets.token_hex(8), context.broadcast(dataflow))
            entry = self._handles[id(dataflow)] = (dataflow, context.applicationId, handle)
            if len(self._handles) > _MAX_DATAFLOWS:  # Spark deletes a broadcast without references
                self._handles.popitem(last=False)
        self._handles.move_to_end(id(dataflow))
        return entry[2]

    def expected_bytes(self, handle: DataflowHandle, sources: Iterable[str], rows: int) -> float | None:
        """Return the bytes that the busiest round after the first is expected to receive for this many changed rows.

        The estimate uses the last batch with the same changed sources; None if there was none.
        """
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
    """Run a job in this thread, with this description in Spark's pages and logs.

    `progress` is called with the number of completed tasks and of all tasks; an exception that it raises cancels the
    job and is raised here. An interruption of this thread cancels the job too. `concurrent_work` runs in this thread
    while the job runs in another one; its event is set when the job has ended.
    """
    context = spark.sparkContext
    old_description = context.getLocalProperty(_DESCRIPTION)
    tag = f"viewkeeper-{secrets.token_hex(8)}"
    context.setLocalProperty(_DESCRIPTION, description)
    context.addJobTag(tag)
    monitor = _JobMonitor(context, tag, tasks, progress)
    try:
        with monitor:
            return job() if concurrent_work is None else _run_in_thread(job, concurrent_work)
    except BaseException as error:
        context.cancelJobsWithTag(tag)
        raise monitor.error or error from None
    finally:
        context.removeJobTag(tag)
        context.setLocalProperty(_DESCRIPTION, old_description)


def _run_in_thread(job: Callable[[], T], concurrent_work: Callable[[threading.Event], None]) -> T:
    """Run the job in another thread, and `concurrent_work` in this one."""
    finished = threading.Event()
    result: Future[T] = Future()

    def work() -> None:
        try:
            result.set_result(job())
        except BaseException as error:
            result.set_exception(error)
        finally:
            finished.set()

    InheritableThread(target=work, daemon=True).start()
    concurrent_work(finished)
    return result.result()


class _JobMonitor:
    """Polls the progress of a running job from a thread of its own."""

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
                with suppress(Exception):  # Spark may not know the job yet; the job continues
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
    """Return the names of a job's views, shortened to `_MAX_NAMED_VIEWS`."""
    listed = ", ".join(sorted(names)[:_MAX_NAMED_VIEWS])
    return listed + (f" and {len(names) - _MAX_NAMED_VIEWS} more" if len(names) > _MAX_NAMED_VIEWS else "")


def spark_parallel_map(spark: Any) -> ParallelMap:
    """Return a parallel map that runs pieces of work as tasks of a Spark stage."""

    def parallel_map(work: Callable[[T], R], pieces: Sequence[T], /) -> list[R]:
        if not pieces:
            return []
        try:
            rdd = spark.sparkContext.parallelize(pieces, len(pieces)).map(work)
            results: list[R] = run_job(spark, "viewkeeper: the store's reads and writes", rdd.collect)
        except Exception as error:
            if (session_error := explain_jvm_error(error)) is not None:
                raise session_error from error
            raise StoreError(
                f"Reading or writing the store on Spark failed: {cause(error)}",
                hint="Correct the cause and refresh again.",
            ) from error
        return results

    return parallel_map


def cause(error: Exception) -> str:
    """Return the last line of a task's Python traceback; if there is none, the beginning of Spark's own message."""
    lines = [line.strip() for line in str(error).splitlines()]
    python_errors = [line for line in lines if line.startswith("viewkeeper.errors.") or "Error:" in line[:80]]
    message_lines = [line for line in lines if line and not line.startswith(("at ", "... "))]
    return (python_errors[-1] if python_errors else " ".join(message_lines[:3]) or type(error).__name__)[:500]
