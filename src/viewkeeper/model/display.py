"""Display of rows: aligned text in a terminal, a table in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

MAX_DISPLAY_ROWS = 20
"""Number of result rows that a notebook or a prompt shows."""

_ESCAPED_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


def cell_text(value: Any) -> str:
    """Format a value for a report."""
    if value is None or value == [] or value == ():
        return ""
    if isinstance(value, bytes):
        return value.hex()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def value_text(raw: Any) -> str:
    """Format a value of a row: floats with all digits, and NULL distinct from the empty text."""
    text = "NULL" if raw is None else repr(raw) if isinstance(raw, float) else cell_text(raw)
    return text.translate(_ESCAPED_BREAKS)


def align_rows(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Format rows of cells as lines with aligned columns."""
    cells = [[cell_text(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def count_text(number: int, noun: str) -> str:
    """Format a count: `1 view`, `2 views`, `1,234 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_text(names: Sequence[str], noun: str, limit: int = 5) -> str:
    """Format a list of names: `view a`, `3 views (a, b, c)`; of a long list only the first `limit` names are shown."""
    if len(names) == 1:
        return f"{noun} {names[0]}"
    named = ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")
    return count_text(len(names), noun) + (f" ({named})" if names else "")


def html_table(names: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", footer: str = "") -> str:
    """Format an HTML table for a notebook, without fonts or colours of its own; all texts are escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    end = f"<div>{escape(footer)}</div>" if footer else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{end}"


def csv_field(text: str) -> str:
    """Format a field as the csv module does, except that the empty text and texts with line breaks are quoted; so the
    empty text differs from NULL."""
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if not text or set(text) & set(',"\r\n') else text
