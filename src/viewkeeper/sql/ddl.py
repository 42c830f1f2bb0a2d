"""The statements that define tables, views and indexes: what each of them does to a database.

Most of them need the lease. If another process has it, that process runs them (`sql.run_ddl`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from viewkeeper.errors import BadValue, NameTaken, Unsupported
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.schema import Table
from viewkeeper.syntax import alter, statements
from viewkeeper.syntax import indexes as syntax_indexes

if TYPE_CHECKING:
    from viewkeeper.capture.snapshot import Progress
    from viewkeeper.database import Database
    from viewkeeper.maintain.maintainer import Maintainer

T = TypeVar("T")


def run(db: Database, statement: statements.Statement, progress: Progress | None) -> None:
    """Run a statement that creates, alters or drops."""
    if (load := _LOADING_STATEMENTS.get(type(statement))) is not None:
        load(db, statement, progress)
    else:
        _STATEMENTS[type(statement)](db, statement)


def _create_table(db: Database, statement: statements.CreateTable) -> None:
    from viewkeeper.maintain.definitions import catalog_changes

    db._writes.check_mode(f"create {statement.name}")
    catalog_changes.create_table(db._store, statement)


def _drop_table(db: Database, statement: statements.DropTable) -> None:
    db._writes.check_mode(f"drop {statement.name}")
    catalog = db._store.catalog()
    found = catalog.find(statement.name)
    if found is None and statement.if_exists:
        return
    catalog.refuse_index(statement.name, "DROP INDEX")
    if isinstance(found, View):
        raise BadValue(f"{statement.name} is a materialized view.", hint="Write DROP MATERIALIZED VIEW.")
    _drop_base_table(db, catalog.table(statement.name))


def _drop_base_table(db: Database, table: Table) -> None:
    """Drop a base table with its indexes."""
    from viewkeeper.maintain.definitions import catalog_changes

    catalog = db._store.catalog()
    if catalog.indexes.get(table.id):
        catalog_changes.refuse_used(catalog, table)
        db._acquire_maintainer().definer.drop(table)
    else:
        catalog_changes.drop_table(db._store, table)


def _change_column(db: Database, statement: alter.ColumnChange) -> None:
    from viewkeeper.maintain.definitions import alter_table

    db._writes.check_mode(f"alter {statement.table}")
    match statement:
        case alter.AddColumn():
            alter_table.add_column(db._store, statement)
        case alter.DropColumn():
            if statement.cascade:  # a crash in between leaves some of them dropped, and the column in place
                views, indexes = alter_table.column_users(db._store, db._spark, statement)
                for name in indexes:
                    _drop_index(db, syntax_indexes.DropIndex(name))
                drop_views(db, views)
            alter_table.release_column(db._store, db._acquire_maintainer, statement)
            alter_table.drop_column(db._store, db._spark, statement)
        case alter.RenameColumn():
            alter_table.rename_column(db._store, statement)
        case alter.SetDefault():
            alter_table.set_default(db._store, statement)


def _widen_column(db: Database, statement: alter.AlterType, progress: Progress | None) -> None:
    from viewkeeper.maintain.definitions import alter_table

    db._writes.check_mode(f"alter {statement.table}")
    alter_table.widen_column(db._store, db._acquire_maintainer, db._spark, statement, progress)


def _rename(db: Database, statement: alter.Rename | syntax_indexes.RenameIndex) -> None:
    from viewkeeper.maintain.definitions import alter_table

    db._writes.check_mode(f"rename {statement.name}")
    if isinstance(statement, alter.Rename):
        alter_table.rename(db._store, statement)
    else:
        alter_table.rename_index(db._store, statement)


def create_views(db: Database, texts: Sequence[str], progress: Progress | None) -> list[str]:
    """Create views and return their names, without those that IF NOT EXISTS found."""
    from viewkeeper.maintain.definitions import planning

    db._writes.check_mode("create views")
    definitions = [s for s in map(statements.parse, texts) if isinstance(s, statements.CreateView)]
    catalog = db._store.catalog()
    existing = {s.name.lower() for s in definitions if s.if_not_exists and isinstance(catalog.find(s.name), View)}
    missing = planning.unique_definitions([s for s in definitions if s.name.lower() not in existing])
    for statement in missing:
        if catalog.find(statement.name) is not None:
            error = NameTaken(f"The name {statement.name!r} is in use.")
            error.view = statement.name
            raise error
    if not missing:
        return []
    maintainer = db._acquire_maintainer()
    templates = maintainer.definer.templates
    with maintainer.publisher.definition_lock:
        maintainer.refresh()
        plan = _plan_detaching_members(
            db, maintainer, lambda: planning.plan_definitions(db._store, db._spark, missing, templates)
        )
        maintainer.definer.create_planned(plan, progress=progress or db._progress)
    return [statement.name for statement in missing]


def _plan_detaching_members(db: Database, maintainer: Maintainer, plan: Callable[[], T]) -> T:
    """Run `plan`; members of families that it reads are first detached."""
    from viewkeeper.maintain.definitions.planning import MemberReadError

    while True:
        try:
            return plan()
        except MemberReadError as found:
            for member in found.members:
                _detach_member(db, maintainer, member)


def _detach_member(db: Database, maintainer: Maintainer, member: View) -> View:
    """Turn a member of a family into a view of its own."""
    from viewkeeper.maintain.definitions.planning import plan_detached_member

    view = plan_detached_member(db._store, db._spark, member, maintainer.definer.templates)
    maintainer.definer.detach_member(member, view, progress=db._progress)
    return db._store.catalog().view(member.table.name)


def _create_view(db: Database, statement: statements.CreateView, progress: Progress | None) -> None:
    from viewkeeper.maintain.definitions import catalog_changes, planning

    db._writes.check_mode(f"create {statement.name}")
    found = db._store.catalog().find(statement.name)
    if isinstance(found, View) and found.index is None and statement.if_not_exists:
        return
    if isinstance(found, View) and found.index is not None:
        raise NameTaken(f"The name {statement.name!r} is in use by an index.")
    old = found if isinstance(found, View) and statement.or_replace else None
    if found is not None and old is None:
        raise NameTaken(f"The name {statement.name!r} is in use.")
    if statement.parameters:
        _create_family(db, statement, old, progress)
        return
    if "sync" in statement.options and _create_synchronous(db, statement, old, progress):
        return
    maintainer = db._acquire_maintainer()
    with maintainer.publisher.definition_lock:
        maintainer.refresh()
        templates, store = maintainer.definer.templates, db._store
        if old is None:
            plan = _plan_detaching_members(
                db,
                maintainer,
                lambda: planning.plan_definitions(store, db._spark, [statement], templates, name_errors=False),
            )
            if plan.families.members:
                maintainer.definer.create_planned(plan, progress=progress)
                return
            (view,) = plan.views
        else:
            old = _detach_member(db, maintainer, old) if old.is_member else old
            view = _plan_detaching_members(
                db, maintainer, lambda: planning.plan_definition(store, db._spark, statement, templates, old)
            )
        if old is None:
            maintainer.definer.create(view, progress=_load_progress(view, progress))
        else:
            catalog_changes.refuse_shape_change(db._store.catalog(), old, view)
            users = db._store.catalog().dependents([old.table.id])
            maintainer.definer.replace(old, view, frozenset(users), progress=_load_progress(view, progress))


def _load_progress(view: View, progress: Progress | None) -> Progress | None:
    """The progress callback of a view's load. A view with a load rate waits in it, so that the load is not faster."""
    from viewkeeper.maintain.definitions.catalog_changes import load_rate
    from viewkeeper.maintain.load.backfill import throttle

    rate = load_rate(view)
    return progress if rate is None else throttle(progress, rate)


def _create_synchronous(
    db: Database, statement: statements.CreateView, old: View | None, progress: Progress | None
) -> bool:
    """Create a view that writes maintain, without a maintainer; return False if batches maintain it."""
    from viewkeeper.maintain.definitions import planning, synchronous_views
    from viewkeeper.plan.families.plan_templates import TemplateCache

    view = synchronous_views.plan_synchronous_view(
        db._store, planning.plan_definition(db._store, db._spark, statement, TemplateCache())
    )
    if view.synchronous_state is None:
        return False
    if old is not None:
        raise Unsupported(
            f"{statement.name} is there; a synchronous view is not replaced.", hint="Drop it and create it again."
        )
    synchronous_views.create(db._store, view, progress)
    return True


def _create_family(db: Database, statement: statements.CreateView, old: View | None, progress: Progress | None) -> None:
    """Create a view family: first the table of its parameters, which is dropped again if the family cannot be
    created."""
    from viewkeeper.maintain.definitions import catalog_changes, planning

    if old is not None:
        raise Unsupported(f"{statement.name} is there; a family is not replaced.", hint="Drop it and create it again.")
    maintainer = db._acquire_maintainer()
    with maintainer.publisher.definition_lock:
        maintainer.refresh()
        parameters = catalog_changes.create_parameter_table(db._store, statement)
        try:
            view = _plan_detaching_members(
                db, maintainer, lambda: planning.plan_family_definition(db._store, db._spark, statement)
            )
            maintainer.definer.create(view, progress=_load_progress(view, progress))
        except Exception:
            _drop_base_table(db, parameters)
            raise


def _alter_view(db: Database, statement: alter.AlterView, progress: Progress | None) -> None:
    db._writes.check_mode(f"alter {statement.name}")
    view = db._store.catalog().view(statement.name)
    if view.synchronous_state is not None:
        from viewkeeper.maintain.definitions import synchronous_views

        if statement.action == "suspend" and view.suspended is None:
            synchronous_views.suspend(db._store, view, "suspended by hand")
        if statement.action == "resume" and view.suspended is not None:
            synchronous_views.resume(db._store, view, progress)
        return
    if statement.action == "suspend" and view.suspended is None:
        maintainer = db._acquire_maintainer()
        with maintainer.publisher.definition_lock:
            if view.is_member:
                maintainer.refresh()
                _detach_member(db, maintainer, view)
            maintainer.suspender.suspend(frozenset([view.table.id]), "suspended by hand")
    if statement.action == "resume" and view.suspended is not None:
        maintainer = db._acquire_maintainer()
        maintainer.refresh()
        if view.is_member:  # of a suspended family: the failure may have been another member's
            _detach_member(db, maintainer, view)
        else:
            maintainer.definer.resume(view, progress=progress)


def _drop_view(db: Database, statement: statements.DropView) -> None:
    from viewkeeper.maintain.definitions import catalog_changes

    db._writes.check_mode(f"drop {statement.name}")
    found = db._store.catalog().find(statement.name)
    if found is None and statement.if_exists:
        return
    if isinstance(found, Table):
        catalog_changes.refuse_parameter_table_drop(db._store.catalog(), found)
        raise BadValue(f"{statement.name} is a table.", hint="Write DROP TABLE.")
    db._store.catalog().refuse_index(statement.name, "DROP INDEX")
    view = db._store.catalog().view(statement.name)
    catalog_changes.refuse_used(db._store.catalog(), view.table)
    if view.is_member:
        db._acquire_maintainer().definer.drop_members([view])
        return
    _drop_loaded_view(db, view)
    if (
        view.parameter_table_id
        and (parameters := db._store.catalog().tables_by_id.get(view.parameter_table_id)) is not None
    ):
        _drop_base_table(db, parameters)


def _drop_loaded_view(db: Database, view: View) -> None:
    """Drop a view or an index. A synchronous view needs no maintainer, unless batches maintain indexes of it."""
    from viewkeeper.maintain.definitions import synchronous_views

    if view.synchronous_state is not None and not db._store.catalog().indexes.get(view.table.id):
        synchronous_views.drop(db._store, view)
        return
    db._acquire_maintainer().definer.drop(view.table)
    synchronous_views.drop_state(db._store, view)


def drop_views(db: Database, names: Sequence[str]) -> None:
    from viewkeeper.maintain.definitions import catalog_changes

    db._writes.check_mode("drop views")
    catalog = db._store.catalog()
    for name in names:
        catalog.refuse_index(name, "DROP INDEX")
    views = {view.table.id: view for view in map(catalog.view, names)}
    remaining = catalog.without(*views)
    for view in views.values():
        catalog_changes.refuse_used(remaining, view.table)
    if members := [v for v in views.values() if v.is_member]:
        db._acquire_maintainer().definer.drop_members(members)
    for number in sorted(
        (n for n, v in views.items() if not v.is_member), reverse=True
    ):  # readers before the views that they read
        _drop_view(db, statements.DropView(views[number].table.name))


def _create_index(db: Database, statement: syntax_indexes.CreateIndex, progress: Progress | None) -> None:
    from viewkeeper.maintain.definitions.indexes import plan_index

    db._writes.check_mode(f"create {statement.name}")
    found = db._store.catalog().find(statement.name)
    if isinstance(found, View) and found.index is not None and statement.if_not_exists:
        return
    if found is not None:
        raise NameTaken(f"The name {statement.name!r} is in use.")
    db._store.catalog().table(statement.on)  # refuse a missing table before maintenance runs
    if "sync" in statement.options:
        from viewkeeper.maintain.definitions import synchronous_views

        view = synchronous_views.plan_synchronous_view(db._store, plan_index(db._store, statement))
        if view.synchronous_state is not None:
            synchronous_views.create(db._store, view, progress)
            return
    maintainer = db._acquire_maintainer()
    with maintainer.publisher.definition_lock:
        maintainer.refresh()
        _detach_members(db, maintainer, [statement.on])
        view = plan_index(db._store, statement)
        maintainer.definer.create(view, progress=_load_progress(view, progress))


def _create_cluster(db: Database, statement: syntax_indexes.CreateCluster, progress: Progress | None) -> None:
    from viewkeeper.maintain.definitions.indexes import plan_cluster

    db._writes.check_mode(f"create {statement.name}")
    found = db._store.catalog().find(statement.name)
    if isinstance(found, View) and found.index is None and statement.if_not_exists:
        return
    if found is not None:
        raise NameTaken(f"The name {statement.name!r} is in use.")
    for table in statement.of:
        db._store.catalog().table(table)  # refuse a missing table before maintenance runs
    maintainer = db._acquire_maintainer()
    with maintainer.publisher.definition_lock:
        maintainer.refresh()
        _detach_members(db, maintainer, statement.of)
        view = plan_cluster(db._store, statement)
        maintainer.definer.create(view, progress=_load_progress(view, progress))


def _detach_members(db: Database, maintainer: Maintainer, names: Iterable[str]) -> None:
    """Detach those of the named views that are members of families."""
    for name in names:
        found = db._store.catalog().find(name)
        if isinstance(found, View) and found.is_member:
            _detach_member(db, maintainer, found)


def _drop_index(db: Database, statement: syntax_indexes.DropIndex) -> None:
    from viewkeeper.maintain.definitions import catalog_changes

    db._writes.check_mode(f"drop {statement.name}")
    catalog = db._store.catalog()
    if catalog.find(statement.name) is None and statement.if_exists:
        return
    index = catalog.index(statement.name)
    catalog_changes.refuse_used(catalog, index.table)
    _drop_loaded_view(db, index)


_LOADING_STATEMENTS: Mapping[type, Callable[[Database, Any, Progress | None], None]] = {
    statements.CreateView: _create_view,
    alter.AlterView: _alter_view,
    alter.AlterType: _widen_column,
    syntax_indexes.CreateIndex: _create_index,
    syntax_indexes.CreateCluster: _create_cluster,
}
"""Statements that may load a view, and report the progress of the load."""

_STATEMENTS: Mapping[type, Callable[[Database, Any], None]] = {
    statements.CreateTable: _create_table,
    statements.DropTable: _drop_table,
    alter.AddColumn: _change_column,
    alter.DropColumn: _change_column,
    statements.DropView: _drop_view,
    alter.RenameColumn: _change_column,
    alter.SetDefault: _change_column,
    alter.Rename: _rename,
    syntax_indexes.DropIndex: _drop_index,
    syntax_indexes.RenameIndex: _rename,
}
