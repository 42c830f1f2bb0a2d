"""Prepared DuckDB statements over input slots whose tables are swapped.

    run(sql, delta=t)  ─▶  slot `¤s7` ◀─ t        prepared once:  WITH delta AS (FROM ¤s7) <sql>
                           EXECUTE ¤p3  ─▶ Arrow

DuckDB requests the Arrow stream of a registered object at every execution. So a statement is prepared once for each
(text, input schemas), and a run only puts the tables into the slots, which takes a few tenths of a millisecond;
registering tables again would cost several times that. Slots belong to schemas: one statement runs at a time, so all
statements with equal input schemas share slots, and of a thousand views of a table only the first one registers
anything. The least recently used statements are dropped; their limit depends on the memory budget, because each takes
some 30 KB.

A result that may exceed memory is streamed: a separate cursor returns a part of the rows, and DuckDB computes no more
before the next part is requested. Other memory of the statement is bounded by DuckDB's memory limit; beyond it, DuckDB
spills.

After an internal error a DuckDB connection refuses all further statements. The next statement gets a new connection, so
that one view's statement cannot make those of other views fail.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa

from viewkeeper.model.delta import normalize_chunks
from viewkeeper.model.names import quoted
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.process_budget import process_budget

# Only this module creates DuckDB connections, so each one has a memory limit and a defined spill directory:
#
# with an owner     the part of the owner's budget for DuckDB; it spills into the owner's spill directory
# without an owner  an eighth of the process budget and no spill files: it reads a file or parses a query


_BUDGET_FRACTION = 8
_MIN_BYTES = 32 << 20
"""Minimum memory of a connection: with less, DuckDB cannot work at all."""
_MIN_BYTES_WITHOUT_OWNER = 128 << 20
"""Minimum memory without an owner: reading a file takes some buffers, however small the file is."""


def connect(memory: MemoryBudget | None = None, *, threads: int | None = None) -> Any:
    """Open an in-memory DuckDB connection."""
    import duckdb

    limit = (
        max(process_budget() // _BUDGET_FRACTION, _MIN_BYTES_WITHOUT_OWNER) if memory is None else memory.duckdb_bytes
    )
    directory = None if memory is None else memory.spill_directory
    settings: dict[str, Any] = {"memory_limit": format_memory_limit(limit), "temp_directory": str(directory or "")}
    if threads is not None:
        settings["threads"] = threads
    if directory is not None:
        with suppress(OSError):  # a reader may lack the permission, and may not need the directory
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return duckdb.connect(":memory:", config=settings)


def format_memory_limit(size: int) -> str:
    """Format a limit for DuckDB's `memory_limit`."""
    return f"{max(int(size), _MIN_BYTES)}B"


MIN_CACHED_STATEMENTS = 1024
"""Limit of cached statements without a budget, and the minimum with one."""
_STATEMENT_BYTES = 32 << 10
_STATEMENT_MEMORY_SHARE = 32
"""This fraction (1/n) of the budget is for prepared statements, in each connection of a pool."""
_INTERRUPT_MESSAGE = "Query interrupted"
"""DuckDB's error message when the program is interrupted."""
_BATCH_ROWS = 1 << 20


StatementKey = tuple[Any, ...]
"""Identity of a statement: its text, then (name, schema) of each input."""


class _InputSlot:
    """A table that DuckDB reads under one name; its schema never changes. `number` counts the slots of a schema."""

    def __init__(self, name: str, schema: pa.Schema, number: int) -> None:
        self.name = name
        self.schema_key = (schema, number)
        self.use_count = 0
        """Number of prepared statements that read this slot."""
        self.empty_table = schema.empty_table()
        self.table = self.empty_table

    def __arrow_c_schema__(self) -> Any:
        return self.table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


@dataclass(frozen=True)
class _Statement:
    name: str
    input_slots: tuple[_InputSlot, ...]


class PreparedStatements:
    """One DuckDB connection and its prepared statements. A lock lets several threads use it, one at a time.

    `setup` is called once per connection, to define the macros and settings that the statements rely on. `memory` sets
    the memory limit and the spill directory; without it, the limit is small and nothing is spilled.
    """

    def __init__(
        self,
        setup: Callable[[Any], None] | None = None,
        *,
        threads: int | None = None,
        memory: MemoryBudget | None = None,
        max_statements: int | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self._statements: OrderedDict[StatementKey, _Statement] = OrderedDict()
        self._input_slots: dict[tuple[pa.Schema, int], _InputSlot] = {}
        self._max_statements = _statement_limit(memory) if max_statements is None else max_statements
        self.prepared_count = 0
        """Number of statements prepared so far."""
        self._setup, self._memory = setup, memory
        self._streams: list[Any] = []
        self._threads = threads
        self._memory_limit: str | None = None
        self._connection: Any = self._open_connection()

    def _open_connection(self) -> Any:
        connection = connect(self._memory, threads=self._threads)
        try:
            if self._setup is not None:
                self._setup(connection)
        except BaseException:
            connection.close()
            raise
        self._is_broken = False
        return connection

    def _reconnect(self) -> None:
        """Replace a broken connection by a new one with the same settings and no statements."""
        if not self._is_broken:
            return
        self._statements.clear()
        self._input_slots.clear()
        with suppress(Exception):
            self._connection.close()
        self._connection = self._open_connection()
        if self._memory_limit is not None:
            self._command(f"SET memory_limit = '{self._memory_limit}'")

    def run(self, sql: str, **inputs: pa.Table) -> pa.Table:
        """Return the result of `sql` over the tables named by `inputs`. Errors of DuckDB are raised unchanged."""
        with self._lock, self._guard_connection():
            statement = self._get_statement(sql, inputs)
            try:
                for slot, table in zip(statement.input_slots, inputs.values(), strict=True):
                    slot.table = table
                return normalize_chunks(self._fetch_result(statement.name))
            finally:
                for slot in statement.input_slots:
                    slot.table = slot.empty_table

    @contextmanager
    def _guard_connection(self) -> Iterator[None]:
        """Run statements on a working connection (the caller holds the lock); an internal error marks it as broken."""
        import duckdb

        self._reconnect()
        try:
            yield
        except (duckdb.InternalException, duckdb.FatalException):
            self._is_broken = True
            raise

    def set_threads(self, threads: int) -> None:
        """Set the number of threads for a statement. With one thread, a short statement takes half the time."""
        with self._lock, self._guard_connection():
            if threads != self._threads:
                self._command(f"SET threads = {int(threads)}")
                self._threads = threads

    def set_memory_limit(self, memory: int) -> None:
        """Limit the memory that DuckDB accounts for; beyond it, DuckDB spills."""
        with self._lock, self._guard_connection():
            limit = format_memory_limit(memory)
            if limit != self._memory_limit:
                self._command(f"SET memory_limit = '{limit}'")
                self._memory_limit = limit

    def stream(self, sql: str, rows: int, **inputs: pa.Table) -> Iterator[pa.Table]:
        """Yield the result of `sql` in parts of about `rows` rows. Other statements may run between two parts."""
        import duckdb

        with self._lock:
            self._reconnect()
            cursor = self._connection.cursor()
        self._streams.append(cursor)
        try:
            for name, table in inputs.items():
                cursor.register(name, table)
            try:
                for batch in cursor.sql(sql).to_arrow_reader(rows):
                    if batch.num_rows:
                        yield normalize_chunks(pa.Table.from_batches([batch]))
            except OSError as error:  # Arrow raises one class for all errors of a stream
                message = str(error)
                if "Out of Memory" in message:
                    raise duckdb.OutOfMemoryException(message) from error
                if "IO Error" in message:
                    raise duckdb.IOException(message) from error
                self._is_broken = self._is_broken or "INTERNAL Error" in message or "FATAL Error" in message
                raise duckdb.Error(message) from error
        finally:
            self._streams.remove(cursor)
            cursor.close()

    def interrupt(self) -> None:
        """Interrupt the running statements from another thread; they fail in theirs."""
        for connection in (self._connection, *self._streams):
            connection.interrupt()

    def statement_keys(self) -> list[StatementKey]:
        """Return the keys of the prepared statements."""
        with self._lock:
            return list(self._statements)

    def prepare(self, statement: StatementKey) -> None:
        """Prepare a statement before its first run, unless it is prepared already or the cache is full."""
        with self._lock, self._guard_connection():
            if statement not in self._statements and len(self._statements) < self._max_statements:
                self._get_statement(statement[0], {name: schema.empty_table() for name, schema in statement[1:]})

    def copy_statements(self, other: PreparedStatements) -> None:
        """Prepare the statements of `other`, unless they exceed the cache."""
        keys = other.statement_keys()
        for statement in keys if len(keys) < self._max_statements else ():
            self.prepare(statement)

    def close(self) -> None:
        """Drop the statements and the connection. Calling it twice is no error."""
        with self._lock:
            self._statements.clear()
            self._input_slots.clear()
            self._connection.close()

    def __enter__(self) -> PreparedStatements:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get_statement(self, sql: str, inputs: dict[str, pa.Table]) -> _Statement:
        key = (sql, *((name, table.schema) for name, table in inputs.items()))
        cached = self._statements.get(key)
        if cached is not None:
            self._statements.move_to_end(key)
            return cached
        statement = self._prepare(sql, inputs)
        self._statements[key] = statement
        if len(self._statements) > self._max_statements:
            _, oldest = self._statements.popitem(last=False)
            self._command(f"DEALLOCATE {oldest.name}")
            self._release_slots(oldest.input_slots)
        return statement

    def _prepare(self, sql: str, inputs: dict[str, pa.Table]) -> _Statement:
        self.prepared_count += 1
        slots = self._acquire_slots([table.schema for table in inputs.values()])
        statement = _Statement(f"¤p{self.prepared_count}", slots)
        try:
            names = dict(zip(inputs, (slot.name for slot in slots), strict=True))
            self._command(f"PREPARE {statement.name} AS {_bind_inputs(sql, names)}")
        except BaseException:
            self._release_slots(slots)
            raise
        return statement

    def _acquire_slots(self, schemas: list[pa.Schema]) -> tuple[_InputSlot, ...]:
        """Return a slot for each input; the second input with an equal schema gets the second slot of that schema."""
        slots: list[_InputSlot] = []
        for index, schema in enumerate(schemas):
            key = (schema, schemas[:index].count(schema))
            slot = self._input_slots.get(key)
            if slot is None:
                slot = _InputSlot(f"¤s{self.prepared_count}_{index}", *key)
                self._connection.register(slot.name, slot)
                self._input_slots[key] = slot
            slot.use_count += 1
            slots.append(slot)
        return tuple(slots)

    def _fetch_result(self, statement: str) -> pa.Table:
        try:
            return self._execute_to_arrow(statement)
        except RuntimeError as error:
            if str(error) == _INTERRUPT_MESSAGE:  # otherwise it would be reported as an error of the rows
                raise KeyboardInterrupt from None
            raise

    def _execute_to_arrow(self, statement: str) -> pa.Table:
        # `con.sql(text).to_arrow_table()` ends in a call of `_submit`. The public way binds the text again, copies the
        # rows of an EXECUTE once more and takes three times as long. Without `_submit` the result is the same.
        submit = getattr(self._connection, "_submit", None)
        if submit is None:
            return self._connection.sql(f"EXECUTE {statement}").to_arrow_table(_BATCH_ROWS)
        return submit(f"EXECUTE {statement}", None, "arrow", _BATCH_ROWS).arrow_table()

    def _command(self, sql: str) -> None:
        # A result must be fetched before the connection does other work.
        self._connection.execute(sql).fetchall()

    def _release_slots(self, input_slots: tuple[_InputSlot, ...]) -> None:
        for slot in input_slots:
            slot.use_count -= 1
            if not slot.use_count:
                del self._input_slots[slot.schema_key]
                self._connection.unregister(slot.name)


def _statement_limit(memory: MemoryBudget | None) -> int:
    return (
        MIN_CACHED_STATEMENTS
        if memory is None
        else max(MIN_CACHED_STATEMENTS, memory.total // _STATEMENT_MEMORY_SHARE // _STATEMENT_BYTES)
    )


def _bind_inputs(sql: str, names: dict[str, str]) -> str:
    """Return the statement with its inputs bound to slots. They are not materialized: each use scans Arrow in place."""
    if not names:
        return sql
    bound = ", ".join(f"{quoted(name)} AS NOT MATERIALIZED (FROM {slot})" for name, slot in names.items())
    body = sql.lstrip()
    if body[:5].upper() == "WITH ":
        return f"WITH {bound}, {body[5:]}"
    return f"WITH {bound} {body}"
