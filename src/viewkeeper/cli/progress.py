"""Progress while Spark starts or a view is loaded; the JVM's own output is kept off the screen.

A JVM writes warnings to the standard error that it inherits, before any log level can be set. While it starts, file
descriptor 2 is a temporary file, which the JVM keeps for life. If an unexpected error occurs, the collected output is
printed after all.
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
"""The spinners on the screen."""


@contextmanager
def show_spinner(statement: str) -> Iterator[None]:
    """On a terminal, show a spinner while Spark plans or runs (when it starts, for some seconds), and the progress of a
    view's load."""
    first = [word.upper() for word in statement.split(None, 2)[:2]]
    slow = first[:1] in (["CREATE"], ["ALTER"], ["SELECT"], ["WITH"], ["FROM"])
    if not slow or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    screen = os.fdopen(os.dup(2), "w")  # a duplicate, because `quiet_jvm` redirects descriptor 2 meanwhile
    spinner = Console(file=screen).status("Spark is at work; the first statement starts it")
    timer = threading.Timer(_SPINNER_DELAY, spinner.start)  # statements without Spark are done before the delay ends
    timer.start()
    _spinners.append(spinner)
    try:
        yield
    finally:
        _spinners.remove(spinner)
        timer.cancel()
        timer.join()
        spinner.stop()
        screen.close()


def show_load_progress(task: str, done: int, total: int) -> None:
    """Show the progress of a view's load on the spinner, if there is one."""
    for spinner in _spinners:
        spinner.update(f"{task}: {done:,} of {total:,}")


@contextmanager
def quiet_jvm() -> Iterator[None]:
    """Suppress the output of a JVM that is started in this context."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except ViewkeeperError:
            raise
        except Exception:
            log.seek(0)
            os.write(stderr, log.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)


# A warning for a cluster that provides no executors, about which Spark logs nothing that is visible here.
#
# A cluster whose workers have less memory or fewer cores than an executor needs accepts the application, and lets it
# wait without end.


_MAX_WAIT_SECONDS = 30.0
"""Seconds that jobs may wait for the first executor."""


def warn_if_no_executors(spark: Any, max_wait: float = _MAX_WAIT_SECONDS, pause: float = 1.0) -> None:
    """In the background, print one line if jobs have waited this long and no executor has ever registered."""
    if spark.sparkContext.master.startswith("local"):
        return
    screen = os.dup(2)  # a duplicate, because `quiet_jvm` redirects descriptor 2 meanwhile
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
    except Exception:  # the session has ended, so there is nothing to wait for
        return
    finally:
        os.close(screen)


def _executor_count(context: Any) -> int:
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is one of them
