"""Administration of a database's replication peer, by the `main` class of the endpoint's jar.

Thrift has no calls for peers, so a short-lived Java process adds, changes, removes and reports the peer. It uses
HBase's classes and its `hbase-site.xml`: those of `vk hbase start`, or the output of `hbase classpath` and the
cluster's configuration directory.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from viewkeeper.errors import StoreError
from viewkeeper_hbase.devserver.processes import HBASE_PROGRAM
from viewkeeper_hbase.devserver.server import JVM_OPTIONS
from viewkeeper_hbase.push import endpoint_jar
from viewkeeper_hbase.push.settings import PREFIX, PushAgreement

_MAIN = "viewkeeper.push.PushAdmin"
_TIMEOUT = 120.0


@dataclass(frozen=True)
class QueuedWalStatus:
    """A WAL in a server's queue: the position up to which it is shipped, and its length (-1: its file is gone)."""

    server: str
    queue: str
    wal: str
    position: int
    length: int

    @property
    def unshipped_bytes(self) -> int:
        """Bytes that HBase keeps for the peer."""
        return max(0, self.length - self.position)

    @property
    def shipped_text(self) -> str:
        """The shipped position as text."""
        return f"{self.position:,} of {self.length:,}" if self.length >= 0 else "gone before it was shipped"


@dataclass(frozen=True)
class PeerStatus:
    """A peer's state in HBase."""

    state: str
    """"enabled", "disabled" or "absent"."""
    epoch: str
    receivers: str
    namespaces: tuple[str, ...]
    tables: tuple[str, ...]
    servers: tuple[str, ...]
    queues: tuple[QueuedWalStatus, ...]
    lag: int
    """Milliseconds by which the slowest server lags."""


@dataclass(frozen=True)
class PushAdmin:
    """Runs administrative commands of HBase."""

    conf: Path
    """The directory of hbase-site.xml."""
    classpath: str | None = None
    """HBase's class path, as `hbase classpath` prints it; None: the jars that `vk hbase start` uses."""

    def enable(
        self, agreement: PushAgreement, secret: bytes | None, secret_file: str | None, ca: str | None, pause: int
    ) -> None:
        """Add the peer, or change it to the agreement, and enable it."""
        arguments = [f"namespace={name}" for name in agreement.namespaces] + [
            f"table={name}" for name in agreement.tables
        ]
        arguments += [f"{PREFIX}receivers={','.join(agreement.receivers)}", f"{PREFIX}pause={pause}"]
        arguments += [f"{PREFIX}ca={ca}"] if ca else []
        if secret_file:
            arguments.append(f"{PREFIX}secret.file={secret_file}")
        # The secret is passed by standard input, because every user can see a command line.
        self._run_java("enable", agreement.peer, arguments, None if secret_file or secret is None else secret.decode())

    def disable(self, peer: str) -> None:
        self._run_java("disable", peer)

    def remove(self, peer: str) -> None:
        self._run_java("remove", peer)

    def status(self, peer: str) -> PeerStatus:
        fields: dict[str, list[list[str]]] = {}
        for line in self._run_java("status", peer).splitlines():
            field, *field_values = line.split(" ")
            fields.setdefault(field, []).append(field_values)
        queues = tuple(QueuedWalStatus(q[0], q[1], q[2], int(q[3]), int(q[4])) for q in fields.get("queue", []))
        config = {values[0]: " ".join(values[1:]) for values in fields.get("config", [])}
        return PeerStatus(
            fields["peer"][0][0],
            fields.get("epoch", [["?"]])[0][0],
            config.get(f"{PREFIX}receivers", ""),
            tuple(values[0] for values in fields.get("namespace", [])),
            tuple(values[0] for values in fields.get("table", [])),
            tuple(values[0] for values in fields.get("live", [])),
            queues,
            max((int(values[1]) for values in fields.get("lag", [])), default=0),
        )

    def _run_java(
        self, action: str, peer: str, arguments: Sequence[str] = (), standard_input: str | None = None
    ) -> str:
        if not (self.conf / "hbase-site.xml").exists():
            raise StoreError(
                f"{self.conf} has no hbase-site.xml.", hint="Name the configuration directory of HBase with --conf."
            )
        classes = self.classpath.strip() if self.classpath else f"{HBASE_PROGRAM.fetch_jars()}/*"
        command = [
            HBASE_PROGRAM.java_command(),
            *JVM_OPTIONS,
            "-Dviewkeeper.log=/dev/null",
            "-cp",
            f"{self.conf}:{endpoint_jar.find_jar()}:{classes}",
            _MAIN,
        ]
        try:
            process = subprocess.run(
                [*command, action, peer, *arguments],
                input=standard_input or "",
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StoreError(f"HBase did not {action} the peer {peer} within {_TIMEOUT:.0f} s.") from None
        if process.returncode != 0:
            raise StoreError(
                f"HBase did not {action} the peer {peer}: {_failure_reason(process.stderr)}",
                hint="See docs/how-to/hbase-push.md.",
            )
        return process.stdout


def install_jar(directory: Path) -> Path:
    """Copy the jar into a directory of the class path of the master and the region servers."""
    source = endpoint_jar.find_jar()
    target = directory / endpoint_jar.JAR_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.new")
        shutil.copyfile(source, temporary)
        temporary.replace(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}.") from error
    return target


def _failure_reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if "Exception" in line or "Error" in line]
    first = next((line for line in lines if not line.startswith("at ")), output.strip()[-300:] or "no reason was given")
    return re.sub(r"^Exception in thread \"main\" ", "", first)[:400]
