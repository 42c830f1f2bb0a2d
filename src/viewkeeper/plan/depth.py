"""Work along the nesting of a query, which goes as deep into the stack as joins, subqueries and views nest.

How deep that may be must not depend on the caller: a view that a script defines is compiled again by a server, in whose
stack there are other calls already. Where the caller's stack does not do, the work is done in a thread, whose stack is
empty. So what was compiled once can always be compiled again, and what cannot is refused when it is defined.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from viewkeeper.errors import Unsupported

T = TypeVar("T")


def to_any_depth(work: Callable[[], T]) -> T:
    """What `work` gives; it may be begun a second time. Raises Unsupported if it is too deep for a whole stack."""
    try:
        try:
            return work()
        except RecursionError:
            return _in_own_stack(work)
    except RecursionError:
        raise Unsupported(
            "The query is nested too deeply to be planned: joins, subqueries and views over views go too deep.",
            hint="Make a view of an inner part, and the view over that.",
        ) from None


def _in_own_stack(work: Callable[[], T]) -> T:
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # the caller has it, whatever it is
            found.set_exception(error)

    thread = threading.Thread(target=run, name="viewkeeper-depth")
    thread.start()
    thread.join()
    return found.result()
