"""The database: the public surface over the steps of the data path."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from viewkeeper.capture.snapshot import Progress
from viewkeeper.errors import BadValue
from viewkeeper.maintain.continuous import Maintenance, Pace
from viewkeeper.maintain.registry import ClosedStore, MaintainerReference
from viewkeeper.maintain.writes import Writes
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.intake import arguments
from viewkeeper.model.token import Token
from viewkeeper.read import freshness
from viewkeeper.read.freshness import ANY, AfterTokens, Level
from viewkeeper.read.handle import Handle
from viewkeeper.read.reads import Reads
from viewkeeper.read.snapshot import MAX_AGE, Snapshot
from viewkeeper.read.subscribe import Delta, subscribe
from viewkeeper.resources.process_budget import register, unregister
from viewkeeper.runtime.spark.sessions import SparkSessions
from viewkeeper.store.contract.store import Store

if TYPE_CHECKING:  # the methods import these when they run, so that a program that only reads or writes starts fast
    from viewkeeper.commit.batch_history import BatchReport
    from viewkeeper.explain.result import Plan
    from viewkeeper.maintain.maintainer import Maintainer
    from viewkeeper.read.access.path import RowRequest
    from viewkeeper.read.audit.doctor import Examination
    from viewkeeper.read.audit.report import Audit
    from viewkeeper.read.status import Status
    from viewkeeper.sql.result import Result

RETENTION = 60.0
"""Seconds for which changes stay in the log after the views contain them."""


class Database:
    """An open database. Use it as a context manager, or call `close`. Its methods may be called from any thread.

    Any number of processes may read and write. One process at a time maintains: the first that refreshes or creates a
    view holds the lease until it closes its handle. The handles of one process share one maintainer, with the settings
    of the first handle that maintains. A handle that is garbage-collected without `close` releases its share.
    """

    def __init__(
        self,
        store: Store,
        *,
        mode: str,
        spark: Any,
        progress: Progress | None,
        durable: bool = True,
        retention: float = RETENTION,
        memory: int | str | None = None,
        threads: int | None = None,
    ) -> None:
        self._store = store
        register(self, memory)
        self._sessions = SparkSessions(store, spark)
        self._progress = progress
        settings = {"durable": durable, "retention": retention, "memory": memory, "threads": threads}
        self._maintainer_ref = MaintainerReference(self, store, self._sessions, _run_received_call, **settings)
        self._writes = Writes(store, mode)
        self._reads = Reads(store, self._maintainer_ref, _build_request)
        self._closed = False

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop maintaining, release the lease and the store. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        unregister(self)
        self._maintainer_ref.finalizer.detach()
        try:
            if self._writes.maintenance is not None:
                self._writes.maintenance.stop()
        finally:
            if self._maintainer_ref.release():
                self._store.close()
            else:
                self._store = ClosedStore(self._store.url)  # type: ignore[assignment]
            self._reads.close(self._store)
            self._writes.close(self._store)

    # -- statements ---------------------------------------------------------------------------------------------------

    def sql(self, text: str, *, engine: str = "auto", stale: bool = False, **parameters: Any) -> Result:
        """Run a statement and return its rows or a report: `db.sql("SELECT … WHERE k = :k", k=3)`.

        CREATE, ALTER and DROP of tables, materialized views and indexes, INSERT, UPSERT, UPDATE, DELETE, SELECT, SHOW,
        DESCRIBE, EXPLAIN. Several statements, separated by semicolons, run one after the other; `each` of the result
        has the results of all. `engine` says what runs a query: "embedded" starts no Spark and accepts only queries
        that it runs with Spark's meaning, "spark" accepts every query, "auto" takes the first of the two that can run
        it. `stale`: also read the old rows of suspended views.
        """
        from viewkeeper.sql.statements import run

        return run(self, text, parameters, engine=engine, stale=stale)

    def create_views(self, views: Mapping[str, str]) -> None:
        """Create many materialized views at once, from names and queries: `{"cheap": "SELECT …", …}`.

        The views are loaded together and published in one batch. If one of them is refused or fails, none is created. A
        query may read the views listed before it. Queries that differ only in constants are planned once.
        """
        from viewkeeper.sql.run_ddl import create_views
        from viewkeeper.syntax.statements import create_view_text

        queries = arguments.check_texts(views, "Views", 'Give names and queries: {"cheap": "SELECT …"}.')
        create_views(self, [create_view_text(name, query) for name, query in queries.items()])

    def drop_views(self, names: Sequence[str]) -> None:
        """Drop many materialized views at once: `db.drop_views([v.name for v in db.views()])`.

        The views may read each other. If one does not exist, or is read by a view that is not listed, none is dropped.
        """
        from viewkeeper.sql.run_ddl import drop_views

        drop_views(self, arguments.check_names(names, "Views", 'Give their names: ["cheap", "dear"].'))

    # -- writes -------------------------------------------------------------------------------------------------------

    def put(self, table: str, rows: Any) -> Token:
        """Insert rows, or replace whole rows of the same key. All rows of a call are one write.

        `rows`: a dict, a list of dicts, a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or polars frame.
        """
        return self._writes.put(table, rows)

    def delete(self, table: str, keys: Any) -> Token:
        """Delete rows by key: one key (a scalar, or a tuple for a composite key), a list, or an Arrow table of keys."""
        return self._writes.delete(table, keys)

    def update(self, table: str, key: Any, columns: Mapping[str, Any]) -> Token:
        """Change some columns of one row, atomically. The row must exist."""
        return self._writes.update(table, key, columns)

    # -- maintenance --------------------------------------------------------------------------------------------------

    def refresh(self, lane: str = "auto", *, suspend: bool = True) -> BatchReport:
        """Bring every view to the head of the log in one batch. Lanes: auto, driver, spark.

        If a row breaks a view, only that view is suspended, the other views are maintained, and the report names the
        view and the reason (`suspended`). With `suspend=False` the error is raised instead (VK401), and nothing is
        published.
        """
        return self._acquire_maintainer().refresh_all(lane, suspend=suspend)

    def maintain(
        self,
        *,
        max_delay: float = 0.05,
        max_changes: int = 50_000,
        priority: str = "balanced",
        max_lag: int | None = None,
        retries: int = 5,
        lane: str = "auto",
        standby: bool = False,
        on_batch: Callable[[BatchReport], None] | None = None,
        audit_every: float | None = None,
        on_audit: Callable[[Audit], None] | None = None,
    ) -> Maintenance:
        """Keep the views fresh in the background: `with db.maintain(): …`.

        `max_delay`: seconds a change may wait before its batch begins, when batches pause to leave the machine to the
        writers (`priority`: "writers", "balanced" or "views"); up to 2 s more after a batch of seconds on HBase, where
        writers need all processors of this machine, unless there is a `max_lag`. `max_changes`: rows of a batch, about.
        `max_lag`: writes of this process wait while the views are more rows behind. A view that fails on its own rows
        is suspended; any other error is retried `retries` times, then raised when the maintenance is left. `standby`:
        while another process maintains, wait and take over when it ends; without `standby` that is MaintainerBusy.
        `audit_every`: seconds between two audits, which run beside the batches; `on_audit` is called with each audit,
        and `status` shows the last.
        """
        self._writes.check_mode("maintain views")
        if self._writes.maintenance is not None and self._writes.maintenance.running:
            raise BadValue("This database is maintained in the background already.", hint="Stop that one first.")
        pace = Pace(max_delay, max_changes, priority, max_lag, retries)
        maintenance = Maintenance(
            self._store, pace, self._maintainer_ref, lane=lane, standby=standby, on_batch=on_batch
        )
        self._writes.maintenance = maintenance
        if audit_every is not None:
            from viewkeeper.read.audit.background import audit_in_background

            audited = partial(audit_in_background, self._store, weakref.WeakMethod(self.audit), on_audit)
            maintenance.beside(audit_every, audited)
        return maintenance.start()

    def audit(self, *views: str, sample: int | None = None, repair: bool = False) -> Audit:
        """Compare views (all, if none is named) with their queries, which Spark recomputes from the tables at one
        batch.

        `sample`: compare about this many keys of each view. `repair`: rebuild the views that differ, with the state
        behind them; exactly the rows that differ are written.
        """
        from viewkeeper.plan.catalyst import front_session
        from viewkeeper.read.audit.background import audit_database

        if repair:
            self._writes.check_mode("repair views")
        return audit_database(
            self._store,
            lambda: front_session(self._spark()),
            self._acquire_maintainer,
            views,
            sample=sample,
            repair=repair,
            note=self._writes.mode == "w",
        )

    # -- reads --------------------------------------------------------------------------------------------------------

    def get(
        self, name: str, key: Any, level: Level = ANY, *, after: AfterTokens = None, timeout: float = freshness.TIMEOUT
    ) -> dict[str, Any] | None:
        """The row of a table or view with this key; None if there is none.

        `level` and `after` say how new the view must be, `timeout` how long to wait for that (see `read.freshness`). A
        suspended view is an error (VK605), unless the level is STALE, which reads its old rows.
        """
        return self._reads.get(name, key, level, after, timeout)

    def scan(
        self,
        name: str,
        prefix: Any = None,
        start: Any = None,
        stop: Any = None,
        limit: int | None = None,
        level: Level = ANY,
        *,
        where: str | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        order_by: Sequence[str] | str | None = None,
        after: AfterTokens = None,
        timeout: float = freshness.TIMEOUT,
    ) -> Iterator[dict[str, Any]]:
        """Rows in key order: by a key prefix, or from `start` (included) to `stop` (excluded). All of one state.

        `where`: a condition, such as "price >= 10 AND category = 'toys'", or columns and their values (a list: any of
        them; None: NULL). `columns`: only these. `order_by`: columns to order by, each optionally with DESC. The read
        takes the cheapest access path: a range of keys, an index, or a scan; `EXPLAIN SELECT …` shows which.
        """
        keys = (prefix, start, stop)
        return self._reads.scan(name, keys, limit, where, columns, order_by, level, after, timeout)

    def read(
        self,
        name: str,
        level: Level = ANY,
        *,
        where: str | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        order_by: Sequence[str] | str | None = None,
        limit: int | None = None,
        after: AfterTokens = None,
        timeout: float = freshness.TIMEOUT,
    ) -> pa.Table:
        """Rows of a table or view from one consistent state, in key order: all, or those that `where`, `columns`,
        `order_by` and `limit` select, as in `scan`."""
        return self._reads.read(name, where, columns, order_by, limit, level, after, timeout)

    def cluster(
        self, name: str, key: Any, level: Level = ANY, *, after: AfterTokens = None, timeout: float = freshness.TIMEOUT
    ) -> dict[str, list[dict[str, Any]]]:
        """The rows of one key of a clustered view, by table. The read is one key range."""
        return self._reads.cluster(name, key, level, after, timeout)

    def join(
        self,
        name: str,
        key: Any,
        how: str | Mapping[str, str] = "inner",
        level: Level = ANY,
        *,
        after: AfterTokens = None,
        timeout: float = freshness.TIMEOUT,
    ) -> list[dict[str, Any]]:
        """The rows of one key of a clustered view, joined. The read is one key range. A NULL key gives no row.

        `how`: "inner", "left" (each row of the first table, with NULLs where another table has no row), or one of these
        for each table by name. A column name that several tables have becomes `table.column`.
        """
        return self._reads.join(name, key, how, level, after, timeout)

    def token(self, name: str | None = None) -> Token:
        """The state that reads see now, as a token: no earlier read of this process saw a newer state.

        For a view, or without a name, the token stands for the published batch, or for a newer position that a LATEST
        read has shown; for a suspended view, for its last batch; for a base table, for its last write.
        """
        return self._reads.token(name)

    def snapshot(self, *, max_age: float = MAX_AGE, mixed: bool = False) -> Snapshot:
        """Many reads of tables and views at one batch: `with db.snapshot() as s: s.get(…), s.scan(…), s.read(…)`.

        The snapshot ends by itself after `max_age` seconds. `mixed`: also read views that stand at another batch, and
        the old rows of suspended views.
        """
        return Snapshot(self._store, _build_request, max_age=max_age, mixed=mixed)

    def subscribe(
        self,
        name: str,
        since: Token | str | None = None,
        *,
        timeout: float | None = None,
        progress: float | None = None,
        keep: tuple[str, float] | None = None,
        stale: bool = False,
    ) -> Iterator[Delta]:
        """A view's current rows, then every committed change exactly once; with `since`, the token of a delta, only the
        changes after it.

        `timeout`: end after this many seconds without a change. `progress`: a progress delta after this many seconds
        without a change. `keep` (name, seconds): hold the log for this subscriber beyond the database's retention.
        `stale`: begin with the old rows of a suspended view, which otherwise is an error. `Delta.kind` lists the kinds
        of deltas.
        """
        return subscribe(self._store, name, since, timeout=timeout, progress=progress, keep=keep, stale=stale)

    # -- inspection ---------------------------------------------------------------------------------------------------

    def table(self, name: str) -> Handle:
        """A handle of a table or view: its columns, key and definition; a notebook shows its first rows."""
        return Handle(self, name)

    def tables(self) -> list[Handle]:
        """All base tables, by name."""
        return [Handle(self, t.name) for t in sorted(self._catalog().user_tables, key=lambda t: t.name.lower())]

    def views(self) -> list[Handle]:
        """All materialized views, by name."""
        return [Handle(self, v.table.name) for v in _sort_by_name(self._catalog().user_views)]

    def indexes(self) -> list[Handle]:
        """All indexes, by name."""
        return [
            Handle(self, v.table.name) for v in _sort_by_name(v for v in self._catalog().views if v.index is not None)
        ]

    def explain(self, view: str) -> Plan:
        """The maintenance plan of a view as text: operators, rounds, keys, state. A notebook shows a diagram."""
        from viewkeeper.explain.result import view_plan

        return view_plan(self._store, self._catalog(), view)

    def doctor(self) -> Examination:
        """Check formats, checksums, versions, orphaned files, log retention and space; report problems and remedies."""
        from viewkeeper.read.audit.doctor import examine

        return examine(self._store)

    def backup(self, directory: str | os.PathLike[str]) -> int:
        """Copy the database, as it is now, to a directory that does not exist yet; writers and maintainer go on.

        The copy is a complete database; `vk.restore` copies it back to a new one. Returns the number of bytes.
        """
        from viewkeeper.commit.backup import back_up

        return back_up(self._store, directory)

    def status(self) -> Status:
        """Views, batch, lag in changes and seconds, rates, and bytes of state."""
        from viewkeeper.read.status import database_status

        return database_status(self._store, self._catalog())

    # -- internal -----------------------------------------------------------------------------------------------------

    def _catalog(self) -> Catalog:
        return self._store.catalog()

    def _acquire_maintainer(self) -> Maintainer:
        self._writes.check_mode("maintain views")
        return self._maintainer_ref.acquire()

    @property
    def _maintainer(self) -> Maintainer | None:
        return self._maintainer_ref.current_maintainer

    def _spark(self) -> Any:
        return self._sessions()


def _run_received_call(db: Database, call: str, arguments: Sequence[Any], progress: Progress) -> Any:
    """Run a call that another process sent, on a handle of this process."""
    from viewkeeper.sql.run_ddl import run_call

    return run_call(db, call, arguments, progress)


def _build_request(*request_arguments: Any) -> RowRequest:
    """Check the arguments of `scan` and `read`. A program that only gets rows does not import the condition parser."""
    from viewkeeper.sql.condition import row_request_of

    return row_request_of(*request_arguments)


def _sort_by_name(views: Iterable[View]) -> list[View]:
    return sorted(views, key=lambda v: v.table.name.lower())
