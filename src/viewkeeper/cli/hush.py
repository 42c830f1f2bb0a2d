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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from viewkeeper.errors import ViewkeeperError

_PATIENCE = 1.0
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
    late = threading.Timer(_PATIENCE, sign.start)  # what is answered without Spark is answered before
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
