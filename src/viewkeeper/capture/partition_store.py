"""Partition store: table partitions on disk, so that the rows that a load has read survive its process.

    load-<table>-<rows>-<token>.vkp     the rows, an Arrow IPC file
    load-<table>-<rows>-<token>.json    {range, position, end, columns, checksum}, written last, renamed into place

<rows> is `all`, or a digest of the pushed-down predicate: a filtered partition is no partition of the whole table.

Tasks of a Spark job save the partitions that they read, if all of them can access the directory.

A partition describes itself completely, so any later load can use it: the same statement when it is repeated, or
another statement that needs no other columns of the table. Resuming a load needs no further state. While partitions
exist, the log is retained from the oldest one on; they are deleted after a day, or when a load that could use them is
published. Files are not flushed: after a crash of the machine the checksum tells whether a partition is complete; if
not, its rows are read again.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from viewkeeper import failpoints
from viewkeeper.capture.partitions import TablePartition
from viewkeeper.errors import SnapshotGone, Unsupported
from viewkeeper.model.filtered_table import pushed_comparisons
from viewkeeper.model.schema import Table
from viewkeeper.model.threads import ThreadPool
from viewkeeper.resources.checksum import ChecksummedWriter
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.contract.store import Store

RETENTION_SECONDS = 86_400.0
"""Seconds for which partitions of an unfinished load are kept."""

HOLD_NAME = "load"

_DAMAGE_ERRORS = (OSError, ValueError, KeyError, TypeError, pa.ArrowException)
"""Errors raised when an incomplete partition is read."""


class PartitionStore:
    """The partitions in a state directory. Only one load at a time writes them."""

    def __init__(self, store: Store, directory: str | os.PathLike[str]) -> None:
        self._store, self._directory = store, Path(directory)
        self.shared_directory = str(self._directory) if StateDirectory(directory).is_local else None
        """Directory in which other processes may save partitions; None if this process cannot read what they write."""
        self._writer = ThreadPool(1, thread_name_prefix="viewkeeper-parts")

    def find_partitions(self, table: Table, columns: Sequence[str]) -> list[TablePartition]:
        """Return the complete, non-overlapping partitions of a table that have these columns."""
        found: list[TablePartition] = []
        for path in sorted(self._directory.glob(f"load-{_file_stem(table)}-*.json")):
            try:
                record = json.loads(path.read_text())
                if not set(columns) <= set(record["columns"]):
                    continue
                partition = replace(_map_partition(record, path.with_suffix(".vkp"), list(columns)), file=str(path))
            except _DAMAGE_ERRORS:
                _delete_files(path)
                continue
            if not any(_has_overlap(partition, earlier) for earlier in found):
                found.append(partition)
        return found

    def save(self, table: Table, partition: TablePartition) -> TablePartition:
        """Save a partition in the background, while the next one is read."""
        self.hold_log(partition.position)
        self._writer.submit(write_partition, self._directory, table, partition)
        return partition

    def hold_log(self, position: int) -> None:
        """Retain the log from the position of a partition that will be saved. If the store cannot hold its log, the
        later read reports whether the log still reaches back."""
        if not any(self._directory.glob("load-*.json")):
            with suppress(Unsupported, SnapshotGone):
                self._store.hold(HOLD_NAME, position, time.time() + RETENTION_SECONDS)

    def close(self) -> None:
        """Wait until all partitions are saved, so that another process can use them."""
        self._writer.shutdown(wait=True)

    def delete_partitions(self, tables: frozenset[int] | None = None) -> None:
        """Delete the partitions of these tables, and all that have expired. With None, delete only those that have
        expired."""
        self._writer.shutdown(wait=True, cancel_futures=True)
        for path in list(self._directory.glob("load-*.*")):
            if (tables is not None and _table_id(path) in tables) or _is_expired(path):
                _delete_files(path)
        if not any(self._directory.glob("load-*.json")):
            with suppress(Unsupported):
                if any(hold.name == HOLD_NAME for hold in self._store.holds()):
                    self._store.release_hold(HOLD_NAME)


def write_partition(directory: str | os.PathLike[str], table: Table, partition: TablePartition) -> None:
    """Write a partition to a directory; if there is no space, it is not saved."""
    name = Path(directory) / f"load-{_file_stem(table)}-{secrets.token_hex(4)}"
    try:
        descriptor = os.open(name.with_suffix(".vkp"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            sink = ChecksummedWriter(file)
            with pa.ipc.new_file(sink, partition.rows.schema) as writer:
                writer.write_table(partition.rows)
        record = {
            "start": None if partition.start is None else partition.start.hex(),
            "stop": None if partition.stop is None else partition.stop.hex(),
            "position": partition.position,
            "end": partition.last_position,
            "columns": partition.rows.column_names,
            "checksum": sink.checksum.intdigest(),
            "time": time.time(),
        }
        unfinished = name.with_suffix(".new")
        unfinished.write_text(json.dumps(record))
        unfinished.chmod(0o600)
        unfinished.rename(name.with_suffix(".json"))
    except OSError:  # without space the load continues unsaved
        _delete_files(name.with_suffix(".json"))
        return
    failpoints.hit("load.part.after")


def read_partition(file: str, columns: Sequence[str]) -> TablePartition | None:
    """Return a saved partition; None if it has been deleted or is damaged."""
    try:
        return _map_partition(json.loads(Path(file).read_text()), Path(file).with_suffix(".vkp"), list(columns))
    except _DAMAGE_ERRORS:
        return None


def _map_partition(record: Mapping[str, Any], path: Path, columns: list[str]) -> TablePartition:
    with pa.memory_map(str(path), "r") as file:
        buffer = file.read_buffer()
    if xxhash.xxh3_64_intdigest(buffer) != record["checksum"]:
        raise ValueError("the checksum is wrong")
    start, stop = (None if record[k] is None else bytes.fromhex(record[k]) for k in ("start", "stop"))
    rows = pa.ipc.open_file(buffer).read_all().select(columns)
    return TablePartition(start, stop, int(record["position"]), rows, int(record["end"]))


def _delete_files(path: Path) -> None:
    path.unlink(missing_ok=True)
    for suffix in (".json", ".vkp", ".new"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def _is_expired(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - RETENTION_SECONDS
    except FileNotFoundError:  # another process deleted the partition
        return False


def _has_overlap(left: TablePartition, right: TablePartition) -> bool:
    return not (_is_before(left, right) or _is_before(right, left))


def _is_before(left: TablePartition, right: TablePartition) -> bool:
    """Return whether `left` ends before `right` begins."""
    return left.stop is not None and left.stop <= (right.start or b"")


def _file_stem(table: Table) -> str:
    """Return the first part of a file name. It has no dot, because the text after a dot is the file type."""
    where = pushed_comparisons(table)
    return f"{table.id}-{xxhash.xxh3_64_hexdigest(repr(where).encode()) if where else 'all'}"


def _table_id(path: Path) -> int | None:
    found = re.match(r"load-(\d+)", path.name)
    return None if found is None else int(found[1])
