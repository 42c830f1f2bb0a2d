"""Messages between a process that wants something done and the process that maintains, kept where both can reach them.

A request has a name of its own and up to three parts, each of which one side writes and the other reads:

    request   by the sender: what is to be done, and when the sender was last seen
    answer    by the process that maintains: how far it is, and in the end the result
    cancel    by the sender: it wants the result no more

A part is replaced whole. Whoever has the last word removes the request (`maintain.definition_client`).
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from viewkeeper.errors import ReadOnly

REQUEST, ANSWER, CANCEL = "request", "answer", "cancel"
MESSAGE_PARTS = (REQUEST, ANSWER, CANCEL)


class Mailbox(Protocol):
    """The requests of one database."""

    poll_interval: float
    """Seconds between two looks at it: short where a look is cheap."""

    @abstractmethod
    def names(self) -> list[str]:
        """The requests that are there."""

    @abstractmethod
    def read(self, name: str, part: str) -> Mapping[str, Any] | None:
        """A part of a request; None if it is not there."""

    @abstractmethod
    def write(self, name: str, part: str, message: Mapping[str, Any]) -> None:
        """Put a part in place of the one that was there."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a request with all its parts; one that is gone is no error."""


class FileMailbox(Mailbox):
    """Of a database in a directory: a file for each part, in a directory of their own.

    Files and not records of the database, because RocksDB lets one process alone write those.
    """

    poll_interval = 0.05

    def __init__(self, database: Path) -> None:
        self._directory = database / "requests"

    def names(self) -> list[str]:
        try:
            with os.scandir(self._directory) as found:
                files = [e.name for e in found if e.name.endswith(".request") and e.is_file()]
                return sorted(name.removesuffix(".request") for name in files)
        except FileNotFoundError:
            return []

    def read(self, name: str, part: str) -> Mapping[str, Any] | None:
        try:
            found = json.loads((self._directory / f"{name}.{part}").read_bytes())
        except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError):  # no message is as good as none
            return None
        return found if isinstance(found, dict) else None

    def write(self, name: str, part: str, message: Mapping[str, Any]) -> None:
        file = self._directory / f"{name}.{part}"
        new = file.with_suffix(f".{part}.new")
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            new.write_text(json.dumps(message), "utf-8")
            new.replace(file)
        except OSError as error:
            raise ReadOnly(
                f"{file} cannot be written: {error.strerror}.", hint="Check the permissions and the space of its disk."
            ) from error

    def remove(self, name: str) -> None:
        for part in MESSAGE_PARTS:
            with suppress(FileNotFoundError, IsADirectoryError):
                (self._directory / f"{name}.{part}").unlink()
