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

_QUIET_SECONDS = 1.0
_signs: list[Any] = []
"""What moves on the screen now."""


@contextmanager
def waiting_for(statement: str) -> Iterator[None]:
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
    late = threading.Timer(_QUIET_SECONDS, sign.start)  # what is answered without Spark is answered before
    late.start()
    _signs.append(sign)
    try:
        yield
    finally:
        _signs.remove(sign)
        late.cancel()
        late.join()
        sign.stop()
        screen.close()


def load_told(what: str, done: int, of: int) -> None:
    """How far the load of a view is, on the sign that moves, if there is one."""
    for sign in _signs:
        sign.update(f"{what}: {done:,} of {of:,}")


@contextmanager
def hushed() -> Iterator[None]:
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


_EXECUTOR_WAIT_SECONDS = 30.0
"""Seconds in which jobs may wait for a first executor."""


def tell_of_waiting(spark: Any, patience: float = _EXECUTOR_WAIT_SECONDS, pause: float = 1.0) -> None:
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
