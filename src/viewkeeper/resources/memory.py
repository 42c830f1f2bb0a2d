"""Memory: how a budget is divided, and the files in which the rest waits.

    total   the share that its owner has of what this process may take (`store.budget`)
      ├─ ducks     what all DuckDBs take that work at the same time; beyond it they spill
      ├─ waiting   rows between operators: what comes beyond it is put into a file and mapped
      └─ piece     rows that one statement is given: its temporaries are a few times as much

What an operator must keep (rows that wait for its other sources, a run that is being sorted) may be larger than any
budget. Such a table is written to a file of its own, which is mapped and unlinked at once: its pages are the kernel's
to drop, it goes when the last reader lets go of it, and a killed process leaves nothing of it. DuckDB's own files
lie beside it, in a directory of this process that its successor removes.
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
"""Rows of a piece at most: more are not faster."""

_MIN_PIECE_ROWS = 1 << 10
"""So few rows are a piece however long they are."""
_MAX_BUFFERED_BYTES = 512 << 20
_MAX_PIECE_BYTES = 64 << 20
_MIN_SPILL_BYTES = 1 << 20
_ONE_OFF_FRACTION = 4
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt: free bytes at the heap's end that are given back, and the size of what is not taken from the heap."""
_MAX_HEAP_BYTES = 32 << 20
"""The most that glibc takes from its heap."""


@dataclass(frozen=True)
class MemoryBudget:
    """A budget, and the directory beside the state in which what is beyond it waits (none: nothing is put aside)."""

    process_limit: int
    spill_directory: Path | None = None
    share_count: int = 1

    @property
    def total(self) -> int:
        """What there is at this moment: others who maintain databases in this process have as much."""
        return max(self.process_limit // (self.share_count * share_count()), MIN_BUDGET)

    def with_spill_directory(self, state: str | os.PathLike[str]) -> MemoryBudget:
        """The same budget, with its files in the state's directory."""
        return replace(self, spill_directory=_process_spill_directory(Path(state)))

    def divide(self, share_count: int) -> MemoryBudget:
        """The budget of each of several who work at the same time."""
        return replace(self, share_count=self.share_count * max(share_count, 1))

    def close(self) -> None:
        """Nothing is put aside any more; the directory goes, unless somebody else of this process is at work there."""
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
        """Of what an operator adds range by range: several operators are at work, and each has a step's copies too."""
        return min(self.total // 32, _MAX_BUFFERED_BYTES)

    def can_buffer(self, size: int) -> bool:
        """Whether so many bytes may wait in memory."""
        return size <= _MIN_SPILL_BYTES or size <= self.buffer_bytes

    def piece_rows(self, row_bytes: float) -> int:
        """How many rows of so many bytes are a piece."""
        return max(_MIN_PIECE_ROWS, min(MAX_PIECE_ROWS, int(self.piece_bytes / max(row_bytes, 1))))

    def is_one_piece(self, table: pa.Table) -> bool:
        """Whether the table is no more than a piece."""
        return bool(table.num_rows <= _MIN_PIECE_ROWS or table.num_rows <= self.piece_rows(row_width(table)))

    def pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        """The table a piece at a time."""
        if table.num_rows <= _MIN_PIECE_ROWS:
            return iter((table,) if table.num_rows else ())
        step = self.piece_rows(row_width(table))
        return (table.slice(start, step) for start in range(0, table.num_rows, step))

    def spill(self, table: pa.Table) -> pa.Table:
        """The table in a file, unless it is small: the same rows and chunks, and no memory."""
        if self.spill_directory is None or table_bytes(table) < _MIN_SPILL_BYTES:
            return table
        return _write_spill_file(self.spill_directory, table.schema, table.to_batches())

    def collect(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """The batches as a table; in a file from where on they are large."""
        held: list[pa.RecordBatch] = []
        size, waiting = 0, iter(batches)
        for batch in waiting:
            held.append(batch)
            size += batch.nbytes
            if size >= self.buffer_bytes and self.spill_directory is not None:
                return _write_spill_file(self.spill_directory, schema, _drain_then_chain(held, waiting))
        return pa.Table.from_batches(held, schema)


def row_width(table: pa.Table) -> float:
    """Bytes of a row."""
    return float(table_bytes(table)) / max(1, int(table.num_rows))


def table_bytes(table: pa.Table) -> int:
    """Bytes of a table's rows. If all it refers to is small, that is said at once: to count what rows take of their
    buffers costs tens of microseconds."""
    whole = int(table.get_total_buffer_size())
    return whole if whole < _MIN_SPILL_BYTES else int(table.nbytes)


def _drain_then_chain(buffered: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    buffered.reverse()
    while buffered:  # what is written is let go of
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
    """For what is asked once, such as a query or an audit: a part of the budget, and files beside the state if this
    process may write there."""
    memory = MemoryBudget(process_budget()).divide(_ONE_OFF_FRACTION)
    place = cache_directory(str(state)) if "://" in str(state) else Path(state)
    return memory.with_spill_directory(place) if os.access(place, os.W_OK) else memory


# -- the directory ----------------------------------------------------------------------------------------------------


def _process_spill_directory(state: Path) -> Path:
    """This process's directory: its name says whose it is."""
    return state / "spill" / f"{socket.gethostname()}-{os.getpid()}"


def remove_stale_spills(state: str | os.PathLike[str]) -> None:
    """Remove what processes of this machine that are gone have left."""
    for place in _spill_directories(Path(state)):
        host, _, number = place.name.rpartition("-")
        if host == socket.gethostname() and number.isdigit() and not _is_running(int(number)):
            shutil.rmtree(place, ignore_errors=True)


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
    """Give memory that is free back to the system: allocators keep it otherwise."""
    pa.default_memory_pool().release_unused()
    trim = libc_function("malloc_trim")
    if trim is not None:
        trim(0)


def retain_freed_memory(limit: int) -> None:
    """Keep memory that is freed, up to so many bytes, for what this process does next: the same again.

    A page that was given back is a fault when it is needed again: 115,000 of them, half a second, in a batch of a
    million changes. Arrow's own allocator gives memory back after some milliseconds, so the system's is used for all.
    """
    choose = libc_function("mallopt")
    if choose is not None:
        choose(_TRIM_THRESHOLD, min(limit, (1 << 31) - 1))
        choose(_MMAP_THRESHOLD, _MAX_HEAP_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())


def libc_function(name: str) -> Any:
    """A function that only some systems have."""
    import ctypes

    with suppress(OSError, AttributeError):
        return getattr(ctypes.CDLL(None), name)
    return None
