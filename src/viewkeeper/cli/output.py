"""Output of the commands.

    table   aligned columns, for people
    json    one object per line: decimals, dates and timestamps as text, bytes as hex
    csv     a header and rows; an empty field is NULL, an empty text is ""
    arrow   an Arrow IPC stream, for programs

Rows are printed in batches, so a long scan needs no memory (except for `table`, whose widths depend on all rows).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain
from typing import TYPE_CHECKING, Any

import typer

from viewkeeper.errors import BadValue
from viewkeeper.model.display import align_rows as align_rows
from viewkeeper.model.display import cell_text as cell_text
from viewkeeper.model.display import count_text, csv_field
from viewkeeper.model.display import value_text as value_text

if TYPE_CHECKING:
    import pyarrow as pa


def print_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table], output_format: str) -> None:
    """Print rows in one of the formats, in their order."""
    _PRINTERS[output_format](schema, batches)


def print_answer(statement: str, table: pa.Table, output_format: str) -> None:
    """Print a statement's result. For people, SHOW's names and statements and EXPLAIN's plan are printed as plain
    text."""
    if output_format == "table" and _is_text_answer(statement) and table.num_columns == 1:
        typer.echo("\n".join(cell_text(v) for v in table.column(0).to_pylist()) or "(none)")
    else:
        print_rows(table.schema, [table], output_format)


def _is_text_answer(text: str) -> bool:
    """Whether a statement returns a description instead of rows."""
    from viewkeeper.syntax.cursor import TokenCursor, split_statements

    first = next(iter(split_statements(text)), None)
    return first is not None and any(TokenCursor(text, first).is_at(word) for word in ("SHOW", "EXPLAIN"))


def print_report(report: Any, output_format: str, max_values: int | None = None) -> None:
    """Print a report: a line for each field and a small table for a list of values, or one JSON object.

    Of a list with more than `max_values` values, print their number, and then the first ones.
    """
    if output_format == "json":
        typer.echo(json.dumps(asdict(report), default=_json_default, ensure_ascii=False))
        return
    for field in fields(report):
        value, count = getattr(report, field.name), ""
        if max_values is not None and isinstance(value, (list, tuple)) and len(value) > max_values:
            count, value = (
                f" {len(value):,}, of which the first {max_values:,}" if max_values else f" {len(value):,}",
                value[:max_values],
            )
        if isinstance(value, Mapping):
            value = [list(item) for item in value.items()]
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], str):
            value = [[text] for text in value]
        elif isinstance(value, (list, tuple)) and value:
            names = [f.name for f in fields(value[0]) if "in_full" not in f.metadata]
            value = [names, *([getattr(v, name) for name in names] for v in value)]
        if isinstance(value, list) and value:
            typer.echo("\n".join([f"{field.name}:{count}", *(f"  {line}" for line in align_rows(value))]))
        else:
            typer.echo(f"{field.name}: {count.strip() or cell_text(value) or 'none'}")


def json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=_json_default, ensure_ascii=False)


def _print_table(schema: pa.Schema, batches: Iterable[Any]) -> None:
    rows = list(chain.from_iterable(_row_tuples(batch) for batch in batches))
    lines = align_rows([schema.names, *([value_text(v) for v in row] for row in rows)])
    typer.echo("\n".join([*lines, f"({count_text(len(rows), 'row')})"]))


def _print_json(schema: pa.Schema, batches: Iterable[Any]) -> None:
    for batch in batches:
        lines = [json_line(dict(zip(schema.names, row, strict=True))) for row in _row_tuples(batch)]
        if lines:
            typer.echo("\n".join(lines))


def _print_csv(schema: pa.Schema, batches: Iterable[Any]) -> None:
    typer.echo(_csv_text([schema.names]), nl=False)
    for batch in batches:
        typer.echo(_csv_text(_row_tuples(batch)), nl=False)


def _csv_text(rows: Iterable[Sequence[Any]]) -> str:
    return "".join(",".join(_csv_cell(value) for value in row) + "\n" for row in rows)


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    return csv_field(value.hex() if isinstance(value, bytes) else str(value))


def _print_arrow(schema: pa.Schema, batches: Iterable[Any]) -> None:
    import pyarrow as pa

    if sys.stdout.isatty():
        raise BadValue(
            "Arrow output is for programs, not for a terminal.", hint="Redirect it: … -o arrow > rows.arrow."
        )
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
        for batch in batches:
            writer.write(batch)
    sys.stdout.buffer.flush()


def _row_tuples(batch: Any) -> list[tuple[Any, ...]]:
    try:
        return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    except OverflowError as error:
        raise BadValue(
            "A row has a date or time outside the years 1 to 9999 of Python's types.", hint="Use --output arrow."
        ) from error


def _json_default(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_PRINTERS: Mapping[str, Callable[[Any, Iterable[Any]], None]] = {
    "table": _print_table,
    "json": _print_json,
    "csv": _print_csv,
    "arrow": _print_arrow,
}


def warn_suspended(suspensions: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a warning on standard error: which of the following rows are old, since when and why."""
    for name, about in suspensions.items():
        state_text = f"batch {about['epoch']} (position {about['position']})"
        typer.echo(
            f"{name} is suspended since {about['since']}: these are its rows of {state_text}. {about['reason']}",
            err=True,
        )
