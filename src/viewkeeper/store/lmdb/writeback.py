"""The pages of a large transaction are on their way to the disk while more of them are made.

LMDB flushes at the end of a commit: the processor waits for the disk after the disk has waited for the processor. But a
large transaction gives pages to the file system before its end (it keeps 131,071 changed ones at most), and the
others in the commit, before the flush. A thread asks the system again and again to begin to write what it was given.
That waits for nothing, writes no journal, makes nothing durable and nothing valid (the page that does is written last):
LMDB's own flush is left with less to wait for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from viewkeeper.resources.memory import libc_function

MIN_WRITEBACK_BYTES = 64 << 20
"""Bytes of a call from which it is worth a thread."""

_WRITEBACK_INTERVAL = 0.02
_WRITE_FLAG = 2
"""SYNC_FILE_RANGE_WRITE: begin, and wait for nothing that was begun before."""


@contextmanager
def start_writeback(data: Path) -> Iterator[None]:
    """Let the system write a data file's changed pages until the block ends, where it can be asked to."""
    begin = _writeback_function()
    if begin is None:
        yield
        return
    done = threading.Event()

    def ask() -> None:
        # What fails here fails in LMDB's own flush too, which has its own descriptor: it is told there.
        with suppress(OSError):
            descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while not done.wait(_WRITEBACK_INTERVAL) and begin(descriptor):
                    pass
            finally:
                os.close(descriptor)

    thread = threading.Thread(target=ask, name="viewkeeper-write-ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@cache
def _writeback_function() -> Callable[[int], bool] | None:
    """Begin to write all of a file, and say whether that can be asked of it; None on a system that does not know it."""
    import ctypes

    ask = libc_function("sync_file_range")
    if ask is None:
        return None
    ask.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return lambda descriptor: bool(ask(descriptor, 0, 0, _WRITE_FLAG) == 0)
