"""Memory budgets, and the spill files for data beyond them.

    total                   the owner's share of the process budget (`process_budget`)
      ├─ duckdb_bytes       all DuckDB connections that work at the same time; beyond it they spill
      ├─ buffer_bytes       rows between operators; rows beyond it are written to a file and mapped
      └─ piece_bytes        input rows of one statement, whose temporaries take a few times as much

What an operator must keep (rows that wait for its other inputs, a run that is being sorted) may exceed any budget. Such
a table is written to a file of its own, which is mapped and unlinked at once: the kernel can drop its pages, the file
disappears with its last reader, and a killed process leaves nothing behind. DuckDB's own spill files are stored beside
it, in a directory of this process, which a later process removes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper.errors import StoreError
from viewkeeper.resources.file_cache import cache_directory
from viewkeeper.resources.process_budget import MIN_BUDGET, process_budget, share_count

MAX_PIECE_ROWS = 1 << 19
"""Maximum number of rows in a piece: larger pieces are not faster."""

_MIN_PIECE_ROWS = 1 << 10
"""Minimum number of rows in a piece, however wide the rows are."""
_MAX_BUFFERED_BYTES = 512 << 20
_MAX_PIECE_BYTES = 64 << 20
_MIN_SPILL_BYTES = 1 << 20
_ONE_OFF_FRACTION = 4
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt: M_TRIM_THRESHOLD, the free bytes at the heap's end that glibc keeps, and M_MMAP_THRESHOLD, the
size from which it allocates outside the heap."""
_MAX_HEAP_BYTES = 32 << 20
"""The largest M_MMAP_THRESHOLD that glibc accepts."""


@dataclass(frozen=True)
class MemoryBudget:
    """A memory budget, and the directory beside the state for data beyond it (None: nothing is spilled)."""

    process_limit: int
    spill_directory: Path | None = None
    share_count: int = 1

    @property
    def total(self) -> int:
        """Bytes of this budget now: the process budget is divided equally among the maintainers of this process."""
        return max(self.process_limit // (self.share_count * share_count()), MIN_BUDGET)

    def with_spill_directory(self, state: str | os.PathLike[str]) -> MemoryBudget:
        """Return the same budget, with spill files in the state's directory."""
        return replace(self, spill_directory=_process_spill_directory(Path(state)))

    def divide(self, share_count: int) -> MemoryBudget:
        """Return the budget of each of `share_count` owners that work at the same time."""
        return replace(self, share_count=self.share_count * max(share_count, 1))

    def close(self) -> None:
        """Remove the spill directory, unless another owner in this process still uses it."""
        with suppress(OSError):
            if self.spill_directory is not None:
                self.spill_directory.rmdir()
                self.spill_directory.parent.rmdir()

    @property
    def duckdb_bytes(self) -> int:
        return self.total * 2 // 5

    @property
    def buffer_bytes(self) -> int:
        return min(self.total // 8, _MAX_BUFFERED_BYTES)

    @property
    def piece_bytes(self) -> int:
        return min(self.total // 32, _MAX_PIECE_BYTES)

    @property
    def growth_bytes(self) -> int:
        """Bytes that an operator may accumulate range by range. Several operators are at work, and each also holds the
        copies of a step."""
        return min(self.total // 32, _MAX_BUFFERED_BYTES)

    def can_buffer(self, size: int) -> bool:
        """Return whether `size` bytes may be buffered in memory."""
        return size <= _MIN_SPILL_BYTES or size <= self.buffer_bytes

    def piece_rows(self, row_bytes: float) -> int:
        """Return the number of rows in a piece, for rows of `row_bytes` bytes."""
        return max(_MIN_PIECE_ROWS, min(MAX_PIECE_ROWS, int(self.piece_bytes / max(row_bytes, 1))))

    def is_one_piece(self, table: pa.Table) -> bool:
        """Return whether the table fits into one piece."""
        return bool(table.num_rows <= _MIN_PIECE_ROWS or table.num_rows <= self.piece_rows(row_width(table)))

    def pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yield the table in pieces."""
        if table.num_rows <= _MIN_PIECE_ROWS:
            return iter((table,) if table.num_rows else ())
        step = self.piece_rows(row_width(table))
        return (table.slice(start, step) for start in range(0, table.num_rows, step))

    def spill(self, table: pa.Table) -> pa.Table:
        """Return the table from a mapped file, with the same rows and chunks; a small table is returned as it is."""
        if self.spill_directory is None or table_bytes(table) < _MIN_SPILL_BYTES:
            return table
        return _write_spill_file(self.spill_directory, table.schema, table.to_batches())

    def collect(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """Return the batches as one table, which is in a spill file if it exceeds `buffer_bytes`."""
        held: list[pa.RecordBatch] = []
        size, remaining = 0, iter(batches)
        for batch in remaining:
            held.append(batch)
            size += batch.nbytes
            if size >= self.buffer_bytes and self.spill_directory is not None:
                return _write_spill_file(self.spill_directory, schema, _drain_then_chain(held, remaining))
        return pa.Table.from_batches(held, schema)


def row_width(table: pa.Table) -> float:
    """Return the average size of a row in bytes."""
    return float(table_bytes(table)) / max(1, int(table.num_rows))


def table_bytes(table: pa.Table) -> int:
    """Return the size of the table's rows in bytes. If the referenced buffers are small, return their total size:
    counting the part that the rows occupy takes tens of microseconds."""
    buffer_bytes = int(table.get_total_buffer_size())
    return buffer_bytes if buffer_bytes < _MIN_SPILL_BYTES else int(table.nbytes)


def _drain_then_chain(buffered: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    buffered.reverse()
    while buffered:  # a batch is released once it is written
        yield buffered.pop()
    yield from rest


def _write_spill_file(directory: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    path = directory / f"{secrets.token_hex(8)}.arrow"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        with pa.memory_map(str(path)) as mapped:
            return pa.ipc.open_file(mapped).read_all()
    except OSError as error:
        raise StoreError(
            f"Rows that do not fit into memory cannot be put into {directory}: {error.strerror or error}.",
            hint="Free space or give more memory (--memory, or memory= in Python); nothing was published.",
        ) from error
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def one_off_budget(state: str | os.PathLike[str]) -> MemoryBudget:
    """Return the budget of a one-off task, such as a query or an audit: a part of the process budget, with spill files
    beside the state if this process may write there."""
    memory = MemoryBudget(process_budget()).divide(_ONE_OFF_FRACTION)
    directory = cache_directory(str(state)) if "://" in str(state) else Path(state)
    return memory.with_spill_directory(directory) if os.access(directory, os.W_OK) else memory


# -- the directory ----------------------------------------------------------------------------------------------------


def _process_spill_directory(state: Path) -> Path:
    """Return this process's spill directory, named by host and process id."""
    return state / "spill" / f"{socket.gethostname()}-{os.getpid()}"


def remove_stale_spills(state: str | os.PathLike[str]) -> None:
    """Remove the spill directories of ended processes of this machine."""
    for directory in _spill_directories(Path(state)):
        host, _, process = directory.name.rpartition("-")
        if host == socket.gethostname() and process.isdigit() and not _is_running(int(process)):
            shutil.rmtree(directory, ignore_errors=True)


def _spill_directories(state: Path) -> list[Path]:
    with suppress(OSError):
        return [p for p in (state / "spill").iterdir() if p.is_dir()]
    return []


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def release_free_memory() -> None:
    """Return free memory to the system; allocators would keep it."""
    pa.default_memory_pool().release_unused()
    trim = libc_function("malloc_trim")
    if trim is not None:
        trim(0)


def retain_freed_memory(limit: int) -> None:
    """Keep freed memory, up to `limit` bytes, for the next batch of this process.

    A page that was returned to the system costs a page fault when it is needed again: 115,000 faults, half a second, in
    a batch of a million changes. Arrow's own allocator returns memory after some milliseconds, so Arrow uses the
    system's allocator here.
    """
    set_option = libc_function("mallopt")
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, min(limit, (1 << 31) - 1))
        set_option(_MMAP_THRESHOLD, _MAX_HEAP_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())


def libc_function(name: str) -> Any:
    """Return a function of the C library, or None on a system without it."""
    import ctypes

    with suppress(OSError, AttributeError):
        return getattr(ctypes.CDLL(None), name)
    return None
