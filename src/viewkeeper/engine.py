"""The database: joins the steps of the data path behind one small public surface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from viewkeeper.commit.maintainer import BatchReport, Maintainer
from viewkeeper.errors import BadValue, InUse, NameTaken, ReadOnly, Unsupported
from viewkeeper.model.catalog import Catalog, View
from viewkeeper.model.rows import keys_table, last_by_key, rows_table, updates_table
from viewkeeper.model.schema import KeyPart, Table
from viewkeeper.model.token import Token
from viewkeeper.plan import statements
from viewkeeper.plan.compiler import ViewPlan
from viewkeeper.plan.nodes import Scan
from viewkeeper.plan.planner import plan_view
from viewkeeper.read.reader import get_row, read_table, scan_rows
from viewkeeper.read.status import Status, database_status, explain_view
from viewkeeper.rounds.given import Progress
from viewkeeper.store.base import Store
from viewkeeper.store.registry import open_store


class Database:
    """An open database. Use it as a context manager, or call `close`.

    Any number of processes may read and write; one at a time maintains: the first that refreshes or makes a view holds
    the lease until it closes.
    """

    def __init__(
        self, store: Store, *, mode: str, spark: Any, progress: Progress | None, options: Mapping[str, Any]
    ) -> None:
        self._store = store
        self._mode = mode
        self._given_spark = spark
        self._session: Any = None
        self._progress = progress
        self._options = options
        self._maintainer: Maintainer | None = None
        self._closed = False

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the lease and the store. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._maintainer is not None:
            self._maintainer.close()
        self._store.close()

    # -- writes -------------------------------------------------------------------------------------------------------

    def put(self, table: str, rows: Any) -> Token:
        """Insert rows, or replace whole rows of the same key. All rows of a call are one write.

        `rows`: a dict, a list of dicts, a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or polars frame.
        """
        target = self._base_table(table, "put into")
        puts = last_by_key(target, rows_table(target, rows))
        return self._token(self._store.write(target, puts, _no_keys(target)))

    def delete(self, table: str, keys: Any) -> Token:
        """Delete rows by key: one key (a scalar, or a tuple for a composite key), a list, or an Arrow table of keys."""
        target = self._base_table(table, "delete from")
        deletes = last_by_key(target, keys_table(target, keys))
        return self._token(self._store.write(target, target.arrow.empty_table(), deletes))

    def update(self, table: str, key: Any, columns: Mapping[str, Any]) -> Token:
        """Change some columns of one row, atomically. The row must exist."""
        target = self._base_table(table, "update")
        key_row, new_values = updates_table(target, key, columns)
        return self._token(self._store.update(target, key_row, new_values))

    # -- maintenance --------------------------------------------------------------------------------------------------

    def refresh(self, lane: str = "auto") -> BatchReport:
        """Bring every view to the head of the log in one batch. Lanes: auto, driver, spark."""
        return self._maintain().refresh(lane)

    # -- reads --------------------------------------------------------------------------------------------------------

    def get(self, name: str, key: Any) -> dict[str, Any] | None:
        """The row of a table or view with this key, None if there is none."""
        return get_row(self._store, self._catalog().table(name), key)

    def scan(
        self, name: str, prefix: Any = None, start: Any = None, stop: Any = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Rows in key order: by a key prefix, or from `start` (included) to `stop` (excluded)."""
        return scan_rows(self._store, self._catalog().table(name), prefix, start, stop, limit)

    def read(self, name: str) -> pa.Table:
        """All rows of a table or view, one consistent state, in key order."""
        return read_table(self._store, self._catalog().table(name))

    # -- statements ---------------------------------------------------------------------------------------------------

    def sql(self, text: str) -> pa.Table | None:
        """Run one statement: CREATE and DROP TABLE, CREATE and DROP MATERIALIZED VIEW, SHOW, DESCRIBE, EXPLAIN."""
        statement = statements.parse(text)
        return _STATEMENTS[type(statement)](self, statement)

    def explain(self, view: str) -> str:
        """The maintenance plan of a view as text: operators, rounds, keys, state and what it shares."""
        return explain_view(self._store, self._catalog(), view)

    def status(self) -> Status:
        """Views, batch, lag in changes and seconds, and bytes of state."""
        return database_status(self._store, self._catalog())

    # -- inside -------------------------------------------------------------------------------------------------------

    def _catalog(self) -> Catalog:
        return self._store.catalog()

    def _writable(self, what: str) -> None:
        if self._mode == "r":
            raise ReadOnly(f"The database is open for reading; it cannot {what}.", hint="Open it without mode='r'.")

    def _base_table(self, name: str, verb: str) -> Table:
        self._writable(f"{verb} {name}")
        table = self._catalog().table(name)
        if table.is_view:
            raise ReadOnly(f"{name} is a materialized view; one cannot {verb} it.", hint="Write to its base tables.")
        return table

    def _token(self, written: Any) -> Token:
        return Token(self._store.uuid, written.position, written.atomic)

    def _maintain(self) -> Maintainer:
        self._writable("maintain views")
        if self._maintainer is None:
            self._maintainer = Maintainer(self._store, self._spark, durable=self._options.get("durability") != "none")
        return self._maintainer

    def _spark(self) -> Any:
        """The session for planning and for the Spark lane, started only when needed."""
        if self._session is None:
            from viewkeeper.plan.catalyst import front_session

            self._session = front_session(self._given_spark)
        return self._session

    def _create_table(self, statement: statements.CreateTable) -> None:
        self._writable(f"create {statement.name}")

        def change(catalog: Catalog) -> Catalog:
            if statement.if_not_exists and isinstance(catalog.find(statement.name), Table):
                return catalog
            key = tuple(KeyPart(name) for name in statement.key)
            options = tuple(sorted(statement.options.items()))
            return catalog.with_table(Table(catalog.next_id, statement.name, statement.columns, key, options=options))

        self._store.change_catalog(change)

    def _drop_table(self, statement: statements.DropTable) -> None:
        self._writable(f"drop {statement.name}")
        found = self._catalog().find(statement.name)
        if found is None and statement.if_exists:
            return
        if isinstance(found, View):
            raise BadValue(f"{statement.name} is a materialized view.", hint="Write DROP MATERIALIZED VIEW.")
        table = self._catalog().table(statement.name)

        def change(catalog: Catalog) -> Catalog:
            _refuse_used(catalog, table)
            return catalog.without(table.id)

        self._store.change_catalog(change)
        self._store.drop_rows(table)

    def _create_view(self, statement: statements.CreateView) -> None:
        self._writable(f"create {statement.name}")
        found = self._catalog().find(statement.name)
        if isinstance(found, View) and statement.if_not_exists:
            return
        if found is not None:
            raise NameTaken(f"The name {statement.name!r} is in use.")
        if statement.or_replace:
            raise Unsupported("CREATE OR REPLACE MATERIALIZED VIEW is not supported yet; drop the view first.")
        if statement.options:
            raise Unsupported(f"Views have no option {', '.join(statement.options)}.")
        maintainer = self._maintain()
        maintainer.refresh()
        catalog = self._catalog()
        from viewkeeper.plan.catalyst import read_query

        tables = {t.id: t for t in (*catalog.tables, *(v.table for v in catalog.views))}
        query = read_query(self._spark(), statement.query, {t.name: t for t in tables.values()})
        plans = {v.table.id: ViewPlan.from_json(v.plan) for v in catalog.views}
        sizes = {t.id: self._store.count(t) for t in catalog.tables}
        table, plan = plan_view(statement.name, catalog.next_id, query, statement.key, tables, plans, sizes, {})
        maintainer.create(View(table, statement.query, plan.to_json()), progress=self._progress)

    def _drop_view(self, statement: statements.DropView) -> None:
        self._writable(f"drop {statement.name}")
        found = self._catalog().find(statement.name)
        if found is None and statement.if_exists:
            return
        if isinstance(found, Table):
            raise BadValue(f"{statement.name} is a table.", hint="Write DROP TABLE.")
        view = self._catalog().view(statement.name)
        _refuse_used(self._catalog(), view.table)
        maintainer = self._maintain()
        maintainer.refresh()
        maintainer.drop(self._catalog().view(statement.name))

    def _show(self, statement: statements.Show) -> pa.Table:
        catalog = self._catalog()
        shown = catalog.tables if statement.what == "tables" else [v.table for v in catalog.views]
        return pa.table({"name": pa.array(sorted(t.name for t in shown), pa.string())})

    def _describe(self, statement: statements.Describe) -> pa.Table:
        table = self._catalog().table(statement.name)
        places = {k.column.lower(): i + 1 for i, k in enumerate(table.key)}
        return pa.table(
            {
                "column": pa.array([c.name for c in table.columns], pa.string()),
                "type": pa.array([c.type for c in table.columns], pa.string()),
                "nullable": pa.array([c.nullable for c in table.columns], pa.bool_()),
                "key": pa.array([places.get(c.name.lower()) for c in table.columns], pa.int32()),
            }
        )

    def _explain(self, statement: statements.Explain) -> pa.Table:
        return pa.table({"plan": self.explain(statement.name).splitlines()})


def open_database(
    url: str,
    mode: str = "w",
    *,
    spark: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> Database:
    """Open a database, created if absent: `lmdb:PATH`. `mode="r"` only reads.

    `spark`: a SparkSession to plan and run on; without one a local session is started when it is first needed.
    `durability`: "commit" (default), "group" or "none".
    """
    if mode not in ("w", "r"):
        raise BadValue(f"There is no mode {mode!r}.", hint="Modes: 'w' reads and writes, 'r' only reads.")
    store = open_store(url, mode, **options)
    return Database(store, mode=mode, spark=spark, progress=progress, options=options)


def _no_keys(table: Table) -> pa.Table:
    return table.arrow.empty_table().select([c.name for c in table.key_columns])


def _refuse_used(catalog: Catalog, table: Table) -> None:
    users = [
        v.table.name
        for v in catalog.views
        if any(isinstance(n, Scan) and n.table == table.id for n in ViewPlan.from_json(v.plan).query.root.walk())
    ]
    if users:
        raise InUse(f"{table.name} is used by {', '.join(sorted(users))}.", hint="Drop what uses it first.")


_STATEMENTS: Mapping[type, Callable[[Database, Any], pa.Table | None]] = {
    statements.CreateTable: Database._create_table,
    statements.DropTable: Database._drop_table,
    statements.CreateView: Database._create_view,
    statements.DropView: Database._drop_view,
    statements.Show: Database._show,
    statements.Describe: Database._describe,
    statements.Explain: Database._explain,
}
