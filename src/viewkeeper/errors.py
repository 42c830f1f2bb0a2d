"""Every error that Viewkeeper raises on purpose.

All errors have one base class. An error has a stable `code`, on which programs may branch; a message that names the
object and says what is wrong with it; and a `hint` that says what to do next. Bad input raises before anything is
written.
"""

from __future__ import annotations


class ViewkeeperError(Exception):
    """Base of all errors. `code` is stable, and `hint` says what to do."""

    code = "VK000"
    default_hint = ""
    view = ""
    """The view whose evaluation failed, if the error belongs to one of several views that are maintained together."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        super().__init__(message)

    def __str__(self) -> str:
        """Format at the time of the call: a handler may have added the view or the statement to `message`."""
        return f"[{self.code}] {self.message}" + (f" {self.hint}" if self.hint else "")


class UnknownName(ViewkeeperError):
    """A table, view or column that does not exist."""

    code = "VK101"
    default_hint = "SHOW TABLES and SHOW VIEWS list what there is."


class NameTaken(ViewkeeperError):
    """The name is in use already."""

    code = "VK102"
    default_hint = "Choose another name, drop the old one, or write IF NOT EXISTS."


class InUse(ViewkeeperError):
    """Another object depends on this one."""

    code = "VK103"


class ReadOnly(ViewkeeperError):
    """A write to a view, to a database opened with mode='r', or to a read-only disk."""

    code = "VK104"


class RowAbsent(UnknownName):
    """There is no row with this key: raised by updates, and over HTTP by reads and deletes. `get` returns None."""

    code = "VK105"
    default_hint = ""


class BadValue(ViewkeeperError):
    """A row, key or column value does not fit its table."""

    code = "VK201"


class TooLarge(ViewkeeperError):
    """A row, key or batch over the limit. For a single row, `table` is the id of its table or view and `key` is its
    encoded key."""

    code = "VK202"

    def __init__(
        self, message: str, *, hint: str | None = None, table: int | None = None, key: bytes | None = None
    ) -> None:
        self.table = table
        self.key = key
        super().__init__(message, hint=hint)


class BadStatement(ViewkeeperError):
    """SQL that cannot be parsed or analysed."""

    code = "VK301"


class Unsupported(ViewkeeperError):
    """SQL that is valid but that cannot be maintained. The message names the unsupported part."""

    code = "VK302"


class EvaluationError(ViewkeeperError):
    """A view or query failed on its own rows: an expression raised (ANSI: division by zero, overflow, bad cast), or the
    store cannot hold one of the view's rows."""

    code = "VK401"
    default_hint = "Nothing was published. Correct or delete the row, or drop the view."


class NotADatabase(ViewkeeperError):
    """The path or address does not hold a Viewkeeper database."""

    code = "VK501"


class FormatTooNew(ViewkeeperError):
    """The database was written by a newer version."""

    code = "VK502"
    default_hint = "Upgrade viewkeeper."


class FormatTooOld(ViewkeeperError):
    """The database was written by an older version, whose format is no longer read."""

    code = "VK507"
    default_hint = "Load the data again into a new database, and define its views there."


class StoreError(ViewkeeperError):
    """The store failed: disk full, permission, lost connection."""

    code = "VK503"


class OutOfMemory(StoreError):
    """Memory ran out; nothing was published."""


class CorruptState(ViewkeeperError):
    """A file's checksum or format is wrong."""

    code = "VK504"


class CorruptRun(CorruptState):
    """A run file is missing, or its bytes differ from what was written."""


class Contradiction(CorruptState):
    """State with correct checksums contradicts itself: a deleted row never existed, or a key has two rows."""


class PublicationUnknown(StoreError):
    """It is unknown whether a batch was published: the store failed during publication, or the maintaining process
    ended while it ran a statement for another process."""

    code = "VK506"
    default_hint = "Refresh again when the store answers: that finds out, and neither loses nor repeats anything."


class MissingDependency(ViewkeeperError):
    """An optional package, Java or a server is not installed."""

    code = "VK505"


class MaintainerBusy(ViewkeeperError):
    """Another process maintains this database."""

    code = "VK601"


class BadToken(ViewkeeperError):
    """A token that is malformed or belongs to another database."""

    code = "VK602"


class Timeout(ViewkeeperError):
    """A wait ended before its condition held."""

    code = "VK603"


class SnapshotGone(ViewkeeperError):
    """The requested snapshot is no longer kept."""

    code = "VK604"


class Suspended(ViewkeeperError):
    """The view is not maintained: it failed on its own rows, or a user suspended it."""

    code = "VK605"


class BadRequest(ViewkeeperError):
    """An HTTP request that cannot be understood: its path, parameters, headers or body."""

    code = "VK701"


class Unauthorized(ViewkeeperError):
    """The server requires a token, and the request has none, a wrong one or an expired one."""

    code = "VK702"
    default_hint = (
        "Give a token: VIEWKEEPER_TOKEN for vk, token= in Python, the header Authorization: Bearer TOKEN over HTTP;"
        " `vk token create` makes tokens."
    )


class Forbidden(ViewkeeperError):
    """The token's role, or the request's origin, does not allow this."""

    code = "VK703"


class Overloaded(ViewkeeperError):
    """The server accepts no more requests or subscribers now: it is at its limit, or it is stopping."""

    code = "VK704"
    default_hint = "Try again in a moment."


class Unreachable(ViewkeeperError):
    """A client cannot reach its server, or the connection broke in the middle of an answer."""

    code = "VK705"


class ServerFault(ViewkeeperError):
    """The server failed on a request because of an internal fault; its log has the details."""

    code = "VK706"


class Defect(ViewkeeperError):
    """A violated internal invariant: a defect of Viewkeeper itself."""

    code = "VK901"
    default_hint = "Please report it, with the statement or the rows that led to it."
