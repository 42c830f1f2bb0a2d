"""Suspension: a view that fails on its own rows, or whose state contradicts itself, is taken out of the batches.

The other views continue without it. This applies to every batch: of background maintenance, of a manual refresh, before
a statement, or for a read that must show all writes. A caller that prefers the error to a batch without the view uses
`Suspender.raise_failures`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from viewkeeper import failpoints
from viewkeeper.commit.publisher import Publisher
from viewkeeper.errors import Defect, EvaluationError
from viewkeeper.maintain.definitions import families as definitions_families
from viewkeeper.maintain.definitions.planning import plan_detached_member
from viewkeeper.maintain.load.backfill import missing_state
from viewkeeper.maintain.load.loader import Loader
from viewkeeper.maintain.load.repair import StateRepair
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.catalog.view import OwnCut, Suspension, View
from viewkeeper.plan.families.plan_templates import TemplateCache
from viewkeeper.runtime.error_attribution import BrokenViews, Contradicted
from viewkeeper.runtime.operator_errors import FailedMember
from viewkeeper.store.contract.store import StreamChange, ViewChange

# Quarantine of family members: a member whose rows fail leaves its family and is suspended; the family continues.
#
#     batch fails for members ─▶ 1 copy their rows, and publish them as separate views, suspended
#                                2 delete their parameters
#                                3 run the batch again: it includes the failing rows and the deletion of the parameters
#
# A suspended view keeps showing its last rows. A family's rows are deleted with their parameters, so step 1 copies them
# first, in one commit. If the process ends before step 2, the parameters remain without a member; the next maintainer
# deletes them. In step 3 the member's sums cancel out and its rows are not produced (`operators.kinds.theta`), so it
# cannot fail on them. The batch reaches the position of the deletion even if that exceeds its limit of rows.
#
# A member that is just being created has no catalog entry to suspend; its CREATE statement raises the error.


_MAX_ATTEMPTS = 3


class MemberQuarantine:
    """Removes failing members from their families. `require_position` makes the next batch reach a position."""

    def __init__(self, publisher: Publisher, require_position: Callable[[int], None]) -> None:
        self._publisher = publisher
        self._require_position = require_position
        self.failures: dict[tuple[int, bytes], str] = {}
        """Errors of members, by family and key, for statements that are creating some of them."""
        self._repeated_failures: Counter[tuple[int, bytes]] = Counter()
        """Consecutive failures of removed members, in batches that do not include the deletion yet."""

    def quarantine_members(self, error: BrokenViews) -> dict[str, str] | None:
        """Remove the members that the error is attributed to from their families.

        Returns the suspended views with their errors; None if the error is not attributed to a member.
        """
        publisher, store = self._publisher, self._publisher.store
        with publisher.lock:
            publisher.reload()
            catalog = publisher.catalog
            families = {
                view.parameter_table_id: view
                for view in catalog.views
                if view.is_hidden_family and definitions_families.MEMBER_PLAN in view.plan
            }
            failures = [
                failure
                for failure in (*error.members, *_find_owning_member(catalog, error))
                if failure.parameters in families
            ]
            reasons = {(families[failure.parameters].table.id, failure.key): failure.message for failure in failures}
            members = [member for family in families.values() for member in catalog.members.get(family.table.id, ())]
            leaving = [member for member in members if (member.table.family, member.table.key_prefix) in reasons]
            suspended = {
                member.table.name: _reason_text(member, reasons[member.table.family, member.table.key_prefix])
                for member in leaving
            }
            if leaving:
                self._publish_suspended(catalog, leaving, suspended)
                failpoints.hit("member.expelled")
            has_deleted = False
            for number in {failure.parameters for failure in failures}:
                keys = {failure.key for failure in failures if failure.parameters == number}
                has_deleted |= definitions_families.delete_parameters(
                    store, catalog.tables_by_id[number], keys.__contains__
                )
            self._require_position(store.head())
            self.failures |= reasons
            if leaving or has_deleted:
                self._repeated_failures.clear()
                return suspended
            self._repeated_failures.update(reasons.keys())
            return {} if reasons and max(self._repeated_failures.values()) < _MAX_ATTEMPTS else None

    def raise_failures(self, members: Sequence[View]) -> None:
        """Raise the error of one of these members, if it has failed."""
        for member in members:
            reason = self.failures.get((member.table.family, member.table.key_prefix))
            if reason is not None:
                raise EvaluationError(_reason_text(member, reason))

    def _publish_suspended(self, catalog: Catalog, members: Sequence[View], reasons: dict[str, str]) -> None:
        """Step 1: copy the members' rows and publish the members as suspended views."""
        publisher = self._publisher
        store, batch = publisher.store, publisher.batch
        views = [plan_detached_member(store, _refuse_spark, m, TemplateCache()) for m in members]
        changes: list[ViewChange | StreamChange] = []
        for member, view in zip(members, views, strict=True):
            rows = publisher.memory.collect(store.scan(member.table), member.table.arrow)
            no_keys = rows.slice(0, 0).select([k.column for k in view.table.key])
            changes += [ViewChange(view.table, rows, no_keys)] if rows.num_rows else []

        def suspend(catalog: Catalog) -> Catalog:
            for view in views:
                suspension = Suspension(reasons[view.table.name], batch.number, batch.cut, time.time())
                catalog = catalog.with_replaced_view(
                    replace(view, complete_since=store.head() + 1, suspended=suspension)
                )
            return catalog

        publisher.publish(batch.number + 1, batch.cut, publisher.state.manifest, changes, suspend)


def _find_owning_member(catalog: Catalog, error: BrokenViews) -> Iterator[FailedMember]:
    """Yield the member that owns the key in the error: its key prefix is the beginning of that key."""
    for family in map(catalog.views_by_id.get, error.views if error.key is not None else ()):
        for member in catalog.members.get(family.table.id, ()) if family is not None else ():
            if error.key is not None and family is not None and error.key.startswith(member.table.key_prefix):
                yield FailedMember(
                    family.parameter_table_id,
                    member.table.key_prefix,
                    _without_family_name(error.message, family.table.name),
                )
                return


def _without_family_name(message: str, family: str) -> str:
    """Return the message without the family's name, which users do not know."""
    return message.removeprefix(f"{family}: ").replace(f" of {family}", "")


def _refuse_spark() -> None:
    raise Defect("A family that keeps its members' plan was read again.")


def _reason_text(member: View, message: str) -> str:
    return f"{member.table.name}: {message}"


T = TypeVar("T")

_log = logging.getLogger("viewkeeper")


class Suspender:
    """Suspends failing views, and keeps those that no report has named yet."""

    def __init__(
        self, publisher: Publisher, loader: Loader, state_repair: StateRepair, require_position: Callable[[int], None]
    ) -> None:
        self._publisher = publisher
        self._loader = loader
        self._state_repair = state_repair
        self._raising_threads: list[int] = []
        """Threads in which failures are raised instead."""
        self._unreported: dict[str, str] = {}
        self.quarantine = MemberQuarantine(publisher, require_position)

    @contextmanager
    def raise_failures(self) -> Iterator[None]:
        """In the block, a view's failure in this thread's batches is raised, and nothing is published."""
        self._raising_threads.append(threading.get_ident())
        try:
            yield
        finally:
            self._raising_threads.remove(threading.get_ident())

    def run_without_failing(self, work: Callable[[], T], *, always: bool = False) -> T:
        """Run `work`; suspend views that fail and run it again (with `always`, even within `raise_failures`)."""
        while True:
            try:
                return work()
            except (BrokenViews, Contradicted) as failure:
                self.suspend_failing(failure, always=always)

    def suspend_failing(self, error: BrokenViews | Contradicted, *, always: bool = False) -> None:
        """Suspend the views of an error, or raise it within `raise_failures`.

        Of a family only the failing members are suspended. A contradiction is noted in the store, because wrong state
        may affect other views too.
        """
        if threading.get_ident() in self._raising_threads and not always:
            raise error
        suspended = self.quarantine.quarantine_members(error) if isinstance(error, BrokenViews) else None
        if suspended is None:
            suspended = dict.fromkeys(self.suspend(error.views, error.message), error.message)
            if not suspended:
                raise error
        for reason in dict.fromkeys(suspended.values()):
            _log.warning("%s: suspended: %s", self._publisher.store.url, reason)
        self._unreported |= suspended
        self._drop_empty_families()
        if isinstance(error, Contradicted):
            self._state_repair.note_contradiction(error)

    def take_unreported(self) -> dict[str, str]:
        """Return the views that were suspended since the last report, with their errors, and forget them."""
        suspended, self._unreported = self._unreported, {}
        return suspended

    def suspend(self, views: frozenset[int], reason: str) -> list[str]:
        """Suspend these views: they keep showing the rows of this batch, and their state is deleted."""
        publisher = self._publisher
        with publisher.lock:
            now = time.time()
            current = (publisher.view(view) for view in sorted(views))
            suspended = [candidate for candidate in current if candidate is not None and candidate.suspended is None]
            if not suspended:
                return []

            def change(catalog: Catalog) -> Catalog:
                for view in suspended:
                    own_cut = view.own_cut or OwnCut(publisher.batch.number, 0, publisher.batch.cut, now)
                    suspension = Suspension(reason, own_cut.epoch, own_cut.cut, now)
                    catalog = catalog.with_replaced_view(replace(view, suspended=suspension))
                return catalog

            self.publish_without(change)
            return [candidate.table.name for candidate in suspended]

    def _drop_empty_families(self) -> None:
        """Drop families without members."""
        publisher = self._publisher
        with publisher.lock:
            empty = [
                v
                for v in publisher.catalog.views
                if v.is_hidden_family and not publisher.catalog.has_members(v.table.id)
            ]
            for family in empty:
                self.publish_without(lambda catalog, dropped=family: catalog.without(dropped.table.id))  # type: ignore[misc]
                publisher.deferred_cleanup.drop_rows(family.table, "view.dropped")

    def publish_without(self, update_catalog: Callable[[Catalog], Catalog]) -> None:
        """Publish a catalog with fewer maintained views; the caller holds the lock.

        Without these views, another arrangement may have to become a table's image; it is loaded first.
        """
        publisher = self._publisher
        dataflow = publisher.dataflow_of(update_catalog(publisher.catalog))
        if self._state_repair.run_with_repair(lambda: missing_state(dataflow, publisher.state)):
            self._loader.load(
                frozenset(),
                lambda catalog, _: update_catalog(catalog),
                "auto",
                None,
                base_manifest=publisher.state.manifest,
            )
        else:
            publisher.publish_views(update_catalog)
