"""A condition by itself: `where=` of `scan` and `read`, as SQL text or as columns and their values.

A text is read as the embedded engine reads a query's WHERE, and means what Spark means; what that engine does not take
is refused, with the way to ask Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from viewkeeper.errors import BadStatement, BadValue, UnknownName, Unsupported
from viewkeeper.expressions import can_raise
from viewkeeper.model import types
from viewkeeper.model.intake import arguments
from viewkeeper.model.schema import Table
from viewkeeper.plan.logical.nodes import Expr
from viewkeeper.read.access.key_ranges import Bounds
from viewkeeper.read.access.path import Wanted
from viewkeeper.read.access.predicates import Where, by_condition, by_values
from viewkeeper.read.access.request import asked
from viewkeeper.resources.prepared_statements import connect
from viewkeeper.sql.embedded.coercion import NoColumn, NotProven, NotRead
from viewkeeper.sql.embedded.query import tree
from viewkeeper.sql.embedded.typing import Field, Scope

_PARTS = {"type", "modifiers", "cte_map", "select_list", "from_table", "where_clause", "aggregate_handling"}


def asked_of(
    table: Table,
    where: str | Mapping[str, Any] | None,
    columns: Sequence[str] | None,
    order_by: Sequence[str] | str | None,
    limit: int | None,
    within: Bounds = (None, None),
) -> Wanted:
    """What `scan` and `read` are asked for, checked."""
    return asked(table, where_of(table, where), columns, order_by, limit, within)


def where_of(table: Table, given: str | Mapping[str, Any] | None) -> Where:
    """The condition that `where=` says."""
    if given is None:
        return Where()
    if isinstance(given, Mapping):
        return by_values(table, given)
    if not isinstance(given, str):
        raise BadValue(
            f"where is {arguments.short(given)}.", hint="Give a condition as text, or columns and their values."
        )
    try:
        return by_condition(condition(table, given))
    except RecursionError:
        raise BadStatement("where is nested too deeply.", hint="Write it with fewer brackets.") from None
    except NoColumn as why:
        raise UnknownName(
            f"where={arguments.short(given)}: {why} in {table.name}.",
            hint=f"It has: {', '.join(c.name for c in table.columns)}.",
        ) from why
    except NotRead as why:
        raise BadStatement(
            f"where={arguments.short(given)} is no condition: {why}.",
            hint=f"Write what follows WHERE; what Spark alone can read is asked by {_asked(table)}.",
        ) from why
    except NotProven as why:
        raise Unsupported(
            f"where={arguments.short(given)} is not known to mean what Spark means here: {why}.",
            hint=f"Ask by {_asked(table)}.",
        ) from why


def _asked(table: Table) -> str:
    return f"SQL: SELECT … FROM {table.name} WHERE …"


def condition(table: Table, text: str) -> Expr:
    """The condition over the columns of a table; NotProven if the embedded engine does not take it."""
    fields = tuple(Field(table.name, c.name, c.name, c.type, c.nullable) for c in table.columns)
    found = Scope(fields).read(_parsed(text))
    if found.type != types.BOOLEAN:
        raise BadStatement(f"where={arguments.short(text)} is no condition.", hint="Write a comparison.")
    if can_raise(found):
        raise NotProven("a condition that can fail")
    return found


@lru_cache(maxsize=256)
def _parsed(text: str) -> Mapping[str, Any]:
    with connect(threads=1) as connection:
        node = tree(connection, f"SELECT 1 FROM _rows WHERE {text}")
    modifiers = node.get("modifiers")
    if node["type"] != "SELECT_NODE" or not node.keys() <= _PARTS or modifiers or "where_clause" not in node:
        raise BadStatement(f"where={arguments.short(text)} is more than a condition.", hint="Write what follows WHERE.")
    found: Mapping[str, Any] = node["where_clause"]
    return found
