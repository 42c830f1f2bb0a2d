"""Every error that Viewkeeper raises on purpose.

One base class. An error has a stable `code` (programs may branch on it), a message that names the object and what is
wrong with it, and a `hint`: what to do next. Bad input raises before anything is written.
"""

from __future__ import annotations


class ViewkeeperError(Exception):
    """Base of all errors: `code` is stable, `hint` says what to do."""

    code = "VK000"
    default_hint = ""
    view = ""
    """Of an error of one of several views that are made together: which one."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        super().__init__(message)

    def __str__(self) -> str:
        """As it is now: whoever passes an error on may have said in its message of which view or statement it is."""
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
    """The object is needed by another one."""

    code = "VK103"


class ReadOnly(ViewkeeperError):
    """A write to a view, to a database opened with mode='r', or to a read-only disk."""

    code = "VK104"


class RowAbsent(UnknownName):
    """There is no row with this key: of an update, and of reads and deletes over HTTP. In Python `get` gives None."""

    code = "VK105"
    default_hint = ""


class BadValue(ViewkeeperError):
    """A row, key or column value does not fit its table."""

    code = "VK201"


class TooLarge(ViewkeeperError):
    """A row, key or batch over the limit. `table`: the id of the table or view whose row it is, if it is one row, and
    `key` its encoded key."""

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
    """SQL that is valid but that cannot be maintained; the message names the part."""

    code = "VK302"


class EvaluationError(ViewkeeperError):
    """A view or query failed on its own rows: an expression (ANSI: division by zero, overflow, bad cast), or a row of
    the view that its store cannot hold."""

    code = "VK401"
    default_hint = "Nothing was published. Correct or delete the row, or drop the view."


class NotADatabase(ViewkeeperError):
    """The path or address holds something else."""

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
    """A state file is not as it was written, or not there."""


class Contradiction(CorruptState):
    """State whose checksums are right contradicts itself: a row that was never there goes, a key has two rows."""


class PublicationUnknown(StoreError):
    """The store failed while a batch was published, and does not say whether it was; or the process that maintains
    ended while it ran a statement for another one."""

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
    """The asked-for state is no longer kept."""

    code = "VK604"


class Suspended(ViewkeeperError):
    """The view is not maintained: it failed on its own rows, or was suspended by hand."""

    code = "VK605"


class BadRequest(ViewkeeperError):
    """An HTTP request that cannot be understood: its path, parameters, headers or body."""

    code = "VK701"


class Unauthorized(ViewkeeperError):
    """The server wants a token, and none, a wrong one, or one that has expired was sent."""

    code = "VK702"
    default_hint = (
        "Give a token: VIEWKEEPER_TOKEN for vk, token= in Python, the header Authorization: Bearer TOKEN over HTTP;"
        " `vk token create` makes tokens."
    )


class Forbidden(ViewkeeperError):
    """The token's role, or the request's origin, does not allow this."""

    code = "VK703"


class Overloaded(ViewkeeperError):
    """The server takes no more requests or subscribers now: it has as many as it can, or is stopping."""

    code = "VK704"
    default_hint = "Try again in a moment."


class Unreachable(ViewkeeperError):
    """A client cannot reach its server, or was cut off in the middle of an answer."""

    code = "VK705"


class ServerFault(ViewkeeperError):
    """The server failed on a request by a fault of its own; its log says more."""

    code = "VK706"


class Defect(ViewkeeperError):
    """What cannot be: a defect of Viewkeeper itself."""

    code = "VK901"
    default_hint = "Please report it, with the statement or the rows that led to it."
