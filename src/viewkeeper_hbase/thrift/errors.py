"""Errors of HBase and its gateway, with the object that failed and the next step.

Two kinds determine what a caller may do next, so they are types:

    Unavailable       nothing was done, or repeating the call is harmless: it was retried, and may succeed later
    OutcomeUnknown    the call may have been executed: check before repeating it

The others are answers: the server refused the call, and would refuse it again. The gateway's own flag does not
suffice: for a batch of puts it says `canRetry` even if a family does not exist (seen), and for a missing table it
sends only the name (seen).
"""

from __future__ import annotations

import re

from viewkeeper.errors import StoreError


class Unavailable(StoreError):
    """HBase or its gateway does not answer; repeating the call is harmless."""


class OutcomeUnknown(StoreError):
    """A call that must not be repeated was sent, and then the connection was lost or the server gave up."""


class NotThrift2Gateway(StoreError):
    """The server at the address is not an HBase Thrift2 gateway with the configured transport and protocol."""


class RequestRefused(StoreError):
    """HBase refuses the call, and would refuse it again."""


class NoSuchTable(RequestRefused):
    """The table does not exist, or is disabled."""


class NoSuchNamespace(RequestRefused):
    """The namespace does not exist."""


class NoSuchFamily(RequestRefused):
    """The table has no such column family."""


class AlreadyExists(RequestRefused):
    """The table or namespace to be created exists."""


class PermissionDenied(RequestRefused):
    """The gateway's user, or the user it acts for, lacks the permission."""


class ScannerLost(StoreError):
    """The gateway no longer knows the scanner: a new one resumes behind the last row returned."""


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
    """Return the error for a server's message that is a refusal; None if a repeated call may succeed."""
    first = _JAVA_CLASS.sub("", message.strip().split("\n")[0])
    # A batch of puts reports: Failed 2 actions: <reason>: 2 times, servers with issues: ...
    reason = re.sub(r"^Failed \d+ actions?: (.*?)(: \d+ times?, servers with issues: .*)?$", r"\1", first)
    if table is not None and reason in (table, table.removeprefix("default:")):
        return NoSuchTable(f"HBase at {address} has no table {table}.", hint="Check the name, namespace included.")
    if table is not None and re.fullmatch(r"\S+ is disabled\.", reason):
        return NoSuchTable(f"The table {table} of HBase at {address} is disabled.", hint="Enable the table.")
    for name, kind, hint in _REFUSALS:
        if name in message:
            text = first.split(", {TABLE_ATTRIBUTES")[0][:300]
            return kind(f"HBase at {address}{f', table {table}' if table else ''}: {text}.", hint=hint)
    return None
