"""Run file: the container of all runs that one task wrote in a batch.

    0    magic   8 bytes  "VKRUNS\\r\\n"   (a text-mode copy damages it visibly)
    8    version u32 little-endian, then zeros up to byte 64
    64   run     Arrow IPC stream: schema, one record batch, end; zero-padded to a multiple of 64
    …    run     …

In a directory behind a URL, a long run is written in pieces by hash range, each with its own manifest entry: a reader
that needs part of the hashes fetches only the pieces that overlap it.

The manifest's entries say where each run is stored; a file that no entry names is garbage. So the writer needs no
temporary name: the file name contains the batch number and a random token. A reader maps the file and copies nothing: a
lookup touches only the pages that it needs. The checksum is XXH3 over a run's bytes; CRC-32 would take longer than
writing them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import xxhash

from viewkeeper import failpoints
from viewkeeper.errors import CorruptRun, CorruptState, FormatTooNew, StoreError
from viewkeeper.model.names import HASH
from viewkeeper.resources.checksum import ChecksummedWriter
from viewkeeper.resources.directory import StateDirectory, flush_directory
from viewkeeper.resources.memory import table_bytes
from viewkeeper.state.hash_index import Hashes
from viewkeeper.state.run import Run

MAGIC = b"VKRUNS\r\n"
VERSION = 1
PIECE_ROWS = 1 << 20
"""Approximate number of rows in a piece, in a directory behind a URL."""
_MAX_PIECES = 64
_MAX_BUFFERED_BYTES = 1 << 20
"""Runs of up to this many bytes are serialized in memory and written by one call."""
_ALIGNMENT = 64
_HEADER = (MAGIC + VERSION.to_bytes(4, "little")).ljust(_ALIGNMENT, b"\0")


@dataclass(frozen=True)
class RunEntry:
    """Location of a run, as listed in the manifest. `file` is a name in the state directory."""

    slot: str
    file: str
    offset: int
    length: int
    rows: int
    low: int
    high: int
    checksum: int

    def __hash__(self) -> int:
        return hash((self.file, self.offset))

    def overlaps(self, low: int, high: int) -> bool:
        """Return whether some of the hashes may be between `low` and `high`, both included."""
        return self.low <= high and low <= self.high

    def to_json(self) -> list[Any]:
        return [self.slot, self.file, self.offset, self.length, self.rows, self.low, self.high, self.checksum]

    def __reduce__(self) -> tuple[type[RunEntry], tuple[Any, ...]]:
        """Pickle the values without field names: tasks receive thousands of entries."""
        return RunEntry, tuple(self.to_json())

    @staticmethod
    def from_json(data: Sequence[Any]) -> RunEntry:
        return RunEntry(*data)


class LazyRun(Run):
    """A run that is opened when its rows are first read. Its size and hash range come from its manifest entry."""

    def __init__(self, entry: RunEntry, open_rows: Callable[[], Run]) -> None:
        self.__dict__ |= {"_entry": entry, "_find": open_rows, "_rows": None}

    @property
    def rows(self) -> pa.Table:
        found = self.__dict__["_rows"]
        if found is None:  # several threads may open it at once, which only costs time
            found = self.__dict__["_rows"] = self.__dict__["_find"]().rows
        return found

    @property
    def is_open(self) -> bool:
        return self.__dict__["_rows"] is not None

    @property
    def num_rows(self) -> int:
        return self._run_entry.rows

    @property
    def low(self) -> int:
        return self._run_entry.low

    @property
    def high(self) -> int:
        return self._run_entry.high

    @property
    def num_bytes(self) -> int:
        return self._run_entry.length

    def may_contain(self, hashes: Hashes) -> bool:
        return bool(((hashes >= np.uint64(self.low)) & (hashes <= np.uint64(self.high))).any())

    @property
    def _run_entry(self) -> RunEntry:
        entry: RunEntry = self.__dict__["_entry"]
        return entry


class VerificationLog:
    """Log of the runs that processes of this machine have verified, so that each run is verified once on the machine.

        lines "inode mtime offset checksum" of one file to which all processes append

    A file that was changed since its verification has another mtime. The log is only a cache: without it each process
    verifies runs for itself.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._read_offset = path, 0
        self._known_lines: set[str] = set()

    def has(self, path: Path, entry: RunEntry) -> bool:
        line = _verification_line(path, entry)
        if line is not None and line not in self._known_lines:
            with suppress(OSError), self._path.open("rb") as file:
                file.seek(self._read_offset)
                lines, end, _ = file.read().rpartition(b"\n")  # an incomplete last line is read next time
                self._read_offset += len(lines) + len(end)
                self._known_lines |= set(lines.decode().split("\n"))
        return line in self._known_lines

    def add(self, path: Path, entry: RunEntry) -> None:
        line = _verification_line(path, entry)
        if line is None:
            return
        self._known_lines.add(line)
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab", buffering=0) as file:
                file.write(f"{line}\n".encode())  # one write call, so lines of several processes do not mix


def _verification_line(path: Path, entry: RunEntry) -> str | None:
    """Return the log line of a run, or None if the file was deleted after it was mapped."""
    try:
        status = path.stat()
    except OSError:
        return None
    return f"{status.st_ino} {status.st_mtime_ns} {entry.offset} {entry.checksum}"


def group_pieces(entries: Iterable[RunEntry]) -> list[tuple[RunEntry, ...]]:
    """Group the entries of a slot by run: the pieces of a run are in one file."""
    return [tuple(pieces) for _, pieces in groupby(entries, key=lambda entry: entry.file)]


def write_run_file(
    directory: str | os.PathLike[str], name: str, runs: Mapping[str, Run], fsync: bool
) -> list[RunEntry]:
    """Write the runs, by slot, to a new file that only its owner may read. If the write fails, no file is left."""
    state_directory = StateDirectory(directory)
    path = state_directory / name
    try:
        failpoints.hit("run.write.before")
        path.unlink(missing_ok=True)  # never truncate in place: another process may have it mapped
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            entries = _write_runs(file, name, runs, is_whole=state_directory.is_local)
            failpoints.hit("run.write.middle")
            if fsync:
                file.flush()
                failpoints.hit("run.sync")
                os.fsync(file.fileno())
        if fsync:
            flush_directory(path.parent)
        state_directory.upload(name)
        failpoints.hit("run.write.after")
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise StoreError(
            f"Cannot write the state file {path}: {error.strerror or error}.",
            hint="Free space or fix the permissions, then refresh; nothing was published.",
        ) from error
    return entries


def open_run(
    directory: str | os.PathLike[str], entry: RunEntry, verify: bool, verification_log: VerificationLog | None = None
) -> Run:
    """Map a run.

    The file's header and the run's position and shape are always checked; its checksum is checked if `verify` is set
    and the run is not in `verification_log`.
    """
    state_directory = StateDirectory(directory)
    try:
        return _map_run(
            *state_directory.fetch_range(entry.file, entry.offset, entry.length), entry, verify, verification_log
        )
    except CorruptState:
        if state_directory.is_local:
            raise
    # The local copy may be damaged although the object is not.
    return _map_run(
        *state_directory.fetch_range(entry.file, entry.offset, entry.length, refresh=True),
        entry,
        verify,
        verification_log,
    )


def _map_run(path: Path, offset: int, entry: RunEntry, verify: bool, verification_log: VerificationLog | None) -> Run:
    """Map a run that begins at `offset` of the file at `path`. The file is the container, or a copy of the run alone
    (0)."""
    try:
        with pa.memory_map(str(path), "r") as file:
            if offset:
                _check_header(path, file.read_at(_ALIGNMENT, 0))
            if file.size() < offset + entry.length:
                raise _corrupt(path, f"it has {file.size()} bytes where {offset + entry.length} were written")
            file.seek(offset)
            buffer = file.read_buffer(entry.length)
    except OSError as error:
        raise _corrupt(path, f"it cannot be read ({error.strerror or error})") from error
    if verify and not (verification_log is not None and verification_log.has(path, entry)):
        if xxhash.xxh3_64_intdigest(buffer) != entry.checksum:
            raise _corrupt(path, f"the checksum of the run at byte {entry.offset} is wrong")
        if verification_log is not None:
            verification_log.add(path, entry)
    try:
        with pa.ipc.open_stream(buffer) as reader:
            rows = reader.read_all().combine_chunks()
    except (pa.ArrowInvalid, OSError) as error:
        raise _corrupt(path, f"the run at byte {entry.offset} is no Arrow stream") from error
    if rows.num_rows != entry.rows or HASH not in rows.column_names:
        raise _corrupt(path, f"the run at byte {entry.offset} is not the one that was written")
    return Run(rows)


def _write_runs(file: IO[bytes], name: str, runs: Mapping[str, Run], is_whole: bool) -> list[RunEntry]:
    sink = ChecksummedWriter(file)
    sink.write(_HEADER)
    entries = []
    pieces = ((slot, piece) for slot, run in runs.items() for piece in ([run] if is_whole else _split_run(run)))
    for slot, run in pieces:
        offset = sink.position
        sink.checksum.reset()
        if table_bytes(run.rows) <= _MAX_BUFFERED_BYTES:
            sink.write(_serialize_run(run.rows))
        else:
            with pa.ipc.new_stream(sink, run.rows.schema) as writer:
                writer.write_table(run.rows)
        length, checksum = sink.position - offset, sink.checksum.intdigest()
        sink.pad(_ALIGNMENT)
        entries.append(RunEntry(slot, name, offset, length, run.num_rows, run.low, run.high, checksum))
    return entries


def _serialize_run(rows: pa.Table) -> pa.Buffer:
    """Serialize a run in memory: a stream into a Python file would call `write` for every buffer of every column."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema) as writer:
        writer.write_table(rows)
    return buffer.getvalue()


def _split_run(run: Run) -> Iterator[Run]:
    """Split a run by hash ranges; a short run stays whole."""
    count = min(_MAX_PIECES, 1 << max(0, (run.num_rows // PIECE_ROWS).bit_length()))
    edges = np.array([(1 << 64) * i // count for i in range(1, count)], np.uint64)
    boundaries = [0, *(int(p) for p in np.searchsorted(run.hashes, edges, "left")), run.num_rows]
    for first, last in pairwise(boundaries):
        if last > first or count == 1:
            yield run if count == 1 else Run(run.rows.slice(first, last - first))


def _check_header(path: Path, header: bytes) -> None:
    if header[: len(MAGIC)] != MAGIC:
        raise _corrupt(path, "it is no run file")
    version = int.from_bytes(header[8:12], "little")
    if version > VERSION:
        raise FormatTooNew(f"The state file {path} has format {version}; this version reads up to {VERSION}.")


def _corrupt(path: Path, problem: str) -> CorruptRun:
    return CorruptRun(f"The state file {path} is damaged: {problem}.", hint="State is derived: it can be rebuilt.")
