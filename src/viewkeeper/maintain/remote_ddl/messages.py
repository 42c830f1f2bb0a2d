"""What a process that wants something defined and the process that maintains say to each other (`store.mailbox`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from viewkeeper import errors
from viewkeeper.errors import Defect, ViewkeeperError

WAITING, RUNNING = "waiting", "running"
DONE, FAILED = "done", "failed"
ENDED = "ended"
"""The process that maintains ended before the statement had happened: it can be run again, elsewhere."""
FINAL = (DONE, FAILED, ENDED)

_BY_CODE: Mapping[str, type[ViewkeeperError]] = {
    kind.code: kind
    for kind in reversed(list(vars(errors).values()))
    if isinstance(kind, type) and issubclass(kind, ViewkeeperError)
}
"""The class of each code; of several with one code, the most general, which is defined first."""


@dataclass(frozen=True)
class DefinitionRequest:
    """`call` and `arguments`: what is to be run (`defining.CALLS`). `process`: of the sender, as only it is called.
    `seen`: when the sender was last at it, in seconds since 1970."""

    call: str
    arguments: list[Any]
    process: str
    sent: float
    last_seen: float


@dataclass(frozen=True)
class DefinitionAnswer:
    """`by`: who maintains, as the lease calls its holder. `beat`: a number that rises while that process is alive.
    `before`: how many requests are run first. `progress`: what is loaded, how many rows of how many."""

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
    """The request in a message; TypeError if it is not one of this version."""
    made = DefinitionRequest(**sent)
    if not isinstance(made.arguments, list) or not all(isinstance(t, int | float) for t in (made.sent, made.last_seen)):
        raise TypeError("these are no arguments and times")
    return made


def received_answer(sent: Mapping[str, Any] | None) -> DefinitionAnswer | None:
    """The answer in a message; None if there is none, or it is not one of this version."""
    try:
        return None if sent is None else DefinitionAnswer(**sent)
    except TypeError:
        return None


def error_message(error: BaseException) -> dict[str, Any]:
    """An error as it is sent. One that nobody foresaw is a defect, as it would be over HTTP."""
    if not isinstance(error, ViewkeeperError):
        error = Defect(f"{type(error).__name__}: {error}")
    return {"code": error.code, "message": error.message, "hint": error.hint, "view": error.view}


def error_from_message(data: Mapping[str, Any]) -> ViewkeeperError:
    """The error that the process which maintains has raised."""
    kind = _BY_CODE.get(data["code"], ViewkeeperError)
    made = kind(data["message"], hint=data["hint"])
    made.view = data["view"]
    return made
