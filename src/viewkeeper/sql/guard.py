"""What a query of somebody else may do in Spark: read the tables and views that were handed to it, nothing beside.

Spark SQL alone would let it read files (``FROM text.`/etc/passwd` ``), call any static method of the JVM (`reflect`),
start programs (`TRANSFORM … USING`) and write (`FROM … INSERT`). Files are switched off in the session; the functions
are taken out of it; everything else is seen in the analysed plan, before anything runs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from viewkeeper.errors import Forbidden
from viewkeeper.plan.words import statements

_CALLS = ("reflect", "java_method", "try_reflect", "identifier")
"""Functions that call into the JVM, and the clause that could spell their names in pieces."""
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_KINDS = ("Command", "ParsedStatement", "CompoundBody", "ScriptTransformation", "InsertIntoDir")


def guard(spark: Any, query: str) -> None:
    """Refuse what does more than read; the session is one of the query's own."""
    tokens = [t for found in statements(query) for t in found]
    for token, following in pairwise(tokens):
        if token.value.lower() in _CALLS and following.value == "(":
            raise _refused(f"{token.value} is not allowed here")
    spark.conf.set("spark.sql.runSQLOnFiles", "false")
    state, jvm = spark._jsparkSession.sessionState(), spark._jvm
    for name in _CALLS:
        state.functionRegistry().dropFunction(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))
    from viewkeeper.plan.catalyst.session import _translated

    with _translated():
        parsed = state.sqlParser().parsePlan(query)
        kinds = [jvm.java.lang.Class.forName(_LOGICAL + kind) for kind in _KINDS]
        _check(parsed, kinds)
        execution = state.executePlan(parsed, getattr(state, "executePlan$default$2")())
        _check(execution.analyzed(), kinds)


def _check(plan: Any, kinds: list[Any]) -> None:
    """This plan, what it is made from, and the subqueries in its expressions."""
    waiting = [plan, *_items(plan.subqueriesAll())]
    while waiting:
        node = waiting.pop()
        if any(kind.isInstance(node) for kind in kinds):
            raise _refused(f"{node.nodeName()} is no query")
        waiting.extend(_items(node.children()))
        waiting.extend(_items(node.subqueries()))


def _items(found: Any) -> list[Any]:
    return [found.apply(i) for i in range(found.size())]


def _refused(why: str) -> Forbidden:
    return Forbidden(f"The query may only read tables and views: {why}.", hint="Write SELECT … FROM tables and views.")
