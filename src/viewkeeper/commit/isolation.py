"""One view must not stop the others: an error that a view's own rows cause is that view's alone.

Where operators run, `rounds.failures` names the operator and `broken_by` its views. Here are the two places where one
view's rows are at hand and no operator is: at its sink, and in its table in the store. State that contradicts itself
is that of the views that are made from it, as far as anybody can say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from viewkeeper.errors import Contradiction, EvaluationError, TooLarge
from viewkeeper.model.schema import Table
from viewkeeper.plan.flow import Flow
from viewkeeper.rounds.failures import PROCESS_FAULTS, Blamed, Failed, described


class BrokenViews(EvaluationError):
    """These views failed on their own rows.

    `members`: of a family of views made by name, those that it failed for; or `key`, that of the row in its table.
    """

    def __init__(
        self, views: frozenset[int], message: str, members: Sequence[Blamed] = (), key: bytes | None = None
    ) -> None:
        self.views = views
        self.members = tuple(members)
        self.key = key
        super().__init__(message)


class Contradicted(Contradiction):
    """State that these views are made from contradicts itself."""

    def __init__(self, views: frozenset[int], message: str) -> None:
        self.views = views
        super().__init__(message)


def broken_by(flow: Flow, names: Mapping[int, str], failed: Failed) -> BrokenViews:
    """The views that an operator's error suspends: those that it is part of."""
    views = flow.views_of(failed.operator)
    stopped = ", ".join(sorted(names.get(v, "the new view") for v in views))
    return BrokenViews(views, f"{stopped}: {failed.message}", failed.members)


@contextmanager
def own_rows(view: Table) -> Iterator[None]:
    """What fails in here fails on the rows of this view, unless the machine or the store does."""
    try:
        yield
    except Contradiction as wrong:
        raise Contradicted(frozenset([view.id]), wrong.message) from wrong
    except (BrokenViews, *PROCESS_FAULTS):
        raise
    except Exception as error:
        raise BrokenViews(frozenset([view.id]), f"{view.name}: {described(error)}") from error


@contextmanager
def storing(views: Iterable[Table]) -> Iterator[None]:
    """A commit: a row that the store cannot hold stops the view that it is of."""
    try:
        yield
    except TooLarge as large:
        for view in views:
            if view.id == large.table:
                raise BrokenViews(frozenset([view.id]), f"{view.name}: {described(large)}", key=large.key) from large
        raise
