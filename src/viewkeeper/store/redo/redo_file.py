"""The redo file of a batch: all writes of its commit, as one durable file.

    VKREDO1\\n | u32 length, JSON head | for each table: an Arrow stream of puts, an Arrow stream of deletes

    head     {published, catalog, tables: [{name, family, fresh, splits, puts: bytes, deletes: bytes}]}
    puts     `key` and one binary column for each cell; null: no cell
    deletes  `key`

The file holds cells and keys, not rows: a process that replays it needs neither the catalog nor the row encoding, and
writes the same bytes. `catalog` has the catalog's changes, if the batch changes it
(`catalog_records.CatalogDifference`), with the new version; no other catalog change can happen between the claim and
the publication.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa

from viewkeeper.errors import CorruptState
from viewkeeper.resources.directory import StateDirectory, flush_directory
from viewkeeper.resources.unlisted_files import garbage_collector

_MAGIC = b"VKREDO1\n"
_SUFFIX = ".redo"
_BATCH_ROWS = 65_536
"""Number of rows that are written, and later replayed, together."""


@dataclass(frozen=True)
class TableRedo:
    """The writes of a batch to one table. `is_new`: the table is new, so nothing has to be deleted, and `family` and
    `splits` say how to create it."""

    name: str
    family: Mapping[str, Any]
    is_new: bool
    splits: tuple[bytes, ...]
    puts: pa.Table
    deletes: pa.Table


@dataclass(frozen=True)
class Redo:
    """All writes of a batch."""

    batch_record: Mapping[str, Any]
    """The batch record as the store keeps it, with the batch's `number`."""
    catalog_changes: Mapping[str, Any] | None
    tables: tuple[TableRedo, ...]

    @property
    def number(self) -> int:
        return int(self.batch_record["number"])


def write_redo(directory: StateDirectory, redo: Redo) -> tuple[str, str]:
    """Write the file, flush it, and return its name and digest."""
    directory.create()
    tables = []
    for table in redo.tables:
        puts, deletes = _encoded_length(table.puts), _encoded_length(table.deletes)
        head = {"name": table.name, "family": dict(table.family), "fresh": table.is_new}
        splits = [key.hex() for key in table.splits]
        tables.append({**head, "splits": splits, "puts": puts, "deletes": deletes})
    text = json.dumps(
        {"published": dict(redo.batch_record), "catalog": redo.catalog_changes, "tables": tables}
    ).encode()
    name = f"b{redo.number}-{secrets.token_hex(4)}{_SUFFIX}"
    with (directory / name).open("xb") as file:
        sink = _DigestWriter(file)
        for piece in (_MAGIC, struct.pack(">I", len(text)), text):
            sink.write(piece)
        for table in redo.tables:
            _write_stream(sink, table.puts)
            _write_stream(sink, table.deletes)
        file.flush()
        os.fsync(file.fileno())
    flush_directory(directory)
    directory.upload(name)
    garbage_collector(directory, f"b*{_SUFFIX}").track([name])
    return name, sink.digest.hexdigest()


def read_redo(directory: StateDirectory, name: str, digest: str) -> Redo:
    """Read the redo file of a claim. Raise CorruptState if it is missing or not the one that was claimed."""
    path = directory.fetch(name)
    try:
        with pa.memory_map(str(path)) as file:  # the rows stay mapped until they are written
            data = file.read_buffer()
    except OSError as error:
        raise CorruptState(
            f"The redo {name} in {directory} of a batch that was begun cannot be read: {error.strerror}.",
            hint="Maintain the database where its state directory is (option state=), or copy the directory here.",
        ) from error
    view = memoryview(data)
    if hashlib.sha256(view).hexdigest() != digest or view[: len(_MAGIC)] != _MAGIC:
        raise CorruptState(f"The redo {path} is damaged: its digest is wrong.", hint="Restore the file.")
    offset = len(_MAGIC) + 4
    length = struct.unpack(">I", view[offset - 4 : offset])[0]
    head = json.loads(bytes(view[offset : offset + length]))
    offset += length
    tables = []
    for entry in head["tables"]:
        puts = pa.ipc.open_stream(data.slice(offset, entry["puts"])).read_all()
        offset += entry["puts"]
        deletes = pa.ipc.open_stream(data.slice(offset, entry["deletes"])).read_all()
        offset += entry["deletes"]
        splits = tuple(bytes.fromhex(key) for key in entry["splits"])
        tables.append(TableRedo(entry["name"], entry["family"], entry["fresh"], splits, puts, deletes))
    return Redo(head["published"], head["catalog"], tuple(tables))


def collect_redo_files(directory: StateDirectory, below: int) -> None:
    """Delete the redo files of batches before this one."""

    def is_garbage(name: str) -> bool:
        number = name[1:].split("-")[0]
        return number.isdigit() and int(number) < below

    garbage_collector(directory, f"b*{_SUFFIX}").collect(is_garbage)


class _DigestWriter:
    """A file that computes a digest of the bytes written to it."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, part: Any) -> int:
        self.digest.update(part)
        self._file.write(part)
        return len(part)

    def flush(self) -> None:
        pass


def _encoded_length(table: pa.Table) -> int:
    sink = pa.MockOutputStream()
    _write_stream(sink, table)
    return int(sink.size())


def _write_stream(sink: Any, table: pa.Table) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=_BATCH_ROWS)
