"""DuckDB connections. Only this module makes them: so each has a limit, and none spills where it happens to run.

of an owner       as much as its memory has for DuckDBs; it spills where the owner's rows wait
without an owner  an eighth of the process's budget, and no files: it reads a file or parses a query
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from viewkeeper.store.budget import budget
from viewkeeper.store.memory import Memory

_PART = 8
_LEAST = 32 << 20
"""Bytes below which DuckDB cannot do its work at all."""
_LEAST_ALONE = 128 << 20
"""Without an owner: reading a file takes some buffers, however small the file is."""


def connect(memory: Memory | None = None, *, threads: int | None = None) -> Any:
    """A DuckDB that has no file of its own."""
    import duckdb

    limit = max(budget() // _PART, _LEAST_ALONE) if memory is None else memory.ducks
    directory = None if memory is None else memory.directory
    settings: dict[str, Any] = {"memory_limit": limited(limit), "temp_directory": str(directory or "")}
    if threads is not None:
        settings["threads"] = threads
    if directory is not None:
        with suppress(OSError):  # who only reads may not be allowed to, and may not need it
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return duckdb.connect(":memory:", config=settings)


def limited(size: int) -> str:
    """A limit as DuckDB reads it."""
    return f"{max(int(size), _LEAST)}B"
