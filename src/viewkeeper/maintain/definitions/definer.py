"""Views that come, change and go, beside the batches.

A view is loaded while batches go on (`loading`), and published with its catalog entry in one batch; so is another
definition of it.
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
        """Members whose parameters are written and whose names are not (`gathering.Making`)."""
        self._departed_members: list[View] = []
        """Members that are none any more and whose parameters are still written."""

    def create(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Load a new view beside the batches that go on, and publish it together with its catalog entry."""
        if strategy_of(view).has_own_cut:
            self._scheduler.run_strategy(view, is_new=True, progress=progress)
            return

        self.create_many([view], (), lane, progress)

    def create_planned(self, planned_views: PlannedViews, lane: str = "auto", progress: Progress | None = None) -> None:
        """Make what statements define, in one batch: all of it is there, or nothing."""
        gathered = planned_views.families
        if not gathered.members:
            self.create_many(planned_views.views, (), lane, progress)
            return
        self.members_in_creation |= families.member_keys(gathered.members)
        self._suspender.quarantine.failures.clear()
        try:
            families.write_parameters(self._publisher.store, gathered)
            # Families that are there make their new members from what they have; new ones are loaded at a cut that has
            # the parameters of all.
            self._refresh()
            self._suspender.quarantine.raise_failures(gathered.members)
            self.create_many(planned_views.views, gathered.members, lane, progress)
        except Exception:
            self.members_in_creation -= families.member_keys(gathered.members)
            owed = partial(families.sweep_parameters, self._publisher.store, self.members_in_creation)
            self._publisher.deferred_cleanup.run_or_defer("sweeping parameters", owed)
            raise
        finally:
            self.members_in_creation -= families.member_keys(gathered.members)

    def create_many(
        self, views: Sequence[View], members: Sequence[View], lane: str = "auto", progress: Progress | None = None
    ) -> None:
        """Load several new views together, and publish them in one batch, with members of families."""
        for view in views:
            if strategy_of(view).has_own_cut:
                raise Unsupported(
                    f"{view.table.name} has a cut of its own (strategy {strategy_of(view).name}), it is not published"
                    " together with others.",
                    hint="Create it by itself.",
                )

        uniting = self._plan_shared_aggregates(lambda catalog: catalog.with_views(views), views)
        views = uniting.new_views

        def change(catalog: Catalog, since: int) -> Catalog:
            listed = (drop_current_names(catalog, view) for view in (*views, *members))
            changed = catalog.with_views([replace(view, complete_since=since) for view in listed])
            changed = uniting.apply(changed)
            for view in views:
                refuse_altered(changed, view)
            for family in {m.table.family for m in members}:
                refuse_suspended(changed, family)
            return changed

        publisher = self._publisher
        if views:
            self._load_and_publish(frozenset(v.table.id for v in views), change, lane, progress)
        else:
            with publisher.definition_lock, publisher.lock:
                publisher.publish_views(lambda catalog: change(catalog, publisher.store.head() + 1))

    def detach_member(
        self, member: View, standalone: View, lane: str = "auto", progress: Progress | None = None
    ) -> None:
        """A member of a family becomes a view by itself, with rows and state of its own."""

        def change(catalog: Catalog, since: int) -> Catalog:
            refuse_altered(catalog, standalone)
            return catalog.with_replaced_view(replace(drop_current_names(catalog, standalone), complete_since=since))

        self._load_and_publish(frozenset([standalone.table.id]), change, lane, progress)
        self._forget_members([member])

    def drop_members(self, members: Sequence[View]) -> None:
        """Forget members; with the last one, its family."""
        publisher = self._publisher

        def change(catalog: Catalog) -> Catalog:
            return catalog.without(*(member.table.id for member in members))

        with publisher.definition_lock, publisher.lock:
            publisher.store.change_catalog(change)
            failpoints.hit("member.dropped")
            self._forget_members(members)

    def _forget_members(self, members: Sequence[View]) -> None:
        """What was kept for members that are none any more."""
        publisher = self._publisher
        publisher.reload()
        self._departed_members += members
        publisher.deferred_cleanup.run_or_defer("forgetting members", self._forget_departed)
        for number in {m.table.family for m in members}:
            family = publisher.catalog.views_by_id.get(number)
            if family is not None and not publisher.catalog.has_members(number):
                self.drop(family.table)
        swept = partial(families.sweep_parameters, publisher.store, self.members_in_creation, only_tables=True)
        publisher.deferred_cleanup.run_or_defer("forgetting parameters", swept)

    def _forget_departed(self) -> None:
        """All of them, since what is owed is owed by its name: also those for which it failed before."""
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
        """Build another definition beside the old one and switch in one batch, with the views that read it.

        If it has the same table, its rows change by the difference; else the old rows go with the old view.
        """
        publisher = self._publisher
        known = (publisher.catalog.views_by_id[user] for user in sorted(users))
        active = [v for v in known if v.suspended is None]
        maintained = [v for v in active if not strategy_of(v).has_own_cut]
        moved = new.table.id != old.table.id
        uniting = self._plan_shared_aggregates(
            lambda catalog: catalog.without(old.table.id).with_view(new) if moved else catalog.with_replaced_view(new),
            [new],
        )

        def change(catalog: Catalog, since: int) -> Catalog:
            refuse_altered(catalog, new)
            [made] = uniting.new_views
            made = drop_current_names(catalog, made)
            if moved:
                return uniting.apply(catalog.without(old.table.id).with_view(replace(made, complete_since=since)))
            for view in (
                replace(made, complete_since=old.complete_since),
                *(refresh_names(catalog, v) for v in maintained),
            ):
                catalog = catalog.with_replaced_view(restart_view(view, since))
            return uniting.apply(catalog)

        views = frozenset([new.table.id, *(v.table.id for v in maintained)])
        self._load_and_publish(views, change, lane, progress)
        if moved:
            publisher.deferred_cleanup.drop_rows(old.table, "view.published")
        for view in active:
            if strategy_of(view).has_own_cut:  # what it was made from is another view now
                self._scheduler.remake_fully(view)

    def widen(
        self, before: Table, table: Table, views: Sequence[tuple[View, View]], progress: Progress | None = None
    ) -> None:
        """Switch a table to wider types, with the views that read them as they were and as they will be, in one batch.
        Views over these are loaded again with them."""
        publisher = self._publisher
        ids = {old.table.id for old, _ in views}
        users = [i for i in publisher.catalog.dependents(ids) if i not in ids]
        above = [v for v in map(publisher.catalog.views_by_id.__getitem__, users) if v.suspended is None]
        if apart := [v.table.name for v in above if strategy_of(v).has_own_cut or v.synchronous_state is not None]:
            raise Unsupported(
                f"{', '.join(apart)} would be made again, at another cut than the views that it reads.",
                hint="Drop it first, and create it again.",
            )

        def change(catalog: Catalog, since: int) -> Catalog:
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

        made = frozenset([*(new.table.id for _, new in views), *(v.table.id for v in above)])
        self._load_and_publish(made, change, "auto", progress)
        for old, new in views:
            if new.table.id != old.table.id:
                publisher.deferred_cleanup.drop_rows(old.table, "view.published")

    def drop(self, table: Table) -> None:
        """Forget a view and the state that no other view shares; with it, or with a base table, its indexes."""
        publisher = self._publisher
        gone: list[Table] = []

        def change(catalog: Catalog) -> Catalog:
            refuse_used(catalog, table)
            gone[:] = [table, *(v.table for v in catalog.indexes.get(table.id, ()))]
            for one in gone:
                catalog = catalog.without(one.id)
            return catalog

        with publisher.definition_lock, publisher.lock:
            self._suspender.publish_without(change)
            for one in gone:
                if one.is_view:
                    publisher.deferred_cleanup.drop_rows(one, "view.dropped")
                else:  # with its indexes
                    publisher.deferred_cleanup.drop_rows(one, "table.dropped")
            self._cleanup.after_batch((), force=True)

    def resume(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Build a suspended view's state anew and bring its table in line with it."""
        if strategy_of(view).has_own_cut:
            self._scheduler.remake_fully(replace(view, suspended=None), progress)
            return

        whole = with_shared_aggregate(replace(view, suspended=None), None)  # those that it was one with have gone on
        uniting = self._plan_shared_aggregates(lambda catalog: catalog.with_replaced_view(whole), [whole])

        def change(catalog: Catalog, since: int) -> Catalog:
            return uniting.apply(
                catalog.with_replaced_view(restart_view(refresh_names(catalog, uniting.new_views[0]), since))
            )

        self._load_and_publish(frozenset([view.table.id]), change, lane, progress)

    def release_column(self, table: Table, column: str) -> None:
        """Nothing that views keep together is of this column, if none of them reads it any more."""
        publisher = self._publisher
        with publisher.definition_lock:
            uniting = release_column(publisher.catalog, publisher.dataflow, table.id, column)
            if uniting.moved_views:
                self._load_and_publish(frozenset(), lambda catalog, _: uniting.apply(catalog), "auto", None)

    def _plan_shared_aggregates(
        self, add_views: Callable[[Catalog], Catalog], views: Sequence[View]
    ) -> SharedAggregateChange:
        """Views that come, with what they keep together with those that are there."""
        catalog = self._publisher.checkpoint().catalog
        return share_aggregates(add_views(catalog), self._publisher.dataflow_of(catalog), views)

    def _load_and_publish(
        self,
        views: frozenset[int],
        update_catalog: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
    ) -> None:
        """Load views beside the batches that go on, catch up, and publish them with the catalog's change."""
        with self._publisher.definition_lock, self._state_repair.watch_contradictions():
            while not self._state_repair.run_with_repair(
                partial(self._loader.load, views, update_catalog, lane, progress)
            ):
                pass


def refuse_suspended(catalog: Catalog, family: int) -> None:
    """A family that was stopped while members came to it has no rows for them."""
    found = catalog.views_by_id.get(family)
    if found is None or found.suspended is not None:
        reason = "it is gone" if found is None or found.suspended is None else found.suspended.reason
        raise Suspended(f"The family that the view would be kept by is not maintained: {reason}", hint="Try again.")
