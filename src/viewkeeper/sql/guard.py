"""What a query of somebody else may do in Spark: read the tables and views that were handed to it, nothing beside.

Spark SQL alone would let it read files (``FROM text.`/etc/passwd` ``), call any static method of the JVM (`reflect`),
start programs (`TRANSFORM … USING`) and write (`FROM … INSERT`). Files are switched off in the session; everything else
is seen in the parsed and in the analysed plan, before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from viewkeeper.errors import Forbidden

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_PLANS = ("Command", "ParsedStatement", "CompoundBody", "ScriptTransformation", "InsertIntoDir")
_CALL = "org.apache.spark.sql.catalyst.expressions.CallMethodViaReflection"


def guard(spark: Any, query: str) -> None:
    """Refuse what does more than read; the session is one of the query's own."""
    from viewkeeper.plan.catalyst.session import translated

    spark.conf.set("spark.sql.runSQLOnFiles", "false")
    state, find = spark._jsparkSession.sessionState(), spark._jvm.java.lang.Class.forName
    with translated():
        plans = [find(_LOGICAL + kind) for kind in _PLANS]
        call = find(_CALL)
        parsed = state.sqlParser().parsePlan(query)
        for node in _nodes(parsed):
            _refuse(node, plans)
        execution = state.executePlan(parsed, getattr(state, "executePlan$default$2")())
        for node in _nodes(execution.analyzed()):
            _refuse(node, plans)
            for expression in _items(node.expressions()):
                for part in _parts(expression):
                    _refuse(part, [call])


def _nodes(plan: Any) -> Iterator[Any]:
    """This plan, what it is made from, and the subqueries in its expressions."""
    waiting = [plan, *_items(plan.subqueriesAll())]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(_items(node.children()))


def _parts(expression: Any) -> Iterator[Any]:
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(_items(part.children()))


def _items(found: Any) -> list[Any]:
    return [found.apply(i) for i in range(found.size())]


def _refuse(node: Any, kinds: list[Any]) -> None:
    if any(kind.isInstance(node) for kind in kinds):
        raise Forbidden(
            f"The query may only read tables and views: {node.nodeName()} is not allowed here.",
            hint="Write SELECT … FROM tables and views.",
        )
