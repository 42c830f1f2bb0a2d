"""What Spark's Python workers do, without Spark: one that does not see the state, what one keeps, how they start."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkAttributeError

from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.spark import mapped_files, sessions, worker_cache
from viewkeeper.runtime.spark.placement import RECEIVED_BYTES, STAGED_CHANGES, STATE_UNREACHABLE
from viewkeeper.runtime.spark.round_tasks import StageTaskContext
from viewkeeper.runtime.spark.sessions import ReachabilityCheck
from viewkeeper.runtime.spark.sink_tasks import UpsertTask
from viewkeeper.runtime.spark.upsert_tasks import ViewTarget, route_by_key
from viewkeeper.runtime.spark.worker_cache import WorkerCache
from viewkeeper.spark import register
from viewkeeper.state import run_file
from viewkeeper.state.run import Run

VIEW = Table(1, "v", (Column("k", types.BIGINT),), (KeyPart("k"),), is_view=True)
NOTHING: dict[str, Any] = {key: {} for key in ("rounds", "driver_entries", "splits")}
NOBODY: dict[str, Any] = dict.fromkeys(("co_located", "skew_balanced", "consolidated"), frozenset())
KNOWN: dict[str, Any] = {"dataflow_handle": None, "active": frozenset(), "manifest": {}, "number": 1, "durable": False}


def job(directory: Path, reach: ReachabilityCheck | None) -> StageTaskContext:
    return StageTaskContext(
        **KNOWN,
        **NOTHING,
        **NOBODY,
        threads=1,
        directory=str(directory),
        memory=1 << 26,
        reachability=reach,
        partitions=1,
        later_tasks=1,
        url="lmdb:none",
        targets={1: ViewTarget(VIEW, "sink-1")},
        co_located_views=frozenset(),
    )


def test_the_last_round_on_an_executor_that_does_not_see_the_state_leaves_nothing_there(tmp_path: Path) -> None:
    """It may have joined after the round before."""
    mounted = tmp_path / "not mounted"
    with PreparedStatements(threads=1) as duck:
        rows = list(route_by_key(duck, ViewTarget(VIEW, "sink-1"), pa.table({"k": [1, 2], "¤w": [1, 1]}), 1))
    reach = ReachabilityCheck("url", str(mounted), "the mark", None)
    told = list(UpsertTask(SimpleNamespace(value=job(mounted, reach)))([*rows, (0, "!runs", 0, b"[]")]))
    assert [node for _, node, _, _ in told] == ["!runs", STATE_UNREACHABLE, RECEIVED_BYTES]
    assert not mounted.exists()
    told = list(UpsertTask(SimpleNamespace(value=job(mounted, None)))(rows))
    assert [node for _, node, _, _ in told] == [STAGED_CHANGES, RECEIVED_BYTES]


def test_a_worker_does_not_take_a_run_for_a_piece_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a URL a long run is written in pieces, of which one may have few rows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(run_file, "PIECE_ROWS", 10)
    hashes = np.sort(np.random.default_rng(1).integers(0, 2**64, 100, np.uint64))
    worker = WorkerCache((tmp_path / "there").as_uri(), 1, 1 << 26)
    errand = job(tmp_path, None)
    try:
        entries = worker.write(errand, "0", {"a/0": Run(pa.table({"k": np.arange(100), "¤h": hashes}))})
        assert len(entries) > 1
        assert [worker.run(e).num_rows for e in entries] == [e.rows for e in entries]
    finally:
        worker.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_removed_file_that_a_worker_has_mapped_is_let_go_of_beside_its_tasks(tmp_path: Path) -> None:
    """It is open until it is not mapped any more, so that it goes when a thread closes it and not in a task."""
    large, small = (Run(pa.table({"k": np.arange(n), "¤h": np.arange(n, dtype=np.uint64)})) for n in (200_000, 10))
    entries = run_file.write_run_file(tmp_path, "b1-run.vkr", {"a/0": large, "b/0": small}, fsync=False)
    worker = WorkerCache(str(tmp_path), 1, 1 << 26)

    removed = f"{tmp_path / 'b1-run.vkr'} (deleted)"

    def is_mapped() -> bool:
        return removed in Path("/proc/self/maps").read_text()

    def is_open() -> bool:
        return removed in [str(fd.resolve()) for fd in Path("/proc/self/fd").iterdir()]

    try:
        worker.begin_task(1 << 26)
        assert [worker.run(entry).num_rows for entry in entries] == [200_000, 10]
        (tmp_path / "b1-run.vkr").unlink()
        assert is_mapped()
        assert is_open()
        while worker._runs:
            worker.begin_task(1 << 26)
        for thread in threading.enumerate():
            if thread.name == "viewkeeper-closing":
                thread.join()
        assert not is_mapped()
        assert not is_open()
    finally:
        worker.close()


def test_a_worker_holds_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_files, "_MAX_FILES", 2)
    paths = [tmp_path / f"b{n}-run.vkr" for n in range(4)]
    held = mapped_files.MappedFiles()
    held.add(paths[0])  # it is gone already
    assert held.retain_only(()) is None
    for path in (*paths, paths[0]):
        path.touch()
        held.add(path)
    assert list(held._descriptors) == paths[:2]
    for left in (paths[1:], []):
        closing = held.retain_only(left)
        assert closing is not None
        closing.join()
        assert list(held._descriptors) == left[:1]


class Context:
    """As much of a Spark context as starting workers asks for; `stopped`: jobs fail. `named`: a setting of its user."""

    defaultParallelism = 2
    master = "local[2]"
    pythonExec = "python3"
    named = ""

    def getConf(self) -> Any:
        return SimpleNamespace(contains=lambda name: name == self.named)

    def __init__(self, name: str, stopped: bool = False) -> None:
        self.applicationId, self._stopped = name, stopped
        self.done: list[int] = []

    def setJobDescription(self, _: str) -> None:
        pass

    def parallelize(self, things: Any, parts: int) -> Any:
        if self._stopped:
            raise RuntimeError("Cannot call methods on a stopped SparkContext.")

        def each(work: Any) -> None:
            for part in range(parts):
                work(iter([part]))
                self.done.append(part)

        return SimpleNamespace(foreachPartition=each)


def test_workers_are_started_ahead_once_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_started_applications", set())
    for context in (Context("one"), Context("one"), Context("another"), Context("gone", stopped=True)):
        thread = sessions.start_workers(SimpleNamespace(sparkContext=context))
        if thread is not None:
            thread.join()
        first = len(sessions._started_applications)
        assert context.done == ([0, 1] if thread is not None and context.applicationId != "gone" else [])
    assert first == 3
    assert sessions.start_workers(SimpleNamespace()) is None  # a session without a context


@pytest.mark.parametrize(
    ("environment", "settings", "used"),
    [
        ({}, {}, sys.executable),
        ({}, {"master": "local-cluster[2,1,1024]"}, sys.executable),
        ({}, {"master": "spark://elsewhere:7077"}, "python3"),
        ({}, {"named": "spark.pyspark.python"}, "python3"),
        ({"PYSPARK_PYTHON": "python3"}, {}, "python3"),
    ],
)
def test_workers_of_a_given_session_run_this_python_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], settings: dict[str, str], used: str
) -> None:
    monkeypatch.setattr(sessions, "_started_applications", set())
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    context = Context("mine")
    vars(context).update(settings)
    thread = sessions.start_workers(SimpleNamespace(sparkContext=context))
    assert thread is not None
    thread.join()
    assert context.pythonExec == used


def test_the_data_source_is_registered_with_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes the interpreter of its workers from the context when a format is registered, not when it is read."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    registered: list[str] = []
    context = Context("mine")
    conf = SimpleNamespace(set=lambda name, value: None)
    source = SimpleNamespace(register=lambda kind: registered.append(context.pythonExec))
    register(SimpleNamespace(sparkContext=context, dataSource=source, conf=conf))
    assert registered == [sys.executable]
    elsewhere = SimpleNamespace(register=lambda kind: registered.append("of the server"))
    register(Connected(dataSource=elsewhere, conf=conf))
    assert registered == [sys.executable, "of the server"]


class Connected(SimpleNamespace):
    """A session of Spark Connect."""

    @property
    def sparkContext(self) -> Any:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "it"})


def test_what_a_worker_keeps_is_passed_over_when_garbage_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gc.get_freeze_count() == 0
    worker_cache.cache_for(job(tmp_path / "driver", None))
    assert gc.get_freeze_count() == 0, "a driver's process is its user's"
    monkeypatch.setattr(worker_cache, "_is_on_executor", lambda: True)
    monkeypatch.setattr(worker_cache, "_verified_files", lambda: None)
    monkeypatch.setattr(worker_cache, "retain_freed_memory", lambda most: None)
    try:
        worker_cache.cache_for(job(tmp_path / "one", None))
        kept = gc.get_freeze_count()
        assert kept > 10_000
        circle: list[Any] = []
        circle.append(circle)
        worker_cache.cache_for(job(tmp_path / "one", None))
        assert gc.get_freeze_count() <= kept, "nothing has come that stays"
        del circle
        assert gc.collect() > 0, "what comes and goes is still found"
    finally:
        gc.unfreeze()
        worker_cache._frozen_names.clear()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is asked to")
def test_memory_that_is_held_is_not_faulted_in_again() -> None:
    program = """
        import resource, sys
        import numpy as np, pyarrow as pa
        from viewkeeper.resources.memory import retain_freed_memory
        if sys.argv[1] == "hold":
            retain_freed_memory(256 << 20)
        def work():
            kept = [np.ones(1_000_000) for _ in range(10)]
            pa.chunked_array(kept)
        work()
        work()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            work()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    held, not_held = (
        int(subprocess.check_output([sys.executable, "-c", textwrap.dedent(program), how], timeout=120))
        for how in ("hold", "no")
    )
    assert 5 * held < not_held
