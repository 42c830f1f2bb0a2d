"""What commands print, and how a key is written on the command line.

Rows are JSON objects, one a line, so that any tool can read them: decimals, dates and timestamps as text, bytes as hex.
Small answers (SHOW, DESCRIBE, reports) are tables for people.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
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
    rows = [["" if v is None else str(v) for v in row.values()] for row in table.to_pylist()]
    if table.num_columns == 1:
        typer.echo("\n".join(row[0] for row in rows) or f"(no {table.column_names[0]})")
        return
    lines = [table.column_names, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(table.num_columns)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_fields(value: Any) -> None:
    """A report: a line for each field; nested ones are indented."""
    typer.echo("\n".join(_field_lines(value, "")))


def _field_lines(value: Any, indent: str) -> list[str]:
    lines = []
    for name, item in _items(value):
        if _items(item):
            lines += [f"{indent}{name}:", *_field_lines(item, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {f'{item:.4g}' if isinstance(item, float) else item}")
    return lines


def _items(value: Any) -> list[tuple[str, Any]]:
    if is_dataclass(value):
        return [(f.name, getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, Mapping):
        return [(str(k), v) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [(str(getattr(v, "name", i)), v) for i, v in enumerate(value)]
    return []


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
