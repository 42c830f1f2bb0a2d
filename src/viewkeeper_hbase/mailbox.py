"""Requests to the maintainer: a row `request:NAME` of the meta table, with a cell for each part of the message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viewkeeper.store.mailbox import REQUEST, Mailbox
from viewkeeper_hbase.metadata import MetaTable, decode_record, encode_record
from viewkeeper_hbase.thrift.scan import ScanRequest

_ROW_PREFIX = b"request:"


class RowMailbox(Mailbox):
    """The mailbox of a database in HBase."""

    poll_interval = 0.5

    def __init__(self, meta_table: MetaTable) -> None:
        self._meta_table = meta_table

    def names(self) -> list[str]:
        found: list[str] = []
        for cells in self._meta_table.client.scan(
            self._meta_table.table, ScanRequest(start=_ROW_PREFIX, stop=_ROW_PREFIX + b"\xff")
        ):
            requests = cells.column(_column(REQUEST)).to_pylist()
            keys = cells.keys.to_pylist()
            found += [
                key[len(_ROW_PREFIX) :].decode() for key, value in zip(keys, requests, strict=True) if value is not None
            ]
        return found

    def read(self, name: str, part: str) -> Mapping[str, Any] | None:
        column = _column(part)
        found = self._meta_table.client.get(self._meta_table.table, _ROW_PREFIX + name.encode(), (column,))
        if not found or column not in found:
            return None
        message: Mapping[str, Any] = decode_record(found[column].value, column)
        return message

    def write(self, name: str, part: str, message: Mapping[str, Any]) -> None:
        self._meta_table.client.put(
            self._meta_table.table, _ROW_PREFIX + name.encode(), {_column(part): encode_record(message)}
        )

    def remove(self, name: str) -> None:
        self._meta_table.client.delete(self._meta_table.table, _ROW_PREFIX + name.encode())


def _column(part: str) -> bytes:
    return f"m:{part}".encode()
