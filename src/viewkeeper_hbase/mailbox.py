"""Requests to the process that maintains: a row `request:NAME` of the meta table, a cell for each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viewkeeper.store.mailbox import REQUEST, Mailbox
from viewkeeper_hbase.metadata import MetaTable, seal, unseal
from viewkeeper_hbase.thrift.scan import Scan

_ROW = b"request:"


class RowMailbox(Mailbox):
    """Of a database in HBase."""

    pause = 0.5

    def __init__(self, records: MetaTable) -> None:
        self._records = records

    def names(self) -> list[str]:
        found: list[str] = []
        for cells in self._records.client.scan(self._records.table, Scan(start=_ROW, stop=_ROW + b"\xff")):
            written = cells.column(_column(REQUEST)).to_pylist()
            keys = cells.keys.to_pylist()
            found += [key[len(_ROW) :].decode() for key, value in zip(keys, written, strict=True) if value is not None]
        return found

    def read(self, name: str, part: str) -> Mapping[str, Any] | None:
        column = _column(part)
        found = self._records.client.get(self._records.table, _ROW + name.encode(), (column,))
        if not found or column not in found:
            return None
        message: Mapping[str, Any] = unseal(found[column].value, column)
        return message

    def write(self, name: str, part: str, message: Mapping[str, Any]) -> None:
        self._records.client.put(self._records.table, _ROW + name.encode(), {_column(part): seal(message)})

    def remove(self, name: str) -> None:
        self._records.client.delete(self._records.table, _ROW + name.encode())


def _column(part: str) -> bytes:
    return f"m:{part}".encode()
