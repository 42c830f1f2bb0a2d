"""CREATE, ALTER, DROP, SHOW, DESCRIBE and EXPLAIN: run here, or by the process that maintains the database.

SHOW, DESCRIBE and EXPLAIN only read. The others need the lease, or on RocksDB the one writer. If another process has
it, this process sends the statement there and returns its answer (`maintain.remote_ddl`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from viewkeeper.errors import Defect, MaintainerBusy
from viewkeeper.read.show import LISTINGS
from viewkeeper.sql import ddl
from viewkeeper.sql.ddl_outcome import describe_outcome
from viewkeeper.syntax import statements

if TYPE_CHECKING:
    from viewkeeper.capture.snapshot import Progress
    from viewkeeper.database import Database


def define(db: Database, text: str, progress: Progress | None = None) -> tuple[pa.Table | None, str]:
    """Run one statement: CREATE, ALTER and DROP of TABLE, MATERIALIZED VIEW and INDEX, SHOW, DESCRIBE, EXPLAIN.

    Returns its rows if there are any, else what it did. `progress` is called with the progress of a view's load, in
    place of the database's own.
    """
    statement = statements.parse(text)
    if (listing := LISTINGS.get(type(statement))) is not None:
        return listing(db._store.catalog(), statement), ""
    if isinstance(statement, statements.Explain):
        return pa.table({"plan": db.explain(statement.name).splitlines()}), ""
    return None, _run_or_forward(db, "define", [text], progress)


def create_views(db: Database, texts: Sequence[str], progress: Progress | None = None) -> list[str]:
    """Create several views, each over tables and over the views before it: all of them are created, or none.

    Returns the names of the created views: one that IF NOT EXISTS finds stays as it is.
    """
    created: list[str] = _run_or_forward(db, "create_views", texts, progress)
    return created


def drop_views(db: Database, names: Sequence[str]) -> None:
    """Drop several views, which may read each other; drop none if one does not exist, or is used by others."""
    _run_or_forward(db, "drop_views", names, None)


def _run_or_forward(db: Database, call: str, arguments: Sequence[Any], progress: Progress | None) -> Any:
    """Run a call in this process, or in the one that maintains the database."""
    listener = progress or db._progress
    while True:
        try:
            return run_call(db, call, arguments, listener)
        except MaintainerBusy:
            if db._maintainer is not None or db._store.mailbox is None:
                raise
        from viewkeeper.maintain.remote_ddl.client import request_definition

        answer = request_definition(db._store, call, arguments, listener, db._acquire_maintainer)
        if answer is not None:
            return answer.result


def run_call(db: Database, call: str, arguments: Sequence[Any], progress: Progress | None) -> Any:
    """Run a call in this process, which acquires the maintainer where the call needs it.

    Arguments and result can be written as JSON.
    """
    if call == "create_views":
        return ddl.create_views(db, arguments, progress)
    if call == "drop_views":
        return ddl.drop_views(db, arguments)
    if call == "define":
        statement = statements.parse(arguments[0])
        was_there = db._store.catalog().find(getattr(statement, "name", "")) is not None
        ddl.run(db, statement, progress)
        return describe_outcome(statement, was_there)
    raise Defect(f"There is no call {call!r}.")
