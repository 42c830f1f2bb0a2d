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
from viewkeeper.resources.file_cache import directory_of
from viewkeeper.resources.process_budget import LEAST, budget, sharers

PIECE_ROWS = 1 << 19
"""Rows of a piece at most: more are not faster."""

_LEAST_ROWS = 1 << 10
"""So few rows are a piece however long they are."""
_WAITING = 512 << 20
_PIECE = 64 << 20
_SMALL = 1 << 20
_ONCE = 4
_TRIM_FROM, _MAP_FROM = -1, -3
"""Of mallopt: free bytes at the heap's end that are given back, and the size of what is not taken from the heap."""
_LARGEST_KEPT = 32 << 20
"""The most that glibc takes from its heap."""


@dataclass(frozen=True)
class Memory:
    """A budget, and the directory beside the state in which what is beyond it waits (none: nothing is put aside)."""

    given: int
    directory: Path | None = None
    parts: int = 1

    @property
    def total(self) -> int:
        """What there is at this moment: others who maintain databases in this process have as much."""
        return max(self.given // (self.parts * sharers()), LEAST)

    def beside(self, state: str | os.PathLike[str]) -> Memory:
        """The same budget, with its files in the state's directory."""
        return replace(self, directory=_own(Path(state)))

    def divided(self, parts: int) -> Memory:
        """The budget of each of several who work at the same time."""
        return replace(self, parts=self.parts * max(parts, 1))

    def leave(self) -> None:
        """Nothing is put aside any more; the directory goes, unless somebody else of this process is at work there."""
        with suppress(OSError):
            if self.directory is not None:
                self.directory.rmdir()
                self.directory.parent.rmdir()

    @property
    def ducks(self) -> int:
        return self.total * 2 // 5

    @property
    def waiting(self) -> int:
        return min(self.total // 8, _WAITING)

    @property
    def piece(self) -> int:
        return min(self.total // 32, _PIECE)

    @property
    def grown(self) -> int:
        """Of what an operator adds range by range: several operators are at work, and each has a step's copies too."""
        return min(self.total // 32, _WAITING)

    def holds(self, size: int) -> bool:
        """Whether so many bytes may wait in memory."""
        return size <= _SMALL or size <= self.waiting

    def rows(self, width: float) -> int:
        """How many rows of so many bytes are a piece."""
        return max(_LEAST_ROWS, min(PIECE_ROWS, int(self.piece / max(width, 1))))

    def is_one(self, table: pa.Table) -> bool:
        """Whether the table is no more than a piece."""
        return bool(table.num_rows <= _LEAST_ROWS or table.num_rows <= self.rows(width(table)))

    def pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        """The table a piece at a time."""
        if table.num_rows <= _LEAST_ROWS:
            return iter((table,) if table.num_rows else ())
        step = self.rows(width(table))
        return (table.slice(start, step) for start in range(0, table.num_rows, step))

    def aside(self, table: pa.Table) -> pa.Table:
        """The table in a file, unless it is small: the same rows and chunks, and no memory."""
        if self.directory is None or bytes_of(table) < _SMALL:
            return table
        return _filed(self.directory, table.schema, table.to_batches())

    def gathered(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """The batches as a table; in a file from where on they are large."""
        held: list[pa.RecordBatch] = []
        size, waiting = 0, iter(batches)
        for batch in waiting:
            held.append(batch)
            size += batch.nbytes
            if size >= self.waiting and self.directory is not None:
                return _filed(self.directory, schema, _chained(held, waiting))
        return pa.Table.from_batches(held, schema)


def width(table: pa.Table) -> float:
    """Bytes of a row."""
    return float(bytes_of(table)) / max(1, int(table.num_rows))


def bytes_of(table: pa.Table) -> int:
    """Bytes of a table's rows. If all it refers to is small, that is said at once: to count what rows take of their
    buffers costs tens of microseconds."""
    whole = int(table.get_total_buffer_size())
    return whole if whole < _SMALL else int(table.nbytes)


def _chained(held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held.reverse()
    while held:  # what is written is let go of
        yield held.pop()
    yield from rest


def _filed(directory: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
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


def once(state: str | os.PathLike[str]) -> Memory:
    """For what is asked once, such as a query or an audit: a part of the budget, and files beside the state if this
    process may write there."""
    memory = Memory(budget()).divided(_ONCE)
    place = directory_of(str(state)) if "://" in str(state) else Path(state)
    return memory.beside(place) if os.access(place, os.W_OK) else memory


# -- the directory ----------------------------------------------------------------------------------------------------


def _own(state: Path) -> Path:
    """This process's directory: its name says whose it is."""
    return state / "spill" / f"{socket.gethostname()}-{os.getpid()}"


def forget_spilled(state: str | os.PathLike[str]) -> None:
    """Remove what processes of this machine that are gone have left."""
    for place in _places(Path(state)):
        host, _, number = place.name.rpartition("-")
        if host == socket.gethostname() and number.isdigit() and not _lives(int(number)):
            shutil.rmtree(place, ignore_errors=True)


def _places(state: Path) -> list[Path]:
    with suppress(OSError):
        return [p for p in (state / "spill").iterdir() if p.is_dir()]
    return []


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def release() -> None:
    """Give memory that is free back to the system: allocators keep it otherwise."""
    pa.default_memory_pool().release_unused()
    trim = of_libc("malloc_trim")
    if trim is not None:
        trim(0)


def hold_on(most: int) -> None:
    """Keep memory that is freed, up to so many bytes, for what this process does next: the same again.

    A page that was given back is a fault when it is needed again: 115,000 of them, half a second, in a batch of a
    million changes. Arrow's own allocator gives memory back after some milliseconds, so the system's is used for all.
    """
    choose = of_libc("mallopt")
    if choose is not None:
        choose(_TRIM_FROM, min(most, (1 << 31) - 1))
        choose(_MAP_FROM, _LARGEST_KEPT)
        pa.set_memory_pool(pa.system_memory_pool())


def of_libc(name: str) -> Any:
    """A function that only some systems have."""
    import ctypes

    with suppress(OSError, AttributeError):
        return getattr(ctypes.CDLL(None), name)
    return None
