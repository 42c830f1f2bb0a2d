"""Deltas of views that are not stored, in a store without a change log: one file for each batch and view.

The batch record lists the files, so a file becomes visible when its batch is published, whichever process wrote it or
finished the batch; a file that no record lists is garbage. Files are retained as long as a log would be
(`ChangeLog.truncate`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import CorruptState
from viewkeeper.model.names import COUNT, WEIGHT
from viewkeeper.resources.directory import StateDirectory, flush_directory
from viewkeeper.resources.unlisted_files import garbage_collector
from viewkeeper.store.contract.commits import StreamChange

_SUFFIX = ".stream"


@dataclass(frozen=True)
class DeltaFile:
    """One view's delta in one batch."""

    batch_number: int
    position: int
    time: float
    table_id: int
    file: str


@dataclass(frozen=True)
class DeltaFiles:
    """The retained delta files, oldest first."""

    files: tuple[DeltaFile, ...] = ()
    forgotten_position: int = 0
    """Position of the newest file that has been dropped."""

    def for_table(self, table: int, after: int, up_to: int) -> Iterator[DeltaFile]:
        return (entry for entry in self.files if entry.table_id == table and after < entry.position <= up_to)

    def without_older(self, up_to: int) -> DeltaFiles:
        """Return the list without the files up to a position."""
        forgotten = max(
            (entry.position for entry in self.files if entry.position <= up_to), default=self.forgotten_position
        )
        return DeltaFiles(tuple(entry for entry in self.files if entry.position > up_to), forgotten)

    def with_files(self, files: Sequence[DeltaFile]) -> DeltaFiles:
        return replace(self, files=(*self.files, *files))

    def to_json(self) -> dict[str, Any]:
        return {"kept": [astuple(entry) for entry in self.files], "gone": self.forgotten_position}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DeltaFiles:
        return DeltaFiles(tuple(DeltaFile(*entry) for entry in data["kept"]), data["gone"])


def write_delta_file(directory: StateDirectory, number: int, change: StreamChange) -> str:
    """Write a view's delta to a file, flush it, and return its name."""
    directory.create()
    delta, weights = change.delta, change.delta[WEIGHT]
    if change.table.is_bag:  # a delta of stored rows: one row with its count, inserted or deleted
        delta = (
            delta.drop_columns([WEIGHT]).append_column(COUNT, pc.abs(weights)).append_column(WEIGHT, pc.sign(weights))
        )
    name = f"b{number}-t{change.table.id}-{secrets.token_hex(4)}{_SUFFIX}"
    with (directory / name).open("xb") as file:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(file, delta.schema, options=options) as writer:
            writer.write_table(delta)
        file.flush()
        os.fsync(file.fileno())
    flush_directory(directory)
    directory.upload(name)
    garbage_collector(directory, f"b*{_SUFFIX}").track([name])
    return name


def read_delta_file(directory: StateDirectory, delta_file: DeltaFile) -> pa.Table:
    """Return the delta, with its weights."""
    path = directory.fetch(delta_file.file)
    try:
        with pa.memory_map(str(path)) as file:
            return pa.ipc.open_stream(file).read_all()
    except (OSError, pa.ArrowException) as error:
        raise CorruptState(
            f"The changes {delta_file.file} in {directory} cannot be read: {str(error).splitlines()[0]}.",
            hint="Subscribe where the database's state directory can be read (option state=), or start over.",
        ) from error


def collect_delta_files(directory: StateDirectory, delta_files: DeltaFiles, published: int) -> None:
    """Delete the files of batches up to the published one that its record does not list."""
    listed = {entry.file for entry in delta_files.files}

    def is_garbage(name: str) -> bool:
        number = name[1:].split("-")[0]
        return name not in listed and number.isdigit() and int(number) <= published

    collector = garbage_collector(directory, f"b*{_SUFFIX}")
    collector.track(listed)
    collector.collect(is_garbage)
