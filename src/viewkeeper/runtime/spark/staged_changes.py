"""Staging files: a task writes rows for the driver to a file, so that they pass neither through Spark nor memory.

    Arrow IPC streams, one for each table, one after another; the task's report has the location of each

The file's name is unique to one attempt of a task. The file is used only if the report arrives; the driver then maps
it, and deletes it at the end of the job. A file without a report is garbage, like a run file that no manifest lists.
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
"""Maximum number of rows of a record batch."""


class StagedTable(NamedTuple):
    """The location of a staged table."""

    file: str
    offset: int
    length: int


class StagingFile:
    """Writes a staging file of batch `number`; the file is created when the first table is added."""

    def __init__(self, directory: StateDirectory, number: int) -> None:
        self._directory = directory
        self._name = f"b{number}-s-{secrets.token_hex(6)}.vkr"
        self._file: Any = None

    def add(self, table: pa.Table) -> StagedTable:
        with self._raise_write_errors():
            if self._file is None:
                self._file = pa.OSFile(str(self._directory / self._name), "wb")
            start = self._file.tell()
            with pa.ipc.new_stream(self._file, table.schema) as writer:
                writer.write_table(table, max_chunksize=_MAX_BATCH_ROWS)
            return StagedTable(self._name, start, self._file.tell() - start)

    def close(self) -> None:
        """Complete the file, and upload it if the state directory is an object store."""
        if self._file is not None:
            with self._raise_write_errors():
                self._file.close()
                self._directory.upload(self._name)

    @contextmanager
    def _raise_write_errors(self) -> Iterator[None]:
        """Raise a write error as a StoreError, and delete the file."""
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
    """The staging files of a job, in the driver: each is mapped when its first table is read; `clear` deletes them."""

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
