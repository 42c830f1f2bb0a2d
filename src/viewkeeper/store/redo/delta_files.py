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
from viewkeeper.resources.directory import Directory, flush_directory
from viewkeeper.resources.unlisted_files import sweep
from viewkeeper.store.contract.commits import StreamChange

_SUFFIX = ".stream"


@dataclass(frozen=True)
class Streamed:
    """One view's delta in one batch."""

    number: int
    position: int
    time: float
    table: int
    file: str


@dataclass(frozen=True)
class Streams:
    """The deltas that are kept, the oldest first."""

    kept: tuple[Streamed, ...] = ()
    gone: int = 0
    """The position of the last that is forgotten."""

    def of(self, table: int, after: int, upto: int) -> Iterator[Streamed]:
        return (one for one in self.kept if one.table == table and after < one.position <= upto)

    def since(self, upto: int) -> Streams:
        """Without those up to a position."""
        gone = max((one.position for one in self.kept if one.position <= upto), default=self.gone)
        return Streams(tuple(one for one in self.kept if one.position > upto), gone)

    def plus(self, more: Sequence[Streamed]) -> Streams:
        return replace(self, kept=(*self.kept, *more))

    def to_json(self) -> dict[str, Any]:
        return {"kept": [astuple(one) for one in self.kept], "gone": self.gone}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Streams:
        return Streams(tuple(Streamed(*one) for one in data["kept"]), data["gone"])


def write(directory: Directory, number: int, change: StreamChange) -> str:
    """The name of the file with a view's delta, once it is on disk."""
    directory.make()
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
    directory.save(name)
    sweep(directory, f"b*{_SUFFIX}").know([name])
    return name


def read(directory: Directory, streamed: Streamed) -> pa.Table:
    """The delta, with its weights."""
    path = directory.fetch(streamed.file)
    try:
        with pa.memory_map(str(path)) as file:
            return pa.ipc.open_stream(file).read_all()
    except (OSError, pa.ArrowException) as error:
        raise CorruptState(
            f"The changes {streamed.file} in {directory} cannot be read: {str(error).splitlines()[0]}.",
            hint="Subscribe where the database's state directory can be read (option state=), or start over.",
        ) from error


def collect(directory: Directory, streams: Streams, published: int) -> None:
    """Delete the files of batches up to the published one that its record does not list."""
    kept = {one.file for one in streams.kept}

    def is_garbage(name: str) -> bool:
        number = name[1:].split("-")[0]
        return name not in kept and number.isdigit() and int(number) <= published

    swept = sweep(directory, f"b*{_SUFFIX}")
    swept.know(kept)
    swept.remove(is_garbage)
