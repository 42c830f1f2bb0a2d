"""The redo of a batch: everything that its commit will write, as one durable file.

    VKREDO1\\n | u32 length, JSON head | for each table: an Arrow stream of puts, an Arrow stream of deletes

    head     {published, catalog, tables: [{name, fresh, splits, puts: bytes, deletes: bytes}]}
    puts     `key` and one binary column for each cell; null: no cell
    deletes  `key`

Cells and keys, not rows: whoever replays a redo needs neither catalog nor codec, and writes the same bytes. `catalog`
is the whole new one if the batch changes it; no other change of it gets between the claim and the publication.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from viewkeeper.errors import CorruptState
from viewkeeper.store.base import Batch
from viewkeeper.store.files import Directory
from viewkeeper.store.hbase.records import Published

_MAGIC = b"VKREDO1\n"
_SUFFIX = ".redo"


@dataclass(frozen=True)
class TableRedo:
    """What a batch writes to one HBase table. `fresh`: the table is new, so there is nothing to take away."""

    name: str
    family: Mapping[str, Any]
    fresh: bool
    splits: tuple[bytes, ...]
    puts: pa.Table
    deletes: pa.Table


@dataclass(frozen=True)
class Redo:
    """A whole batch."""

    published: Published
    catalog: Mapping[str, Any] | None
    tables: tuple[TableRedo, ...]

    @property
    def batch(self) -> Batch:
        return self.published.batch


def write(directory: Directory, redo: Redo) -> tuple[str, str]:
    """The file's name and digest, once it is on disk."""
    directory.make()
    streams: list[bytes] = []
    tables = []
    for table in redo.tables:
        puts, deletes = _stream(table.puts), _stream(table.deletes)
        streams += [puts, deletes]
        head = {"name": table.name, "family": dict(table.family), "fresh": table.fresh}
        splits = [key.hex() for key in table.splits]
        tables.append({**head, "splits": splits, "puts": len(puts), "deletes": len(deletes)})
    text = json.dumps({"published": redo.published.to_json(), "catalog": redo.catalog, "tables": tables}).encode()
    digest = hashlib.sha256()
    name = f"b{redo.batch.number}-{secrets.token_hex(4)}{_SUFFIX}"
    with (directory / name).open("xb") as file:
        for part in (_MAGIC, struct.pack(">I", len(text)), text, *streams):
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    _sync(directory)
    directory.save(name)
    return name, digest.hexdigest()


def read(directory: Directory, name: str, digest: str) -> Redo:
    """The redo of a claim. CorruptState if it is not there or not the one that was claimed."""
    path = directory.fetch(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptState(
            f"The redo {name} in {directory} of a batch that was begun cannot be read: {error.strerror}.",
            hint="Maintain the database where its state directory is (option state=), or copy the directory here.",
        ) from error
    if hashlib.sha256(data).hexdigest() != digest or not data.startswith(_MAGIC):
        raise CorruptState(f"The redo {path} is damaged: its digest is wrong.", hint="Restore the file.")
    at = len(_MAGIC) + 4
    length = struct.unpack(">I", data[at - 4 : at])[0]
    head = json.loads(data[at : at + length])
    at += length
    tables = []
    for one in head["tables"]:
        puts = pa.ipc.open_stream(pa.py_buffer(data)[at : at + one["puts"]]).read_all()
        at += one["puts"]
        deletes = pa.ipc.open_stream(pa.py_buffer(data)[at : at + one["deletes"]]).read_all()
        at += one["deletes"]
        splits = tuple(bytes.fromhex(key) for key in one["splits"])
        tables.append(TableRedo(one["name"], one["family"], one["fresh"], splits, puts, deletes))
    return Redo(Published.from_json(head["published"]), head["catalog"], tuple(tables))


def collect(directory: Directory, below: int) -> None:
    """Delete the redos of batches before this one."""
    for name in directory.names(f"b*{_SUFFIX}"):
        number = name[1:].split("-")[0]
        if number.isdigit() and int(number) < below:
            directory.remove(name)


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _sync(directory: Directory) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
