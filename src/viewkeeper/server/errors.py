"""Errors over HTTP: RFC 9457 problem documents, with the stable codes of `viewkeeper.errors`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson

from viewkeeper import errors
from viewkeeper.errors import ViewkeeperError

MEDIA = "application/problem+json"

_STATUS: dict[type[ViewkeeperError], int] = {
    errors.UnknownName: 404,
    errors.NameTaken: 409,
    errors.InUse: 409,
    errors.ReadOnly: 403,
    errors.RowAbsent: 404,
    errors.BadValue: 400,
    errors.TooLarge: 413,
    errors.BadStatement: 400,
    errors.Unsupported: 422,
    errors.EvaluationError: 422,
    errors.StoreError: 503,
    errors.MissingDependency: 501,
    errors.MaintainerBusy: 409,
    errors.BadToken: 400,
    errors.Timeout: 503,
    errors.SnapshotGone: 410,
    errors.Suspended: 409,
    errors.BadRequest: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.Overloaded: 503,
}
STATUSES = tuple(sorted({*_STATUS.values(), 405, 406, 408, 414, 415, 421, 431, 500}))
RETRY_SECONDS = 1


class HttpStatusError(errors.BadRequest):
    """A bad request that has an HTTP status of its own."""

    def __init__(self, status: int, message: str, hint: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = headers or {}


def status_of(error: ViewkeeperError) -> int:
    if isinstance(error, HttpStatusError):
        return error.status
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


def problem_document(error: ViewkeeperError, **extra_members: Any) -> dict[str, Any]:
    """The problem as an object. `extra_members`: members of the document that only this error has."""
    kind = {"type": f"urn:viewkeeper:{error.code}", "title": _title(error)}
    found = {"status": status_of(error), "code": error.code, "detail": error.message, "hint": error.hint}
    return {**kind, **found, **extra_members}


def _title(error: ViewkeeperError) -> str:
    """The title of the problem: HTTP's own phrase, or the first clause of the error class's docstring."""
    if isinstance(error, HttpStatusError):
        return HTTPStatus(error.status).phrase
    return (
        " ".join((type(error).__doc__ or "").split()).rstrip(".").partition(". ")[0].partition(":")[0].partition(";")[0]
    )


def problem_response(error: ViewkeeperError, **extra_members: Any) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a problem."""
    status = status_of(error)
    headers = {"content-type": MEDIA, "cache-control": "no-store"}
    if isinstance(error, HttpStatusError):
        headers |= error.headers
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="viewkeeper"'
    if status == 503:
        headers["retry-after"] = str(RETRY_SECONDS)
    return status, headers, orjson.dumps(problem_document(error, **extra_members))


def server_fault() -> ViewkeeperError:
    """The error of an unexpected exception: a client gets no details."""
    return errors.ServerFault("The server failed on this request.", hint="Its log says more.")
