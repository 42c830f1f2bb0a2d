"""The push agreement of a database with its HBase: a note in the database, and a secret.

    note `push.agreed`      the peer, the receivers, the namespaces and tables that it covers
    push/secret             beside the spool: the secret that receivers and region servers share

The maintainer reads both. The region servers read the secret from the peer's configuration, or from a file of
their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from viewkeeper.errors import BadValue, NotADatabase
from viewkeeper.resources.directory import StateDirectory

AGREEMENT_NOTE = "push.agreed"
STATUS_NOTE = "push.status"
PREFIX = "viewkeeper.push."

_HINT = "Write receivers as host:port, as the region servers reach them."


@dataclass(frozen=True)
class PushAgreement:
    """The agreement made by `vk hbase push enable`."""

    peer: str
    receivers: tuple[str, ...]
    namespaces: tuple[str, ...]
    tables: tuple[str, ...] = ()
    certificate: str | None = None
    """File of the receivers' TLS certificate, with its key in `key`; None: no TLS."""
    key: str | None = None

    def is_covered(self, table: str) -> bool:
        """Return whether the changes of an HBase table are pushed."""
        return table.partition(":")[0] in self.namespaces or table in self.tables

    def to_json(self) -> dict[str, Any]:
        return {
            "peer": self.peer,
            "receivers": list(self.receivers),
            "namespaces": list(self.namespaces),
            "tables": list(self.tables),
            "certificate": self.certificate,
            "key": self.key,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PushAgreement:
        return PushAgreement(
            data["peer"],
            tuple(data["receivers"]),
            tuple(data["namespaces"]),
            tuple(data["tables"]),
            data.get("certificate"),
            data.get("key"),
        )


def parse_address(receiver: str) -> tuple[str, int]:
    """Split `host:port`."""
    host, _, port = receiver.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadValue(f"{receiver} is not the address of a receiver.", hint=_HINT)
    return host.strip("[]"), int(port)


def push_directory(state: str) -> StateDirectory:
    """Return the directory of spool and secret, below the database's state."""
    return StateDirectory(state).subdirectory("push")


def read_secret(directory: StateDirectory, *, create: bool = False) -> bytes:
    """Read the secret; with `create`, write a new one if there is none."""
    path = directory.fetch("secret", refresh=True)
    if not path.exists():
        if not create:
            raise NotADatabase(
                f"{directory} has no secret of a push receiver.",
                hint="vk hbase push enable makes one; it lies in the state's place (?state=…).",
            )
        directory.create()
        path = directory / "secret"
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(24))
        directory.upload("secret")
    return path.read_text().strip().encode()
