"""Input files as pieces of rows, by suffix: Parquet, CSV, TSV, JSON lines or an array; text files optionally in gzip.

A piece has, next to its columns, the number of each row in its file, and the rows that could not be parsed. CSV and
JSON are read as text columns, so that a bad value makes a bad row and not a bad file; an empty CSV field is NULL, a
quoted empty one is an empty text.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import BadValue, UnknownName
from viewkeeper.model import types
from viewkeeper.model.delta import normalize_chunks
from viewkeeper.model.names import ROW, backticked, quoted
from viewkeeper.model.schema import Table
from viewkeeper.resources.prepared_statements import connect

PIECE_ROWS = 16_384
FORMATS_BY_SUFFIX = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}
GZIP_SUFFIX = ".gz"


@dataclass(frozen=True)
class BadRow:
    """A row that is not loaded: its position, the reason, and its values."""

    file: str
    row: int
    reason: str
    values: Any


@dataclass(frozen=True)
class FilePiece:
    file: str
    rows: pa.Table
    """The rows, with the column ROW: their numbers in the file, from 1."""
    bad_rows: tuple[BadRow, ...] = field(default=())
    states_types: bool = False
    """Whether the file itself states the columns' types."""


@dataclass(frozen=True)
class FileFormat:
    """How a file is read. `kind`: parquet, csv, json (one object per line) or array (of objects)."""

    kind: str
    delimiter: str = ","
    is_gzip: bool = False


def detect_format(file: Path, delimiter: str | None = None) -> FileFormat:
    """The format by the file's name, and for JSON its first character. `delimiter` separates the fields of a CSV."""
    is_gzip = file.suffix.lower() == GZIP_SUFFIX
    suffix = Path(file.stem).suffix.lower() if is_gzip else file.suffix.lower()
    kind = FORMATS_BY_SUFFIX.get(suffix)
    if kind is None or (is_gzip and kind == "parquet"):
        raise BadValue(
            f"{file}: files ending in {''.join(file.suffixes[-2:]) if is_gzip else file.suffix!r} are not known.",
            hint=f"Known: {', '.join(FORMATS_BY_SUFFIX)}, and those of text with {GZIP_SUFFIX} behind them.",
        )
    if not file.is_file():
        raise BadValue(f"There is no file {file}.", hint="")
    if delimiter is not None and (kind != "csv" or len(delimiter) != 1 or not delimiter.isascii()):
        raise BadValue(
            f"{delimiter!r} cannot part the fields of {file}.", hint="One character, and for CSV files only."
        )
    if kind == "json" and _first_character(file, is_gzip) == b"[":
        kind = "array"
    return FileFormat(kind, delimiter or ("\t" if suffix == ".tsv" else ","), is_gzip)


def read_pieces(
    table: Table, file: Path, progress: Callable[[int], None], delimiter: str | None = None
) -> Iterator[FilePiece]:
    """The pieces of a file. Columns that the table does not have are refused."""
    file_format = detect_format(file, delimiter)
    try:
        yield from _READERS[file_format.kind](table, file, file_format, progress)
    except (pa.ArrowException, UnicodeDecodeError, OSError, EOFError) as error:
        raise BadValue(f"{file} cannot be read: {' '.join(str(error).split())[:200]}", hint="") from None


def _first_character(file: Path, is_gzip: bool) -> bytes:
    """The first character that is not white space."""
    try:
        with gzip.open(file) if is_gzip else file.open("rb") as source:
            return source.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    except OSError as error:
        raise BadValue(f"{file} cannot be read: {error}", hint="") from None


@contextmanager
def _open_text(file: Path, file_format: FileFormat) -> Iterator[tuple[Any, Callable[[], int]]]:
    """The file's text as a stream, and a function that returns how many of its bytes have been read."""
    with pa.OSFile(str(file)) as source:
        if not file_format.is_gzip:
            yield source, source.tell
            return
        with pa.CompressedInputStream(source, "gzip") as text:
            yield text, source.tell


def _check_columns(table: Table, file: Path, names: list[str]) -> None:
    if repeated := [name for i, name in enumerate(names) if name.lower() in (n.lower() for n in names[:i])]:
        raise BadValue(f"{file} names the column {repeated[0]!r} twice.", hint="Name each column once.")
    if unknown := [name for name in names if name.lower() not in table.by_name]:
        raise UnknownName(
            f"{file}: {table.name} has no column {unknown[0]!r}.",
            hint=f"Its columns: {', '.join(c.name for c in table.columns)}.",
        )
    present = {name.lower() for name in names}
    if missing := [c.name for c in table.key_columns if c.name.lower() not in present]:
        raise BadValue(f"{file} has no column {missing[0]}, which is part of the key of {table.name}.", hint="")


def _number_rows(rows: pa.Table, first: int, skipped_numbers: Sequence[int] = ()) -> pa.Table:
    """Append the row numbers in the file; `skipped_numbers` are the numbers of rows that are missing in `rows`."""
    numbers = np.arange(first, first + rows.num_rows, dtype=np.int64)
    skipped = np.sort(np.array(skipped_numbers, np.int64))
    numbers += np.searchsorted(skipped - np.arange(len(skipped)), numbers, "right")
    return rows.append_column(ROW, pa.array(numbers))


def _read_parquet(
    table: Table, file: Path, file_format: FileFormat, progress: Callable[[int], None]
) -> Iterator[FilePiece]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as source:
        _check_columns(table, file, source.schema_arrow.names)
        size, rows, done = file.stat().st_size, max(1, source.metadata.num_rows), 0
        for batch in source.iter_batches(batch_size=PIECE_ROWS):
            yield FilePiece(str(file), _number_rows(pa.Table.from_batches([batch]), done + 1), states_types=True)
            progress(size * (done + batch.num_rows) // rows - size * done // rows)
            done += batch.num_rows


def _read_csv(
    table: Table, file: Path, file_format: FileFormat, progress: Callable[[int], None]
) -> Iterator[FilePiece]:
    from pyarrow import csv as arrow_csv

    header = _read_header(file, file_format)
    _check_columns(table, file, header)
    bad: list[BadRow] = []

    def malformed(row: Any) -> str:
        reason = f"{row.actual_columns} fields, the header has {row.expected_columns}."
        bad.append(BadRow(str(file), row.number - 1, reason, row.text))
        return "skip"

    with _open_text(file, file_format) as (source, bytes_read):
        stream = arrow_csv.open_csv(
            source,
            # With this encoding name, invalid UTF-8 raises at once, not inside `malformed`, which cannot raise.
            read_options=arrow_csv.ReadOptions(
                use_threads=False, block_size=4 << 20, column_names=header, skip_rows=1, encoding="utf-8-sig"
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=file_format.delimiter, invalid_row_handler=malformed, newlines_in_values=True
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in header},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        yield from _read_stream(file, bytes_read, stream, bad, progress)


def _read_header(file: Path, file_format: FileFormat) -> list[str]:
    opened: Any = gzip.open if file_format.is_gzip else open
    with opened(file, "rt", encoding="utf-8-sig", newline="") as text:
        header = next(csv.reader(text, delimiter=file_format.delimiter), None)
    if not header:
        raise BadValue(f"{file} is empty.", hint="Its first line must name the columns.")
    return header


def _read_stream(
    file: Path, bytes_read: Callable[[], int], stream: Any, bad_rows: list[BadRow], progress: Callable[[int], None]
) -> Iterator[FilePiece]:
    done = read = 0
    for batch in stream:
        rows = _number_rows(pa.Table.from_batches([batch]), done + 1, [b.row for b in bad_rows])
        done += batch.num_rows
        for start in range(0, rows.num_rows, PIECE_ROWS):
            yield FilePiece(str(file), rows.slice(start, PIECE_ROWS))
        progress(bytes_read() - read)
        read = bytes_read()
    yield FilePiece(str(file), pa.table({ROW: pa.array([], pa.int64())}), tuple(bad_rows))


def _read_json_lines(
    table: Table, file: Path, file_format: FileFormat, progress: Callable[[int], None]
) -> Iterator[FilePiece]:
    from pyarrow import csv as arrow_csv

    if not file.stat().st_size:
        return
    with _open_text(file, file_format) as (source, bytes_read), connect(threads=1) as connection:
        stream = arrow_csv.open_csv(
            source,
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=4 << 20, column_names=["line"]),
            parse_options=arrow_csv.ParseOptions(delimiter="\x01", quote_char=False, ignore_empty_lines=True),
            convert_options=arrow_csv.ConvertOptions(column_types={"line": pa.string()}, strings_can_be_null=False),
        )
        for piece in _read_stream(file, bytes_read, stream, [], progress):
            if piece.rows.num_rows:
                yield _parse_objects(table, file, connection, piece.rows)


def _read_json_array(
    table: Table, file: Path, file_format: FileFormat, progress: Callable[[int], None]
) -> Iterator[FilePiece]:
    import duckdb

    with connect(threads=1) as file_connection, connect(threads=1) as line_connection:
        compression = "gzip" if file_format.is_gzip else "none"
        source = f"'{_escape_quotes(str(file))}', format = 'array', compression = '{compression}'"
        done = 0
        try:
            found = file_connection.sql(f"SELECT json::VARCHAR AS line FROM read_json_objects({source})")
            for batch in found.to_arrow_reader(PIECE_ROWS):
                lines = _number_rows(normalize_chunks(pa.Table.from_batches([batch])), done + 1)
                done += batch.num_rows
                yield _parse_objects(table, file, line_connection, lines)
        except duckdb.Error as error:
            raise BadValue(f"{file} cannot be read: {str(error).splitlines()[0]}", hint="") from None
    progress(file.stat().st_size)


def _parse_objects(table: Table, file: Path, duck: Any, lines: pa.Table) -> FilePiece:
    """Lines as text columns; lines that are no objects, or have members of the wrong kind, become bad rows."""
    duck.register("lines", lines)
    # Two steps, because the functions of the second would fail on invalid JSON.
    first = "CASE WHEN NOT json_valid(line) THEN 'This is no JSON.' END"
    valid = duck.sql(f"SELECT line, {ROW}, {first} AS why FROM lines").to_arrow_table()
    duck.register("valid", valid)
    known_names = ", ".join(f"'{_escape_quotes(c.name)}'" for c in table.columns)
    unknown = f"list_filter(json_keys(line), lambda k: k NOT IN ({known_names}))"
    reasons = [
        "WHEN json_type(line) <> 'OBJECT' THEN 'This is no JSON object.'",
        f"WHEN len({unknown}) > 0 THEN 'There is no column ' || {unknown}[1] || '.'",
    ]
    for column in table.columns:
        kinds = {types.STRING: "'VARCHAR'", types.BOOLEAN: "'BOOLEAN'"}.get(column.type, _NUMBER_TYPES)
        member = _member_pointer(column.name)
        reasons.append(
            f"WHEN json_type(line, {member}) NOT IN ({kinds}, 'NULL') THEN "
            f"'{_escape_quotes(column.name)} is a ' || lower(json_type(line, {member})) || ', not a {column.type}.'"
        )
    judged = duck.sql(
        f"SELECT line, {ROW}, CASE {' '.join(reasons)} END AS why FROM valid WHERE why IS NULL"
    ).to_arrow_table()
    duck.register("judged", judged)
    bad_lines = duck.sql(
        f"SELECT {ROW}, why, line FROM (FROM valid UNION ALL FROM judged) WHERE why IS NOT NULL ORDER BY 1"
    ).fetchall()
    columns = ", ".join(f"line ->> {_member_pointer(c.name)} AS {quoted(c.name)}" for c in table.columns)
    good = normalize_chunks(duck.sql(f"SELECT {columns}, {ROW} FROM judged WHERE why IS NULL").to_arrow_table())
    return FilePiece(str(file), good, tuple(BadRow(str(file), row, reason, line) for row, reason, line in bad_lines))


_NUMBER_TYPES = "'VARCHAR', 'BIGINT', 'UBIGINT', 'DOUBLE', 'HUGEINT'"


def _member_pointer(name: str) -> str:
    """A member of an object as a JSON pointer, which allows any character in its name."""
    return f"'/{_escape_quotes(name.replace('~', '~0').replace('/', '~1'))}'"


def _escape_quotes(value: str) -> str:
    return value.replace("'", "''")


_READERS = {"parquet": _read_parquet, "csv": _read_csv, "json": _read_json_lines, "array": _read_json_array}


# -- inferring a table from a file -------------------------------------------------------------------------------------


def infer_create_table(name: str, file: Path, key: tuple[str, ...], delimiter: str | None = None) -> str:
    """A CREATE TABLE statement for the contents of a file."""
    import duckdb

    file_format = detect_format(file, delimiter)
    reader = {
        "parquet": "read_parquet('{}')",
        "csv": f"read_csv('{{}}', delim = '{_escape_quotes(file_format.delimiter)}', header = true)",
        "json": "read_json('{}', format = 'newline_delimited', ignore_errors = true)",  # bad lines become bad rows
        "array": "read_json('{}', format = 'array')",
    }[file_format.kind]
    if not file.stat().st_size:
        raise BadValue(f"{file} is empty: it does not say which columns there are.", hint="Create the table first.")
    with connect() as connection:
        try:
            found = connection.execute(f"DESCRIBE FROM {reader.format(_escape_quotes(str(file)))}").fetchall()
        except duckdb.Error as error:
            raise BadValue(f"{file} cannot be read: {str(error).splitlines()[0]}", hint="") from None
    if file_format.kind == "csv" and len(header := _read_header(file, file_format)) == len(found):
        # DuckDB trims names, and renames those that differ only in case.
        found = [(name, *rest) for name, (_, *rest) in zip(header, found, strict=True)]
    columns = [f"{backticked(column)} {_spark_type(file, column, type_)}" for column, type_, *_ in found]
    if unknown := [k for k in key if k.lower() not in {column.lower() for column, *_ in found}]:
        raise BadValue(f"{file} has no column {unknown[0]}.", hint=f"It has: {', '.join(c for c, *_ in found)}.")
    return f"CREATE TABLE {backticked(name)} ({', '.join(columns)}, PRIMARY KEY ({', '.join(map(backticked, key))}))"


_SPARK_TYPES = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "SMALLINT": "SMALLINT",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    "UTINYINT": "SMALLINT",
    "USMALLINT": "INT",
    "UINTEGER": "BIGINT",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "VARCHAR": "STRING",
    "UUID": "STRING",
    "BLOB": "BINARY",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP_NTZ",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP",
    "TIMESTAMP_S": "TIMESTAMP_NTZ",
    "TIMESTAMP_MS": "TIMESTAMP_NTZ",
}


def _spark_type(file: Path, column: str, type_: str) -> str:
    if type_.startswith("DECIMAL"):
        return type_
    if type_ not in _SPARK_TYPES:
        raise BadValue(
            f"{file}: column {column} is a {type_}, which a table cannot hold.", hint="Create the table first."
        )
    return _SPARK_TYPES[type_]
