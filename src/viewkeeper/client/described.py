"""A table or view of a server, used as one of an open database is."""

from __future__ import annotations

from typing import Any

from viewkeeper.client.wire import Described
from viewkeeper.model.schema import Table
from viewkeeper.read.handle import Handle


class Elsewhere(Handle):
    """Its rows are asked for when they are wanted; its shape is that of the moment at which it was named."""

    def __init__(self, client: Any, told: Described) -> None:
        self._db, self._told = client, told
        self.name = told.table.name

    @property
    def definition(self) -> str:
        """The statement that makes it."""
        return self._told.sql

    def _found(self) -> Table:
        return self._told.table

    def _kind(self) -> str:
        return self._told.kind
