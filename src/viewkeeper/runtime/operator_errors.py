"""Attribution of an exception to the operator that raised it, or to the process.

Every call of an operator's own code runs inside `attribute_errors`, in both lanes, in backfills, batches and
compactions. An exception from that code becomes an `OperatorError`, whatever its class; it suspends the views of that
operator and no others. `PROCESS_FAULTS` pass through unchanged: a full disk, exhausted memory, a lost lease or a store
that does not answer say nothing about a view. KeyboardInterrupt and SystemExit pass through as well, because they do
not derive from `Exception`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import duckdb

from viewkeeper import expressions
from viewkeeper.errors import (
    BadValue,
    CorruptState,
    EvaluationError,
    MaintainerBusy,
    StoreError,
    TooLarge,
    ViewkeeperError,
)

PROCESS_FAULTS = (
    OSError,
    MemoryError,
    StoreError,
    CorruptState,
    MaintainerBusy,
    duckdb.OutOfMemoryException,
    duckdb.IOException,
    duckdb.InterruptException,
    duckdb.ConnectionException,
)
"""Errors of the machine, of the store, of the lease, or of damaged state."""


class FailedMember(NamedTuple):
    """A family member whose rows fail: the id of the parameter table, the member's key in it, and the error."""

    parameters: int
    key: bytes
    message: str


class OperatorError(EvaluationError):
    """An error that an operator raised; the message names a row if one was found.

    `members` are the family members whose rows raise it.
    """

    def __init__(self, operator: str, message: str, members: Sequence[FailedMember] = ()) -> None:
        self.operator = operator
        self.members = tuple(members)
        super().__init__(message)


@contextmanager
def attribute_errors(
    operator: str, find_row: Callable[[Exception], OperatorError | None] | None = None
) -> Iterator[None]:
    """Raise the block's exception as an `OperatorError` of this operator, unless it is a process fault.

    `find_row` may search for the row that causes the error; exceptions of the search itself are ignored.
    """
    try:
        yield
    except (OperatorError, *PROCESS_FAULTS):
        raise
    except Exception as error:
        attributed = None
        if find_row is not None:
            with suppress(Exception):
                attributed = find_row(error)
        raise attributed or OperatorError(operator, describe_error(error)) from error


def describe_error(error: Exception) -> str:
    """Return the error in one line: the condition if a row's values cause it, else the exception's class and text."""
    if (translated := expressions.translate_error(error)) is not None:
        return translated.message
    if isinstance(error, ViewkeeperError):
        return error.message
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def is_data_error(error: Exception) -> bool:
    """Whether a row's values cause the error; any other error is a defect, whichever row it occurred on."""
    return isinstance(error, (TooLarge, BadValue)) or expressions.translate_error(error) is not None
