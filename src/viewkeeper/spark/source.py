"""The data source `viewkeeper`: its options, and the schema that follows from them.

    option       for                                 meaning
    db           all                                 the database's URL
    table        all                                 a table or a view; writes need a table
    columns      read, readStream                    names separated by commas; only these are read and decoded
    partitions   read                                key ranges read in parallel; default: 2 for each core
    at           read                                a log position or token: the state at that position
    changes      readStream                          "true": the schema has the weight `_w` (+1 inserted, -1 deleted)
    from         readStream                          snapshot (default: all rows first), now, or a position or token
    hold         readStream                          a name under which the log is held for this query without expiry
    stale        read, readStream                    "true": the old rows of a suspended view, otherwise an error
    operation    write, writeStream                  upsert (default) or delete; a column `_w` decides row by row

PySpark's Python sources have no column pruning of their own (4.3: `PythonScanBuilder` takes filters and no columns):
`columns`, or a schema passed to the reader, replaces it. Options with other names are Spark's; a name that is similar
to one of these is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from viewkeeper.errors import BadValue, ReadOnly, UnknownName
from viewkeeper.model import types
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column, Table
from viewkeeper.store.contract.lazy_reads import check_has_changes
from viewkeeper.store.registry import PATH_SCHEMES, open_store

if TYPE_CHECKING:
    from viewkeeper.spark.batch_reader import RowReader
    from viewkeeper.spark.stream_reader import ChangeReader
    from viewkeeper.spark.writer import StreamWriter, TableWriter


OPTIONS = ("db", "table", "columns", "partitions", "at", "changes", "from", "hold", "stale", "operation")


class ViewkeeperSource(DataSource):  # type: ignore[misc]
    """The source, which Spark instantiates in its own processes with the user's options."""

    directory: str | None = None
    """The directory that relative paths start from."""

    @classmethod
    def name(cls) -> str:
        return "viewkeeper"

    def schema(self) -> str:
        table, _ = self._find_table()
        if self._reads_changes:
            check_has_changes(table)
        columns = [
            *selected_columns(table, self.options.get("columns")),
            *([Column(table.weight_column, types.BIGINT)] if self._reads_changes else []),
        ]
        # A bare `timestamp` would depend on the reader's session.
        names = {types.TIMESTAMP: "timestamp_ltz"}
        return ", ".join(f"{backticked(c.name)} {names.get(c.type, c.type)}" for c in columns)

    def reader(self, schema: Any) -> RowReader:
        from viewkeeper.spark.batch_reader import RowReader

        if self._reads_changes:
            raise BadValue("Changes are read with readStream.", hint="Leave option changes out of spark.read.")
        table, url = self._find_table()
        return RowReader(url, table, _requested_columns(table, schema), schema, self.options)

    def streamReader(self, schema: Any) -> ChangeReader:
        from viewkeeper.spark.stream_reader import ChangeReader

        table, url = self._find_table()
        if table.weight_column not in schema.fieldNames():
            raise BadValue(
                f"A stream of changes has the column {table.weight_column}: rows that come and rows that go.",
                hint='Add .option("changes", "true").',
            )
        return ChangeReader(url, table, _requested_columns(table, schema), schema, self.options)

    def writer(self, schema: Any, overwrite: bool) -> TableWriter:
        from viewkeeper.spark.writer import TableWriter

        return TableWriter(*self._check_target(schema, overwrite), self.options)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        from viewkeeper.spark.writer import StreamWriter

        return StreamWriter(*self._check_target(schema, overwrite), self.options)

    @property
    def _reads_changes(self) -> bool:
        return str(self.options.get("changes", "false")).lower() == "true"

    def _find_table(self) -> tuple[Table, str]:
        """The table, and the database's URL in a form that holds in every process."""
        for option in self.options:  # ignoring a misspelt `operation` would upsert rows that were to be deleted
            near = get_close_matches(option.lower(), OPTIONS, 1, 0.8)
            if near and option.lower() not in OPTIONS:
                raise BadValue(f"There is no option {option!r}.", hint=f"Is it {near[0]!r}?")
        for name in ("db", "table"):
            if not self.options.get(name):
                raise BadValue(f"The option {name} is missing.", hint=f'Add .option("{name}", …).')
        store = open_store(self._url(), "r")
        try:
            return store.catalog().table(self.options["table"]), store.url
        finally:
            store.close()

    def _url(self) -> str:
        scheme, colon, path = str(self.options["db"]).partition(":")
        if scheme not in PATH_SCHEMES or self.directory is None:
            return f"{scheme}{colon}{path}"
        return f"{scheme}:{Path(self.directory) / Path(path).expanduser()}"

    def _check_target(self, schema: Any, overwrite: bool) -> tuple[str, Table]:
        table, url = self._find_table()
        if table.is_view:
            raise ReadOnly(f"{table.name} is a materialized view.", hint="Write to its base tables.")
        if overwrite:
            raise BadValue("Rows are upserted by key; a table is not overwritten.", hint='Use .mode("append").')
        names = [name for name in schema.fieldNames() if name != table.weight_column]
        column_names = {c.name.lower() for c in table.columns}
        if unknown := [name for name in names if name.lower() not in column_names]:
            raise UnknownName(
                f"{table.name} has no column {unknown[0]!r}.",
                hint=f"It has: {', '.join(c.name for c in table.columns)}.",
            )
        named = {name.lower() for name in names}
        if missing := [c.name for c in table.key_columns if c.name.lower() not in named]:
            raise BadValue(f"The rows have no column {missing[0]}, which is part of the key of {table.name}.")
        return url, table


def selected_columns(table: Table, columns: str | None) -> list[Column]:
    """The columns that the option `columns` names, or all."""
    if not columns:
        return list(table.columns)
    return _columns_by_name(table, [_unquote(name) for name in _NAME_IN_LIST.findall(columns)])


_NAME_IN_LIST = re.compile(r"\s*(`(?:[^`]|``)*`|[^,]+)\s*(?:,|$)")
"""One name of a list: in backticks, or anything up to the comma."""


def _unquote(name: str) -> str:
    name = name.strip()
    is_quoted = len(name) > 1 and name[0] == name[-1] == "`"
    return name[1:-1].replace("``", "`") if is_quoted else name


def _columns_by_name(table: Table, names: Sequence[str]) -> list[Column]:
    visible = {c.name.lower(): c for c in table.columns}
    if unknown := [name for name in names if name.lower() not in visible]:
        raise UnknownName(
            f"{table.name} has no column {unknown[0]!r}.", hint=f"It has: {', '.join(c.name for c in table.columns)}."
        )
    return [visible[name.lower()] for name in names]


def _requested_columns(table: Table, schema: Any) -> list[str]:
    """The table's columns that a schema names, the user's own schema or the source's."""
    return [c.name for c in _columns_by_name(table, [n for n in schema.fieldNames() if n != table.weight_column])]
