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
from viewkeeper.commit.cleanup import Tidying
from viewkeeper.commit.publisher import Publisher
from viewkeeper.errors import InUse, Suspended, Unsupported
from viewkeeper.maintain.definitions import families
from viewkeeper.maintain.definitions.catalog_changes import refuse_altered, refuse_used
from viewkeeper.maintain.definitions.planning import Planned
from viewkeeper.maintain.definitions.shared_aggregates import Uniting, narrowed, planned, unite
from viewkeeper.maintain.load.loader import Loader, restarted
from viewkeeper.maintain.load.repair import Mender
from viewkeeper.maintain.load.suspension import Suspender
from viewkeeper.maintain.strategies.scheduled import Scheduler
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.model.schema import Table
from viewkeeper.plan.families.plan_templates import Templates
from viewkeeper.syntax.view_text import follow_names, settle_names


class Definer:
    """Creates, replaces, drops and resumes views."""

    def __init__(
        self,
        publisher: Publisher,
        tidying: Tidying,
        loader: Loader,
        mender: Mender,
        suspender: Suspender,
        scheduler: Scheduler,
        refresh: Callable[[], object],
    ) -> None:
        self._publisher = publisher
        self._tidying = tidying
        self._loader = loader
        self._mender = mender
        self._suspender = suspender
        self._scheduler = scheduler
        self._refresh = refresh
        self.templates = Templates()
        self.making: set[tuple[int, bytes]] = set()
        """Members whose parameters are written and whose names are not (`gathering.Making`)."""
        self._leaving: list[View] = []
        """Members that are none any more and whose parameters are still written."""

    def create(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Load a new view beside the batches that go on, and publish it together with its catalog entry."""
        if strategy_of(view).runs_alone:
            self._scheduler.make(view, is_new=True, progress=progress)
            return

        self.create_many([view], (), lane, progress)

    def create_planned(self, planned: Planned, lane: str = "auto", progress: Progress | None = None) -> None:
        """Make what statements define, in one batch: all of it is there, or nothing."""
        gathered = planned.gathered
        if not gathered.members:
            self.create_many(planned.views, (), lane, progress)
            return
        self.making |= families.making(gathered.members)
        self._suspender.expelling.failed.clear()
        try:
            families.write(self._publisher.store, gathered)
            # Families that are there make their new members from what they have; new ones are loaded at a cut that has
            # the parameters of all.
            self._refresh()
            self._suspender.expelling.refuse_failed(gathered.members)
            self.create_many(planned.views, gathered.members, lane, progress)
        except Exception:
            self.making -= families.making(gathered.members)
            owed = partial(families.swept, self._publisher.store, self.making)
            self._publisher.afterwards.owe("sweeping parameters", owed)
            raise
        finally:
            self.making -= families.making(gathered.members)

    def create_many(
        self, views: Sequence[View], members: Sequence[View], lane: str = "auto", progress: Progress | None = None
    ) -> None:
        """Load several new views together, and publish them in one batch, with members of families."""
        for view in views:
            if strategy_of(view).runs_alone:
                raise Unsupported(
                    f"{view.table.name} has a cut of its own (strategy {strategy_of(view).name}), it is not published"
                    " together with others.",
                    hint="Create it by itself.",
                )

        uniting = self._united(lambda catalog: catalog.with_views(views), views)
        views = uniting.new

        def change(catalog: Catalog, since: int) -> Catalog:
            listed = (settle_names(catalog, view) for view in (*views, *members))
            changed = catalog.with_views([replace(view, since=since) for view in listed])
            changed = uniting.moved(changed)
            for view in views:
                refuse_altered(changed, view)
            for family in {m.table.family for m in members}:
                refuse_suspended(changed, family)
            return changed

        publisher = self._publisher
        if views:
            self._bring_in(frozenset(v.table.id for v in views), change, lane, progress)
        else:
            with publisher.defining, publisher.lock:
                publisher.publish_views(lambda catalog: change(catalog, publisher.store.head() + 1))

    def leave(self, member: View, alone: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """A member of a family becomes a view by itself, with rows and state of its own."""

        def change(catalog: Catalog, since: int) -> Catalog:
            refuse_altered(catalog, alone)
            return catalog.replacing(replace(settle_names(catalog, alone), since=since))

        self._bring_in(frozenset([alone.table.id]), change, lane, progress)
        self._forget([member])

    def drop_members(self, members: Sequence[View]) -> None:
        """Forget members; with the last one, its family."""
        publisher = self._publisher

        def change(catalog: Catalog) -> Catalog:
            return catalog.without(*(member.table.id for member in members))

        with publisher.defining, publisher.lock:
            publisher.store.change_catalog(change)
            failpoints.point("member.dropped")
            self._forget(members)

    def _forget(self, members: Sequence[View]) -> None:
        """What was kept for members that are none any more."""
        publisher = self._publisher
        publisher.follow()
        self._leaving += members
        publisher.afterwards.owe("forgetting members", self._forget_leaving)
        for number in {m.table.family for m in members}:
            family = publisher.catalog.views_by_id.get(number)
            if family is not None and not publisher.catalog.has_members(number):
                self.drop(family.table)
        swept = partial(families.swept, publisher.store, self.making, only_tables=True)
        publisher.afterwards.owe("forgetting parameters", swept)

    def _forget_leaving(self) -> None:
        """All of them, since what is owed is owed by its name: also those for which it failed before."""
        families.forget(self._publisher.store, self._leaving, self.making)
        self._leaving.clear()

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
        maintained = [v for v in active if not strategy_of(v).runs_alone]
        moved = new.table.id != old.table.id
        uniting = self._united(
            lambda catalog: catalog.without(old.table.id).with_view(new) if moved else catalog.replacing(new), [new]
        )

        def change(catalog: Catalog, since: int) -> Catalog:
            refuse_altered(catalog, new)
            [made] = uniting.new
            made = settle_names(catalog, made)
            if moved:
                return uniting.moved(catalog.without(old.table.id).with_view(replace(made, since=since)))
            for view in (replace(made, since=old.since), *(follow_names(catalog, v) for v in maintained)):
                catalog = catalog.replacing(restarted(view, since))
            return uniting.moved(catalog)

        views = frozenset([new.table.id, *(v.table.id for v in maintained)])
        self._bring_in(views, change, lane, progress)
        if moved:
            publisher.afterwards.drop(old.table, "view.published")
        for view in active:
            if strategy_of(view).runs_alone:  # what it was made from is another view now
                self._scheduler.make_whole(view)

    def widen(
        self, before: Table, table: Table, views: Sequence[tuple[View, View]], progress: Progress | None = None
    ) -> None:
        """Switch a table to wider types, with the views that read them as they were and as they will be, in one batch.
        Views over these are loaded again with them."""
        publisher = self._publisher
        ids = {old.table.id for old, _ in views}
        users = [i for i in publisher.catalog.dependents(ids) if i not in ids]
        above = [v for v in map(publisher.catalog.views_by_id.__getitem__, users) if v.suspended is None]
        if apart := [v.table.name for v in above if strategy_of(v).runs_alone or v.sync is not None]:
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
                    catalog = catalog.without(old.table.id).with_view(replace(new, since=since))
                else:
                    catalog = catalog.replacing(restarted(replace(follow_names(catalog, new), since=old.since), since))
            for view in above:
                catalog = catalog.replacing(restarted(follow_names(catalog, view), since))
            return catalog

        made = frozenset([*(new.table.id for _, new in views), *(v.table.id for v in above)])
        self._bring_in(made, change, "auto", progress)
        for old, new in views:
            if new.table.id != old.table.id:
                publisher.afterwards.drop(old.table, "view.published")

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

        with publisher.defining, publisher.lock:
            self._suspender.leave_out(change)
            for one in gone:
                if one.is_view:
                    publisher.afterwards.drop(one, "view.dropped")
                else:  # with its indexes
                    publisher.afterwards.drop(one, "table.dropped")
            self._tidying.after((), now=True)

    def resume(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Build a suspended view's state anew and bring its table in line with it."""
        if strategy_of(view).runs_alone:
            self._scheduler.make_whole(replace(view, suspended=None), progress)
            return

        whole = planned(replace(view, suspended=None), None)  # those that it was one with have gone on
        uniting = self._united(lambda catalog: catalog.replacing(whole), [whole])

        def change(catalog: Catalog, since: int) -> Catalog:
            return uniting.moved(catalog.replacing(restarted(follow_names(catalog, uniting.new[0]), since)))

        self._bring_in(frozenset([view.table.id]), change, lane, progress)

    def let_go(self, table: Table, column: str) -> None:
        """Nothing that views keep together is of this column, if none of them reads it any more."""
        publisher = self._publisher
        with publisher.defining:
            uniting = narrowed(publisher.catalog, publisher.flow, table.id, column)
            if uniting.moving:
                self._bring_in(frozenset(), lambda catalog, _: uniting.moved(catalog), "auto", None)

    def _united(self, come: Callable[[Catalog], Catalog], views: Sequence[View]) -> Uniting:
        """Views that come, with what they keep together with those that are there."""
        catalog = self._publisher.mark().catalog
        return unite(come(catalog), self._publisher.flow_of(catalog), views)

    def _bring_in(
        self,
        views: frozenset[int],
        change: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
    ) -> None:
        """Load views beside the batches that go on, catch up, and publish them with the catalog's change."""
        with self._publisher.defining, self._mender.noting_contradictions():
            while not self._mender.mending(partial(self._loader.load, views, change, lane, progress)):
                pass


def refuse_suspended(catalog: Catalog, family: int) -> None:
    """A family that was stopped while members came to it has no rows for them."""
    found = catalog.views_by_id.get(family)
    if found is None or found.suspended is not None:
        reason = "it is gone" if found is None or found.suspended is None else found.suspended.reason
        raise Suspended(f"The family that the view would be kept by is not maintained: {reason}", hint="Try again.")
