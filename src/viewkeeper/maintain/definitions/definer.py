"""The definer: creates, replaces, alters and drops views while batches continue.

A new view, or a new definition of a view, is backfilled while batches continue (`load.backfill`), and published with
its catalog entry in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from viewkeeper import failpoints
from viewkeeper.capture.snapshot import Progress
from viewkeeper.commit.cleanup import Cleanup
from viewkeeper.commit.publisher import Publisher
from viewkeeper.errors import InUse, Suspended, Unsupported
from viewkeeper.maintain.definitions import families
from viewkeeper.maintain.definitions.catalog_changes import refuse_altered, refuse_used
from viewkeeper.maintain.definitions.planning import PlannedViews
from viewkeeper.maintain.definitions.shared_aggregates import (
    SharedAggregateChange,
    release_column,
    share_aggregates,
    with_shared_aggregate,
)
from viewkeeper.maintain.load.loader import Loader, restart_view
from viewkeeper.maintain.load.repair import StateRepair
from viewkeeper.maintain.load.suspension import Suspender
from viewkeeper.maintain.strategies.scheduled import ViewScheduler
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.model.schema import Table
from viewkeeper.plan.families.plan_templates import TemplateCache
from viewkeeper.syntax.view_text import drop_current_names, refresh_names


class Definer:
    """Creates, replaces, drops and resumes views."""

    def __init__(
        self,
        publisher: Publisher,
        cleanup: Cleanup,
        loader: Loader,
        state_repair: StateRepair,
        suspender: Suspender,
        scheduler: ViewScheduler,
        refresh: Callable[[], object],
    ) -> None:
        self._publisher = publisher
        self._cleanup = cleanup
        self._loader = loader
        self._state_repair = state_repair
        self._suspender = suspender
        self._scheduler = scheduler
        self._refresh = refresh
        self.templates = TemplateCache()
        self.members_in_creation: set[tuple[int, bytes]] = set()
        """Members whose parameters are written, and whose catalog entries are not yet."""
        self._departed_members: list[View] = []
        """Members that were removed, and whose parameters are not deleted yet."""

    def create(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Backfill a new view while batches continue, and publish it together with its catalog entry."""
        if strategy_of(view).has_own_cut:
            self._scheduler.run_strategy(view, is_new=True, progress=progress)
            return

        self.create_many([view], (), lane, progress)

    def create_planned(self, planned_views: PlannedViews, lane: str = "auto", progress: Progress | None = None) -> None:
        """Create the planned views and family members in one batch: all of them, or none."""
        assignment = planned_views.families
        if not assignment.members:
            self.create_many(planned_views.views, (), lane, progress)
            return
        self.members_in_creation |= families.member_keys(assignment.members)
        self._suspender.quarantine.failures.clear()
        try:
            families.write_parameters(self._publisher.store, assignment)
            # Existing families compute their new members in this batch. New families are loaded at a later cut, which
            # includes the parameters of all members.
            self._refresh()
            self._suspender.quarantine.raise_failures(assignment.members)
            self.create_many(planned_views.views, assignment.members, lane, progress)
        except Exception:
            self.members_in_creation -= families.member_keys(assignment.members)
            sweep = partial(families.sweep_parameters, self._publisher.store, self.members_in_creation)
            self._publisher.deferred_cleanup.run_or_defer("sweeping parameters", sweep)
            raise
        finally:
            self.members_in_creation -= families.member_keys(assignment.members)

    def create_many(
        self, views: Sequence[View], members: Sequence[View], lane: str = "auto", progress: Progress | None = None
    ) -> None:
        """Backfill several new views together, and publish them in one batch, with family members."""
        for view in views:
            if strategy_of(view).has_own_cut:
                raise Unsupported(
                    f"{view.table.name} has a cut of its own (strategy {strategy_of(view).name}), it is not published"
                    " together with others.",
                    hint="Create it by itself.",
                )

        sharing = self._plan_shared_aggregates(lambda catalog: catalog.with_views(views), views)
        views = sharing.new_views

        def add_views(catalog: Catalog, since: int) -> Catalog:
            entries = (drop_current_names(catalog, view) for view in (*views, *members))
            changed = catalog.with_views([replace(view, complete_since=since) for view in entries])
            changed = sharing.apply(changed)
            for view in views:
                refuse_altered(changed, view)
            for family in {member.table.family for member in members}:
                refuse_suspended(changed, family)
            return changed

        publisher = self._publisher
        if views:
            self._load_and_publish(frozenset(v.table.id for v in views), add_views, lane, progress)
        else:
            with publisher.definition_lock, publisher.lock:
                publisher.publish_views(lambda catalog: add_views(catalog, publisher.store.head() + 1))

    def detach_member(
        self, member: View, standalone: View, lane: str = "auto", progress: Progress | None = None
    ) -> None:
        """Turn a family member into a separate view, with rows and state of its own."""

        def replace_entry(catalog: Catalog, since: int) -> Catalog:
            refuse_altered(catalog, standalone)
            return catalog.with_replaced_view(replace(drop_current_names(catalog, standalone), complete_since=since))

        self._load_and_publish(frozenset([standalone.table.id]), replace_entry, lane, progress)
        self._forget_members([member])

    def drop_members(self, members: Sequence[View]) -> None:
        """Drop family members; a family is dropped with its last member."""
        publisher = self._publisher

        def remove_entries(catalog: Catalog) -> Catalog:
            return catalog.without(*(member.table.id for member in members))

        with publisher.definition_lock, publisher.lock:
            publisher.store.change_catalog(remove_entries)
            failpoints.hit("member.dropped")
            self._forget_members(members)

    def _forget_members(self, members: Sequence[View]) -> None:
        """Delete the parameters of removed members, and families without members."""
        publisher = self._publisher
        publisher.reload()
        self._departed_members += members
        publisher.deferred_cleanup.run_or_defer("forgetting members", self._forget_departed)
        for family_id in {member.table.family for member in members}:
            family = publisher.catalog.views_by_id.get(family_id)
            if family is not None and not publisher.catalog.has_members(family_id):
                self.drop(family.table)
        sweep = partial(families.sweep_parameters, publisher.store, self.members_in_creation, only_tables=True)
        publisher.deferred_cleanup.run_or_defer("forgetting parameters", sweep)

    def _forget_departed(self) -> None:
        """Delete the parameters of all removed members, including those for which this failed before.

        Deferred cleanup keeps only one piece of work with this label.
        """
        families.forget_members(self._publisher.store, self._departed_members, self.members_in_creation)
        self._departed_members.clear()

    def replace(
        self,
        old: View,
        new: View,
        users: frozenset[int],
        lane: str = "auto",
        progress: Progress | None = None,
    ) -> None:
        """Backfill a new definition of a view, and switch to it in one batch, with the views that read it.

        If the new definition has the same table, only the difference of the rows is written; else the old view's rows
        are dropped.
        """
        publisher = self._publisher
        readers = (publisher.catalog.views_by_id[user] for user in sorted(users))
        active = [v for v in readers if v.suspended is None]
        maintained = [v for v in active if not strategy_of(v).has_own_cut]
        has_new_table = new.table.id != old.table.id
        sharing = self._plan_shared_aggregates(
            lambda catalog: (
                catalog.without(old.table.id).with_view(new) if has_new_table else catalog.with_replaced_view(new)
            ),
            [new],
        )

        def replace_entry(catalog: Catalog, since: int) -> Catalog:
            refuse_altered(catalog, new)
            [entry] = sharing.new_views
            entry = drop_current_names(catalog, entry)
            if has_new_table:
                return sharing.apply(catalog.without(old.table.id).with_view(replace(entry, complete_since=since)))
            for view in (
                replace(entry, complete_since=old.complete_since),
                *(refresh_names(catalog, v) for v in maintained),
            ):
                catalog = catalog.with_replaced_view(restart_view(view, since))
            return sharing.apply(catalog)

        views = frozenset([new.table.id, *(v.table.id for v in maintained)])
        self._load_and_publish(views, replace_entry, lane, progress)
        if has_new_table:
            publisher.deferred_cleanup.drop_rows(old.table, "view.published")
        for view in active:
            if strategy_of(view).has_own_cut:  # it reads the replaced view
                self._scheduler.remake_fully(view)

    def widen(
        self, before: Table, table: Table, views: Sequence[tuple[View, View]], progress: Progress | None = None
    ) -> None:
        """Switch a table to wider column types in one batch, with the views that read these columns.

        `views` are pairs of the old and the new definition. Views over these views are loaded again with them.
        """
        publisher = self._publisher
        ids = {old.table.id for old, _ in views}
        users = [reader for reader in publisher.catalog.dependents(ids) if reader not in ids]
        above = [v for v in map(publisher.catalog.views_by_id.__getitem__, users) if v.suspended is None]
        if unfit := [v.table.name for v in above if strategy_of(v).has_own_cut or v.synchronous_state is not None]:
            raise Unsupported(
                f"{', '.join(unfit)} would be made again, at another cut than the views that it reads.",
                hint="Drop it first, and create it again.",
            )

        def switch_views(catalog: Catalog, since: int) -> Catalog:
            if catalog.tables_by_id.get(table.id) != before:
                raise InUse(f"{before.name} was altered meanwhile.", hint="Try again.")
            catalog = catalog.with_columns(table)
            for old, new in views:
                if new.table.id != old.table.id:
                    catalog = catalog.without(old.table.id).with_view(replace(new, complete_since=since))
                else:
                    catalog = catalog.with_replaced_view(
                        restart_view(replace(refresh_names(catalog, new), complete_since=old.complete_since), since)
                    )
            for view in above:
                catalog = catalog.with_replaced_view(restart_view(refresh_names(catalog, view), since))
            return catalog

        loaded = frozenset([*(new.table.id for _, new in views), *(v.table.id for v in above)])
        self._load_and_publish(loaded, switch_views, "auto", progress)
        for old, new in views:
            if new.table.id != old.table.id:
                publisher.deferred_cleanup.drop_rows(old.table, "view.published")

    def drop(self, table: Table) -> None:
        """Drop a view or table with its indexes, and the state that no other view shares."""
        publisher = self._publisher
        dropped: list[Table] = []

        def remove_entries(catalog: Catalog) -> Catalog:
            refuse_used(catalog, table)
            dropped[:] = [table, *(v.table for v in catalog.indexes.get(table.id, ()))]
            for entry in dropped:
                catalog = catalog.without(entry.id)
            return catalog

        with publisher.definition_lock, publisher.lock:
            self._suspender.publish_without(remove_entries)
            for entry in dropped:
                if entry.is_view:
                    publisher.deferred_cleanup.drop_rows(entry, "view.dropped")
                else:  # dropped with its indexes
                    publisher.deferred_cleanup.drop_rows(entry, "table.dropped")
            self._cleanup.after_batch((), force=True)

    def resume(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Rebuild a suspended view's state, and update its table accordingly."""
        if strategy_of(view).has_own_cut:
            self._scheduler.remake_fully(replace(view, suspended=None), progress)
            return

        # The views that it shared an aggregate with have changed since.
        unshared = with_shared_aggregate(replace(view, suspended=None), None)
        sharing = self._plan_shared_aggregates(lambda catalog: catalog.with_replaced_view(unshared), [unshared])

        def resume_view(catalog: Catalog, since: int) -> Catalog:
            return sharing.apply(
                catalog.with_replaced_view(restart_view(refresh_names(catalog, sharing.new_views[0]), since))
            )

        self._load_and_publish(frozenset([view.table.id]), resume_view, lane, progress)

    def release_column(self, table: Table, column: str) -> None:
        """Remove a column from shared aggregates whose views do not read it any more."""
        publisher = self._publisher
        with publisher.definition_lock:
            sharing = release_column(publisher.catalog, publisher.dataflow, table.id, column)
            if sharing.moved_views:
                self._load_and_publish(frozenset(), lambda catalog, _: sharing.apply(catalog), "auto", None)

    def _plan_shared_aggregates(
        self, add_views: Callable[[Catalog], Catalog], views: Sequence[View]
    ) -> SharedAggregateChange:
        """Plan which aggregates the new views share with existing ones."""
        catalog = self._publisher.checkpoint().catalog
        return share_aggregates(add_views(catalog), self._publisher.dataflow_of(catalog), views)

    def _load_and_publish(
        self,
        views: frozenset[int],
        update_catalog: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
    ) -> None:
        """Backfill views while batches continue, catch up, and publish them with the catalog's change."""
        with self._publisher.definition_lock, self._state_repair.watch_contradictions():
            while not self._state_repair.run_with_repair(
                partial(self._loader.load, views, update_catalog, lane, progress)
            ):
                pass


def refuse_suspended(catalog: Catalog, family: int) -> None:
    """Raise Suspended if a family was suspended or dropped meanwhile: it then has no rows for new members."""
    view = catalog.views_by_id.get(family)
    if view is None or view.suspended is not None:
        reason = "it is gone" if view is None or view.suspended is None else view.suspended.reason
        raise Suspended(f"The family that the view would be kept by is not maintained: {reason}", hint="Try again.")
