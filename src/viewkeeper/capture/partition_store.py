"""Parts of tables on disk: what a load has read survives its process.

    load-<table>-<rows>-<token>.vkp     the rows, an Arrow IPC file
    load-<table>-<rows>-<token>.json    {range, position, end, columns, checksum}, written last, renamed into place

<rows> is `all`, or which selection of the table's rows it is a part of: that is no part of the table.

Tasks of a Spark job keep the parts that they have read themselves, where all see the directory.

A part is what it says, whoever reads it next: the same statement given again, or another one that needs no other
columns of the table. So there is nothing to resume but parts that are there. While there are some, the log is held from
the oldest on; after a day, or when a load that could use them is published, they are forgotten. Written without a
flush: after a crash of the machine a part is whole by its checksum, or read again.
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
"""For which parts of an unfinished load are kept."""

HOLD_NAME = "load"

_DAMAGE_ERRORS = (OSError, ValueError, KeyError, TypeError, pa.ArrowException)
"""What reading a part raises that is not whole."""


class PartitionStore:
    """The parts in a state directory. One load at a time writes them."""

    def __init__(self, store: Store, directory: str | os.PathLike[str]) -> None:
        self._store, self._directory = store, Path(directory)
        self.shared_directory = str(self._directory) if StateDirectory(directory).is_local else None
        """Where others may keep parts too; None: what they write is not here."""
        self._writer = ThreadPool(1, thread_name_prefix="viewkeeper-parts")

    def find_partitions(self, table: Table, columns: Sequence[str]) -> list[TablePartition]:
        """The parts of a table with these columns that are whole, none over another."""
        found: list[TablePartition] = []
        for path in sorted(self._directory.glob(f"load-{_file_stem(table)}-*.json")):
            try:
                record = json.loads(path.read_text())
                if not set(columns) <= set(record["columns"]):
                    continue
                part = replace(_map_partition(record, path.with_suffix(".vkp"), list(columns)), file=str(path))
            except _DAMAGE_ERRORS:
                _delete_files(path)  # damaged
                continue
            if not any(_has_overlap(part, other) for other in found):
                found.append(part)
        return found

    def save(self, table: Table, partition: TablePartition) -> TablePartition:
        """Keep a part, while the next one is read."""
        self.hold_log(partition.position)
        self._writer.submit(write_partition, self._directory, table, partition)
        return partition

    def hold_log(self, position: int) -> None:
        """Parts from a position on will be kept. A store that cannot hold its log says later whether it still reaches
        back to it."""
        if not any(self._directory.glob("load-*.json")):
            with suppress(Unsupported, SnapshotGone):
                self._store.hold(HOLD_NAME, position, time.time() + RETENTION_SECONDS)

    def close(self) -> None:
        """Wait until what was read is kept, for whoever goes on."""
        self._writer.shutdown(wait=True)

    def delete_partitions(self, tables: frozenset[int] | None = None) -> None:
        """Forget the parts of these tables, or of all; without tables given, only those that are too old."""
        self._writer.shutdown(wait=True, cancel_futures=True)
        for path in list(self._directory.glob("load-*.*")):
            if (tables is not None and _table_id(path) in tables) or _is_expired(path):
                _delete_files(path)
        if not any(self._directory.glob("load-*.json")):
            with suppress(Unsupported):
                if any(hold.name == HOLD_NAME for hold in self._store.holds()):
                    self._store.release_hold(HOLD_NAME)


def write_partition(directory: str | os.PathLike[str], table: Table, partition: TablePartition) -> None:
    """Keep a part in a directory; without space it is not kept."""
    name = Path(directory) / f"load-{_file_stem(table)}-{secrets.token_hex(4)}"
    try:
        descriptor = os.open(name.with_suffix(".vkp"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            summed = ChecksummedWriter(file)
            with pa.ipc.new_file(summed, partition.rows.schema) as writer:
                writer.write_table(partition.rows)
        record = {
            "start": None if partition.start is None else partition.start.hex(),
            "stop": None if partition.stop is None else partition.stop.hex(),
            "position": partition.position,
            "end": partition.last_position,
            "columns": partition.rows.column_names,
            "checksum": summed.checksum.intdigest(),
            "time": time.time(),
        }
        half = name.with_suffix(".new")
        half.write_text(json.dumps(record))
        half.chmod(0o600)
        half.rename(name.with_suffix(".json"))
    except OSError:  # no space to keep it: the load goes on without
        _delete_files(name.with_suffix(".json"))
        return
    failpoints.hit("load.part.after")


def read_partition(file: str, columns: Sequence[str]) -> TablePartition | None:
    """The part that is kept there; None if it is not any more, or damaged."""
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
    except FileNotFoundError:  # it went with another file of its part
        return False


def _has_overlap(left: TablePartition, right: TablePartition) -> bool:
    return not (_is_before(left, right) or _is_before(right, left))


def _is_before(left: TablePartition, right: TablePartition) -> bool:
    """Whether one ends before the other begins."""
    return left.stop is not None and left.stop <= (right.start or b"")


def _file_stem(table: Table) -> str:
    """Without a dot: what follows one is the file's kind."""
    where = pushed_comparisons(table)
    return f"{table.id}-{xxhash.xxh3_64_hexdigest(repr(where).encode()) if where else 'all'}"


def _table_id(path: Path) -> int | None:
    found = re.match(r"load-(\d+)", path.name)
    return None if found is None else int(found[1])
