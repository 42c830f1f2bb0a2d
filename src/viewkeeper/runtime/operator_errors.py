"""Whose error an exception is: the operator's that raised it, or the process's.

Every call of an operator's own code passes `attributed_to`, in both lanes, on loads, in batches and in merges. What the
code raises becomes `Failed`, whatever its class, and `Failed` suspends the views of that operator and no others. The
exceptions are `PROCESS_FAULTS`: a full disk, exhausted memory, a lost lease or a store that does not answer say nothing
about a view, and they pass through. So do KeyboardInterrupt and SystemExit, which are no `Exception`.
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
    """A member of a family whose rows fail: the table of its parameters, the key in it, and the error."""

    parameters: int
    key: bytes
    message: str


class OperatorError(EvaluationError):
    """An operator raised an error; the message names a row where one could be found. `members`: the members of a family
    that it fails for."""

    def __init__(self, operator: str, message: str, members: Sequence[FailedMember] = ()) -> None:
        self.operator = operator
        self.members = tuple(members)
        super().__init__(message)


@contextmanager
def attribute_errors(
    operator: str, find_row: Callable[[Exception], OperatorError | None] | None = None
) -> Iterator[None]:
    """Raise what the block raises as Failed of this operator, unless it is a fault of the process.

    `find_row` may look for the row that the error comes from; what the search itself raises is ignored.
    """
    try:
        yield
    except (OperatorError, *PROCESS_FAULTS):
        raise
    except Exception as error:
        found = None
        if find_row is not None:
            with suppress(Exception):
                found = find_row(error)
        raise found or OperatorError(operator, describe_error(error)) from error


def describe_error(error: Exception) -> str:
    """The error in one line: its condition if rows cause it, else its class and its text."""
    if (known := expressions.translate_error(error)) is not None:
        return known.message
    if isinstance(error, ViewkeeperError):
        return error.message
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def is_data_error(error: Exception) -> bool:
    """Whether the values of a row cause such an error; others are defects, whatever row they are met with."""
    return isinstance(error, (TooLarge, BadValue)) or expressions.translate_error(error) is not None
