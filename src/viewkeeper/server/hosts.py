"""By which names a server may be called, and from where: against DNS rebinding and requests of other sites' pages.

A page of another site can make a browser send requests here, under a name that its owner lets point to this machine
(rebinding), or plainly to this address. The first has a wrong Host. The second has an Origin that is not the Host, and
cannot set the content types that bodies need here; CORS is off, so it reads no answer.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from viewkeeper.errors import Forbidden
from viewkeeper.server.problems import Refused

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Hosts:
    """`listen`: where the server listens; `more`: other names of it, from the command line."""

    def __init__(self, listen: str, more: tuple[str, ...] = ()) -> None:
        self._names = {name.lower() for name in (*_LOOPBACK, *more)}
        self._anywhere = is_anywhere(listen)
        if self._anywhere:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        else:
            self._names.add(listen.lower())
        self._seen: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request that was meant for another host, or sent by a page of another site."""
        host = headers.get(b"host", b"")
        if host not in self._seen:
            if not self._is_mine(host.decode("latin-1")):
                raise Refused(421, f"This server is not {host.decode('latin-1')[:80]!r}.", "Start it with --host NAME.")
            if len(self._seen) < 1000:
                self._seen.add(host)
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
            raise Forbidden("The request comes from a page of another site.", hint="")
        if headers.get(b"sec-fetch-site") == b"cross-site" and headers.get(b"sec-fetch-mode") != b"navigate":
            raise Forbidden("The request comes from a page of another site.", hint="")

    def _is_mine(self, host: str) -> bool:
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self._names:
            return True
        return self._anywhere and _is_address(name)  # an address cannot be rebound


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_anywhere(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
