"""What was pushed, until a batch has it: files of the state's place, written once and never changed.

    push/id                       names this spool: one that was lost, or lost a file, is not mistaken for a whole one
    push/epoch                    the life of the peer whose changes it holds
    push/lost                     WALs that were deleted before they were shipped, for which tables were compared
    push/<writer>-<number>.touched
                                  "VKS1", XXH3 of the rest (8 bytes), a frame's rows (`touched`)

Each writer (a receiver, from its start to its end) numbers its files from 1 without a gap. A **mark** says for each
writer up to which number its files are in a batch: what comes later, from whichever writer, is after every mark that
was taken before. Files that no mark will ever ask for are removed.

A spool has a limit: beyond it nothing is taken, so HBase keeps its WALs, until batches have what is here.
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
"""Bytes that wait here before no more is taken."""
_SIZE_CHECK_INTERVAL = 10.0
"""Seconds between two looks at what lies here: others take it away."""


@dataclass(frozen=True)
class Segment:
    """One file of the spool, read."""

    writer: str
    number: int
    tables: Mapping[str, TouchedRows]

    @property
    def name(self) -> str:
        return f"{self.writer}-{self.number:012d}{_SUFFIX}"

    @property
    def is_future(self) -> bool:
        """Its rows wait for a time yet to come."""
        return self.writer.endswith(_FUTURE_SUFFIX)


class _Writer:
    """Who numbers files."""

    def __init__(self, kind: str = "") -> None:
        self._kind = kind
        self.lock = threading.Lock()
        self.start_new_name()

    def start_new_name(self) -> None:
        self.name = f"{int(time.time() * 1000):x}{secrets.token_hex(3)}{self._kind}"
        self.last_number = 0


class Spool:
    """The files, and what is in them. Used from several threads. `most`: bytes beyond which nothing more is taken.

    Who only `receives` does not remember what is in the files: that is for who reads them.
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
        """By writer, in order; the same for each table in which something was touched: what is kept for readers that
        come back is many times what a batch asks for, and that lies at the ends."""
        self._segments_by_table: dict[str, dict[str, list[Segment]]] = {}
        self._listeners: list[Callable[[], None]] = []
        directory.create()
        self.id = self._read_name("id") or self._write_name("id", secrets.token_hex(6))
        self.epoch = self._read_name("epoch")
        """The peer's life whose changes are here; None before the first."""

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def life(self) -> str:
        """Names this spool and the peer's life in it: between two of them something may have been lost."""
        return f"{self.id}.{self.epoch}"

    def begin_epoch(self, epoch: str) -> None:
        """From now on, what comes is of this life of the peer. What lay between two lives was never sent."""
        if self.epoch != epoch:
            self.epoch = self._write_name("epoch", epoch)

    def record_lost_wals(self, wals: Sequence[str]) -> None:
        """What these WALs held will never come: no mark is believed any more, so every table is compared, once."""
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
        """Keep a frame's rows. They are durable when this returns; Malformed leaves nothing behind.

        `later`: rows whose cells have times yet to come. They have a writer of their own, so that they keep no others.
        """
        tables = protocol.decode_tables(data)
        self._reserve_bytes(len(data))
        writer = _Writer(_FUTURE_SUFFIX) if is_future else self._writer
        with writer.lock:
            segment = Segment(writer.name, writer.last_number + 1, tables)
            try:
                self._write_file(segment.name, _MAGIC + struct.pack("<Q", xxhash.xxh3_64_intdigest(data)) + data)
            except BaseException:
                # Whether it is there is not known: its number must not be used again, and there must be no gap.
                writer.start_new_name()
                raise
            writer.last_number += 1
            if not self._is_write_only:
                self._register_segment(segment)
        self.notify_listeners()
        return segment

    def _reserve_bytes(self, added_bytes: int) -> None:
        """StoreError if there is none: who sent it keeps it, and asks again."""
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
        """Call this whenever something was appended here, or who appends has come or gone."""
        self._listeners.append(notify)

    def notify_listeners(self) -> None:
        for told in self._listeners:
            told()

    def _write_file(self, name: str, data: bytes) -> None:
        path = self._directory / name
        fresh = path.with_name(f".{name}.{secrets.token_hex(4)}")
        try:
            with fresh.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            flush_directory(path.parent)
        finally:
            fresh.unlink(missing_ok=True)
        self._directory.upload(name)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_new_segments(self) -> None:
        """Read what others have appended."""
        self.id, self.epoch = self._read_name("id") or self.id, self._read_name("epoch")
        new = self._unread_names()
        if not new:
            return
        # A list may have a file and miss one that was there before: those are in a list that is made after it.
        upto: dict[str, int] = {}
        for writer, number in map(_parse_name, new):
            upto[writer] = max(upto.get(writer, 0), number)
        for name in self._unread_names():
            writer, number = _parse_name(name)
            if number <= upto.get(writer, 0):
                self._read_segment(name)

    def _unread_names(self) -> list[str]:
        found = self._directory.list_names(f"*{_SUFFIX}")
        return [name for name in found if name not in self._segment_names]

    def _read_segment(self, name: str) -> None:
        path = self._directory.fetch(name)
        try:
            segment = _read_segment_file(path)
        except CorruptState:
            # What was pushed in it is lost: no mark is believed any more, so every table is compared with its image.
            self.id = self._write_name("id", secrets.token_hex(6))
            path.replace(path.with_suffix(".damaged"))
            return
        if segment is not None:
            self._register_segment(segment)

    def _register_segment(self, segment: Segment) -> None:
        with self._lock:
            if segment.name not in self._segment_names:
                self._segment_names.add(segment.name)
                for kept in (
                    self._segments_by_writer,
                    *(self._segments_by_table.setdefault(table, {}) for table in segment.tables),
                ):
                    insort(kept.setdefault(segment.writer, []), segment, key=_segment_number)

    def current_mark(self) -> SpoolMark:
        """All that is here."""
        with self._lock:
            return {writer: written[-1].number for writer, written in self._segments_by_writer.items()}

    def segments_after(self, mark: SpoolMark, table: str) -> list[Segment]:
        """The files behind a mark that have rows of a table, each writer's in order."""
        with self._lock:
            written = sorted(self._segments_by_table.get(table, {}).items())
            return [one for writer, kept in written for one in kept[_count_up_to(kept, mark.get(writer, 0)) :]]

    def remove(self, mark: SpoolMark) -> None:
        """Forget the files up to a mark."""
        self._measured_at = float("-inf")
        for writer, number in mark.items():
            with self._lock:
                written = self._segments_by_writer.get(writer, [])
                gone = written[: _count_up_to(written, number)]
            for segment in gone:
                self._directory.remove(segment.name)
            with self._lock:
                self._segment_names.difference_update(segment.name for segment in gone)
                for kept in (self._segments_by_writer, *self._segments_by_table.values()):
                    if writer in kept:
                        del kept[writer][: _count_up_to(kept[writer], number)]
                        if not kept[writer]:
                            del kept[writer]

    @property
    def segment_count(self) -> int:
        return len(self._segment_names)


def common_mark(marks: list[SpoolMark]) -> SpoolMark:
    """What all of these marks have."""
    writers = set.intersection(*(set(m) for m in marks)) if marks else set()
    return {writer: min(m[writer] for m in marks) for writer in writers}


def _read_segment_file(path: Path) -> Segment | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # the batch that has it was faster
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    if data[:4] != _MAGIC or struct.unpack_from("<Q", data, 4)[0] != xxhash.xxh3_64_intdigest(data[12:]):
        raise CorruptState(f"{path} is damaged: what HBase pushed in it is lost.")
    return Segment(*_parse_name(path.name), protocol.decode_tables(data[12:]))


def _segment_number(segment: Segment) -> int:
    return segment.number


def _count_up_to(segments: Sequence[Segment], number: int) -> int:
    """How many of them are up to this number."""
    return bisect_right(segments, number, key=_segment_number)


def _parse_name(name: str) -> tuple[str, int]:
    writer, _, number = name.removesuffix(_SUFFIX).rpartition("-")
    return writer, int(number)


# What a batch had of a table's pushed changes.


@dataclass(frozen=True)
class PushMark:
    """Up to which mark of a spool's life. `complete`: that was known to be everything up to the batch's cut."""

    spool_life: str
    spool_mark: Mapping[str, int]
    is_complete: bool
    arrived_mark: Mapping[str, int] | None = field(default=None, compare=False)
    """What had come when the batch read its rows: more than the mark, if some of it was of times after the cut. It is
    not published: in the process that read them only."""
    cut: int | None = field(default=None, compare=False)
    """The cut at which it read them, likewise: of the files known by then, each row without a later time was read."""

    def to_json(self) -> list[Any]:
        return [self.spool_life, dict(self.spool_mark), self.is_complete]

    @staticmethod
    def from_json(data: list[Any]) -> PushMark:
        return PushMark(data[0], data[1], data[2])
