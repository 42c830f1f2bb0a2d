"""While Spark starts or a view is loaded: chatter kept off the screen, and a word to who waits for it.

A JVM writes warnings to the standard error that it inherits, before any log level can be set. While it starts, file
descriptor 2 is a temporary file; the JVM keeps that one for life. If something breaks in an unforeseen way, what was
written is shown after all.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from viewkeeper.errors import ViewkeeperError

_SPINNER_DELAY = 1.0
_spinners: list[Any] = []
"""What moves on the screen now."""


@contextmanager
def show_spinner(statement: str) -> Iterator[None]:
    """On a terminal, a moving sign while Spark plans or answers (the first time it has to start, for some seconds), and
    how far the load of a view is."""
    first = [word.upper() for word in statement.split(None, 2)[:2]]
    slow = first[:1] in (["CREATE"], ["ALTER"], ["SELECT"], ["WITH"], ["FROM"])
    if not slow or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    screen = os.fdopen(os.dup(2), "w")  # of its own: descriptor 2 is turned away by `hushed` meanwhile
    sign = Console(file=screen).status("Spark is at work; the first statement starts it")
    late = threading.Timer(_SPINNER_DELAY, sign.start)  # what is answered without Spark is answered before
    late.start()
    _spinners.append(sign)
    try:
        yield
    finally:
        _spinners.remove(sign)
        late.cancel()
        late.join()
        sign.stop()
        screen.close()


def show_load_progress(task: str, done: int, total: int) -> None:
    """How far the load of a view is, on the sign that moves, if there is one."""
    for sign in _spinners:
        sign.update(f"{task}: {done:,} of {total:,}")


@contextmanager
def quiet_jvm() -> Iterator[None]:
    """A JVM started in here is not heard."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        heard = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except ViewkeeperError:
            raise
        except Exception:
            log.seek(0)
            os.write(heard, log.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(heard, 2)
            os.close(heard)


# A word to who waits for a cluster that gives no executors: Spark says nothing of it that is seen here.
#
# A cluster whose workers have less memory or fewer cores than an executor asks for accepts the application, and lets it
# wait without end.


_MAX_WAIT_SECONDS = 30.0
"""Seconds in which jobs may wait for a first executor."""


def warn_if_no_executors(spark: Any, max_wait: float = _MAX_WAIT_SECONDS, pause: float = 1.0) -> None:
    """From now on, in the background: one line if jobs have waited so long and no executor has ever come."""
    if spark.sparkContext.master.startswith("local"):
        return
    screen = os.dup(2)  # of its own: descriptor 2 is turned away by `hushed` meanwhile
    threading.Thread(target=_watch_executors, args=(spark.sparkContext, screen, max_wait, pause), daemon=True).start()


def _watch_executors(context: Any, screen: int, max_wait: float, pause: float) -> None:
    waited = 0.0
    try:
        while _executor_count(context) == 0:
            if waited >= max_wait:
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


def _executor_count(context: Any) -> int:
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is one of them
