"""Statements: each kind of them, and what it does to a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from viewkeeper.capture.snapshot import Progress
from viewkeeper.errors import BadValue, NameTaken
from viewkeeper.model.catalog import View
from viewkeeper.model.schema import Table
from viewkeeper.plan import alterations, statements
from viewkeeper.store.base import Store

if TYPE_CHECKING:
    from viewkeeper.commit.maintainer import Maintainer


class Defining(ABC):
    """The part of a database that runs statements."""

    _store: Store
    _progress: Progress | None

    def _define(self, text: str) -> pa.Table | None:
        """Run one statement: CREATE, ALTER and DROP of TABLE and MATERIALIZED VIEW, SHOW, DESCRIBE, EXPLAIN."""
        statement = statements.parse(text)
        return _STATEMENTS[type(statement)](self, statement)

    @abstractmethod
    def explain(self, view: str) -> str: ...

    @abstractmethod
    def _writable(self, what: str) -> None: ...

    @abstractmethod
    def _maintain(self) -> Maintainer: ...

    @abstractmethod
    def _spark(self) -> Any: ...

    def _create_table(self, statement: statements.CreateTable) -> None:
        from viewkeeper.commit import definitions

        self._writable(f"create {statement.name}")
        definitions.create_table(self._store, statement)

    def _drop_table(self, statement: statements.DropTable) -> None:
        from viewkeeper.commit import definitions

        self._writable(f"drop {statement.name}")
        definitions.drop_table(self._store, statement)

    def _add_column(self, statement: alterations.AddColumn) -> None:
        from viewkeeper.commit import definitions

        self._writable(f"alter {statement.table}")
        definitions.add_column(self._store, statement)

    def _drop_column(self, statement: alterations.DropColumn) -> None:
        from viewkeeper.commit import definitions

        self._writable(f"alter {statement.table}")
        definitions.drop_column(self._store, self._spark, statement)

    def _rename_column(self, statement: alterations.RenameColumn) -> None:
        from viewkeeper.commit import definitions

        self._writable(f"alter {statement.table}")
        definitions.rename_column(self._store, self._spark, statement)

    def _set_default(self, statement: alterations.SetDefault) -> None:
        from viewkeeper.commit import definitions

        self._writable(f"alter {statement.table}")
        definitions.set_default(self._store, statement)

    def _rename(self, statement: alterations.Rename) -> None:
        from viewkeeper.commit import definitions

        self._writable(f"rename {statement.name}")
        definitions.rename(self._store, statement)

    def _create_view(self, statement: statements.CreateView) -> None:
        from viewkeeper.commit import definitions
        from viewkeeper.commit.loading import throttled

        self._writable(f"create {statement.name}")
        found = self._store.catalog().find(statement.name)
        if isinstance(found, View) and statement.if_not_exists:
            return
        old = found if isinstance(found, View) and statement.or_replace else None
        if found is not None and old is None:
            raise NameTaken(f"The name {statement.name!r} is in use.")
        maintainer = self._maintain()
        with maintainer.defining:
            maintainer.refresh()
            view = definitions.plan(self._store, self._spark, statement, old)
            rate = definitions.load_rate(view)
            progress = self._progress if rate is None else throttled(self._progress, rate)
            if old is None:
                maintainer.create(view, progress=progress)
            else:
                known = self._store.capabilities.before_images
                definitions.refuse_reshaped(self._store.catalog(), old, view, known)
                users = definitions.dependents(self._store.catalog(), [old.table.id])
                maintainer.replace(old, view, frozenset(users), progress=progress)

    def _alter_view(self, statement: alterations.AlterView) -> None:
        self._writable(f"alter {statement.name}")
        view = self._store.catalog().view(statement.name)
        if statement.action == "suspend" and view.suspended is None:
            self._maintain().suspend(frozenset([view.table.id]), "suspended by hand")
        if statement.action == "resume" and view.suspended is not None:
            self._maintain().refresh()
            self._maintain().resume(view, progress=self._progress)

    def _drop_view(self, statement: statements.DropView) -> None:
        from viewkeeper.commit import definitions

        self._writable(f"drop {statement.name}")
        found = self._store.catalog().find(statement.name)
        if found is None and statement.if_exists:
            return
        if isinstance(found, Table):
            raise BadValue(f"{statement.name} is a table.", hint="Write DROP TABLE.")
        view = self._store.catalog().view(statement.name)
        definitions.refuse_used(self._store.catalog(), view.table)
        self._maintain().drop(view)

    def _show(self, statement: statements.Show) -> pa.Table:
        catalog = self._store.catalog()
        shown = catalog.tables if statement.what == "tables" else [v.table for v in catalog.views]
        return pa.table({"name": pa.array(sorted(t.name for t in shown), pa.string())})

    def _show_create(self, statement: statements.ShowCreate) -> pa.Table:
        from viewkeeper.plan.spelling import create_table, create_view

        catalog = self._store.catalog()
        found = catalog.view(statement.name) if statement.is_view else catalog.find(statement.name)
        if isinstance(found, View):
            text = create_view(found)
        else:
            text = create_table(catalog.table(statement.name))
        return pa.table({"statement": pa.array([text], pa.string())})

    def _describe(self, statement: statements.Describe) -> pa.Table:
        table = self._store.catalog().table(statement.name)
        places = {k.column.lower(): i + 1 for i, k in enumerate(table.key)}
        shown = pa.table(
            {
                "column": pa.array([c.name for c in table.columns], pa.string()),
                "type": pa.array([c.type for c in table.columns], pa.string()),
                "nullable": pa.array([c.nullable for c in table.columns], pa.bool_()),
                "key": pa.array([places.get(c.name.lower()) for c in table.columns], pa.int32()),
            }
        )
        if all(c.default is None for c in table.columns):
            return shown
        return shown.append_column("default", pa.array([c.default for c in table.columns], pa.string()))

    def _explain(self, statement: statements.Explain) -> pa.Table:
        return pa.table({"plan": self.explain(statement.name).splitlines()})


_STATEMENTS: Mapping[type, Callable[[Defining, Any], pa.Table | None]] = {
    statements.CreateTable: Defining._create_table,
    statements.DropTable: Defining._drop_table,
    alterations.AddColumn: Defining._add_column,
    alterations.DropColumn: Defining._drop_column,
    statements.CreateView: Defining._create_view,
    alterations.AlterView: Defining._alter_view,
    statements.DropView: Defining._drop_view,
    alterations.RenameColumn: Defining._rename_column,
    alterations.SetDefault: Defining._set_default,
    alterations.Rename: Defining._rename,
    statements.Show: Defining._show,
    statements.ShowCreate: Defining._show_create,
    statements.Describe: Defining._describe,
    statements.Explain: Defining._explain,
}
