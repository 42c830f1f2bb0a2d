"""`vk load`: loads files into a table.

    1  read each file in pieces of a few thousand rows: text columns (CSV, JSON lines) or typed ones (Parquet, whose
       types are checked before its rows)
    2  convert a piece with the same intake as `put`; a piece that does not fit is halved until its bad rows are
       isolated, each with the reason
    3  write the bad rows to the reject file, then all good ones in one call

Ctrl-C leaves nothing in the database: the write is one transaction where the store has transactions, and a table that
was created for the load is dropped again if no row was written. With `chunk` the rows are written as they are read, for
files that do not fit into memory: an interrupted load is then repeated from the start, which does not change the rows
that were already written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper.cli.input_files import BadRow, FilePiece, read_pieces
from viewkeeper.errors import BadValue, UnknownName, ViewkeeperError
from viewkeeper.model import types
from viewkeeper.model.display import count_text
from viewkeeper.model.intake.columns import column_values
from viewkeeper.model.intake.rows import rows_table
from viewkeeper.model.names import ROW, backticked
from viewkeeper.model.schema import Table

Progress = Callable[[int], None]
"""Called with the number of bytes read from the files, each time some have been read."""


@dataclass(frozen=True)
class LoadReport:
    """The result of a load."""

    table: str
    rows: int
    rejected: int
    reject_file: str | None


@dataclass
class _LoadState:
    """Converted rows that are not written yet, and bad rows."""

    good_rows: list[pa.Table] = field(default_factory=list)
    bad_rows: list[BadRow] = field(default_factory=list)
    written: int = 0

    @property
    def pending_row_count(self) -> int:
        return sum(t.num_rows for t in self.good_rows)


def load(
    db: Any,
    table: Table,
    files: Sequence[Path],
    *,
    rejects: Path | None = None,
    max_rejects: int = 1000,
    chunk: int | None = None,
    delimiter: str | None = None,
    progress: Progress = lambda _: None,
) -> LoadReport:
    """Load files into a table. `rejects` None: the first bad row is an error. More than `max_rejects` bad rows are an
    error, and also a load in which no row fits."""
    state = _LoadState()
    for file in files:
        for piece in read_pieces(table, file, progress, delimiter):
            _fit_piece(table, piece, state)
            if state.bad_rows and rejects is None:
                first = state.bad_rows[0]
                raise BadValue(
                    f"{first.file}, row {first.row}: {first.reason}{_written_note(state)}",
                    hint="Correct it, or leave --strict out to put bad rows into a reject file.",
                )
            if len(state.bad_rows) > max_rejects:
                raise BadValue(
                    f"{file}: more than {max_rejects} rows do not fit {table.name}; the first: "
                    f"{state.bad_rows[0].reason}{_written_note(state)}",
                    hint="Check that the file is for this table, or raise --max-rejects.",
                )
            if chunk is not None and state.pending_row_count >= chunk:
                _write_pending(db, table, state)
    if state.bad_rows and rejects is not None:
        _write_reject_file(rejects, state.bad_rows, _written_note(state))
        if not state.good_rows and not state.written:
            raise BadValue(
                f"Of {count_text(len(state.bad_rows), 'row')} none fits {table.name}; the first: "
                f"{state.bad_rows[0].reason}{_written_note(state)}",
                hint=f"They are in {rejects}, each with its reason. Check that the file is for this table.",
            )
    _write_pending(db, table, state)
    return LoadReport(table.name, state.written, len(state.bad_rows), str(rejects) if state.bad_rows else None)


def _written_note(state: _LoadState) -> str:
    return f" ({state.written} rows before it were written.)" if state.written else " Nothing was written."


def _write_pending(db: Any, table: Table, state: _LoadState) -> None:
    if state.good_rows:
        rows = pa.concat_tables(state.good_rows)
        db.put(table.name, rows)
        state.written += rows.num_rows
        state.good_rows = []


def _write_reject_file(path: Path, bad_rows: Sequence[BadRow], written_note: str) -> None:
    lines = [
        json.dumps({"file": b.file, "row": b.row, "reason": b.reason, "values": b.values}, default=str)
        for b in bad_rows
    ]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadValue(
            f"{len(bad_rows)} rows do not fit, and the reject file {path} cannot be written: "
            f"{error.strerror}.{written_note}",
            hint="Say where it can be, with --rejects.",
        ) from None


def default_reject_file(table: Table) -> Path:
    """The default reject file: a new file in the current directory, named after the table."""
    name = re.sub(r"[^\w. -]", "_", table.name)
    free = (Path(f"{name}.rejects{'' if n == 1 else f'.{n}'}.jsonl") for n in count(1))
    return next(path for path in free if not path.exists())


@contextmanager
def create_for_load(db: Any, name: str, statement: str) -> Iterator[None]:
    """Create a table for a load, and drop it again if the load fails or is interrupted before it wrote a row."""
    db.sql(statement)
    try:
        yield
    except BaseException:
        table = db._writes.table(name, "load into")
        if db._store.count(table) == 0:
            db.sql(f"DROP TABLE {backticked(name)}")
        raise


def _refuse_types(table: Table, piece: FilePiece, state: _LoadState) -> None:
    """Refuse a column of a type that no value of the table's column can have: one error, instead of one for each
    row."""
    none = piece.rows.slice(0, 0).drop_columns([ROW])
    for name in none.column_names:
        column = table.by_name[name.lower()]
        try:
            column_values(table.name, column, _convert_text(table, none.select([name])).column(0))
        except BadValue:
            raise BadValue(
                f"{piece.file}: the column {name} has the type {none.schema.field(name).type}, which does not fit"
                f" {table.name}.{column.name}, a {column.type.sql}.{_written_note(state)}",
                hint=f"Write the file with this column as {column.type.sql}, or take a table of another type.",
            ) from None


def _fit_piece(table: Table, piece: FilePiece, state: _LoadState) -> None:
    if piece.states_types:
        _refuse_types(table, piece, state)
    state.bad_rows.extend(piece.bad_rows)
    for rows, reason in fit_rows(table, piece.rows):
        if reason is None:
            state.good_rows.append(rows)
        else:
            number = int(rows[ROW][0].as_py())
            values = {k: v for k, v in rows.drop_columns([ROW]).to_pylist()[0].items() if v is not None}
            state.bad_rows.append(BadRow(piece.file, number, reason, values))


def fit_rows(table: Table, rows: pa.Table) -> Iterator[tuple[pa.Table, str | None]]:
    """Yield runs of rows in the table's own types, and single rows that do not fit with the reason."""
    if rows.num_rows == 0:
        return
    try:
        yield rows_table(table, _convert_text(table, rows.drop_columns([ROW]))), None
    except ViewkeeperError as error:
        if rows.num_rows == 1:
            yield rows, re.sub(r", row 1(?=:)", "", error.message)
            return
        half = rows.num_rows // 2
        yield from fit_rows(table, rows.slice(0, half))
        yield from fit_rows(table, rows.slice(half))


def _convert_text(table: Table, rows: pa.Table) -> pa.Table:
    """Convert text columns to numbers, booleans and bytes; the intake itself parses decimals, dates and timestamps."""
    columns = []
    for name, values in zip(rows.column_names, rows.columns, strict=True):
        column = table.by_name.get(name.lower())
        if column is None:
            raise UnknownName(f"{table.name} has no column {name!r}.", hint="")
        read = types.is_integer(column.type) or types.is_float(column.type) or column.type == types.BOOLEAN
        try:
            if read and pa.types.is_string(values.type):
                values = values.cast(types.arrow(column.type))
            elif column.type == types.BINARY and pa.types.is_string(values.type):
                values = pa.chunked_array([[None if v is None else bytes.fromhex(v) for v in values.to_pylist()]])
        except (pa.ArrowInvalid, ValueError):
            value_repr = repr(values[0].as_py()) if len(values) == 1 else "a value"
            raise BadValue(f"{table.name}.{column.name}: {value_repr} is no {column.type.sql} value.") from None
        columns.append(values)
    return pa.table(columns, names=rows.column_names)
