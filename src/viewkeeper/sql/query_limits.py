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


class Ended(Timeout):
    """A statement that was stopped before it had done anything."""


class Leash:
    """Holds one statement. `rows`: how many an answer may have."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tag = f"viewkeeper-query-{secrets.token_hex(8)}"
        """Marks its jobs in Spark: who cancels those cancels no batch, and nobody else's query."""
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._stopped = False

    @contextmanager
    def held(self, end: Callable[[], None]) -> Iterator[None]:
        """While this lasts, `stop` calls `end`; what is then raised here is said in our words."""
        with self._lock:
            self._ends.append(end)
        try:
            self.check()
            yield
        except Exception as error:
            self.check(error)
            raise
        finally:
            with self._lock:
                self._ends.remove(end)

    def stop(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._stopped = True
            for end in self._ends:
                end()

    def check(self, error: Exception | None = None) -> None:
        if self._stopped:
            raise Ended("The statement was stopped: nobody waits for it any more.", hint="") from error

    def gathered(self, pieces: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
        """The pieces of an answer, unless they become too many."""
        found, count = [schema.empty_table()], 0
        for piece in pieces:
            found.append(piece.rename_columns(schema.names).cast(schema))
            count += piece.num_rows
            self.fits(count)
        return pa.concat_tables(found)

    def fits(self, count: int) -> None:
        if count > self.rows:
            raise TooLarge(f"The answer has more than {self.rows} rows.", hint="Write a LIMIT.")


# What a query of somebody else may do in Spark: read the tables and views that were handed to it, nothing beside.
#
# Spark SQL alone would let it read files (``FROM text.`/etc/passwd` ``), call any static method of the JVM (`reflect`),
# start programs (`TRANSFORM … USING`) and write (`FROM … INSERT`). Files are switched off in the session; everything
# else is seen in the parsed and in the analysed plan, before anything runs.


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
