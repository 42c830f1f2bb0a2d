"""Authentication and authorization: tokens in a file, each with a role; and the hosts that the server answers for.

    vkt_<id>_<secret>      what the user has; the file has id, role, expiry and the SHA-256 of the whole token

    reader   rows, changes, status, SQL that reads
    writer   also writes of rows
    admin    also CREATE, ALTER, DROP

The secret has 256 random bits, so a plain hash of it cannot be inverted. Hashes are compared in constant time. The
server reloads the file when it changes: it refuses a token that was removed within a second.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from viewkeeper.errors import BadValue, Forbidden, Unauthorized, UnknownName
from viewkeeper.server.errors import HttpStatusError

ROLES = ("reader", "writer", "admin")
_CHECK_SECONDS = 0.5
_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}


@dataclass(frozen=True)
class Entry:
    """One token of the file. Times are seconds since 1970; `expires` None: never."""

    id: str
    role: str
    hash: str
    created: float
    expires: float | None = None
    name: str = ""


class TokenFile:
    """A file of tokens, one JSON object per line; only its owner may read it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def entries(self) -> list[Entry]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
            found = [Entry(**json.loads(line)) for line in lines if line.strip()]
            if unknown := [entry.role for entry in found if entry.role not in ROLES]:
                raise ValueError(f"there is no role {unknown[0]!r}")
            return found
        except FileNotFoundError:
            raise BadValue(f"There is no token file {self.path}.", hint="`vk token create` makes one.") from None
        except (OSError, ValueError, TypeError) as error:
            raise BadValue(f"The token file {self.path} cannot be read: {error}.", hint="Make it anew.") from error

    def create(self, role: str, expires: float | None = None, name: str = "") -> str:
        """Add a token and return it. Only this call has it: the file contains its hash."""
        if role not in ROLES:
            raise BadValue(f"There is no role {role!r}.", hint=f"Roles: {', '.join(ROLES)}.")
        identity = secrets.token_hex(6)
        token = f"vkt_{identity}_{secrets.token_urlsafe(32)}"
        until = None if expires is None else time.time() + expires
        with self._lock_directory():
            entries = self.entries() if self.path.exists() else []
            self._write([*entries, Entry(identity, role, _hash(token), time.time(), until, name)])
        return token

    def revoke(self, identity: str) -> None:
        with self._lock_directory():
            entries = self.entries()
            if all(entry.id != identity for entry in entries):
                raise UnknownName(f"{self.path} has no token {identity!r}.", hint="`vk token list` shows them.")
            self._write([entry for entry in entries if entry.id != identity])

    @contextmanager
    def _lock_directory(self) -> Iterator[None]:
        """Serialize changes of the file: of two concurrent changes, one must not restore what the other removed."""
        try:
            descriptor = os.open(self.path.parent, os.O_RDONLY)
        except OSError as error:
            raise BadValue(f"{self.path.parent} cannot be opened: {error.strerror}.", hint="Choose another.") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, entries: list[Entry]) -> None:
        """Replace the file atomically: a server may be reading it."""
        text = "".join(json.dumps(asdict(entry)) + "\n" for entry in entries)
        descriptor, path = tempfile.mkstemp(prefix=".tokens", dir=self.path.parent)  # mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(path).replace(self.path)


class Keyring:
    """The tokens of a file, as a server checks them."""

    def __init__(self, path: str | Path) -> None:
        self._file = TokenFile(path)
        self._entries = {entry.id: entry for entry in self._file.entries()}
        self._file_state = self._read_file_state()
        self._checked_at = time.monotonic()

    def role(self, token: str) -> str:
        """The role of a token, or Unauthorized."""
        self._reload_if_changed()
        parts = token.split("_", 2)
        entry = self._entries.get(parts[1]) if len(parts) == 3 else None
        expected = entry.hash if entry is not None else "0" * 64  # an unknown id takes as long as a known one
        if not hmac.compare_digest(_hash(token), expected) or entry is None:
            raise Unauthorized("The token is not known here.")
        if entry.expires is not None and entry.expires <= time.time():
            raise Unauthorized("The token has expired.")
        return entry.role

    def _reload_if_changed(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = now
        state = self._read_file_state()
        if state != self._file_state:
            try:
                self._entries = {entry.id: entry for entry in self._file.entries()}
            except BadValue:  # the file is missing or damaged: a list that may be wrong authorizes no token
                self._entries = {}
            self._file_state = state

    def _read_file_state(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def is_role_sufficient(role: str, required: str) -> bool:
    return ROLES.index(role) >= ROLES.index(required)


def parse_span(text: str) -> float:
    """A duration as `vk token create --expires` accepts it: 90m, 12h, 30d, 4w, 1y."""
    found = re.fullmatch(r"(\d{1,6})([mhdwy])", text.strip())
    if found is None or not int(found[1]):
        raise BadValue(f"{text!r} is no span of time.", hint="Write 90m, 12h, 30d, 4w or 1y.")
    return float(int(found[1]) * _UNITS[found[2]])


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


# The names by which a server may be called, and the origins: protection against DNS rebinding and cross-site requests.
#
# A page of another site can make a browser send requests here, either under a name whose owner points it to this
# machine (rebinding), or plainly to this address. The first has a wrong Host header. The second has an Origin that is
# not the Host, and cannot set the content types that request bodies need; CORS is off, so the page reads no reply.


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class AllowedHosts:
    """`listen_host`: the address where the server listens; `extra_names`: its other names, from the command line."""

    def __init__(self, listen_host: str, extra_names: tuple[str, ...] = ()) -> None:
        self._names = {name.lower() for name in (*_LOOPBACK, *extra_names)}
        self._listens_everywhere = is_wildcard_address(listen_host)
        if self._listens_everywhere:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        else:
            self._names.add(listen_host.lower())
        self._accepted_hosts: set[bytes] = set()

    def check_request(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request that was meant for another host, or sent by a page of another site."""
        host = headers.get(b"host", b"")
        if host not in self._accepted_hosts:
            if not self._is_own_name(host.decode("latin-1")):
                raise HttpStatusError(
                    421, f"This server is not {host.decode('latin-1')[:80]!r}.", "Start it with --host NAME."
                )
            if len(self._accepted_hosts) < 1000:
                self._accepted_hosts.add(host)
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
            raise Forbidden("The request comes from a page of another site.", hint="")
        if headers.get(b"sec-fetch-site") == b"cross-site" and headers.get(b"sec-fetch-mode") != b"navigate":
            raise Forbidden("The request comes from a page of another site.", hint="")

    def _is_own_name(self, host: str) -> bool:
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self._names:
            return True
        return self._listens_everywhere and _is_address(name)  # an IP address cannot be rebound


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard_address(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
