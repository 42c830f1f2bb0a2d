"""Limits of an untrusted query: how much it may return, and how it is stopped.

A reader of a server may query the product of two tables. The limit of rows therefore holds while the answer is
computed, not only afterwards. When a time limit ends, the client disconnects or the server stops, the query is stopped,
in whichever engine it runs.
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
    """The statement was stopped before it had an effect."""


class QueryLimits:
    """The limits of one statement. `max_rows`: how many rows its answer may have."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.job_tag = f"viewkeeper-query-{secrets.token_hex(8)}"
        """Tags the query's Spark jobs, so that cancelling them cancels no batch and no other query."""
        self._lock = threading.Lock()
        self._cancel_callbacks: list[Callable[[], None]] = []
        self._stopped = False

    @contextmanager
    def on_stop(self, cancel: Callable[[], None]) -> Iterator[None]:
        """While the context is open, `stop` calls `cancel`; the engine's error is then replaced by StatementStopped."""
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
        """Stop the statement, because no client waits for it any more."""
        with self._lock:
            self._stopped = True
            for cancel in self._cancel_callbacks:
                cancel()

    def raise_if_stopped(self, error: Exception | None = None) -> None:
        if self._stopped:
            raise StatementStopped("The statement was stopped: nobody waits for it any more.", hint="") from error

    def collect(self, pieces: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
        """Concatenate the pieces of an answer; raises TooLarge if they have too many rows."""
        found, count = [schema.empty_table()], 0
        for piece in pieces:
            found.append(piece.rename_columns(schema.names).cast(schema))
            count += piece.num_rows
            self.check_row_count(count)
        return pa.concat_tables(found)

    def check_row_count(self, count: int) -> None:
        if count > self.max_rows:
            raise TooLarge(f"The answer has more than {self.max_rows} rows.", hint="Write a LIMIT.")


# What an untrusted query may do in Spark: read the tables and views that were registered for it, and nothing else.
#
# Spark SQL by itself would let it read files (``FROM text.`/etc/passwd` ``), call any static method of the JVM
# (`reflect`), start programs (`TRANSFORM … USING`) and write (`FROM … INSERT`). Files are switched off in the session;
# everything else is detected in the parsed and in the analysed plan, before anything runs.


_LOGICAL_PACKAGE = "org.apache.spark.sql.catalyst.plans.logical."
_FORBIDDEN_PLANS = ("Command", "ParsedStatement", "CompoundBody", "ScriptTransformation", "InsertIntoDir")
_REFLECTION_CALL = "org.apache.spark.sql.catalyst.expressions.CallMethodViaReflection"


def refuse_side_effects(spark: Any, query: str) -> None:
    """Refuse a query that does more than read. The session must be the query's own, because this changes its
    settings."""
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
    """The nodes of this plan, of its inputs, and of the subqueries in its expressions."""
    pending = [plan, *_scala_items(plan.subqueriesAll())]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(_scala_items(node.children()))


def _expression_nodes(expression: Any) -> Iterator[Any]:
    pending = [expression]
    while pending:
        part = pending.pop()
        yield part
        pending.extend(_scala_items(part.children()))


def _scala_items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _refuse(node: Any, kinds: list[Any]) -> None:
    if any(kind.isInstance(node) for kind in kinds):
        raise Forbidden(
            f"The query may only read tables and views: {node.nodeName()} is not allowed here.",
            hint="Write SELECT … FROM tables and views.",
        )
