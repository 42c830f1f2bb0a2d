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
from viewkeeper.capture.partitions import Part
from viewkeeper.errors import SnapshotGone, Unsupported
from viewkeeper.model.filtered_table import wanted
from viewkeeper.model.schema import Table
from viewkeeper.model.threads import Threads
from viewkeeper.resources.checksum import Checked
from viewkeeper.resources.directory import Directory
from viewkeeper.store.contract.store import Store

SECONDS = 86_400.0
"""For which parts of an unfinished load are kept."""

HOLD = "load"

_DAMAGED = (OSError, ValueError, KeyError, TypeError, pa.ArrowException)
"""What reading a part raises that is not whole."""


class Kept:
    """The parts in a state directory. One load at a time writes them."""

    def __init__(self, store: Store, directory: str | os.PathLike[str]) -> None:
        self._store, self._directory = store, Path(directory)
        self.shared = str(self._directory) if Directory(directory).is_local else None
        """Where others may keep parts too; None: what they write is not here."""
        self._saving = Threads(1, thread_name_prefix="viewkeeper-parts")

    def find(self, table: Table, columns: Sequence[str]) -> list[Part]:
        """The parts of a table with these columns that are whole, none over another."""
        found: list[Part] = []
        for path in sorted(self._directory.glob(f"load-{_named(table)}-*.json")):
            try:
                record = json.loads(path.read_text())
                if not set(columns) <= set(record["columns"]):
                    continue
                part = replace(_part(record, path.with_suffix(".vkp"), list(columns)), file=str(path))
            except _DAMAGED:
                _forget(path)  # damaged
                continue
            if not any(_overlap(part, other) for other in found):
                found.append(part)
        return found

    def save(self, table: Table, part: Part) -> Part:
        """Keep a part, while the next one is read."""
        self.begin(part.position)
        self._saving.submit(save_part, self._directory, table, part)
        return part

    def begin(self, position: int) -> None:
        """Parts from a position on will be kept. A store that cannot hold its log says later whether it still reaches
        back to it."""
        if not any(self._directory.glob("load-*.json")):
            with suppress(Unsupported, SnapshotGone):
                self._store.hold(HOLD, position, time.time() + SECONDS)

    def close(self) -> None:
        """Wait until what was read is kept, for whoever goes on."""
        self._saving.shutdown(wait=True)

    def forget(self, tables: frozenset[int] | None = None) -> None:
        """Forget the parts of these tables, or of all; without tables given, only those that are too old."""
        self._saving.shutdown(wait=True, cancel_futures=True)
        for path in list(self._directory.glob("load-*.*")):
            if (tables is not None and _table(path) in tables) or _is_old(path):
                _forget(path)
        if not any(self._directory.glob("load-*.json")):
            with suppress(Unsupported):
                if any(hold.name == HOLD for hold in self._store.holds()):
                    self._store.release_hold(HOLD)


def save_part(directory: str | os.PathLike[str], table: Table, part: Part) -> None:
    """Keep a part in a directory; without space it is not kept."""
    name = Path(directory) / f"load-{_named(table)}-{secrets.token_hex(4)}"
    try:
        descriptor = os.open(name.with_suffix(".vkp"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            summed = Checked(file)
            with pa.ipc.new_file(summed, part.rows.schema) as writer:
                writer.write_table(part.rows)
        record = {
            "start": None if part.start is None else part.start.hex(),
            "stop": None if part.stop is None else part.stop.hex(),
            "position": part.position,
            "end": part.last,
            "columns": part.rows.column_names,
            "checksum": summed.checksum.intdigest(),
            "time": time.time(),
        }
        half = name.with_suffix(".new")
        half.write_text(json.dumps(record))
        half.chmod(0o600)
        half.rename(name.with_suffix(".json"))
    except OSError:  # no space to keep it: the load goes on without
        _forget(name.with_suffix(".json"))
        return
    failpoints.point("load.part.after")


def part_in(file: str, columns: Sequence[str]) -> Part | None:
    """The part that is kept there; None if it is not any more, or damaged."""
    try:
        return _part(json.loads(Path(file).read_text()), Path(file).with_suffix(".vkp"), list(columns))
    except _DAMAGED:
        return None


def _part(record: Mapping[str, Any], path: Path, columns: list[str]) -> Part:
    with pa.memory_map(str(path), "r") as file:
        buffer = file.read_buffer()
    if xxhash.xxh3_64_intdigest(buffer) != record["checksum"]:
        raise ValueError("the checksum is wrong")
    start, stop = (None if record[k] is None else bytes.fromhex(record[k]) for k in ("start", "stop"))
    rows = pa.ipc.open_file(buffer).read_all().select(columns)
    return Part(start, stop, int(record["position"]), rows, int(record["end"]))


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
    for suffix in (".json", ".vkp", ".new"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - SECONDS
    except FileNotFoundError:  # it went with another file of its part
        return False


def _overlap(one: Part, other: Part) -> bool:
    return not (_ends(one, other) or _ends(other, one))


def _ends(one: Part, other: Part) -> bool:
    """Whether one ends before the other begins."""
    return one.stop is not None and one.stop <= (other.start or b"")


def _named(table: Table) -> str:
    """Without a dot: what follows one is the file's kind."""
    where = wanted(table)
    return f"{table.id}-{xxhash.xxh3_64_hexdigest(repr(where).encode()) if where else 'all'}"


def _table(path: Path) -> int | None:
    found = re.match(r"load-(\d+)", path.name)
    return None if found is None else int(found[1])
