"""Rows by `where=`, `columns=` and `order_by=`, in pages of one state.

    where      a condition as SQL writes it, or a JSON object of columns and their values (an array: one of them, null
               for NULL among them too)
    columns    only these, each a parameter of its own
    order_by   by these, each a parameter of its own, maybe with DESC; else in the order of the key

A page in key order goes on behind the last key. One in another order is found again from the beginning, of which the
rows of the pages before are left out: the same state gives the same order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.intake.json import loads, typed_value
from viewkeeper.model.intake.text import typed
from viewkeeper.model.schema import Table
from viewkeeper.read.access.key_ranges import Bounds
from viewkeeper.read.access.path import Wanted
from viewkeeper.read.access.scan import fetch
from viewkeeper.read.state import Source
from viewkeeper.server.errors import Refused
from viewkeeper.server.http.request import Asked
from viewkeeper.store.contract.store import Store

NAMES = ("where", "columns", "order_by")


@dataclass(frozen=True)
class Page:
    rows: pa.Table
    next: tuple[bytes, int] | None
    """Where the next one begins: a key, and how many rows from it on are in pages already."""


def digest(asked: Asked) -> str:
    """What a request selects, for its cursors; empty if it takes all rows as they are."""
    given = [asked.many(name) for name in NAMES]
    return hashlib.blake2b(repr(given).encode(), digest_size=8).hexdigest() if any(given) else ""


def wanted_of(asked: Asked, table: Table, within: Bounds) -> Wanted:
    from viewkeeper.sql.condition import asked_of  # reads conditions by DuckDB: not for those who have none

    columns, order = asked.many("columns") or None, asked.many("order_by") or None
    return asked_of(table, _condition(table, asked.one("where")), columns, order, None, within)


def page_of(store: Store, source: Source, wanted: Wanted, start: bytes | None, skip: int, limit: int) -> Page:
    """So many rows; `start` and `skip` as the page before said them."""
    table = wanted.table
    keys = [c.name for c in table.key_columns]
    columns = tuple(dict.fromkeys([*wanted.columns, *keys]))
    found = fetch(source, replace(wanted, columns=columns, limit=skip + limit + 1)).slice(skip)
    rows = found.slice(0, limit).select(list(wanted.columns))
    if found.num_rows <= limit:
        return Page(rows, None)
    if wanted.order or not keys or not store.in_key_order(table):
        return Page(rows, (start or b"", skip + limit))
    stored = found.select(keys).cast(pa.schema([table.arrow.field(name) for name in keys]))
    names = store.range_keys(table, stored)
    following = names[limit].as_py()
    given = pc.sum(pc.equal(names[:limit], pa.scalar(following, names.type))).as_py() or 0
    return Page(rows, (following, given + (skip if given == limit else 0)))


def _condition(table: Table, text: str | None) -> Any:
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        found = loads(text)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise Refused(400, f"where is no JSON: {str(error)[:200]}.", "Or write a condition, as in SQL.") from None
    return {name: _values(table, name, value) for name, value in found.items()}


def _values(table: Table, name: str, value: Any) -> Any:
    column = table.by_name.get(name.lower())
    if column is None or value is None:
        return value  # the name is refused where all names are looked at
    if isinstance(value, dict):
        raise BadValue(f"{table.name}.{column.name}: an object is no value.", hint="Give a value, or an array of them.")

    def read(one: Any) -> Any:
        plain = column.type in (types.STRING, types.BINARY) or not isinstance(one, str)
        return typed_value(table, column, one) if plain else typed(table.name, column.name, column.type, one)

    return [None if one is None else read(one) for one in value] if isinstance(value, list) else read(value)
