"""What commands print, and how a key is written on the command line.

Rows are JSON objects, one a line, so that any tool can read them: decimals, dates and timestamps as text, bytes as hex.
Small answers (SHOW, DESCRIBE, reports) are tables for people.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import typer

from viewkeeper.errors import BadValue
from viewkeeper.model.values import accepted


def print_row(row: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(row, default=_json, ensure_ascii=False))


def print_table(table: pa.Table) -> None:
    """A table with aligned columns; one text column (a plan) as it is."""
    rows = [list(row.values()) for row in table.to_pylist()]
    if table.num_columns == 1:
        typer.echo("\n".join(str(row[0]) for row in rows) or f"(no {table.column_names[0]})")
    else:
        typer.echo("\n".join(_aligned([table.column_names, *rows])))


def print_fields(report: Any) -> None:
    """A report: a line for each field, a small table for a list of values."""
    for field in fields(report):
        value = getattr(report, field.name)
        if isinstance(value, Mapping):
            value = [list(item) for item in value.items()]
        elif isinstance(value, (list, tuple)) and value:
            names = [f.name for f in fields(value[0])]
            value = [names, *([getattr(v, name) for name in names] for v in value)]
        if isinstance(value, list) and value:
            typer.echo("\n".join([f"{field.name}:", *(f"  {line}" for line in _aligned(value))]))
        else:
            typer.echo(f"{field.name}: {_cell(value) or 'none'}")


def _aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def _cell(value: Any) -> str:
    if value is None or value == [] or value == ():
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _json(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


# -- keys --------------------------------------------------------------------------------------------------------------


def key_values(db: Any, name: str, words: Sequence[str], *, whole: bool = True) -> tuple[Any, ...]:
    """The words of a command as the values of a key, or of its first columns, each by its column's type."""
    described = [row for row in db.sql(f"DESCRIBE `{name}`").to_pylist() if row["key"] is not None]
    columns = [(row["column"], row["type"]) for row in sorted(described, key=lambda row: row["key"])]
    if len(words) > len(columns) or (whole and len(words) < len(columns)):
        raise BadValue(
            f"The key of {name} has {len(columns)} column(s), {len(words)} value(s) were given.",
            hint=f"The key is: {', '.join(column for column, _ in columns)}.",
        )
    return tuple(_typed(name, column, type_, word) for (column, type_), word in zip(columns, words, strict=False))


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


def _typed(table: str, column: str, type_: str, word: str) -> Any:
    read = Decimal if type_.startswith("decimal") else _READERS.get(type_, int)
    try:
        return read(word)
    except (ValueError, KeyError, ArithmeticError):
        raise BadValue(
            f"{table}.{column}: {word!r} is no {type_.upper()} value.", hint=f"Give {accepted(type_)}"
        ) from None
