"""`df.write` and `writeStream`: upserts and deletes into a base table.

    1  each task attempt stages its rows in a file with a random name, and reports the file
    2  the driver reads the reported files, takes the last row of each key, and writes them in one call
    3  a stream's call is noted under the query's id and batch id, in the same transaction: when Spark repeats a batch,
       the note exists and nothing is written
    4  the staged files are deleted; those of attempts that never reported, a day later

A row is an upsert; with `operation` delete, only its key counts. With a column `_w` (as `readStream` returns it) an
inserted row is an upsert and a row that was only deleted is a delete. Rows of one key keep their order within a
partition.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from viewkeeper.errors import BadValue
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.intake.rows import keys_table, last_by_key, rows_table
from viewkeeper.model.schema import Table
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.registry import open_store

ORPHAN_SECONDS = 86_400.0
"""Seconds after which a staged file counts as orphaned."""
QUERY_ID_PROPERTY = "sql.streaming.queryId"


@dataclass
class StagedFile(WriterCommitMessage):  # type: ignore[misc]
    """A task's report: its file (None without rows), its partition, and the streaming query."""

    file: str | None
    partition: int
    query: str | None


class TableWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """`df.write`."""

    def __init__(self, url: str, table: Table, options: Mapping[str, str]) -> None:
        self.url, self.table = url, table
        self.deletes = _operation_option(options) == "delete"
        store = open_store(url, "r")
        self.directory = str(StateDirectory(store.state_path).subdirectory("staged"))
        store.close()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedFile:
        return stage_rows(self.directory, iterator)

    def commit(self, messages: list[StagedFile | None]) -> None:
        files = _reported_files(messages)
        puts, deletes = resolve_writes(self.table, self.directory, files, self.deletes)
        store = open_store(self.url, "w")
        try:
            store.write(self.table, puts, deletes)
        finally:
            store.close()
        _remove_files(self.directory, files)

    def abort(self, messages: list[StagedFile | None]) -> None:
        _remove_files(self.directory, _reported_files(messages))


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """`df.writeStream`."""

    def __init__(self, url: str, table: Table, options: Mapping[str, str]) -> None:
        self.batch = TableWriter(url, table, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedFile:
        return self.batch.write(iterator)

    def commit(self, messages: list[StagedFile | None], batchId: int) -> None:
        files = _reported_files(messages)
        queries = {m.query for m in messages if m is not None and m.query}
        if len(queries) != 1:
            raise BadValue("The tasks of the batch do not know which query they work for.", hint="")
        puts, deletes = resolve_writes(self.batch.table, self.batch.directory, files, self.batch.deletes)
        store = open_store(self.batch.url, "w")
        try:
            store.write_once(self.batch.table, puts, deletes, f"{queries.pop()}:{self.batch.table.id}", batchId)
        finally:
            store.close()
        _remove_files(self.batch.directory, files)

    def abort(self, messages: list[StagedFile | None], batchId: int) -> None:
        _remove_files(self.batch.directory, _reported_files(messages))


def stage_rows(directory: str, batches: Iterator[pa.RecordBatch]) -> StagedFile:
    """Write a task's rows to a file of its own."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    query = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
    first = next(batches, None)
    if first is None:
        return StagedFile(None, partition, query)
    state_directory = StateDirectory(directory)
    state_directory.create()
    name = f"{partition}-{secrets.token_hex(8)}.arrow"
    with pa.OSFile(str(state_directory / name), "wb") as sink, pa.ipc.new_stream(sink, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    state_directory.upload(name)
    return StagedFile(name, partition, query)


def resolve_writes(table: Table, directory: str, files: Sequence[str], delete: bool) -> tuple[pa.Table, pa.Table]:
    """The rows to put and the keys to delete; no key is in both, or twice."""
    keys = [c.name for c in table.key_columns]
    empty = table.arrow.empty_table()
    if not files:
        return empty, empty.select(keys)
    state_directory = StateDirectory(directory)
    opened = [pa.ipc.open_stream(pa.OSFile(str(state_directory.fetch(file)))) for file in files]
    rows = pa.concat_tables([stream.read_all() for stream in opened]).combine_chunks()
    inserted, deleted = rows, rows.slice(0, 0)
    if delete:
        inserted, deleted = deleted, rows
    elif table.weight_column in rows.column_names:
        inserted = rows.filter(pc.greater(rows[table.weight_column], 0))
        deleted = rows.filter(pc.less(rows[table.weight_column], 0))
    columns = [n for n in rows.column_names if n != table.weight_column]
    puts = last_by_key(table, rows_table(table, inserted.select(columns)))
    key_columns = [n for n in columns if n.lower() in {k.lower() for k in keys}]
    deletes = last_by_key(table, keys_table(table, deleted.select(key_columns)))
    if puts.num_rows and deletes.num_rows:
        deleted_keys, put_keys = encode_keys(table, deletes), encode_keys(table, puts)
        deletes = deletes.filter(pc.invert(pc.is_in(deleted_keys, value_set=put_keys)))
    return puts, deletes


def _operation_option(options: Mapping[str, str]) -> str:
    operation = options.get("operation", "upsert")
    if operation not in ("upsert", "delete"):
        raise BadValue(f"There is no operation {operation!r}.", hint="Operations: upsert, delete.")
    return operation


def _reported_files(messages: Sequence[StagedFile | None]) -> list[str]:
    """The reported files, in the order of the partitions."""
    reported = [m for m in messages if m is not None and m.file is not None]
    return [str(m.file) for m in sorted(reported, key=lambda m: m.partition)]


def _remove_files(directory: str, files: Sequence[str]) -> None:
    state_directory = StateDirectory(directory)
    for file in (*files, *state_directory.list_names("*.arrow", min_age=ORPHAN_SECONDS)):
        state_directory.remove(file)
