"""The spool: pushed changes as durable files of the state directory, until a batch contains them.

Files are written once and never changed.

    push/id                       names this spool: one that was lost, or lost a file, is not mistaken for a whole one
    push/epoch                    the epoch (life) of the peer whose changes it holds
    push/lost                     WALs that were deleted before they were shipped, for which tables were compared
    push/<writer>-<number>.touched
                                  "VKS1", XXH3 of the rest (8 bytes), a frame's rows (`protocol`)

Each writer (a receiver, from its start to its end) numbers its files from 1 without a gap. A **mark** is, for
each writer, the number up to which its files have been read: every file that is written later, by any writer, is
after every earlier mark. Files that no later mark can need are removed.

A spool has a limit: beyond it no frame is accepted, and HBase keeps its WALs until batches have read the spool.
"""

from __future__ import annotations

import os
import secrets
import struct
import threading
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from viewkeeper.errors import CorruptState, StoreError
from viewkeeper.resources.directory import StateDirectory, flush_directory
from viewkeeper_hbase.push import protocol
from viewkeeper_hbase.push.protocol import TouchedRows

SpoolMark = Mapping[str, int]

_MAGIC = b"VKS1"
_SUFFIX = ".touched"
_FUTURE_SUFFIX = "later"
MAX_SPOOL_BYTES = 4 << 30
"""Bytes in the spool beyond which no frame is accepted."""
_SIZE_CHECK_INTERVAL = 10.0
"""Seconds between two measurements of the spool's size: other processes remove files."""


@dataclass(frozen=True)
class Segment:
    """One file of the spool, decoded."""

    writer: str
    number: int
    tables: Mapping[str, TouchedRows]

    @property
    def name(self) -> str:
        return f"{self.writer}-{self.number:012d}{_SUFFIX}"

    @property
    def is_future(self) -> bool:
        """Whether all cells of its rows have future times."""
        return self.writer.endswith(_FUTURE_SUFFIX)


class _Writer:
    """A writer's name and the number of its last file."""

    def __init__(self, kind: str = "") -> None:
        self._kind = kind
        self.lock = threading.Lock()
        self.start_new_name()

    def start_new_name(self) -> None:
        self.name = f"{int(time.time() * 1000):x}{secrets.token_hex(3)}{self._kind}"
        self.last_number = 0


class Spool:
    """The files of a spool and their contents. It may be used from several threads. `max_bytes` limits its size.

    With `is_write_only`, for a process that only receives, the files' contents are not kept in memory.
    """

    def __init__(
        self, directory: StateDirectory, *, max_bytes: int = MAX_SPOOL_BYTES, is_write_only: bool = False
    ) -> None:
        self._directory, self._max_bytes, self._is_write_only = directory, max_bytes, is_write_only
        self._bytes, self._measured_at = 0, float("-inf")
        self._lock = threading.Lock()
        self._writer = _Writer()
        self._segment_names: set[str] = set()
        self._segments_by_writer: dict[str, list[Segment]] = {}
        """By writer, in order. `_segments_by_table` has the same for each table with written rows. Segments kept for
        readers that return are many times those that a batch requests, and the latter are at the ends."""
        self._segments_by_table: dict[str, dict[str, list[Segment]]] = {}
        self._listeners: list[Callable[[], None]] = []
        directory.create()
        self.id = self._read_name("id") or self._write_name("id", secrets.token_hex(6))
        self.epoch = self._read_name("epoch")
        """The epoch of the peer whose changes are here; None before the first."""

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def life(self) -> str:
        """Names this spool and the peer's epoch in it: between two lives, changes may have been lost."""
        return f"{self.id}.{self.epoch}"

    def begin_epoch(self, epoch: str) -> None:
        """Set the peer's epoch of what is appended from now on. Changes between two epochs were never sent."""
        if self.epoch != epoch:
            self.epoch = self._write_name("epoch", epoch)

    def record_lost_wals(self, wals: Sequence[str]) -> None:
        """Give the spool a new id when WALs were lost: earlier marks become invalid, so every table is compared
        once."""
        if wals and not set(wals) <= set((self._read_name("lost") or "").split()):
            self.id = self._write_name("id", secrets.token_hex(6))
            self._write_name("lost", "\n".join(wals))

    def _read_name(self, name: str) -> str | None:
        path = self._directory.fetch(name, refresh=True)
        return path.read_text() if path.exists() else None

    def _write_name(self, name: str, value: str) -> str:
        self._write_file(name, value.encode())
        return value

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, data: bytes, *, is_future: bool = False) -> Segment:
        """Append a frame's rows. They are durable on return; a MalformedFrame leaves nothing behind.

        With `is_future`, the rows' cells have future times. They get a writer of their own, so that they hold
        back no other file.
        """
        tables = protocol.decode_tables(data)
        self._reserve_bytes(len(data))
        writer = _Writer(_FUTURE_SUFFIX) if is_future else self._writer
        with writer.lock:
            segment = Segment(writer.name, writer.last_number + 1, tables)
            try:
                self._write_file(segment.name, _MAGIC + struct.pack("<Q", xxhash.xxh3_64_intdigest(data)) + data)
            except BaseException:
                # The file may or may not exist. Its number must not be reused, and numbers must have no gap: a new
                # name begins at 1.
                writer.start_new_name()
                raise
            writer.last_number += 1
            if not self._is_write_only:
                self._register_segment(segment)
        self.notify_listeners()
        return segment

    def _reserve_bytes(self, added_bytes: int) -> None:
        """Reserve space for a frame, or raise StoreError: the sender keeps the frame and sends it again."""
        with self._lock:
            if time.monotonic() - self._measured_at > _SIZE_CHECK_INTERVAL:
                self._bytes, self._measured_at = self._directory.total_bytes(f"*{_SUFFIX}"), time.monotonic()
            if self._bytes + added_bytes > self._max_bytes:
                raise StoreError(
                    f"{self._directory} holds {self._bytes:,} bytes that no batch has taken; HBase keeps what follows.",
                    hint="Let somebody maintain the database, or allow more: vk hbase listen --spool SIZE.",
                )
            self._bytes += added_bytes

    def on_changes(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever a file is appended here, or a region server connects or disconnects."""
        self._listeners.append(notify)

    def notify_listeners(self) -> None:
        for notify in self._listeners:
            notify()

    def _write_file(self, name: str, data: bytes) -> None:
        path = self._directory / name
        temporary = path.with_name(f".{name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            flush_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
        self._directory.upload(name)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_new_segments(self) -> None:
        """Read the files that other processes have appended."""
        self.id, self.epoch = self._read_name("id") or self.id, self._read_name("epoch")
        new = self._unread_names()
        if not new:
            return
        # A directory listing may contain a file and miss an earlier one, which is in every listing made afterwards.
        last_numbers: dict[str, int] = {}
        for writer, number in map(_parse_name, new):
            last_numbers[writer] = max(last_numbers.get(writer, 0), number)
        for name in self._unread_names():
            writer, number = _parse_name(name)
            if number <= last_numbers.get(writer, 0):
                self._read_segment(name)

    def _unread_names(self) -> list[str]:
        names = self._directory.list_names(f"*{_SUFFIX}")
        return [name for name in names if name not in self._segment_names]

    def _read_segment(self, name: str) -> None:
        path = self._directory.fetch(name)
        try:
            segment = _read_segment_file(path)
        except CorruptState:
            # The file's changes are lost: earlier marks become invalid, so every table is compared with its table
            # image.
            self.id = self._write_name("id", secrets.token_hex(6))
            path.replace(path.with_suffix(".damaged"))
            return
        if segment is not None:
            self._register_segment(segment)

    def _register_segment(self, segment: Segment) -> None:
        with self._lock:
            if segment.name not in self._segment_names:
                self._segment_names.add(segment.name)
                for by_writer in (
                    self._segments_by_writer,
                    *(self._segments_by_table.setdefault(table, {}) for table in segment.tables),
                ):
                    insort(by_writer.setdefault(segment.writer, []), segment, key=_segment_number)

    def current_mark(self) -> SpoolMark:
        """Return the mark of everything in the spool."""
        with self._lock:
            return {writer: segments[-1].number for writer, segments in self._segments_by_writer.items()}

    def segments_after(self, mark: SpoolMark, table: str) -> list[Segment]:
        """Return the files after a mark that have rows of a table, each writer's in order."""
        with self._lock:
            by_writer = sorted(self._segments_by_table.get(table, {}).items())
            return [
                segment
                for writer, segments in by_writer
                for segment in segments[_count_up_to(segments, mark.get(writer, 0)) :]
            ]

    def remove(self, mark: SpoolMark) -> None:
        """Remove the files up to a mark."""
        self._measured_at = float("-inf")
        for writer, number in mark.items():
            with self._lock:
                segments = self._segments_by_writer.get(writer, [])
                read_segments = segments[: _count_up_to(segments, number)]
            for segment in read_segments:
                self._directory.remove(segment.name)
            with self._lock:
                self._segment_names.difference_update(segment.name for segment in read_segments)
                for by_writer in (self._segments_by_writer, *self._segments_by_table.values()):
                    if writer in by_writer:
                        del by_writer[writer][: _count_up_to(by_writer[writer], number)]
                        if not by_writer[writer]:
                            del by_writer[writer]

    @property
    def segment_count(self) -> int:
        return len(self._segment_names)


def common_mark(marks: list[SpoolMark]) -> SpoolMark:
    """Return the mark up to which all of these marks have read."""
    writers = set.intersection(*(set(m) for m in marks)) if marks else set()
    return {writer: min(m[writer] for m in marks) for writer in writers}


def _read_segment_file(path: Path) -> Segment | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # another process has removed it: a batch contains it
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    if data[:4] != _MAGIC or struct.unpack_from("<Q", data, 4)[0] != xxhash.xxh3_64_intdigest(data[12:]):
        raise CorruptState(f"{path} is damaged: what HBase pushed in it is lost.")
    return Segment(*_parse_name(path.name), protocol.decode_tables(data[12:]))


def _segment_number(segment: Segment) -> int:
    return segment.number


def _count_up_to(segments: Sequence[Segment], number: int) -> int:
    """Return how many of the segments have a number up to this one."""
    return bisect_right(segments, number, key=_segment_number)


def _parse_name(name: str) -> tuple[str, int]:
    writer, _, number = name.removesuffix(_SUFFIX).rpartition("-")
    return writer, int(number)


# The mark of a table's pushed changes in a batch.


@dataclass(frozen=True)
class PushMark:
    """The mark up to which a batch has read, in one life of the spool. `is_complete`: push was complete up to the
    batch's cut."""

    spool_life: str
    spool_mark: Mapping[str, int]
    is_complete: bool
    arrived_mark: Mapping[str, int] | None = field(default=None, compare=False)
    """The mark of everything in the spool when the batch read its rows: beyond `spool_mark` if some rows have times
    after the cut. It is not published, and known only to the process that read them."""
    cut: int | None = field(default=None, compare=False)
    """The cut at which the rows were read, likewise unpublished: of the files up to `arrived_mark`, every row
    without a time after the cut was read."""

    def to_json(self) -> list[Any]:
        return [self.spool_life, dict(self.spool_mark), self.is_complete]

    @staticmethod
    def from_json(data: list[Any]) -> PushMark:
        return PushMark(data[0], data[1], data[2])
