"""A word to who waits for a cluster that gives no executors: Spark says nothing of it that is seen here.

A cluster whose workers have less memory or fewer cores than an executor asks for accepts the application, and lets it
wait without end.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

_PATIENCE = 30.0
"""Seconds in which jobs may wait for a first executor."""


def tell_of_waiting(spark: Any, patience: float = _PATIENCE, pause: float = 1.0) -> None:
    """From now on, in the background: one line if jobs have waited so long and no executor has ever come."""
    if spark.sparkContext.master.startswith("local"):
        return
    screen = os.dup(2)  # of its own: descriptor 2 is turned away by `hushed` meanwhile
    threading.Thread(target=_watch, args=(spark.sparkContext, screen, patience, pause), daemon=True).start()


def _watch(context: Any, screen: int, patience: float, pause: float) -> None:
    waited = 0.0
    try:
        while _executors(context) == 0:
            if waited >= patience:
                line = (
                    f"vk: no executor has come from {context.master} in {waited:.0f} seconds: do its workers run, and "
                    "have they the memory and cores that an executor asks for (spark.executor.memory, 1g; "
                    "spark.executor.cores)? Still waiting.\n"
                )
                os.write(screen, line.encode())
                return
            time.sleep(pause)
            if context.statusTracker().getActiveJobsIds():
                waited += pause
    except Exception:  # the session has ended, and with it the wait
        return
    finally:
        os.close(screen)


def _executors(context: Any) -> int:
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is one of them
