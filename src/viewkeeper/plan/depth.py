"""Run recursive plan work at any nesting depth of a query.

The recursion depth grows with the nesting of joins, subqueries and views. Whether a query can be planned must not
depend on the stack of the caller: a view that a script defines is compiled again by a server, whose stack already holds
other calls. If the caller's stack is too small, the work runs in a thread with an empty stack. A query that was
compiled once can therefore always be compiled again, and a query that is too deep is refused when the view is defined.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from viewkeeper.errors import Unsupported

T = TypeVar("T")


def to_any_depth(work: Callable[[], T]) -> T:
    """Return the result of `work`, which may be started a second time.

    Raises Unsupported if the recursion is too deep even for an empty stack.
    """
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
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # future.result() raises it in the caller's thread
            future.set_exception(error)

    thread = threading.Thread(target=run, name="viewkeeper-depth")
    thread.start()
    thread.join()
    return future.result()
