"""Messages between other processes and the maintainer, stored where both can reach them.

A request has a unique name and up to three parts, each written by one side and read by the other:

    request   by the sender: what to do, and when the sender was last alive
    answer    by the maintainer: the progress, and finally the result
    cancel    by the sender: the result is no longer wanted

A part is always replaced as a whole. The side that reads or writes the last message removes the request
(`maintain.remote_ddl.client`).
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
    """The pending requests of one database."""

    poll_interval: float
    """Seconds between two polls; short where a poll is cheap."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the pending requests."""

    @abstractmethod
    def read(self, name: str, part: str) -> Mapping[str, Any] | None:
        """Return a part of a request; None if it does not exist."""

    @abstractmethod
    def write(self, name: str, part: str, message: Mapping[str, Any]) -> None:
        """Create or replace a part of a request."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a request with all its parts; an unknown name is no error."""


class FileMailbox(Mailbox):
    """Mailbox of a database in a directory: each part is a file in the subdirectory `requests`.

    It uses files and not records of the database, because RocksDB allows only one process to write records.
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
        except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError):
            return None  # an unreadable message counts as missing
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
