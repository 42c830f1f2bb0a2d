"""Early writeback: the kernel writes the pages of a large transaction to disk while the transaction changes more pages.

LMDB flushes at the end of a commit, so the processor is idle during the flush as the disk was before. But a large
transaction passes pages to the file system before its end (LMDB keeps at most 131,071 changed pages), and the rest
during the commit, before the flush. A thread repeatedly asks the kernel to begin writing these pages. The request does
not block, writes no journal, and makes no page durable or valid (the page that makes the commit valid is written last):
it only shortens LMDB's own flush.
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
"""Bytes of a write call from which a writeback thread is worth its cost."""

_WRITEBACK_INTERVAL = 0.02
_WRITE_FLAG = 2
"""SYNC_FILE_RANGE_WRITE: begin to write, without waiting for writes that were begun before."""


@contextmanager
def start_writeback(data: Path) -> Iterator[None]:
    """Request writeback of a data file's changed pages until the block ends, if the system supports it."""
    begin_writeback = _writeback_function()
    if begin_writeback is None:
        yield
        return
    is_done = threading.Event()

    def request_writeback() -> None:
        # An error here also occurs in LMDB's own flush, which has its own descriptor and reports it.
        with suppress(OSError):
            descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while not is_done.wait(_WRITEBACK_INTERVAL) and begin_writeback(descriptor):
                    pass
            finally:
                os.close(descriptor)

    thread = threading.Thread(target=request_writeback, name="viewkeeper-write-ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


@cache
def _writeback_function() -> Callable[[int], bool] | None:
    """Return a function that begins to write all pages of a file and returns whether that is supported for the file;
    None if the system does not support it."""
    import ctypes

    sync_file_range = libc_function("sync_file_range")
    if sync_file_range is None:
        return None
    sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return lambda descriptor: bool(sync_file_range(descriptor, 0, 0, _WRITE_FLAG) == 0)
