"""Memory: one budget, how it is divided, and the files in which the rest waits.

    total   what was given (`memory=`, VIEWKEEPER_MEMORY), or a share of the machine's, the container's, the process's
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
import re
import resource
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper.errors import BadValue, StoreError

VARIABLE = "VIEWKEEPER_MEMORY"
"""The environment variable that says what `memory=` does not."""

SHARE = 4
"""Of the machine's memory this part is the budget, unless told otherwise."""

LEAST = 64 << 20
"""Less is no budget: DuckDB alone needs some ten megabytes a statement."""

PIECE_ROWS = 1 << 19
"""Rows of a piece at most: more are not faster."""

_LIMITS = tuple(map(Path, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")))
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_WAITING = 512 << 20
_PIECE = 64 << 20
_SMALL = 1 << 20


def parse_size(given: int | str) -> int:
    """Bytes, from a number of them or from a text such as '2GB' or '512 MiB'."""
    if isinstance(given, bool) or not isinstance(given, (int, str)):
        raise BadValue(f"memory is {given!r}.", hint="Give a number of bytes or a text such as '2GB'.")
    if isinstance(given, str):
        found = _SIZE.fullmatch(given)
        if found is None:
            raise BadValue(f"memory is {given!r}.", hint="Give a number of bytes or a text such as '2GB'.")
        number, unit, binary = found.groups()
        given = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
    if given < LEAST:
        raise BadValue(f"memory is {given} bytes.", hint=f"Give at least {LEAST >> 20}MiB.")
    return given


def machine_share() -> int:
    """The budget where none is given: a share of what the machine, the container or the process may have."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _LIMITS:
        with suppress(OSError, ValueError):
            found = min(found, int(limit.read_text()))
    data = resource.getrlimit(resource.RLIMIT_DATA)[0]  # not that of addresses, which LMDB's sparse map takes
    if data != resource.RLIM_INFINITY:
        found = min(found, data)
    return max(found // SHARE, LEAST)


def budget(given: int | str | None = None) -> int:
    """Bytes: as given, else as the environment says, else the machine's share."""
    if given is None:
        given = os.environ.get(VARIABLE) or None
    return machine_share() if given is None else parse_size(given)


@dataclass(frozen=True)
class Memory:
    """A budget, and the directory beside the state in which what is beyond it waits (none: nothing is put aside)."""

    total: int
    directory: Path | None = None

    def beside(self, state: str | os.PathLike[str]) -> Memory:
        """The same budget, with its files in the state's directory."""
        return replace(self, directory=_own(Path(state)))

    def divided(self, parts: int) -> Memory:
        """The budget of each of several processes."""
        return replace(self, total=max(self.total // max(parts, 1), LEAST))

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

    @cached_property
    def piece(self) -> int:
        return min(self.total // 32, _PIECE)

    def rows(self, width: float) -> int:
        """How many rows of so many bytes are a piece."""
        return max(1024, min(PIECE_ROWS, int(self.piece / max(width, 1))))

    def pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        """The table a piece at a time."""
        step = self.rows(width(table))
        return (table.slice(start, step) for start in range(0, table.num_rows, step))

    def aside(self, table: pa.Table) -> pa.Table:
        """The table in a file, unless it is small: the same rows and chunks, and no memory."""
        if self.directory is None or table.nbytes < _SMALL:
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
    return float(table.nbytes) / max(1, int(table.num_rows))


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
            hint="Free space or give more memory (memory=); nothing was published.",
        ) from error
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


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
    trim = _trim()
    if trim is not None:
        trim(0)


def _trim() -> Any:
    import ctypes

    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None
