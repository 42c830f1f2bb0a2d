"""Opening a database: what is wrong with the arguments is said before anything is opened."""

from __future__ import annotations

import os
import warnings
from typing import Any

from viewkeeper.capture.snapshot import Progress
from viewkeeper.database import RETENTION, Database
from viewkeeper.errors import BadValue
from viewkeeper.model.intake import arguments
from viewkeeper.resources.process_budget import MIN_BUDGET, parse_size, process_budget
from viewkeeper.runtime.spark.sessions import refuse_inherited
from viewkeeper.store.registry import open_store


def open_database(
    url: str | os.PathLike[str],
    mode: str = "w",
    *,
    spark: Any = None,
    progress: Progress | None = None,
    retention: float = RETENTION,
    memory: int | str | None = None,
    threads: int | None = None,
    batch_memory: int | None = None,
    lazy_cache_bytes: int | str | None = None,
    **options: Any,
) -> Database:
    """Open a database, created if absent: `lmdb:PATH`, or the path itself as a `Path`. `mode="r"` only reads.

    `spark`: a SparkSession to plan and run on; without one a local session is started when it is first needed.
    `durability`: "commit" (default), "group" or "none". `retention`: seconds for which the process that maintains keeps
    changes in the log, for subscribers that come back. `memory`: what batches, loads and audits of this process may
    take together, in bytes or as a text such as "2GB"; if not given, what VIEWKEEPER_MEMORY says, or a quarter of the
    machine's or container's. `threads`: that work on a batch in the driver lane, or processes where those are faster;
    if not given, as many as there are processors, up to eight; 1: this process's one thread. `lazy_cache_bytes`: what
    answers of lazy views may take that are remembered until their tables change, 64 MB if not given; 0 remembers none.
    `batch_memory` is the old name of `memory`.
    """
    if mode not in ("w", "r"):
        raise BadValue(f"There is no mode {mode!r}.", hint="Modes: 'w' reads and writes, 'r' only reads.")
    arguments.check_seconds(retention, "retention")
    if threads is not None:
        arguments.check_whole_number(threads, "threads", 1)
    if spark is not None and not hasattr(spark, "newSession"):
        raise BadValue(f"spark is {arguments.shorten(spark)}.", hint="Give a SparkSession, or none: one is started.")
    if spark is not None:
        refuse_inherited()
    if progress is not None and not callable(progress):
        raise BadValue(f"progress is {arguments.shorten(progress)}.", hint="Give a function.")
    if batch_memory is not None:
        warnings.warn("batch_memory is called memory now, and bounds loads too.", DeprecationWarning, stacklevel=2)
        memory = max(batch_memory, MIN_BUDGET) if memory is None else memory
    process_budget(memory)  # a wrong one is refused before anything is opened
    remembered = None if lazy_cache_bytes is None else parse_size(lazy_cache_bytes, "lazy_cache_bytes", 0)
    store = open_store(url, mode, **options)
    store.lazy_cache_bytes = store.lazy_cache_bytes if remembered is None else remembered
    durable = options.get("durability") != "none"
    return Database(
        store,
        mode=mode,
        spark=spark,
        progress=progress,
        durable=durable,
        retention=retention,
        memory=memory,
        threads=threads,
    )
