"""Flushing beside a large transaction: its pages are on their way to the disk while more of them are made.

LMDB flushes at the commit: the processor waits for the disk after the disk has waited for the processor. But a large
transaction writes pages before its end, into the file system's cache, and most of them long before the flush. A thread
that flushes the file meanwhile makes nothing durable that was not, and nothing valid (that is one page, which the
commit writes last): it leaves the commit's own flush less to do.

That pays where pages are used again. Where the file grows, a flush has blocks to find and a journal to write, and many
of them cost more than one: then it is left to the commit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LARGE = 64 << 20
"""Bytes of a call from which it is worth a thread."""

_PAUSE = 0.05
"""Seconds between two flushes."""

_GROWN = 32 << 20
"""Bytes by which the file may have grown since the transaction began."""

_flush = getattr(os, "fdatasync", os.fsync)


@contextmanager
def flushing(path: Path) -> Iterator[None]:
    """Flush the data file of the database at `path` again and again, until the block ends."""
    done = threading.Event()

    def flush() -> None:
        # What fails here fails in LMDB's own flush too, which has its own descriptor: it is told there.
        with suppress(OSError):
            descriptor = os.open(path / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                while not done.wait(_PAUSE) and os.fstat(descriptor).st_size <= size + _GROWN:
                    _flush(descriptor)
            finally:
                os.close(descriptor)

    thread = threading.Thread(target=flush, name="viewkeeper-flush", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
