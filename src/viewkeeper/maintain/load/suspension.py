"""A view that fails on its own rows, or whose state contradicts itself, is taken out; the others go on without it.

So it is in every batch, whoever asked for it: background maintenance, a refresh by hand, a statement that needs a batch
first, a read that must show all writes. Who would rather have no batch than one without that view says so (`refusing`).
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

# A member whose rows fail leaves its family and is suspended by itself; the family goes on without it.
#
#     batch fails for members ─▶ 1 copy their rows, publish them as views by themselves, suspended
#                                2 delete their parameters
#                                3 the batch again: it has the rows that failed, and that nobody wants them any more
#
# A suspended view shows what it last had; a family's rows go with the parameters they are of, so they are copied first.
# Both are one commit. What is left if the process ends before step 2 are parameters without a name, which the next
# maintainer takes away. In step 3 a member's sums come to nothing and its rows are not made (`operators.kinds.theta`),
# so it cannot fail on them; that the batch reaches the deletion is seen to, however few rows it may have.
#
# A member that is just being made has no name to suspend. Its statement is told, and fails.


_MAX_ATTEMPTS = 3


class MemberQuarantine:
    """`reach` makes the next batch come to a position."""

    def __init__(self, publisher: Publisher, require_position: Callable[[int], None]) -> None:
        self._publisher = publisher
        self._require_position = require_position
        self.failures: dict[tuple[int, bytes], str] = {}
        """What members failed on, by family and key, for a statement that makes some of them."""
        self._repeated_failures: Counter[tuple[int, bytes]] = Counter()
        """How often in succession a member failed that was gone already: its deletion was not in the batch yet."""

    def quarantine_members(self, error: BrokenViews) -> dict[str, str] | None:
        """Take the members that it is of out of their families: the views that are suspended, each with why; None if
        it is of no member."""
        publisher, store = self._publisher, self._publisher.store
        with publisher.lock:
            publisher.reload()
            catalog = publisher.catalog
            families = {
                v.parameter_table_id: v
                for v in catalog.views
                if v.is_hidden_family and definitions_families.MEMBER_PLAN in v.plan
            }
            found = [b for b in (*error.members, *_find_owning_member(catalog, error)) if b.parameters in families]
            reasons = {(families[b.parameters].table.id, b.key): b.message for b in found}
            members = [m for f in families.values() for m in catalog.members.get(f.table.id, ())]
            leaving = [m for m in members if (m.table.family, m.table.key_prefix) in reasons]
            told = {m.table.name: _reason_text(m, reasons[m.table.family, m.table.key_prefix]) for m in leaving}
            if leaving:
                self._publish_suspended(catalog, leaving, told)
                failpoints.hit("member.expelled")
            gone = False
            for number in {b.parameters for b in found}:
                keys = {b.key for b in found if b.parameters == number}
                gone |= definitions_families.delete_parameters(store, catalog.tables_by_id[number], keys.__contains__)
            self._require_position(store.head())
            self.failures |= reasons
            if leaving or gone:
                self._repeated_failures.clear()
                return told
            self._repeated_failures.update(reasons.keys())
            return {} if reasons and max(self._repeated_failures.values()) < _MAX_ATTEMPTS else None

    def raise_failures(self, members: Sequence[View]) -> None:
        """Raise what one of these has failed on."""
        for member in members:
            reason = self.failures.get((member.table.family, member.table.key_prefix))
            if reason is not None:
                raise EvaluationError(_reason_text(member, reason))

    def _publish_suspended(self, catalog: Catalog, members: Sequence[View], reasons: dict[str, str]) -> None:
        """Step 1."""
        publisher = self._publisher
        store, batch = publisher.store, publisher.batch
        made = [plan_detached_member(store, _refuse_spark, m, TemplateCache()) for m in members]
        changes: list[ViewChange | StreamChange] = []
        for member, view in zip(members, made, strict=True):
            rows = publisher.memory.collect(store.scan(member.table), member.table.arrow)
            nothing = rows.slice(0, 0).select([k.column for k in view.table.key])
            changes += [ViewChange(view.table, rows, nothing)] if rows.num_rows else []

        def change(catalog: Catalog) -> Catalog:
            for view in made:
                stop = Suspension(reasons[view.table.name], batch.number, batch.cut, time.time())
                catalog = catalog.with_replaced_view(replace(view, complete_since=store.head() + 1, suspended=stop))
            return catalog

        publisher.publish(batch.number + 1, batch.cut, publisher.state.manifest, changes, change)


def _find_owning_member(catalog: Catalog, error: BrokenViews) -> Iterator[FailedMember]:
    """The member whose row has the key that an error names: it begins with the member's part of all keys."""
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
    """What was said of a family, without its name, which users do not know."""
    return message.removeprefix(f"{family}: ").replace(f" of {family}", "")


def _refuse_spark() -> None:
    raise Defect("A family that keeps its members' plan was read again.")


def _reason_text(member: View, message: str) -> str:
    return f"{member.table.name}: {message}"


T = TypeVar("T")

_log = logging.getLogger("viewkeeper")


class Suspender:
    """Suspends views that fail, and knows those that no report has named yet."""

    def __init__(
        self, publisher: Publisher, loader: Loader, state_repair: StateRepair, require_position: Callable[[int], None]
    ) -> None:
        self._publisher = publisher
        self._loader = loader
        self._state_repair = state_repair
        self._raising_threads: list[int] = []
        """Threads that would rather have the error."""
        self._unreported: dict[str, str] = {}
        self.quarantine = MemberQuarantine(publisher, require_position)

    @contextmanager
    def raise_failures(self) -> Iterator[None]:
        """Until it is left, what a view of this thread's batches fails on is raised, and nothing published."""
        self._raising_threads.append(threading.get_ident())
        try:
            yield
        finally:
            self._raising_threads.remove(threading.get_ident())

    def run_without_failing(self, work: Callable[[], T], *, always: bool = False) -> T:
        """Do it again without the views that fail (`always`: also if that is to be refused)."""
        while True:
            try:
                return work()
            except (BrokenViews, Contradicted) as broken:
                self.suspend_failing(broken, always=always)

    def suspend_failing(self, error: BrokenViews | Contradicted, *, always: bool = False) -> None:
        """Suspend the views that an error is of, or raise it. Wrong state may show in others too, and is noted.

        Of a family of views that were made by name, the members that it failed for.
        """
        if threading.get_ident() in self._raising_threads and not always:
            raise error
        told = self.quarantine.quarantine_members(error) if isinstance(error, BrokenViews) else None
        if told is None:
            told = dict.fromkeys(self.suspend(error.views, error.message), error.message)
            if not told:
                raise error
        for reason in dict.fromkeys(told.values()):
            _log.warning("%s: suspended: %s", self._publisher.store.url, reason)
        self._unreported |= told
        self._drop_empty_families()
        if isinstance(error, Contradicted):
            self._state_repair.note_contradiction(error)

    def take_unreported(self) -> dict[str, str]:
        """The views that were taken out since the last report, each with why: the row, and what it does."""
        told, self._unreported = self._unreported, {}
        return told

    def suspend(self, views: frozenset[int], reason: str) -> list[str]:
        """Stop maintaining these views; they keep showing this batch, and their state is freed."""
        publisher = self._publisher
        with publisher.lock:
            now = time.time()
            known = (publisher.view(view) for view in sorted(views))
            stopped = [v for v in known if v is not None and v.suspended is None]
            if not stopped:
                return []

            def change(catalog: Catalog) -> Catalog:
                for view in stopped:
                    at = view.own_cut or OwnCut(publisher.batch.number, 0, publisher.batch.cut, now)
                    stop = Suspension(reason, at.epoch, at.cut, now)
                    catalog = catalog.with_replaced_view(replace(view, suspended=stop))
                return catalog

            self.publish_without(change)
            return [v.table.name for v in stopped]

    def _drop_empty_families(self) -> None:
        """Families whose last member has left go."""
        publisher = self._publisher
        with publisher.lock:
            left = [
                v
                for v in publisher.catalog.views
                if v.is_hidden_family and not publisher.catalog.has_members(v.table.id)
            ]
            for family in left:
                self.publish_without(lambda catalog, gone=family: catalog.without(gone.table.id))  # type: ignore[misc]
                publisher.deferred_cleanup.drop_rows(family.table, "view.dropped")

    def publish_without(self, update_catalog: Callable[[Catalog], Catalog]) -> None:
        """Publish a catalog with fewer views to maintain; the lock is held.

        Without some view another arrangement may have to serve as a table's image, which is then loaded first.
        """
        publisher = self._publisher
        flow = publisher.dataflow_of(update_catalog(publisher.catalog))
        if self._state_repair.run_with_repair(lambda: missing_state(flow, publisher.state)):
            self._loader.load(
                frozenset(),
                lambda catalog, _: update_catalog(catalog),
                "auto",
                None,
                base_manifest=publisher.state.manifest,
            )
        else:
            publisher.publish_views(update_catalog)
