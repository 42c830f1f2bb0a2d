"""Memory: a batch takes as many write calls as fit, and no more.

What a batch needs grows with its changes: they are decoded, hashed, joined and sorted, each time as new columns. From
the bytes that they have in the log, times `EXPANSION`, follows how many rows fit into the budget (`store.memory`); the
rest waits for the next batch. Where memory runs out all the same (one group of millions that is recomputed), the batch
is tried again with half as many rows, down to one write call. That one cannot be cut: if it does not fit it is an
error, with nothing published.
"""

from __future__ import annotations

import duckdb

from viewkeeper.errors import OutOfMemory
from viewkeeper.store.base import Pending

EXPANSION = 16
"""Bytes of memory for each byte of the log: a guess on the safe side, which halving corrects where it is not."""

RAN_OUT = (OutOfMemory, MemoryError, duckdb.OutOfMemoryException)


def out_of_memory(where: str) -> OutOfMemory:
    return OutOfMemory(
        f"Memory ran out in {where}.",
        hint="Nothing was published. Write in smaller calls, or give the process more memory.",
    )


def fitting(waiting: Pending, memory: int) -> int | None:
    """The rows of what waits that fit; None if all do."""
    needed = waiting.size * EXPANSION
    return None if needed <= memory else max(1, waiting.rows * memory // needed)
