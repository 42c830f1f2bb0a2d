"""The front end: Spark parses, checks and optimises a query; this package reads the plan into the logical plan.

  jvm.py                 a local Spark if the user brings none; errors of a JVM that has ended
  session.py             a session with pinned settings beside the caller's; tables as empty relations; Spark's errors
  refusals.py            functions that depend on time or chance, searched in the analysed plan
  raw_tree.py            Spark's plan as Python trees with types, in few calls into the JVM
  expressions.py         Catalyst expressions → nodes.Expr
  resolved_node.py       nodes with expression ids, and the reader that dispatches on node classes
  reader.py              Catalyst plan nodes → nodes.Node, with the larger ones in
  aggregates.py            aggregates and windows; several DISTINCT aggregates, merged again
  subqueries.py            scalar subqueries as one-row relations
  constant_relations.py    VALUES and other constants
  pruning.py             removal of unused columns; columns numbered without gaps

Only this package reads Spark plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from viewkeeper.errors import BadStatement, UnknownName, Unsupported
from viewkeeper.model import types
from viewkeeper.model.names import check_column_name
from viewkeeper.model.schema import Table
from viewkeeper.model.types import Type
from viewkeeper.plan.catalyst.expressions import CALL_FIELDS, FIELDS
from viewkeeper.plan.catalyst.jvm import explain_jvm_error, has_ended, refuse_ended, translate_jvm_errors
from viewkeeper.plan.catalyst.pruning import prune_columns
from viewkeeper.plan.catalyst.raw_tree import Jvm
from viewkeeper.plan.catalyst.reader import NODE_READERS
from viewkeeper.plan.catalyst.refusals import refuse_volatile
from viewkeeper.plan.catalyst.resolved_node import Reader
from viewkeeper.plan.catalyst.session import SETTINGS, activate_session, analyse, front_session, nesting_error
from viewkeeper.plan.logical.nodes import Node, Project, Query, Sort
from viewkeeper.syntax.family_text import MEMBER_ALIAS

__all__ = [
    "CALL_FIELDS",
    "FIELDS",
    "SETTINGS",
    "activate_session",
    "explain_jvm_error",
    "front_session",
    "has_ended",
    "read_family",
    "read_query",
    "refuse_ended",
    "translate_jvm_errors",
]


def read_query(spark: SparkSession, sql: str, tables: Mapping[str, Table]) -> Query:
    """Return the logical plan of a query over these tables. Raises BadStatement, UnknownName or Unsupported."""
    with activate_session(spark):
        return _read_query(spark, sql, tables)


def read_family(spark: SparkSession, sql: str, tables: Mapping[str, Table], parameters: int) -> Query:
    """Return the logical plan of the parenthesised query of a family (`syntax.family_text`).

    Spark analyses the whole query, so the type of a parameter is known. Only the query of one member is optimised, with
    parameters as expressions of their own. `parameters`: the number of result columns that belong to them.
    """
    with activate_session(spark):
        try:
            analysed = analyse(spark, sql, tables)
        except UnknownName as error:
            if f" {MEMBER_ALIAS}." not in error.message:
                raise
            name = error.message.split(f" {MEMBER_ALIAS}.", 1)[1].rstrip(".")
            raise Unsupported(
                f"The parameter :{name} stands in a subquery of the query, where Spark does not look for it.",
                hint="Join with the subquery, and compare with the parameter outside of it.",
            ) from None
        names = [str(n) for n in analysed.analysed_plan.schema().fieldNames()]
        _refuse_names(names)
        refuse_volatile(analysed.analysed_plan)
        member = analysed.lateral_plan()
        refuse_volatile(member)
        return _read_plan(analysed.jvm, analysed.optimise(member), member, names[parameters:], tables)


def _read_query(spark: SparkSession, sql: str, tables: Mapping[str, Table]) -> Query:
    analysed = analyse(spark, sql, tables)
    names = [str(n) for n in analysed.analysed_plan.schema().fieldNames()]
    _refuse_names(names)
    refuse_volatile(analysed.analysed_plan)
    return _read_plan(analysed.jvm, analysed.optimised_plan, analysed.analysed_plan, names, tables)


def _read_plan(jvm: Jvm, optimised: Any, analysed: Any, names: list[str], tables: Mapping[str, Table]) -> Query:
    try:
        raw = jvm.read_plan(optimised)
        reader = Reader(NODE_READERS, analysed)
        root = reader.select_exactly(reader.read(raw), raw.output)
    except RecursionError:  # a JVM whose stack is larger than usual has accepted the query
        raise nesting_error() from None
    for name, column in zip(names, root.node.columns, strict=True):
        _refuse_type(name, column.type)
    node = prune_columns(root.node if _has_order(analysed) else _strip_sort(root.node), tables.values())
    return Query(node, tuple(zip(names, node.columns, strict=True)))


def _has_order(analysed: Any) -> bool:
    """Whether the query itself ends with ORDER BY, rather than a subquery of it."""
    node = analysed
    while str(node.nodeName()) in ("Project", "WithCTE"):
        node = node.children().last()
    return str(node.nodeName()) == "Sort"


def _strip_sort(node: Node) -> Node:
    """Remove the ORDER BY of a subquery, which does not order the rows of the query around it."""
    if isinstance(node, Project):
        return replace(node, child=_strip_sort(node.child))
    return _strip_sort(node.child) if isinstance(node, Sort) else node


def _refuse_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise BadStatement(f"Two columns of the result are called {name}.", hint="Rename one with AS.")
        check_column_name(name, "Column")
        seen.add(name.lower())


def _refuse_type(name: str, type_: Type) -> None:
    try:
        types.arrow(type_)
    except Unsupported as error:
        raise Unsupported(f"Column {name} of the result: {error.message}", hint=error.hint) from None
