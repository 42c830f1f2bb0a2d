"""A query that runs for somebody else: what it may take, and how it is stopped.

A server's reader may ask for the product of two tables. So the answer has a limit that holds while it is made, not
afterwards, and whoever waited and does not any more (a time is over, a client has gone, the server ends) stops it, in
whichever engine it is.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from viewkeeper.errors import Forbidden, Timeout, TooLarge


class StatementStopped(Timeout):
    """A statement that was stopped before it had done anything."""


class QueryLimits:
    """Holds one statement. `rows`: how many an answer may have."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.job_tag = f"viewkeeper-query-{secrets.token_hex(8)}"
        """Marks its jobs in Spark: who cancels those cancels no batch, and nobody else's query."""
        self._lock = threading.Lock()
        self._cancel_callbacks: list[Callable[[], None]] = []
        self._stopped = False

    @contextmanager
    def on_stop(self, cancel: Callable[[], None]) -> Iterator[None]:
        """While this lasts, `stop` calls `end`; what is then raised here is said in our words."""
        with self._lock:
            self._cancel_callbacks.append(cancel)
        try:
            self.raise_if_stopped()
            yield
        except Exception as error:
            self.raise_if_stopped(error)
            raise
        finally:
            with self._lock:
                self._cancel_callbacks.remove(cancel)

    def stop(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._stopped = True
            for end in self._cancel_callbacks:
                end()

    def raise_if_stopped(self, error: Exception | None = None) -> None:
        if self._stopped:
            raise StatementStopped("The statement was stopped: nobody waits for it any more.", hint="") from error

    def collect(self, pieces: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
        """The pieces of an answer, unless they become too many."""
        found, count = [schema.empty_table()], 0
        for piece in pieces:
            found.append(piece.rename_columns(schema.names).cast(schema))
            count += piece.num_rows
            self.check_row_count(count)
        return pa.concat_tables(found)

    def check_row_count(self, count: int) -> None:
        if count > self.max_rows:
            raise TooLarge(f"The answer has more than {self.max_rows} rows.", hint="Write a LIMIT.")


# What a query of somebody else may do in Spark: read the tables and views that were handed to it, nothing beside.
#
# Spark SQL alone would let it read files (``FROM text.`/etc/passwd` ``), call any static method of the JVM (`reflect`),
# start programs (`TRANSFORM … USING`) and write (`FROM … INSERT`). Files are switched off in the session; everything
# else is seen in the parsed and in the analysed plan, before anything runs.


_LOGICAL_PACKAGE = "org.apache.spark.sql.catalyst.plans.logical."
_FORBIDDEN_PLANS = ("Command", "ParsedStatement", "CompoundBody", "ScriptTransformation", "InsertIntoDir")
_REFLECTION_CALL = "org.apache.spark.sql.catalyst.expressions.CallMethodViaReflection"


def refuse_side_effects(spark: Any, query: str) -> None:
    """Refuse what does more than read; the session is one of the query's own."""
    from viewkeeper.plan.catalyst.session import translate_errors

    spark.conf.set("spark.sql.runSQLOnFiles", "false")
    state, find = spark._jsparkSession.sessionState(), spark._jvm.java.lang.Class.forName
    with translate_errors():
        plans = [find(_LOGICAL_PACKAGE + kind) for kind in _FORBIDDEN_PLANS]
        call = find(_REFLECTION_CALL)
        parsed = state.sqlParser().parsePlan(query)
        for node in _plan_nodes(parsed):
            _refuse(node, plans)
        execution = state.executePlan(parsed, getattr(state, "executePlan$default$2")())
        for node in _plan_nodes(execution.analyzed()):
            _refuse(node, plans)
            for expression in _scala_items(node.expressions()):
                for part in _expression_nodes(expression):
                    _refuse(part, [call])


def _plan_nodes(plan: Any) -> Iterator[Any]:
    """This plan, what it is made from, and the subqueries in its expressions."""
    waiting = [plan, *_scala_items(plan.subqueriesAll())]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(_scala_items(node.children()))


def _expression_nodes(expression: Any) -> Iterator[Any]:
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(_scala_items(part.children()))


def _scala_items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _refuse(node: Any, kinds: list[Any]) -> None:
    if any(kind.isInstance(node) for kind in kinds):
        raise Forbidden(
            f"The query may only read tables and views: {node.nodeName()} is not allowed here.",
            hint="Write SELECT … FROM tables and views.",
        )
