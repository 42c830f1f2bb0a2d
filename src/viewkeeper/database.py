"""The database: joins the steps of the data path behind one small public surface."""

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

if TYPE_CHECKING:  # imported by the methods that need them, so that a program which only reads or writes starts soon
    from viewkeeper.commit.batch_history import BatchReport
    from viewkeeper.explain.result import Plan
    from viewkeeper.maintain.maintainer import Maintainer
    from viewkeeper.read.access.path import RowRequest
    from viewkeeper.read.audit.doctor import Examination
    from viewkeeper.read.audit.report import Audit
    from viewkeeper.read.status import Status
    from viewkeeper.sql.result import Result

RETENTION = 60.0
"""Seconds for which changes stay in the log after the views have them."""


class Database:
    """An open database. Use it as a context manager, or call `close`. Its methods may be called from any thread.

    Any number of processes may read and write; one at a time maintains: the first that refreshes or makes a view holds
    the lease until it closes. The handles of one process share it, with the settings of the first that maintains; one
    that is lost without being closed gives it up.
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
        how = {"durable": durable, "retention": retention, "memory": memory, "threads": threads}
        self._maintainer_ref = MaintainerReference(self, store, self._sessions, _run_received_call, **how)
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
        """Run a statement, and give its rows or what it did: `db.sql("SELECT … WHERE k = :k", k=3)`.

        CREATE, ALTER and DROP of tables, materialized views and indexes, INSERT, UPSERT, UPDATE, DELETE, SELECT, SHOW,
        DESCRIBE, EXPLAIN; several with semicolons between them run one after the other, and `each` of the result has
        all of theirs. `engine` says who answers a query: "embedded" starts no Spark and takes what is known to mean
        the same, "spark" takes everything, "auto" the first that can. `stale`: also old rows of suspended views.
        """
        from viewkeeper.sql.statements import run

        return run(self, text, parameters, engine=engine, stale=stale)

    def create_views(self, views: Mapping[str, str]) -> None:
        """Make many materialized views at once: names and queries, `{"cheap": "SELECT …", …}`.

        They are loaded together and published in one batch: all of them are there afterwards, or, if one is refused or
        fails, none. A query may read views before it. Queries that differ in constants alone are planned once.
        """
        from viewkeeper.sql.run_ddl import create_views
        from viewkeeper.syntax.statements import create_view_text

        wanted = arguments.check_texts(views, "Views", 'Give names and queries: {"cheap": "SELECT …"}.')
        create_views(self, [create_view_text(name, query) for name, query in wanted.items()])

    def drop_views(self, names: Sequence[str]) -> None:
        """Drop many materialized views at once: `db.drop_views([v.name for v in db.views()])`.

        They may read each other. If one of them is not there, or is read by a view that stays, none is dropped.
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

        If a row breaks a view, that view alone is suspended, the others go on, and the report names both (`suspended`:
        the view, and why). With `suspend=False` the error is raised instead (VK401), and nothing is published.
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

        `max_delay`: seconds a change may wait before its batch begins, when batches rest for the writers' sake
        (`priority`: "writers", "balanced" or "views"); up to 2 s more after a batch of seconds on HBase, where its
        writers need all processors of this machine, unless there is a `max_lag`. `max_changes`: rows of a batch, about.
        `max_lag`: writes of this process wait while the views are more rows behind. A view that fails on its own rows
        is suspended; any other error is tried again `retries` times, then raised when the maintenance is left.
        `standby`: while another process maintains, wait and take over when it ends; without it that is MaintainerBusy.
        `audit_every`: seconds between two audits, beside the batches; `on_audit` is given each, and `status` shows the
        last.
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
        """Compare views (none named: all) with their queries, run from nothing by Spark at one batch.

        `sample`: about so many keys of each view. `repair`: make views that differ anew, with the state behind them;
        exactly the rows that differ are written.
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
        """The row of a table or view with this key, None if there is none.

        `level` and `after` say how new the view must be, `timeout` how long to wait for that (see `read.levels`). A
        suspended view is an error (VK605), unless the level STALE takes its old rows.
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

        `where`: a condition, such as "price >= 10 AND category = 'toys'", or columns and their values (a list: one of
        them; None: NULL). `columns`: only these. `order_by`: by these, each maybe with DESC. The cheapest way is
        taken: a range of keys, an index, or all rows; `EXPLAIN SELECT …` says which.
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
        """All rows of a table or view, one consistent state, in key order; or those that `where` and the others ask
        for, as in `scan`."""
        return self._reads.read(name, where, columns, order_by, limit, level, after, timeout)

    def cluster(
        self, name: str, key: Any, level: Level = ANY, *, after: AfterTokens = None, timeout: float = freshness.TIMEOUT
    ) -> dict[str, list[dict[str, Any]]]:
        """The rows of one key of a clustered view, by table: one range is read."""
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
        """The rows of one key of a clustered view, joined: one range is read. No row if the key is NULL.

        `how`: "inner", "left" (each row of the first table, with NULLs where another has none), or one of these for
        each table by name. A column whose name several tables have is called `table.column`.
        """
        return self._reads.join(name, key, how, level, after, timeout)

    def token(self, name: str | None = None) -> Token:
        """The state that reads see now, as a token: no read of this process was newer.

        For a view, or without a name, that is the published batch, or what a read of LATEST has shown since; for a
        suspended view, where it was suspended; for a base table, its last write.
        """
        return self._reads.token(name)

    def snapshot(self, *, max_age: float = MAX_AGE, mixed: bool = False) -> Snapshot:
        """Many reads of tables and views at one batch: `with db.snapshot() as s: s.get(…), s.scan(…), s.read(…)`.

        It ends by itself after `max_age` seconds. `mixed`: also views at another batch, and old rows of suspended ones.
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
        """A view's rows now, then every committed change, exactly once; `since` a delta's token, only what follows it.

        `timeout`: end when nothing came for so many seconds. `progress`: a mark after so many seconds without news.
        `keep` (name, seconds): hold the log for this subscriber beyond the database's retention. `stale`: begin with
        the old rows of a suspended view, which else is an error. `Delta.kind` says what may come.
        """
        return subscribe(self._store, name, since, timeout=timeout, progress=progress, keep=keep, stale=stale)

    # -- looking at it ------------------------------------------------------------------------------------------------

    def table(self, name: str) -> Handle:
        """A table or view by its name: its columns, key and definition; a notebook shows its first rows."""
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
        """The maintenance plan of a view as text: operators, rounds, keys, state. A notebook shows a picture."""
        from viewkeeper.explain.result import view_plan

        return view_plan(self._store, self._catalog(), view)

    def doctor(self) -> Examination:
        """Formats, checksums, versions, orphaned files, log retention and space: what is wrong, and what to do."""
        from viewkeeper.read.audit.doctor import examine

        return examine(self._store)

    def backup(self, directory: str | os.PathLike[str]) -> int:
        """Copy the database, as it is now, to a directory that is not there yet; writers and maintainer go on.

        The copy is a database by itself; `vk.restore` makes another one of it. Returns the number of bytes.
        """
        from viewkeeper.commit.backup import back_up

        return back_up(self._store, directory)

    def status(self) -> Status:
        """Views, batch, lag in changes and seconds, rates, and bytes of state."""
        from viewkeeper.read.status import database_status

        return database_status(self._store, self._catalog())

    # -- inside -------------------------------------------------------------------------------------------------------

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
    """Run on a handle of this process what another process has sent."""
    from viewkeeper.sql.run_ddl import run_call

    return run_call(db, call, arguments, progress)


def _build_request(*request_arguments: Any) -> RowRequest:
    """What `scan` and `read` are asked for; who only gets rows does not load what reads a condition."""
    from viewkeeper.sql.condition import row_request_of

    return row_request_of(*request_arguments)


def _sort_by_name(views: Iterable[View]) -> list[View]:
    return sorted(views, key=lambda v: v.table.name.lower())
