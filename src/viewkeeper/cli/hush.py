"""While Spark starts: its chatter kept off the screen, and a word to who waits for it.

A JVM writes warnings to the standard error that it inherits, before any log level can be set. While it starts, file
descriptor 2 is a temporary file; the JVM keeps that one for life. If something breaks in an unforeseen way, what was
written is shown after all.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from viewkeeper.errors import ViewkeeperError

_PATIENCE = 1.0


@contextmanager
def waiting_for(statement: str) -> Iterator[None]:
    """On a terminal, a moving sign while Spark plans or answers: the first time it has to start, for some seconds."""
    first = [word.upper() for word in statement.split(None, 2)[:2]]
    slow = first == ["CREATE", "MATERIALIZED"] or first[:1] in (["SELECT"], ["WITH"], ["FROM"])
    if not slow or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    screen = os.fdopen(os.dup(2), "w")  # of its own: descriptor 2 is turned away by `hushed` meanwhile
    sign = Console(file=screen).status("Spark is at work; the first statement starts it")
    late = threading.Timer(_PATIENCE, sign.start)  # what is answered without Spark is answered before
    late.start()
    try:
        yield
    finally:
        late.cancel()
        late.join()
        sign.stop()
        screen.close()


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
