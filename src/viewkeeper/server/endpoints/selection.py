"""Rows by `where=`, `columns=` and `order_by=`, in pages of one state.

    where      a condition in SQL, or a JSON object of columns and their values (an array: any of them, null among them
               selects NULL)
    columns    only these, each a parameter of its own
    order_by   order by these, each a parameter of its own, optionally with DESC; default: key order

A page in key order continues after the last key. A page in another order is computed again from the beginning, and the
rows of the earlier pages are skipped: the same state gives the same order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.intake.json import convert_value, parse_json
from viewkeeper.model.intake.text import parse_value
from viewkeeper.model.schema import Table
from viewkeeper.read.access.key_ranges import KeyBounds
from viewkeeper.read.access.path import RowRequest
from viewkeeper.read.access.scan import fetch
from viewkeeper.read.state import ReadState
from viewkeeper.server.errors import HttpStatusError
from viewkeeper.server.http.request import Request
from viewkeeper.store.contract.store import Store

PARAMETERS = ("where", "columns", "order_by")


@dataclass(frozen=True)
class RowPage:
    rows: pa.Table
    next: tuple[bytes, int] | None
    """Where the next page begins: a key, and how many rows from it on earlier pages contain."""


def selection_digest(request: Request) -> str:
    """A digest of a request's selection, for its cursors; empty if it selects all rows in key order."""
    values = [request.parameter_values(name) for name in PARAMETERS]
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest() if any(values) else ""


def parse_row_request(request: Request, table: Table, bounds: KeyBounds) -> RowRequest:
    from viewkeeper.sql.condition import row_request_of  # parses conditions with DuckDB; not every server needs it

    columns, order = request.parameter_values("columns") or None, request.parameter_values("order_by") or None
    return row_request_of(table, _parse_condition(table, request.parameter("where")), columns, order, None, bounds)


def read_page(
    store: Store, source: ReadState, row_request: RowRequest, start: bytes | None, skip: int, limit: int
) -> RowPage:
    """A page of `limit` rows; `start` and `skip` come from the page before."""
    table = row_request.table
    keys = [c.name for c in table.key_columns]
    columns = tuple(dict.fromkeys([*row_request.columns, *keys]))
    found = fetch(source, replace(row_request, columns=columns, limit=skip + limit + 1)).slice(skip)
    rows = found.slice(0, limit).select(list(row_request.columns))
    if found.num_rows <= limit:
        return RowPage(rows, None)
    if row_request.order or not keys or not store.is_in_key_order(table):
        return RowPage(rows, (start or b"", skip + limit))
    stored = found.select(keys).cast(pa.schema([table.arrow.field(name) for name in keys]))
    names = store.range_keys(table, stored)
    next_key = names[limit].as_py()
    copies = pc.sum(pc.equal(names[:limit], pa.scalar(next_key, names.type))).as_py() or 0
    return RowPage(rows, (next_key, copies + (skip if copies == limit else 0)))


def _parse_condition(table: Table, text: str | None) -> Any:
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        found = parse_json(text)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise HttpStatusError(
            400, f"where is no JSON: {str(error)[:200]}.", "Or write a condition, as in SQL."
        ) from None
    return {name: _parse_values(table, name, value) for name, value in found.items()}


def _parse_values(table: Table, name: str, value: Any) -> Any:
    column = table.by_name.get(name.lower())
    if column is None or value is None:
        return value  # an unknown name is refused where all names are checked
    if isinstance(value, dict):
        raise BadValue(f"{table.name}.{column.name}: an object is no value.", hint="Give a value, or an array of them.")

    def read(item: Any) -> Any:
        plain = column.type in (types.STRING, types.BINARY) or not isinstance(item, str)
        return convert_value(table, column, item) if plain else parse_value(table.name, column.name, column.type, item)

    return [None if item is None else read(item) for item in value] if isinstance(value, list) else read(value)
