"""What batches did to views that are not stored, in a store that keeps no log: a file for each batch and view.

The batch record lists the files, so one counts from the moment in which its batch is published, whoever wrote it and
whoever finishes the batch; what no record lists is garbage. They are kept as long as a log would be (`Feed.truncate`).
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
    """The deltas that are kept, the oldest first."""

    files: tuple[DeltaFile, ...] = ()
    forgotten_position: int = 0
    """The position of the last that is forgotten."""

    def for_table(self, table: int, after: int, up_to: int) -> Iterator[DeltaFile]:
        return (one for one in self.files if one.table_id == table and after < one.position <= up_to)

    def without_older(self, up_to: int) -> DeltaFiles:
        """Without those up to a position."""
        gone = max((one.position for one in self.files if one.position <= up_to), default=self.forgotten_position)
        return DeltaFiles(tuple(one for one in self.files if one.position > up_to), gone)

    def with_files(self, files: Sequence[DeltaFile]) -> DeltaFiles:
        return replace(self, files=(*self.files, *files))

    def to_json(self) -> dict[str, Any]:
        return {"kept": [astuple(one) for one in self.files], "gone": self.forgotten_position}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DeltaFiles:
        return DeltaFiles(tuple(DeltaFile(*one) for one in data["kept"]), data["gone"])


def write_delta_file(directory: StateDirectory, number: int, change: StreamChange) -> str:
    """The name of the file with a view's delta, once it is on disk."""
    directory.create()
    delta, weights = change.delta, change.delta[WEIGHT]
    if change.table.is_bag:  # as a delta of stored rows: one row with its count, that came or went
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
    """The delta, with its weights."""
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
    kept = {one.file for one in delta_files.files}

    def is_garbage(name: str) -> bool:
        number = name[1:].split("-")[0]
        return name not in kept and number.isdigit() and int(number) <= published

    swept = garbage_collector(directory, f"b*{_SUFFIX}")
    swept.track(kept)
    swept.collect(is_garbage)
