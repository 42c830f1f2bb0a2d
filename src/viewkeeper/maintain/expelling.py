"""A member whose rows fail leaves its family and is suspended by itself; the family goes on without it.

    batch fails for members ─▶ 1 copy their rows, publish them as views by themselves, suspended
                               2 delete their parameters
                               3 the batch again: it has the rows that failed, and that nobody wants them any more

A suspended view shows what it last had; a family's rows go with the parameters they are of, so they are copied first.
Both are one commit. What is left if the process ends before step 2 are parameters without a name, which the next
maintainer takes away. In step 3 a member's sums come to nothing and its rows are not made (`operators.kinds.theta`), so
it cannot fail on them; that the batch reaches the deletion is seen to, however few rows it may have.

A member that is just being made has no name to suspend. Its statement is told, and fails.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from viewkeeper import faults
from viewkeeper.commit.isolation import BrokenViews
from viewkeeper.commit.publisher import Publisher
from viewkeeper.errors import Defect, EvaluationError
from viewkeeper.maintain import gathering
from viewkeeper.maintain.planning import alone
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.views import Suspension, View
from viewkeeper.plan.templates import Templates
from viewkeeper.rounds.failures import Blamed
from viewkeeper.store.base import StreamChange, ViewChange

_TRIES = 3


class Expelling:
    """`reach` makes the next batch come to a position."""

    def __init__(self, publisher: Publisher, reach: Callable[[int], None]) -> None:
        self._publisher = publisher
        self._reach = reach
        self.failed: dict[tuple[int, bytes], str] = {}
        """What members failed on, by family and key, for a statement that makes some of them."""
        self._gone: Counter[tuple[int, bytes]] = Counter()
        """How often in succession a member failed that was gone already: its deletion was not in the batch yet."""

    def expel(self, broken: BrokenViews) -> dict[str, str] | None:
        """Take the members that it is of out of their families: the views that are suspended, each with why; None if
        it is of no member."""
        publisher, store = self._publisher, self._publisher.store
        with publisher.lock:
            publisher.follow()
            catalog = publisher.catalog
            families = {v.parameters: v for v in catalog.views if v.gathers and gathering.MEMBER in v.plan}
            found = [b for b in (*broken.members, *_owner(catalog, broken)) if b.parameters in families]
            reasons = {(families[b.parameters].table.id, b.key): b.message for b in found}
            members = [m for f in families.values() for m in catalog.members.get(f.table.id, ())]
            leaving = [m for m in members if (m.table.family, m.table.prefix) in reasons]
            told = {m.table.name: _reason(m, reasons[m.table.family, m.table.prefix]) for m in leaving}
            if leaving:
                self._suspended(catalog, leaving, told)
                faults.point("member.expelled")
            gone = False
            for number in {b.parameters for b in found}:
                keys = {b.key for b in found if b.parameters == number}
                gone |= gathering.take_away(store, catalog.tables_by_id[number], keys.__contains__)
            self._reach(store.head())
            self.failed |= reasons
            if leaving or gone:
                self._gone.clear()
                return told
            self._gone.update(reasons.keys())
            return {} if reasons and max(self._gone.values()) < _TRIES else None

    def refuse_failed(self, members: Sequence[View]) -> None:
        """Raise what one of these has failed on."""
        for member in members:
            reason = self.failed.get((member.table.family, member.table.prefix))
            if reason is not None:
                raise EvaluationError(_reason(member, reason))

    def _suspended(self, catalog: Catalog, members: Sequence[View], reasons: dict[str, str]) -> None:
        """Step 1."""
        publisher = self._publisher
        store, batch = publisher.store, publisher.batch
        made = [alone(store, _no_spark, m, Templates()) for m in members]
        changes: list[ViewChange | StreamChange] = []
        for member, view in zip(members, made, strict=True):
            rows = publisher.memory.gathered(store.scan(member.table), member.table.arrow)
            nothing = rows.slice(0, 0).select([k.column for k in view.table.key])
            changes += [ViewChange(view.table, rows, nothing)] if rows.num_rows else []

        def change(catalog: Catalog) -> Catalog:
            for view in made:
                stop = Suspension(reasons[view.table.name], batch.number, batch.cut, time.time())
                catalog = catalog.replacing(replace(view, since=store.head() + 1, suspended=stop))
            return catalog

        publisher.publish(batch.number + 1, batch.cut, publisher.state.manifest, changes, change)


def _owner(catalog: Catalog, broken: BrokenViews) -> Iterator[Blamed]:
    """The member whose row has the key that an error names: it begins with the member's part of all keys."""
    for family in map(catalog.views_by_id.get, broken.views if broken.key is not None else ()):
        for member in catalog.members.get(family.table.id, ()) if family is not None else ():
            if broken.key is not None and family is not None and broken.key.startswith(member.table.prefix):
                yield Blamed(family.parameters, member.table.prefix, _without_name(broken.message, family.table.name))
                return


def _without_name(message: str, family: str) -> str:
    """What was said of a family, without its name, which users do not know."""
    return message.removeprefix(f"{family}: ").replace(f" of {family}", "")


def _no_spark() -> None:
    raise Defect("A family that keeps its members' plan was read again.")


def _reason(member: View, message: str) -> str:
    return f"{member.table.name}: {message}"
