"""What commands print, and how a key is written on the command line.

    table   aligned columns, for people
    json    an object a line: decimals, dates and timestamps as text, bytes as hex
    csv     a header and rows; an empty field is NULL, an empty text is ""
    arrow   an Arrow IPC stream, for programs

Rows leave in batches, so a long scan needs no memory (but for `table`, whose widths depend on all rows).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

import typer

from viewkeeper.errors import BadValue

if TYPE_CHECKING:
    import pyarrow as pa

    from viewkeeper.model.schema import Table


def print_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table], form: str) -> None:
    """Rows in one of the formats, in the order given."""
    _PRINTERS[form](schema, batches)


def print_answer(table: pa.Table, form: str) -> None:
    """A statement's answer. SHOW's names and EXPLAIN's plan are printed as they are when people read them."""
    if form == "table" and table.column_names in (["name"], ["plan"]):
        typer.echo("\n".join(cell(v) for v in table.column(0).to_pylist()) or "(none)")
    else:
        print_rows(table.schema, [table], form)


def print_report(report: Any, form: str) -> None:
    """A report: a line for each field and a small table for a list of values, or one JSON object."""
    if form == "json":
        typer.echo(json.dumps(asdict(report), default=_json, ensure_ascii=False))
        return
    for field in fields(report):
        value = getattr(report, field.name)
        if isinstance(value, Mapping):
            value = [list(item) for item in value.items()]
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], str):
            value = [[text] for text in value]
        elif isinstance(value, (list, tuple)) and value:
            names = [f.name for f in fields(value[0])]
            value = [names, *([getattr(v, name) for name in names] for v in value)]
        if isinstance(value, list) and value:
            typer.echo("\n".join([f"{field.name}:", *(f"  {line}" for line in aligned(value))]))
        else:
            typer.echo(f"{field.name}: {cell(value) or 'none'}")


def json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=_json, ensure_ascii=False)


def aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows of cells as lines with aligned columns."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def cell(value: Any) -> str:
    """A value for people."""
    if value is None or value == [] or value == ():
        return ""
    if isinstance(value, bytes):
        return value.hex()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_IN_A_LINE = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


def value(found: Any) -> str:
    """A value of a row for people: all its digits, and NULL is not an empty text."""
    text = "NULL" if found is None else repr(found) if isinstance(found, float) else cell(found)
    return text.translate(_IN_A_LINE)


def _table(schema: pa.Schema, batches: Iterable[Any]) -> None:
    rows = list(chain.from_iterable(_tuples(batch) for batch in batches))
    lines = aligned([schema.names, *([value(v) for v in row] for row in rows)])
    typer.echo("\n".join([*lines, f"({len(rows)} row{'' if len(rows) == 1 else 's'})"]))


def _objects(schema: pa.Schema, batches: Iterable[Any]) -> None:
    for batch in batches:
        lines = [json_line(dict(zip(schema.names, row, strict=True))) for row in _tuples(batch)]
        if lines:
            typer.echo("\n".join(lines))


def _csv(schema: pa.Schema, batches: Iterable[Any]) -> None:
    typer.echo(_csv_text([schema.names]), nl=False)
    for batch in batches:
        typer.echo(_csv_text(_tuples(batch)), nl=False)


def _csv_text(rows: Iterable[Sequence[Any]]) -> str:
    return "".join(",".join(_csv_cell(value) for value in row) + "\n" for row in rows)


def _csv_cell(value: Any) -> str:
    """As the csv module writes it, but the empty text differs from NULL, and a line break stands in quotes."""
    if value is None:
        return ""
    text = value.hex() if isinstance(value, bytes) else str(value)
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if not text or set(text) & set(',"\r\n') else text


def _arrow(schema: pa.Schema, batches: Iterable[Any]) -> None:
    import pyarrow as pa

    if sys.stdout.isatty():
        raise BadValue(
            "Arrow output is for programs, not for a terminal.", hint="Redirect it: … -o arrow > rows.arrow."
        )
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
        for batch in batches:
            writer.write(batch)
    sys.stdout.buffer.flush()


def _tuples(batch: Any) -> list[tuple[Any, ...]]:
    try:
        return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    except OverflowError as error:
        raise BadValue(
            "A row has a date or time outside the years 1 to 9999 of Python's types.", hint="Use --output arrow."
        ) from error


def _json(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_PRINTERS: Mapping[str, Callable[[Any, Iterable[Any]], None]] = {
    "table": _table,
    "json": _objects,
    "csv": _csv,
    "arrow": _arrow,
}


# -- keys --------------------------------------------------------------------------------------------------------------


def key_values(table: Table, words: Sequence[str], *, whole: bool = True) -> tuple[Any, ...]:
    """The words of a command as the values of a key, or of its first columns, each by its column's type."""
    columns = table.key_columns
    if len(words) > len(columns) or (whole and len(words) < len(columns)):
        names = ", ".join(column.name for column in columns)
        raise BadValue(
            f"The key of {table.name} has {len(columns)} column(s), {len(words)} value(s) were given.",
            hint=f"The key is: {names}." if names else "It has one row: name no key.",
        )
    return tuple(typed(table.name, c.name, c.type, word) for c, word in zip(columns, words, strict=False))


_READERS: Mapping[str, Callable[[str], Any]] = {
    "boolean": lambda word: {"true": True, "false": False}[word.lower()],
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes.fromhex,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp_ntz": datetime.fromisoformat,
}


def typed(table: str, column: str, type_: str, word: str) -> Any:
    """A word as a value of the column's type."""
    read = Decimal if type_.startswith("decimal") else _READERS.get(type_, int)
    try:
        return read(word)
    except (ValueError, KeyError, ArithmeticError):
        from viewkeeper.model.values import accepted

        raise BadValue(
            f"{table}.{column}: {word!r} is no {type_.upper()} value.", hint=f"Give {accepted(type_)}"
        ) from None
