"""Messages of remote DDL between a sending process and the maintaining process (`store.mailbox`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from viewkeeper import errors
from viewkeeper.errors import Defect, ViewkeeperError

WAITING, RUNNING = "waiting", "running"
DONE, FAILED = "done", "failed"
ENDED = "ended"
"""The maintaining process ended before the statement was executed; another process may run it again."""
FINAL = (DONE, FAILED, ENDED)

_BY_CODE: Mapping[str, type[ViewkeeperError]] = {
    kind.code: kind
    for kind in reversed(list(vars(errors).values()))
    if isinstance(kind, type) and issubclass(kind, ViewkeeperError)
}
"""Error class by code; if several classes share a code, the most general one, which is defined first."""


@dataclass(frozen=True)
class DefinitionRequest:
    """A request to run a definition.

    `call` and `arguments` name the function to run. `process` is a unique name of the sending process. `last_seen` is
    the time of the sender's last renewal, in seconds since 1970.
    """

    call: str
    arguments: list[Any]
    process: str
    sent: float
    last_seen: float


@dataclass(frozen=True)
class DefinitionAnswer:
    """The maintaining process's answer to a request.

    `maintainer` is the lease holder's name. `heartbeat` is a number that grows while that process is alive.
    `queue_position` is the number of requests before this one. `progress`: (step, rows done, rows in total).
    """

    maintainer: str
    state: str
    heartbeat: int = 0
    queue_position: int = 0
    progress: tuple[str, int, int] | None = None
    result: Any = None
    error: Mapping[str, Any] = field(default_factory=dict)


def to_message(message: DefinitionRequest | DefinitionAnswer) -> dict[str, Any]:
    return asdict(message)


def received_request(sent: Mapping[str, Any]) -> DefinitionRequest:
    """Return the request in a message; TypeError if the message is of another version."""
    request = DefinitionRequest(**sent)
    if not isinstance(request.arguments, list) or not all(
        isinstance(value, int | float) for value in (request.sent, request.last_seen)
    ):
        raise TypeError("these are no arguments and times")
    return request


def received_answer(sent: Mapping[str, Any] | None) -> DefinitionAnswer | None:
    """Return the answer in a message; None if there is no message, or it is of another version."""
    try:
        return None if sent is None else DefinitionAnswer(**sent)
    except TypeError:
        return None


def error_message(error: BaseException) -> dict[str, Any]:
    """Return an error as a message. An error that is no ViewkeeperError is sent as a Defect, as over HTTP."""
    if not isinstance(error, ViewkeeperError):
        error = Defect(f"{type(error).__name__}: {error}")
    return {"code": error.code, "message": error.message, "hint": error.hint, "view": error.view}


def error_from_message(data: Mapping[str, Any]) -> ViewkeeperError:
    """Return the error that the maintaining process has raised."""
    kind = _BY_CODE.get(data["code"], ViewkeeperError)
    error = kind(data["message"], hint=data["hint"])
    error.view = data["view"]
    return error
