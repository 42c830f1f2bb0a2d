"""Opening a database. Wrong arguments are reported before anything is opened."""

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

    `spark`: a SparkSession to plan and run on; without one, a local session starts when it is first needed.
    `durability`: "commit" (default), "group" or "none". `retention`: seconds for which the maintaining process keeps
    changes in the log, for subscribers that come back. `memory`: what batches, loads and audits of this process may use
    together, in bytes or as a text such as "2GB"; default: VIEWKEEPER_MEMORY, or a quarter of the memory of the machine
    or container. `threads`: how many threads, or processes where those are faster, work on a batch in the driver lane;
    default: the number of processors, up to eight; 1: only the calling thread. `lazy_cache_bytes`: size of the cache
    of lazy views' answers, which are valid until the tables change; default 64 MB; 0 caches none.
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
    process_budget(memory)  # refuses a wrong value before anything is opened
    cache_bytes = None if lazy_cache_bytes is None else parse_size(lazy_cache_bytes, "lazy_cache_bytes", 0)
    store = open_store(url, mode, **options)
    store.lazy_cache_bytes = store.lazy_cache_bytes if cache_bytes is None else cache_bytes
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
