"""Rows that a task leaves in a file for the driver: what it made passes neither through Spark nor through memory.

    Arrow IPC streams, one for each table, one after the other; the task's report says where each lies

The file's name is that of one attempt. It counts when the report arrives, and is taken then: mapped, and removed at
once, as memory's own files are (`store.memory`). What nobody takes is garbage, as a run that no manifest lists.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pyarrow as pa

from viewkeeper.errors import StoreError
from viewkeeper.resources.directory import StateDirectory

_MAX_BATCH_ROWS = 1 << 18
"""Rows of a record batch at most."""


class StagedTable(NamedTuple):
    """Where a table lies."""

    file: str
    offset: int
    length: int


class StagingFile:
    """A file of batch `number` in the making; there is none before something is added."""

    def __init__(self, directory: StateDirectory, number: int) -> None:
        self._directory = directory
        self._name = f"b{number}-s-{secrets.token_hex(6)}.vkr"
        self._file: Any = None

    def add(self, table: pa.Table) -> StagedTable:
        with self._raise_write_errors():
            if self._file is None:
                self._file = pa.OSFile(str(self._directory / self._name), "wb")
            begun = self._file.tell()
            with pa.ipc.new_stream(self._file, table.schema) as writer:
                writer.write_table(table, max_chunksize=_MAX_BATCH_ROWS)
            return StagedTable(self._name, begun, self._file.tell() - begun)

    def close(self) -> None:
        """The file is whole, and where others find it."""
        if self._file is not None:
            with self._raise_write_errors():
                self._file.close()
                self._directory.upload(self._name)

    @contextmanager
    def _raise_write_errors(self) -> Iterator[None]:
        """A file that cannot be written is a StoreError, and is not there."""
        try:
            yield
        except OSError as error:
            path = self._directory / self._name
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise StoreError(
                f"Rows of views cannot be put into {path}: {error.strerror or error}.",
                hint="Free space or fix the permissions, then refresh; nothing was published.",
            ) from error


class StagedFiles:
    """The files of a job, in the driver: each is mapped when its first table is asked for, and removed by `clear`."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}

    def table(self, staged: StagedTable) -> pa.Table:
        data = self._files.get(staged.file)
        if data is None:
            with pa.memory_map(str(self._directory.fetch(staged.file))) as file:
                data = self._files[staged.file] = file.read_buffer()
        return pa.ipc.open_stream(data.slice(staged.offset, staged.length)).read_all()

    def clear(self) -> None:
        for name in self._files:
            with suppress(OSError, StoreError):
                self._directory.remove(name)
        self._files.clear()
