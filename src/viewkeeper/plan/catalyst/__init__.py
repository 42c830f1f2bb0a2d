"""The front end: Spark parses, checks and optimises a query; this package reads the plan into our own nodes.

    local.py        a local Spark, when the user brings none
    living.py       whether its JVM still lives, and what is said if not
    own.py          a session beside the caller's, and how neither disturbs the other
    session.py      its pinned settings; tables as empty relations; Spark's errors as ours
    refusals.py     what depends on time or chance, looked for in the analysed plan
    tree.py         Spark's plan as Python trees, with types, in few calls into the JVM
    expressions.py  Catalyst expressions → nodes.Expr
    reader.py       Catalyst plan nodes → nodes.Node, with the harder ones in
    calls.py          aggregates and windows
    distincts.py      several DISTINCT aggregates, put together again
    scalars.py        scalar subqueries as one-row relations
    constants.py      VALUES and its kin
    pruning.py      only what is used; columns numbered without gaps

Nothing outside this package reads a Spark plan.
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
    """The logical plan of a query over these tables. Raises BadStatement, UnknownName or Unsupported."""
    with activate_session(spark):
        return _read_query(spark, sql, tables)


def read_family(spark: SparkSession, sql: str, tables: Mapping[str, Table], parameters: int) -> Query:
    """The logical plan of what stands in the parentheses of a family's query (`plan.families.texts`).

    Spark analyses the whole query, so a parameter is known by its type; what is optimised is the query of one member,
    in which parameters are expressions of their own. `parameters`: how many columns of the result are theirs.
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
    except RecursionError:  # a JVM with a larger stack than it usually has
        raise nesting_error() from None
    for name, column in zip(names, root.node.columns, strict=True):
        _refuse_type(name, column.type)
    node = prune_columns(root.node if _has_order(analysed) else _strip_sort(root.node), tables.values())
    return Query(node, tuple(zip(names, node.columns, strict=True)))


def _has_order(analysed: Any) -> bool:
    """Whether the query itself ends with ORDER BY, not a subquery of it."""
    node = analysed
    while str(node.nodeName()) in ("Project", "WithCTE"):
        node = node.children().last()
    return str(node.nodeName()) == "Sort"


def _strip_sort(node: Node) -> Node:
    """Without an ORDER BY of a subquery, which says nothing about the rows of the query around it."""
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
