"""What can go wrong between us and HBase, as errors that say where and what to do next.

Two questions decide what a caller may do, so they are types:

    Unavailable       nothing was done, or doing it again is harmless: it was retried, and is worth trying later
    OutcomeUnknown    the call may have been done: look before doing it again

The rest are answers: the server refused, and would refuse again. The gateway's own word is not enough: for a batch of
puts it says `canRetry` also when a family does not exist (seen), and for a missing table it sends the bare name (seen).
"""

from __future__ import annotations

import re

from viewkeeper.errors import StoreError


class Unavailable(StoreError):
    """HBase or its gateway does not answer; doing the call again is harmless."""


class OutcomeUnknown(StoreError):
    """The connection was lost, or the server gave up, after a call that must not be done twice was sent."""


class NotThrift2Gateway(StoreError):
    """Something answers at the address, but not an HBase Thrift2 gateway as it was asked for."""


class RequestRefused(StoreError):
    """HBase says no, and would say it again."""


class NoSuchTable(RequestRefused):
    """The table does not exist, or is disabled."""


class NoSuchNamespace(RequestRefused):
    """The namespace does not exist."""


class NoSuchFamily(RequestRefused):
    """The table has no such column family."""


class AlreadyExists(RequestRefused):
    """The table or namespace to be created exists."""


class PermissionDenied(RequestRefused):
    """The gateway's user, or the user it acts for, may not do this."""


class ScannerLost(StoreError):
    """The gateway no longer knows the scanner: a new one goes on after the last row seen."""


_REFUSALS: tuple[tuple[str, type[RequestRefused], str], ...] = (
    ("AccessDeniedException", PermissionDenied, "Ask for the HBase permission (grant 'user', 'RWC', ...)."),
    ("AccessControlException", PermissionDenied, "Ask for the HBase permission (grant 'user', 'RWC', ...)."),
    ("NamespaceNotFoundException", NoSuchNamespace, "Create it (create_namespace) or name another one in the URL."),
    ("NamespaceExistException", AlreadyExists, "Choose another name."),
    ("TableNotFoundException", NoSuchTable, "Check the name, namespace included."),
    ("TableNotEnabledException", NoSuchTable, "Enable the table."),
    ("TableNotDisabledException", RequestRefused, "Disable the table first."),
    ("TableExistsException", AlreadyExists, "Choose another name."),
    ("NoSuchColumnFamilyException", NoSuchFamily, "Check the family, or add it to the table."),
    ("InvalidFamilyOperationException", NoSuchFamily, "Check the family, or add it to the table."),
    ("DoNotRetryIOException", RequestRefused, ""),
    ("IllegalArgumentException", RequestRefused, ""),
)
_JAVA_CLASS = re.compile(r"(?:[a-z]\w*\.)+(?=[A-Z])")


def refusal_error(message: str, address: str, table: str | None) -> RequestRefused | None:
    """The error for a server's message that says no; None when it is one that may pass."""
    first = _JAVA_CLASS.sub("", message.strip().split("\n")[0])
    # A batch of puts says: Failed 2 actions: <reason>: 2 times, servers with issues: ...
    reason = re.sub(r"^Failed \d+ actions?: (.*?)(: \d+ times?, servers with issues: .*)?$", r"\1", first)
    if table is not None and reason in (table, table.removeprefix("default:")):
        return NoSuchTable(f"HBase at {address} has no table {table}.", hint="Check the name, namespace included.")
    if table is not None and re.fullmatch(r"\S+ is disabled\.", reason):
        return NoSuchTable(f"The table {table} of HBase at {address} is disabled.", hint="Enable the table.")
    for name, kind, hint in _REFUSALS:
        if name in message:
            said = first.split(", {TABLE_ATTRIBUTES")[0][:300]
            return kind(f"HBase at {address}{f', table {table}' if table else ''}: {said}.", hint=hint)
    return None
