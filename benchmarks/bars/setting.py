"""Where the measurements happen: the databases of a run, the data beside them, and what the run is about.

A database is kept with its name below `keep`, so that stages can be run one by one. The model of a database that is
opened again is read from files that were made from its tables at the same position of its log.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

import viewkeeper as vk
from viewkeeper.verify.benchmark_check import load_tables
from viewkeeper.workloads.tpch import QUERIES, SCHEMAS
from viewkeeper.workloads.tpch.changes import TpchModel, generate

Q3 = QUERIES[3].split("ORDER BY")[0]
"""The third query without its limit: a row for each order, read by its key."""

Q3_TABLES = ("customer", "orders", "lineitem")


@dataclass(frozen=True)
class Setting:
    """`orders`: orders made, deleted and updated in a batch. `rows`: changes in a large batch."""

    scale: float
    orders: int
    batches: int
    rows: int
    data: Path
    keep: Path
    peers: Path | None = None
    """Where the peers' environments are; None: they are left out."""

    def files(self, scale: float | None = None) -> Path:
        return generate(self.scale if scale is None else scale, self.data)


@contextmanager
def opened(
    setting: Setting,
    name: str,
    *,
    scale: float | None = None,
    tables: Iterable[str] = SCHEMAS,
    durability: str = "none",
    spark: Any = None,
    seed: int = 1,
) -> Iterator[tuple[vk.Database, TpchModel]]:
    """A database with these tables loaded, and its model; made on first use."""
    place = setting.keep / name
    is_new = not place.exists()
    with vk.open(f"lmdb:{place}", durability=durability, spark=spark) as db:
        files = setting.files(scale) if is_new else _as_files(db, setting, place, scale)
        model = TpchModel(files, seed)
        try:
            if is_new:
                load_tables(db, model, tables)
            yield db, model
        finally:
            model.close()


def _as_files(db: vk.Database, setting: Setting, place: Path, scale: float | None) -> Path:
    """The tables as Parquet files; those that the database lacks as they were generated."""
    there = {t.name for t in db.status().tables}
    position = db.token("lineitem").position
    files = place.with_name(f"{place.name}-files")
    if (files / "position").exists() and int((files / "position").read_text()) == position:
        return files
    files.mkdir(exist_ok=True)
    for table in SCHEMAS:
        target = files / f"{table}.parquet"
        target.unlink(missing_ok=True)
        if table in there:
            pq.write_table(db.read(table), target)
        else:
            target.symlink_to((setting.files(scale) / target.name).resolve())
    (files / "position").write_text(str(position))
    return files


def session(cores: int = 2, **extra_settings: str) -> Any:
    """A Spark with the memory that recomputing TPC-H at scale 1 needs, for its lane and to compare with. `more`
    settings have _ for a dot."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the lane's workers need this very environment
    settings = {
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        **{name.replace("_", "."): value for name, value in extra_settings.items()},
    }
    return SparkSession.builder.master(f"local[{cores}]").config(map=settings).getOrCreate()


def machine() -> dict[str, str]:
    names = ("viewkeeper", "duckdb", "pyspark", "pyarrow", "numpy", "lmdb")
    cpus = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in cpus.read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in names),
    }


def settled(db: vk.Database) -> float:
    """Wait until no merge runs and no file is removed beside what is measured next; the seconds that took."""
    started = time.perf_counter()
    publisher = db._acquire_maintainer().publisher
    while publisher.compactor._future is not None and not publisher.compactor._future.done():
        time.sleep(0.005)
    if (failed := publisher.state.wait_for_collection()) is not None:
        raise failed
    return time.perf_counter() - started


class Peak:
    """The most anonymous memory of this process within the block, above what it had before."""

    def __enter__(self) -> Peak:
        self.bytes, self._before, self._stopped = 0, _anonymous(os.getpid()), threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._watcher.join()

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, _anonymous(os.getpid()) - self._before)
            if self._stopped.wait(0.01):
                return


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process and all it started (mapped state files can be dropped at any time)."""
    own = psutil.Process()
    return sum(_anonymous(p.pid) for p in [own, *own.children(recursive=True)])


def _anonymous(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0  # it ended meanwhile
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)
