"""The short way for what is asked most: one row by its key, as JSON, without parameters.

The answer is made as soon as the headers are there, and written at once: no task, no queue, no second packet. Whatever
is not so plain (another format, a level, an error of any kind) gets None here, and goes the way that all requests go.
"""

from __future__ import annotations

import time
from typing import Any

from viewkeeper.errors import ViewkeeperError
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.read.rows import checked_key
from viewkeeper.read.suspension import refuse
from viewkeeper.server.auth import Hosts
from viewkeeper.server.context import Serving
from viewkeeper.server.http import json_values
from viewkeeper.server.http.paths import key_of, name_of

ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
FRESH = (b"cache-control", b"private, no-cache")
VARY = (b"vary", b"accept, accept-encoding, authorization")
SAME = b"".join(b"%s: %s\r\n" % header for header in (FRESH, VARY, *ALWAYS))
_FOUND = b"HTTP/1.1 200 OK\r\n%scontent-type: application/json\r\n" + SAME + b"%scontent-length: %d\r\n\r\n%s"
_UNCHANGED = b"HTTP/1.1 304 Not Modified\r\n%s" + SAME + b"%s\r\n"
_ACCEPTS = (None, b"*/*", b"application/json")
_REFUSED = frozenset((b"transfer-encoding", b"content-length", b"upgrade", b"expect"))


class Point:
    """Answers plain reads by key for a connection."""

    def __init__(self, serving: Serving, hosts: Hosts) -> None:
        self._serving, self._hosts = serving, hosts
        self._prefix = serving.store.uuid[:8].encode()
        self._catalog: Catalog | None = None
        self._tables: dict[bytes, tuple[Table, Any]] = {}

    def answer(self, url: bytes, given: list[tuple[bytes, bytes]], date: bytes) -> bytes | None:
        """The whole response, or None if this is for the others."""
        parts = url.split(b"/")
        if len(parts) < 5 or parts[1] != b"v1" or parts[3] != b"rows" or b"?" in url or parts[2] == b"views":
            return None
        started, headers, serving = time.perf_counter(), dict(given), self._serving
        if headers.get(b"accept") not in _ACCEPTS or not _REFUSED.isdisjoint(headers):
            return None
        if serving.db._reads.ahead:
            return None
        try:
            self._hosts.check(headers)
            if serving.keyring is not None:
                kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
                if kind.lower() != "bearer":
                    return None
                serving.keyring.role(token.strip())
            table, convert = self._table(parts[2])
            position = serving.hub.changed_at(table)
            tag = b""
            if position is not None and self._catalog is not None:
                name = b'"%s-%d-%d-j"' % (self._prefix, self._catalog.version, position)
                tag = b"etag: %s\r\n" % name
                given_tag = headers.get(b"if-none-match")
                if given_tag == name:
                    return self._counted(3, started, _UNCHANGED % (date, tag))
                if given_tag is not None and (b"," in given_tag or not given_tag.startswith(b'"')):
                    return None  # several, * or W/: read by those who read everything
            row = serving.store.get(table, checked_key(table, key_of(table, [p.decode("ascii") for p in parts[4:]])))
        except (ViewkeeperError, UnicodeDecodeError):
            return None
        if row is None:
            return None
        body = json_values.row_bytes(row, convert)
        return self._counted(2, started, _FOUND % (date, tag, len(body), body))

    def _table(self, name: bytes) -> tuple[Table, Any]:
        catalog = self._serving.store.catalog()
        if catalog is not self._catalog:
            self._catalog, self._tables = catalog, {}
        found = self._tables.get(name)
        if found is None:
            table = catalog.table(name_of(name.decode("ascii")))
            refuse(catalog.find(table.name))
            found = self._tables[name] = (table, json_values.converters(table.outside, False))
        return found

    def _counted(self, status: int, started: float, answer: bytes) -> bytes:
        metrics = self._serving.metrics
        metrics.reads["get"].inc()
        metrics.requests[status].inc()
        metrics.seconds.observe(time.perf_counter() - started)
        return answer
