"""Spark's start-up chatter, kept off the screen.

A JVM writes warnings to the standard error that it inherits, before any log level can be set. While it starts, file
descriptor 2 is a temporary file; the JVM keeps that one for life. If something breaks in an unforeseen way, what was
written is shown after all.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from viewkeeper.errors import ViewkeeperError


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
