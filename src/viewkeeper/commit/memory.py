"""Memory: a batch takes as many write calls as fit, and no more.

What a batch needs grows with its changes: they are decoded, hashed, joined and sorted, each time as new columns. From
the bytes that they have in the log, times `EXPANSION`, follows how many rows fit into the memory that batches may take;
the rest waits for the next batch. Where memory runs out all the same (a join that multiplies rows, a group of millions
that is recomputed), the batch is tried again with half as many rows, down to one write call. That one cannot be cut:
if it does not fit it is an error, with nothing published.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

import duckdb

from viewkeeper.errors import BadValue, OutOfMemory
from viewkeeper.store.base import Pending

EXPANSION = 16
"""Bytes of memory for each byte of the log: a guess on the safe side, which halving corrects where it is not."""

SHARE = 4
"""Of the machine's memory batches take this part, unless told otherwise."""

_LIMIT = Path("/sys/fs/cgroup/memory.max")


RAN_OUT = (OutOfMemory, MemoryError, duckdb.OutOfMemoryException)


def out_of_memory(where: str) -> OutOfMemory:
    return OutOfMemory(
        f"Memory ran out in {where}.",
        hint="Nothing was published. Write in smaller calls, or give the process more memory.",
    )


def budget(given: int | None) -> int:
    """Bytes that a batch may take: those that were given, or a share of the machine's, container's or process's."""
    if given is not None:
        if given < 1 << 20:
            raise BadValue(f"batch_memory is {given} bytes.", hint="Give at least a megabyte.")
        return given
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        found = min(found, int(_LIMIT.read_text()))
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]  # not that of addresses, which LMDB's sparse map takes
    if limit != resource.RLIM_INFINITY:
        found = min(found, limit)
    return found // SHARE


def fitting(waiting: Pending, memory: int) -> int | None:
    """The rows of what waits that fit; None if all do."""
    needed = waiting.size * EXPANSION
    return None if needed <= memory else max(1, waiting.rows * memory // needed)
