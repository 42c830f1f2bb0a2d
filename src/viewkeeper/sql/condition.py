"""A condition by itself: `where=` of `scan` and `read`, as SQL text or as columns and their values.

A text is parsed as the embedded engine parses a query's WHERE, and has Spark's meaning. A condition that the embedded
engine does not support is refused, with a hint how to run it on Spark.
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
from viewkeeper.read.access.key_ranges import KeyBounds
from viewkeeper.read.access.path import RowRequest
from viewkeeper.read.access.predicates import RequestPredicate, predicate_from_condition, predicate_from_values
from viewkeeper.read.access.request import build_request
from viewkeeper.resources.prepared_statements import connect
from viewkeeper.sql.embedded.coercion import UnknownColumn, UnparsableQuery, UnprovenQuery
from viewkeeper.sql.embedded.query import parse_query
from viewkeeper.sql.embedded.typing import Scope, ScopeField

_CONDITION_FIELDS = {"type", "modifiers", "cte_map", "select_list", "from_table", "where_clause", "aggregate_handling"}


def row_request_of(
    table: Table,
    where: str | Mapping[str, Any] | None,
    columns: Sequence[str] | None,
    order_by: Sequence[str] | str | None,
    limit: int | None,
    bounds: KeyBounds = (None, None),
) -> RowRequest:
    """The checked request of `scan` and `read`."""
    return build_request(table, where_of(table, where), columns, order_by, limit, bounds)


def where_of(table: Table, where: str | Mapping[str, Any] | None) -> RequestPredicate:
    """The predicate of `where=`."""
    if where is None:
        return RequestPredicate()
    if isinstance(where, Mapping):
        return predicate_from_values(table, where)
    if not isinstance(where, str):
        raise BadValue(
            f"where is {arguments.shorten(where)}.", hint="Give a condition as text, or columns and their values."
        )
    try:
        return predicate_from_condition(parse_condition(table, where))
    except RecursionError:
        raise BadStatement("where is nested too deeply.", hint="Write it with fewer brackets.") from None
    except UnknownColumn as why:
        raise UnknownName(
            f"where={arguments.shorten(where)}: {why} in {table.name}.",
            hint=f"It has: {', '.join(c.name for c in table.columns)}.",
        ) from why
    except UnparsableQuery as why:
        raise BadStatement(
            f"where={arguments.shorten(where)} is no condition: {why}.",
            hint=f"Write what follows WHERE; what Spark alone can read is asked by {_sql_hint(table)}.",
        ) from why
    except UnprovenQuery as why:
        raise Unsupported(
            f"where={arguments.shorten(where)} is not known to mean what Spark means here: {why}.",
            hint=f"Ask by {_sql_hint(table)}.",
        ) from why


def _sql_hint(table: Table) -> str:
    return f"SQL: SELECT … FROM {table.name} WHERE …"


def parse_condition(table: Table, text: str) -> Expr:
    """The condition over the columns of a table. Raises UnprovenQuery if the embedded engine does not support it."""
    fields = tuple(ScopeField(table.name, c.name, c.name, c.type, c.nullable) for c in table.columns)
    found = Scope(fields).read(_parse_tree(text))
    if found.type != types.BOOLEAN:
        raise BadStatement(f"where={arguments.shorten(text)} is no condition.", hint="Write a comparison.")
    if can_raise(found):
        raise UnprovenQuery("a condition that can fail")
    return found


@lru_cache(maxsize=256)
def _parse_tree(text: str) -> Mapping[str, Any]:
    with connect(threads=1) as connection:
        node = parse_query(connection, f"SELECT 1 FROM _rows WHERE {text}")
    modifiers = node.get("modifiers")
    if node["type"] != "SELECT_NODE" or not node.keys() <= _CONDITION_FIELDS or modifiers or "where_clause" not in node:
        raise BadStatement(
            f"where={arguments.shorten(text)} is more than a condition.", hint="Write what follows WHERE."
        )
    found: Mapping[str, Any] = node["where_clause"]
    return found
