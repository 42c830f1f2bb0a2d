"""One view must not stop the others: an error that a view's own rows cause is that view's alone.

Where operators run, `rounds.blame` finds the row and `stage` the views. Here are the two places where one view's rows
are at hand and no operator is: at its sink, and in its table in the store. State that contradicts itself is that of
the views that are made from it, as far as anybody can say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from viewkeeper.errors import Contradiction, EvaluationError, TooLarge, ViewkeeperError
from viewkeeper.model.schema import Table
from viewkeeper.rounds.blame import NOBODYS, Blamed


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


@contextmanager
def own_rows(view: Table) -> Iterator[None]:
    """What fails in here fails on the rows of this view, unless the machine or the store does."""
    try:
        yield
    except Contradiction as wrong:
        raise Contradicted(frozenset([view.id]), wrong.message) from wrong
    except (BrokenViews, *NOBODYS):
        raise
    except Exception as error:
        raise BrokenViews(frozenset([view.id]), f"{view.name}: {_told(error)}") from error


@contextmanager
def storing(views: Iterable[Table]) -> Iterator[None]:
    """A commit: a row that the store cannot hold stops the view that it is of."""
    try:
        yield
    except TooLarge as large:
        for view in views:
            if view.id == large.table:
                raise BrokenViews(frozenset([view.id]), f"{view.name}: {_told(large)}", key=large.key) from large
        raise


def _told(error: Exception) -> str:
    if isinstance(error, ViewkeeperError):
        return error.message
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
